"""How a broker that was updated gets the bodies of its messages: it asks those in step for them, while it serves.

Queue after queue, the smallest first, and each from its back to its front: those at the front are likely to be gone
before they are asked for. A queue that has all of its messages is ready, and its consumers here are given some from the
place of the log on where this broker says so. When all are ready, and on disk, this broker is in step.

Whoever is asked answers with what it has at the places that the question names. An answer may lack some, as that broker
may have come further in the log, or not as far. What is then still needed here is asked for again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from coterie.cluster.bodiless import Bodiless, Watch, is_bodiless
from coterie.cluster.wire import Kind
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.storage import Store
    from coterie.cluster.applier import Applier
    from coterie.cluster.catchup.snapshot import Told
    from coterie.cluster.membership import Progress
    from coterie.cluster.peer_messages import PeerMessages
    from coterie.cluster.replica import Replica
    from coterie.group.members import Address
    from coterie.runtime.base import Buffer, Runtime, Timer

log = Log(__name__)
ASK, BODIES = 8, 9
"""The first byte of a question, and of an answer.

A question has a number that no earlier one had, of this update or of one that was given up: its answer may still come.
Then for each queue its own number, how many messages, and their positions. The answer has the number of the question, a
size for each message in the same order, and the bodies without anything between them.
"""
_NUMBER = struct.Struct(">Q")
_QUEUE = struct.Struct(">QI")
_LACKS = 0xFFFF_FFFF
"""The size of a body that whoever was asked has not got."""
BATCH_MESSAGES = 2000
"""That one question asks for."""
UNDER_WAY = 4
"""Questions without answers, and answers that are not on disk yet."""
AGAIN = 0.02
"""Seconds after which what an answer lacked is asked for again."""


class Backfill:
    """Of one broker, once."""

    def __init__(
        self, runtime: Runtime, replica: Replica, applier: Applier, store: Store, peers: PeerMessages, messages: Told,
        cut: Progress, questions: Iterator[int], batch: int, multicast: Callable[[Kind, dict[str, object]], None],
        save: Callable[[], None],
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._replica = replica
        self._applier = applier
        self._store = store
        self._peers = peers
        self.cut = cut
        """Where the state was cut that is filled."""
        self._questions = questions
        """Their numbers: none is used twice."""
        self._batch = batch
        """Bytes that one question asks for."""
        self._multicast = multicast
        self._save = save
        """The store keeps how far this broker has come."""
        self._watch = Watch(runtime)
        applier.watch = self._see
        for queue in applier.queues.values():
            self._see(queue)
        self._queues = _in_order(messages.values())
        """What is to be asked for, by the number of its queue; the last first."""
        self._left = {number: len(found) for number, found in self._queues.items()}
        """How many of each are bodiless, or were when somebody looked last."""
        self._asked: dict[int, tuple[Address, list[Bodiless]]] = {}
        self._unwritten = 0
        self._again: list[Bodiless] = []
        self._said = False
        """That all is here."""
        self._timer: Timer | None = None
        self._waiting: list[Callable[[], None]] = []
        self._over = False

    @property
    def unready(self) -> list[int]:
        return [*self._left]

    def _see(self, queue: Queue) -> None:
        queue.observers.append(self._watch)

    def when_filled(self, call: Callable[[], None]) -> None:
        """Whenever some have come: see whether that is what you wait for."""
        self._waiting.append(call)

    def stop(self) -> None:
        """It is complete, or given up."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._applier.watch = None
        for queue in self._applier.queues.values():
            if self._watch in queue.observers:
                queue.observers.remove(self._watch)

    # Asking.

    def begin(self) -> None:
        self._ask()
        self._look()

    def view_changed(self) -> None:
        """Whoever was asked may be gone."""
        for number, (member, wanted) in list(self._asked.items()):
            if member not in self._replica.in_step:
                del self._asked[number]
                self._again += wanted
        self._retry()

    def _ask(self) -> None:
        members = [member for member in self._replica.in_step if member != self._replica.us]
        while members and len(self._asked) + self._unwritten < UNDER_WAY and not self._over:
            wanted, question = self._next()
            if not wanted:
                return
            number = next(self._questions)
            # The youngest: the oldest one orders everybody's events.
            self._asked[number] = (members[-1], wanted)
            self._peers.send(members[-1], b"".join((bytes((ASK,)), _NUMBER.pack(number), *question)))

    def _next(self) -> tuple[list[Bodiless], list[bytes]]:
        """What to ask for next, and the question."""
        wanted: list[Bodiless] = []
        question: list[bytes] = []
        left = self._batch
        while self._queues and left > 0 and len(wanted) < BATCH_MESSAGES:
            number, messages = next(iter(self._queues.items()))
            if not messages:
                del self._queues[number]
                continue
            queue = number
            positions: list[int] = []
            while messages and left > 0 and len(wanted) < BATCH_MESSAGES:
                message = messages.pop()
                if message.asked_for:
                    continue  # another queue has it too, and was first
                message.asked_for = True
                place = next(message.places(), None)
                if place is None:
                    self._done(message)  # nobody needs it any more
                    continue
                left -= len(message.body)
                if place[0].incarnation != queue and positions:
                    question.append(_places(queue, positions))
                    positions = []
                queue = place[0].incarnation
                wanted.append(message)
                positions.append(place[1])
            if positions:
                question.append(_places(queue, positions))
        return wanted, question

    # Answers.

    def bodies(self, data: memoryview) -> None:
        (question,) = _NUMBER.unpack_from(data)
        _, wanted = self._asked.pop(question, (None, None))
        if wanted is None or self._over:
            return
        filled: list[Bodiless] = []
        lacking: list[Bodiless] = []
        sizes = struct.Struct(f">{len(wanted)}I")
        at = _NUMBER.size + sizes.size
        found = sizes.unpack_from(data, _NUMBER.size) if len(data) >= at else ()
        if at + sum(size for size in found if size != _LACKS) != len(data):
            log.error("an answer that is none to what was asked", question=question)
            found = (_LACKS,) * len(wanted)
        for message, size in zip(wanted, found, strict=True):
            if size == _LACKS:
                lacking.append(message)
                continue
            message.fill(bytes(data[at : at + size]))
            at += size
            filled.append(message)
            self._done(message)
        self._keep(filled)
        if lacking:
            self._again += lacking
            if self._timer is None:
                self._timer = self._runtime.call_later(AGAIN, self._retry)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
        self._look()
        self._unwritten += 1
        store = self._store
        store.when_synced(store.written(), self._written)

    def _written(self) -> None:
        """An answer is on disk: as fast as that is done others are asked, whose disks may be the same."""
        self._unwritten -= 1
        self._ask()
        self._look()

    def _keep(self, filled: Iterable[Bodiless]) -> None:
        """On disk, now that there is something to keep."""
        by_queue: dict[Queue, list[int]] = {}
        for message in filled:
            for queue, position in message.places():
                by_queue.setdefault(queue, []).append(position)
            message.forget()
        for queue, positions in by_queue.items():
            queue.bodies_came(positions)

    def _retry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        again, self._again = self._again, []
        for message in again:
            message.asked_for = False
            self._queues.setdefault(message.needed_by[0], []).append(message)
        self._ask()
        self._look()

    def _done(self, message: Bodiless) -> None:
        """That one needs nothing any more."""
        for number in message.needed_by:
            self._left[number] -= 1

    def _look(self) -> None:
        """Say what is ready."""
        if self._over or self._said:
            return
        ready = [number for number, left in self._left.items() if not left]
        for number in ready:
            del self._left[number]
        if ready:
            self._say(Kind.FILLED, queues=ready)
        if not self._left:
            self._said = True
            self._save()
            # The new store takes the place of the old one: only then may anybody count on it.
            self._store.whole(self._is_whole)

    def _is_whole(self) -> None:
        if not self._over:
            self._replica.filled()
            self._say(Kind.WHOLE)

    def _say(self, kind: Kind, **more: object) -> None:
        self._multicast(kind, {"cut": [self.cut.epoch, self.cut.index], **more})


