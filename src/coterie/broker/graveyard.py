"""Where messages that die are sent on: out of their queue and into those of the dead-letter exchange, in one step.

The store is told both within one unit, so that a crash loses neither the message nor its letter, and doubles nothing.
A queue that overflows with letters kills others in turn; these are worked off one after the other, in the same step.
What a step may cost is bounded: queues that kill each letter again, in a ring that is longer than a letter can tell, or
in branches that double with each death, would keep the broker, and with it a cluster, busy for ever; and so would many
messages that die together, each with a letter for very many queues. Such a step fails, and nothing of it has happened.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.broker.dead_letter import goes_round, make_letter
from coterie.broker.delivery import positions_in
from coterie.broker.message import Message, make_message, route_bytes
from coterie.broker.observer import Reason
from coterie.broker.topic import TooManySteps
from coterie.errors import ProtocolError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.publish import Routed
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.broker.vhost import Vhost

log = Log(__name__)
_WARNINGS_MAX = 1000
UNWRITABLE = make_message("", "", b"")
"""Instead of a letter that cannot be written."""
CASCADE_MAX: Final = 2 << 20
CASCADE_EACH: Final = 4 << 10
"""Bytes of headers, about, that letters of letters may have in one step: in any case, and for each message that dies in
it first. That is a second or two of work. It is no setting: every broker of a cluster must come to the same verdict."""
COPIES_MAX: Final = 200_000
COPIES_EACH: Final = 4
"""Copies for queues, and steps on the way to them, that the letters of one step may be, in the same way."""
DYING_MAX: Final = 20_000
"""Copies that letters of messages which expire together may be: what is more waits for a later step."""
_LETTER: Final = 128
"""What a letter costs besides its headers, as if it were bytes of them."""


class Cascade(ProtocolError):
    """Letters die, and those of letters, and so on."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(
            PRECONDITION_FAILED,
            f"dead letters, and those of dead letters, are too many for one step: those of {queue.what} were the last;"
            " see where x-dead-letter-exchange leads from queues that keep nothing, and how many queues get each",
        )


class Dead(NamedTuple):
    """Messages that have left their queue."""

    queue: Queue
    ranges: Sequence[Range]
    messages: Sequence[Message | None]
    reason: Reason
    told: bool
    """The queue's observers are to hear of it."""


