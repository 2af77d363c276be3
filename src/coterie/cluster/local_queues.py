"""Queues that are at home on one broker: every broker knows them and routes to them, and one has their messages.

That is so for queues that are declared with `x-replicated` = false, and for exclusive ones. Home is the broker whose
client declared the queue. Declarations, bindings, purges and deletes are events of the log, as for any queue, and so is
a publish of another broker's client: but only the home enqueues it. What becomes of the messages there is the home's
business alone, as if it stood alone: allotment, acks, limits, time. So it needs no event; and what leaves the queue
towards others, as dead letters do, is a publish of the home.

What depends on messages or consumers of such a queue (how many were purged, whether it is empty) is decided by its
home, at the place of the question in the log, and told by an event. A queue ends with its home: everywhere, at the
place of the view without that broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.amqp.wire.codes import INTERNAL_ERROR, NOT_FOUND, RESOURCE_LOCKED
from coterie.broker.cluster import NullCluster
from coterie.broker.wiring import CountQueue, DeleteQueue, EndQueue, Purge
from coterie.cluster import wire
from coterie.cluster.outbox import Asked
from coterie.cluster.wire import Kind
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.journal import Journal
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.broker.queue import Queue
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import Vhost
    from coterie.broker.wiring import Change
    from coterie.cluster.consumers import Peer
    from coterie.cluster.proposer import Proposer
    from coterie.cluster.standing import Standing
    from coterie.cluster.turn import Turn
    from coterie.group.members import Address
    from coterie.runtime.base import Runtime

NOWHERE: Final = "#0"
"""The home of a queue that was found in the store: the process that it was at home in is gone."""


def has_home(spec: QueueSpec) -> bool:
    return spec.exclusive or not spec.replicated


def name_of_home(queue: Queue) -> str:
    """The name of the broker, for people; nothing: the queue is everywhere."""
    return "" if queue.home is None else queue.home.rpartition("#")[0]


def _nothing(_: object = None) -> None:
    pass


class AtHome(NullCluster):
    """The cluster, as a queue sees it that is at home here: every step at once, by this broker alone."""

    def __init__(self, runtime: Runtime, turn: Turn, proposer: Proposer) -> None:
        self._turn = turn
        self._proposer = proposer
        self.start(runtime)

    def wall(self) -> float:
        return self._turn.wall()

    def send_letters(self, vhost: Vhost, routed: Routed) -> None:
        """They are published, as other brokers do not know of them."""
        letters = {target: letters for target, letters in routed.items() if letters}
        if letters:
            vhost.journal.after(self._proposer.publish, vhost, letters, _nothing)

    def unused(self, queue: Queue) -> None:
        """Its last consumer is gone. Who comes while the others are told is sent away again."""
        change = EndQueue(queue.name, queue.incarnation)
        queue.journal.after(self._proposer.wiring, queue.vhost, change, _nothing)


class Away(NullCluster):
    """The cluster, as a queue sees it that is at home elsewhere: nothing happens to it here."""

    immediate = False

    def keeps_time(self) -> bool:
        return False

    def check_use(self, queue: Queue) -> None:
        raise ProtocolError(
            RESOURCE_LOCKED,
            f"{queue.what} is not replicated: its messages are on the node '{name_of_home(queue)}', connect there to "
            "consume or get them",
        )


class _Waiting(NamedTuple):
    """A question of ours that the home of a queue will answer."""

    home: str
    done: Callable[[object], None]
    if_lost: object
    """The answer if that broker is lost before."""


class LocalQueues:
    """Of one broker: the queues that are at home here, and what others are asked about theirs."""

    def __init__(
        self, runtime: Runtime, standing: Standing, turn: Turn, proposer: Proposer, journal: Journal,
        vhosts: Mapping[str, Vhost], answer: Callable[[Asked, object], None],
    ) -> None:  # fmt: skip
        self._standing = standing
        self._us = str(standing.us)
        self._proposer = proposer
        self._journal = journal
        self._vhosts = vhosts
        self._answer_asked = answer
        self._at_home = AtHome(runtime, turn, proposer)
        self._away = Away()
        self._away.start(runtime)
        self.queues: dict[int, Queue] = {}
        """All queues of the broker, by incarnation."""
        self.here: set[Queue] = set()
        self._waiting: dict[str, _Waiting] = {}
        """By the place of the question in the log."""

    def place(self, queue: Queue, home: str) -> None:
        """There is a new queue with a home."""
        queue.home = home
        if home == self._us:
            queue.cluster = self._at_home
            self.here.add(queue)
        else:
            queue.elsewhere = True
            queue.cluster = self._away

    def forget(self, queue: Queue) -> None:
        if queue.journal.on and queue in self.here:
            queue.journal.note(self.here.add, queue)
        self.here.discard(queue)

    # Publishes of our clients.

    def enqueue(self, routed: Routed, publishes: Sequence[Publish]) -> Routed:
        """Queues that are at home here get theirs now. None of our clients' messages comes to them by another way, but
        for those of a transaction, for which its channel waits: so each publisher's order is kept. Gives what is left
        for the log."""
        ours = [queue for queue in routed if queue in self.here]
        if not ours:
            return routed
        for queue in ours:
            enqueue(queue, routed[queue], Asked(b"", publishes=publishes))
        return {queue: messages for queue, messages in routed.items() if queue not in self.here}

    # Questions, in the order of the log.

    @staticmethod
    def asked_about(vhost: Vhost, change: Change[object]) -> Queue | None:
        """The queue with a home whose home has to answer, if it is one."""
        if not isinstance(change, (Purge, DeleteQueue, CountQueue)):
            return None
        queue = vhost.queues.get(change.name)
        return queue if queue is not None and queue.home is not None else None

    def decide(self, peer: Peer, queue: Queue, change: Change[object], asked: Asked | None) -> object:
        """What is the same everywhere is done everywhere. The home tells the rest; and whoever asked waits for that.
        Raises ProtocolError, everywhere alike."""
        home, vhost = queue.home, queue.vhost
        assert home is not None
        end = isinstance(change, DeleteQueue) and change.conditional
        if isinstance(change, DeleteQueue) and end:
            vhost.check_owner(queue, change.owner)
            answer = self._judge(queue, change) if home == self._us else None
        elif isinstance(change, DeleteQueue):
            answer = change.apply(vhost)
        else:
            answer = self._look(queue, change)
        ours = peer.address == self._standing.us
        if home == self._us and (end or not ours):
            self._tell(peer.address, queue, answer, end and not isinstance(answer, ProtocolError))
        if not ours or (home == self._us and not end):
            return answer
        assert asked is not None
        if asked.done is not None:
            gone = 0 if isinstance(change, DeleteQueue) else ProtocolError(NOT_FOUND, f"no {queue.what}")
            self._journal.after(self._wait, self._place(), _Waiting(home, asked.done, gone), asked)
        return None

    @staticmethod
    def _look(queue: Queue, change: Change[object]) -> object:
        """What it comes to here, where the messages are or not. If only that fails, whoever asked is told so."""
        vhost, answers = queue.vhost, list[object]()
        vhost.queue(queue.name, change.owner if isinstance(change, (Purge, CountQueue)) else None)
        if vhost.journal.apart(lambda: answers.append(change.apply(vhost)), "a question about a queue of this broker"):
            return answers[0]
        return ProtocolError(INTERNAL_ERROR, f"{queue.what}: this has failed where it is at home; its log says why")

    @staticmethod
    def _judge(queue: Queue, change: DeleteQueue) -> object:
        try:
            return change.check(queue)
        except ProtocolError as error:
            return error

    def _wait(self, place: str, waiting: _Waiting, asked: Asked) -> None:
        self._waiting[place] = waiting
        asked.done = None

    def _place(self) -> str:
        """Of the event that is being applied: where a question was asked names it for ever."""
        progress = self._standing.progress
        return f"{progress.epoch}.{progress.index}"

    def _tell(self, asker: Address, queue: Queue, answer: object, end: bool) -> None:
        refused = [answer.reply_code, str(answer)] if isinstance(answer, ProtocolError) else None
        said: dict[str, object] = {
            "to": str(asker), "asked": self._place(), "refused": refused, "answer": None if refused else answer,
            "end": [queue.vhost.name, queue.name, queue.incarnation] if end else None,
        }  # fmt: skip
        queue.journal.after(self._proposer.tell, Kind.HOME, wire.encode_json(said))

    def told(self, data: memoryview) -> None:
        """The home of a queue has decided."""
        said = wire.decode_json(data)
        end, refused, answer, to, asked = (said[name] for name in ("end", "refused", "answer", "to", "asked"))
        if isinstance(refused, list):
            answer = ProtocolError(int(refused[0]), str(refused[1]))
        elif isinstance(answer, list):
            answer = tuple(answer)
        if isinstance(end, list):
            vhost = self._vhosts.get(end[0])
            change, journal = EndQueue(end[1], end[2]), self._journal
            if vhost is not None and not journal.apart(partial(change.apply, vhost), "the end of a queue"):
                answer = ProtocolError(INTERNAL_ERROR, f"queue '{end[1]}' cannot be deleted; the log says why")
        if to == self._us:
            self._journal.after(self._answer, str(asked), answer)

    def _answer(self, place: str, answer: object) -> None:
        waiting = self._waiting.pop(place, None)
        if waiting is not None:
            self._answer_asked(Asked(b"", waiting.done, everywhere=True), answer)

    # Members that are lost.

    def strangers(self, members: Iterable[Address]) -> list[str]:
        """LocalQueues that are none of these."""
        there = {str(member) for member in members}
        queues = self.queues.values()
        return sorted({queue.home for queue in queues if queue.home is not None and queue.home not in there})

    def lose(self, home: str) -> None:
        """What was at home there ends."""
        for queue in [queue for queue in self.queues.values() if queue.home == home]:
            queue.journal.apart(partial(queue.vhost.remove_queue, queue), "the end of a queue whose home is gone")
        for place in [place for place, waiting in self._waiting.items() if waiting.home == home]:
            self._journal.after(self._lost, place)

    def _lost(self, place: str) -> None:
        waiting = self._waiting.get(place)
        if waiting is not None:
            self._answer(place, waiting.if_lost)

    def clear(self) -> None:
        """None of our clients' questions will be answered any more."""
        self._waiting.clear()


def enqueue(queue: Queue, messages: list[Message], asked: Asked | None) -> None:
    """A queue gets messages; a full one may refuse some."""
    if queue.deleted or queue.elsewhere:
        return
    if queue.limits.refuses:
        messages, refused = sort_out(queue, messages)
        if refused:
            if asked is not None:
                asked.refuse(refused)
            queue.refuse(refused)
    if queue.window is not None:
        queue.window.take(messages)
    else:
        queue.enqueue(messages)


def sort_out(queue: Queue, messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """What a queue takes, and what it is too full for."""
    if queue.deleted or not queue.limits.refuses:
        return messages, []
    taken: list[Message] = []
    refused: list[Message] = []
    size = 0
    for message in messages:
        if queue.refuses(message, len(taken), size):
            refused.append(message)
        else:
            taken.append(message)
            size += len(message.body)
    return taken, refused