def _in_order(messages: Iterable[Bodiless]) -> dict[int, list[Bodiless]]:
    """By queue, the smallest first; each as it was told, which is from its front to its back."""
    found: dict[Queue, list[Bodiless]] = {}
    alone: dict[Queue, tuple[int, ...]] = {}
    for message in messages:
        places = message.known_places
        if len(places) == 1:
            ((queue, _),) = places
            if queue not in found:
                found[queue] = []
                alone[queue] = (queue.incarnation,)
            found[queue].append(message)
            message.needed_by = alone[queue]
        else:
            message.needed_by = tuple(queue.incarnation for queue, _ in places)
            for queue, _ in places:
                found.setdefault(queue, []).append(message)
                alone.setdefault(queue, (queue.incarnation,))
    return {
        queue.incarnation: found[queue] for queue in sorted(found, key=lambda queue: (queue.bytes, queue.incarnation))
    }


def _places(queue: int, positions: list[int]) -> bytes:
    return _QUEUE.pack(queue, len(positions)) + struct.pack(f">{len(positions)}Q", *positions)


def answer(queues: Mapping[int, Queue], data: memoryview) -> bytes:
    """What this broker has in these queues of that which another one asks for."""
    sizes: list[int] = []
    bodies: list[Buffer] = []
    at = _NUMBER.size
    while at < len(data):
        number, count = _QUEUE.unpack_from(data, at)
        at += _QUEUE.size
        positions = struct.unpack_from(f">{count}Q", data, at)
        at += 8 * count
        queue = queues.get(number)
        for position in positions:
            message = None if queue is None else queue.message(position)
            if message is None or is_bodiless(message):
                sizes.append(_LACKS)
            else:
                sizes.append(len(message.body))
                bodies.append(message.body)
    head = (bytes((BODIES,)), data[: _NUMBER.size], struct.pack(f">{len(sizes)}I", *sizes))
    return b"".join((*head, *bodies))