class Graveyard:
    """Of one vhost."""

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._waiting: deque[Dead] = deque()
        self._busy = False
        self._step = 0
        """The journal's, for which is left:"""
        self._left = self._copies = 0
        self._warned: set[tuple[str, str, str]] = set()

    def bury(self, waiting: Dead) -> None:
        queue = waiting.queue
        if queue.journal.on:
            queue.journal.note(self._forget, waiting)
        self._waiting.append(waiting)
        if self._busy:
            return
        self._busy = True
        self._allow(queue, len(waiting.messages))
        store = self._vhost.store
        store.begin()
        try:
            self._send_on(self._waiting.popleft())
            while self._waiting:
                self._send_on(self._waiting.popleft(), again=True)
        finally:
            self._busy = False
            self._waiting.clear()  # one of them has failed, and with it the step that they belong to
            store.end()

    def _allow(self, queue: Queue, count: int) -> None:
        """So many die, not as letters of others in this step."""
        journal = queue.journal
        if not journal.on or journal.step != self._step:
            self._step, self._left, self._copies = journal.step, CASCADE_MAX, COPIES_MAX
        if queue.home is None:  # others have none of its messages, and must find the same left
            self._left += count * CASCADE_EACH
            self._copies += count * COPIES_EACH

    def work(self, queue: Queue, key: str) -> int:
        """What it costs if a message with that routing key dies in the queue (`Router.reach`)."""
        limits = queue.limits
        if limits.dead_exchange is None:
            return 0
        exchange, key = limits.dead_exchange, key if limits.dead_key is None else limits.dead_key
        try:
            return self._vhost.router.reach(exchange, key, route_bytes(exchange, key))[1]
        except TooManySteps:  # it leads nowhere
            return 1

    def at_once(self, queue: Queue) -> int:
        """Messages at the head of the queue that may die in one step, by where their letters go."""
        head = next(queue.table.heads(), None)
        key = "" if head is None else queue.routing_key(head)
        return max(1, DYING_MAX // max(1, self.work(queue, key)))

    def _spend(self, queue: Queue, work: int) -> None:
        """Raises Cascade if the step can be taken back."""
        if queue.home is None:  # else they are published, by events of their own
            self._copies -= work
            if self._copies < 0 and queue.journal.on:
                raise Cascade(queue)

    def _affords(self, queue: Queue, letter: Message) -> bool:
        """Whether a letter that died again may be sent on. Raises Cascade if the step can be taken back."""
        if queue.home is not None:  # its letters are published, by events of their own
            return True
        self._left -= len(letter.header) + _LETTER
        if self._left >= 0:
            return True
        if queue.journal.on:
            raise Cascade(queue)
        self._warn(queue.name, "", "dead letters that die again and again are dropped")
        return False

    def _forget(self, waiting: Dead) -> None:
        """A step was taken back: they have not died."""
        self._waiting = deque(each for each in self._waiting if each is not waiting)

    def _send_on(self, dead: Dead, again: bool = False) -> None:
        """`again`: a letter killed them, in this step."""
        queue, ranges, messages, reason, told = dead
        traced = None
        if told:
            for observer in queue.observers:
                observer.dequeued(queue, ranges, reason)
            traced = self._vhost.traced
        if traced is not None:
            traced.dying(queue)
        routed: Routed = {}
        unwritable: list[int] = []
        for position, message in zip(positions_in(ranges), messages, strict=True):
            assert message is not None, "what dies is brought from disk first"
            if again and not self._affords(queue, message):
                continue
            letter = self._address(queue, message, reason, routed)
            if letter is UNWRITABLE:
                unwritable.append(position)
            elif traced is not None and letter is not None:
                traced.letter(letter, position)
        if traced is not None:
            traced.addressed(queue, ranges, reason, routed, unwritable)
        queue.cluster.send_letters(self._vhost, routed)
        if traced is not None:
            traced.buried()

    def _address(self, queue: Queue, message: Message, reason: Reason, routed: Routed) -> Message | None:
        """The letter, and into `routed` for whom it is; None: there is nowhere to send it. UNWRITABLE: it cannot be
        made, whatever is in the message or in the queue's limits; it is dropped, once."""
        vhost, limits = self._vhost, queue.limits
        exchange = limits.dead_exchange
        assert exchange is not None
        if exchange and exchange not in vhost.exchanges:
            log.debug("a dead letter is dropped: no such exchange", queue=queue.name, exchange=exchange)
            return None
        try:
            letter, keys = make_letter(
                message, queue.name, reason, exchange, limits.dead_key, vhost.cluster.wall(),
                vhost.settings.death_records_max,
            )  # fmt: skip
        except (ProtocolError, ValueError, TypeError, ArithmeticError, OSError, struct.error) as error:
            queue.counters.unwritable += 1
            self._warn(queue.name, exchange, "a dead letter that cannot be written is dropped", error)
            return UNWRITABLE
        sent = False
        targets, _, work = vhost.router.find(exchange, keys, letter)
        self._spend(queue, work)
        for target in targets:
            if reason is not Reason.REJECTED and goes_round(letter, target.name):
                self._warn(queue.name, target.name, "dead letters that go round are dropped")
                continue
            waiting = routed.setdefault(target, [])
            # From a queue with a home they are published, and may be refused in their turn.
            asked = queue.home is None and target.limits.refuses and not target.elsewhere
            if asked and target.refuses(letter, len(waiting), sum(len(one.body) for one in waiting)):
                target.refuse([letter])
                continue
            waiting.append(letter)
            sent = True
        queue.counters.dead_lettered += sent
        return letter

    def _warn(self, queue: str, target: str, what: str, error: Exception | None = None) -> None:
        """Once for each pair: there may be very many such letters."""
        if (queue, target, what) not in self._warned and len(self._warned) < _WARNINGS_MAX:
            self._warned.add((queue, target, what))
            facts = {} if error is None else {"error": error}
            log.warning(what, queue=queue, to=target, **facts)
