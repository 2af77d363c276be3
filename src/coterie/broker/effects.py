"""Effects: what a place of the log makes of the state that all brokers have alike, as bytes, for the chain of the log.

Two brokers that follow the same log make the same effects; if they do not, their chains differ from there on
(cluster/chain.py). The words are those of docs/queue-state.md, each with the code of the operation that it stands for;
some things have no operation there, and have codes of their own. Queues that are at home on one broker, bodies, and
whatever else is this broker's own business are not told.

It hears of messages as an observer of queues, of everything else by one call where it changes, and only while it is
`on`. What a step does that is taken back is taken back here too, as in the store (journal.py). In which order a step
comes to several queues is no part of the state: what belongs to one queue, or one record, stands together.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from coterie.broker.delivery import positions_in
from coterie.broker.observer import Arrived, QueueObserver, Reason
from coterie.broker.state import holding, marks, messages, sharing, vocabulary

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range

ENQUEUE, ACQUIRE, RELEASE = messages.ENQUEUE.code, messages.ACQUIRE.code, messages.RELEASE.code
LEAVE, SETTLE_OWED, SENT = messages.LEAVE.code, messages.SETTLE_OWED.code, messages.SENT.code
EXPIRES, DELIVERIES, REMEMBER = marks.EXPIRES.code, marks.DELIVERIES.code, marks.REMEMBER.code
FORGET, LIMIT, LEAP, COUNT = marks.FORGET.code, marks.LIMIT.code, marks.LEAP.code, marks.COUNT.code
ADD, REMOVE, UPDATE = holding.ADD.code, holding.REMOVE.code, holding.UPDATE.code
WAKE, REST = holding.WAKE.code, holding.REST.code
OWN, TIME, CREATE, DELETE = sharing.OWN.code, sharing.TIME.code, sharing.CREATE.code, sharing.DELETE.code
# Without a counterpart there.
RECORD: Final = 128
"""Something that is wired, a policy, a user, a lease: it is there, or not any more."""
VOID: Final = 129
"""The event could not be carried out, and nothing of it has happened."""

_ONE: Final = Struct(">BQ")
_ROW: Final = Struct(">BQI")
_ENQUEUE: Final = Struct(">BQIQ")
_TIME: Final = Struct(">Bd")
_NUMBERS: Final = Struct(">BQQ")
_SINGLE, _RANGE, _LIST = b"\1", b"\2", b"\3"
_REASONS: Final = {
    reason: bytes((LEAVE, vocabulary.Reason[reason.name])) for reason in Reason if reason is not Reason.DELETED
}
_key = itemgetter(0)


def _positions(ranges: Sequence[Range]) -> bytes:
    if len(ranges) == 1:
        ((first, stop),) = ranges
        count = stop - first
        return _SINGLE + first.to_bytes(8) if count == 1 else _RANGE + first.to_bytes(8) + count.to_bytes(4)
    found = [*positions_in(ranges)]
    first, count = found[0], len(found)
    if found == [*range(first, first + count)]:
        return _RANGE + first.to_bytes(8) + count.to_bytes(4)
    return _LIST + count.to_bytes(4) + array("Q", found).tobytes()


def _flags(queue: Queue, ranges: Sequence[Range]) -> bytes:
    """Of those that somebody may have seen before, if there are any."""
    again = queue.table.flagged_of(ranges)
    return bytes((DELIVERIES,)) + _positions(again) if again else b""


class Effects(QueueObserver):
    """Of one broker."""

    __slots__ = ("_parts", "_time", "on")

    def __init__(self) -> None:
        self.on = False
        """Something that all brokers do alike is being done."""
        self._time = 0.0
        self._parts: list[tuple[int, bytes]] = []
        """By the number of the queue; what is of none has a number below 0."""

    # The place of the log.

    def begin(self, time: float) -> None:
        """`time`: what it is there."""
        self.on = True
        self._time = time

    def void(self) -> None:
        """Nothing of it has happened."""
        self._parts.append((-1, bytes((VOID,))))

    def take(self) -> bytes:
        """The place is over: what it has made."""
        self.on = False
        parts, self._parts = self._parts, []
        if len(parts) > 1:
            parts.sort(key=_key)
        out = [_TIME.pack(TIME, self._time)]
        current = -1
        for key, data in parts:
            if key != current:
                current = key
                if key >= 0:
                    out.append(_ONE.pack(0, key))
            out.append(data)
        return b"".join(out)

    def mark(self) -> int:
        return len(self._parts)

    def cut(self, mark: int) -> None:
        """Nothing has happened since."""
        del self._parts[mark:]

    def _put(self, queue: Queue, data: bytes) -> None:
        self._parts.append((queue.incarnation, data))

    # Messages, as an observer of queues.

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        if self.on and queue.home is None:
            messages = arrived.messages
            size = sum([len(message.body) for message in messages])
            data = _ENQUEUE.pack(ENQUEUE, arrived.first, len(messages), size)
            if arrived.expires is not None:
                times = array("d", [0.0 if time is None else time for time in arrived.expires])
                if any(times):
                    data += _ROW.pack(EXPIRES, len(times), crc32(times))
            self._put(queue, data)

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        if self.on and queue.home is None and ranges:
            name: bytes = getattr(holder, "effect_name", b"")
            self._put(queue, b"%c%b\0%b%b" % (ACQUIRE, name, _positions(ranges), _flags(queue, ranges)))

    def released(self, queue: Queue, ranges: Sequence[Range]) -> None:
        if self.on and queue.home is None and ranges:
            self._put(queue, b"%c%b%b" % (RELEASE, _positions(ranges), _flags(queue, ranges)))

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        if self.on and queue.home is None and ranges and reason is not Reason.DELETED:  # that is told of the queue
            self._put(queue, _REASONS[reason] + _positions(ranges))

    def leapt(self, queue: Queue) -> None:
        if self.on and queue.home is None:
            self._put(queue, _ONE.pack(LEAP, queue.next_position))

    def opened(self, queue: Queue) -> None:
        if self.on:
            told = f"{queue.kind} {queue.home or ''} {queue.vhost.name}\0{queue.name}"
            self._put(queue, b"%c%b\0" % (CREATE, told.encode("utf-8", "surrogateescape")))

    def deleted(self, queue: Queue) -> None:
        if self.on:
            self._put(queue, bytes((DELETE,)))

    # What queues do not tell their observers. Ask for `on` before.

    def limited(self, queue: Queue) -> None:
        """Other limits apply."""
        if queue.home is None:
            self._put(queue, _ONE.pack(LIMIT, crc32(repr(queue.limits).encode("utf-8", "surrogateescape"))))

    def counted(self, queue: Queue, what: vocabulary.Count, by: int) -> None:
        """A figure that no other effect tells."""
        if queue.home is None:
            self._put(queue, _NUMBERS.pack(COUNT, what, by))

    def consumer(self, queue: Queue, code: int, consumer: object, *numbers: int) -> None:
        """ADD, REMOVE, UPDATE, SENT, WAKE or REST, with its numbers."""
        if queue.home is None:
            name: bytes = getattr(consumer, "effect_name", b"")
            self._put(queue, b"%c%b\0%b" % (code, name, array("q", numbers).tobytes()))

    def settled(self, queue: int, holder: object, count: int) -> None:
        """So many are off their holder's account, whether they are still in the queue or have left it before."""
        name: bytes = getattr(holder, "effect_name", b"")
        self._parts.append((queue, b"%c%b\0%d " % (SETTLE_OWED, name, count)))

    def owned(self, queue: Queue, owner: str, tenure: int) -> None:
        """Its consumers are served, or another broker's."""
        self._put(queue, b"%c%b\0%d " % (OWN, owner.encode(), tenure))

    def remembered(self, queue: Queue, ids: bytes) -> None:
        """Message ids that the queue has seen."""
        if queue.home is None:
            self._put(queue, _NUMBERS.pack(REMEMBER, len(ids), crc32(ids)))

    def forgot(self, queue: Queue, count: int) -> None:
        """The oldest of them."""
        if queue.home is None:
            self._put(queue, _ONE.pack(FORGET, count))

    def record(self, kind: str, key: str, record: object) -> None:
        """It is there, or None: it is not any more."""
        what = f"{kind} {key}".encode("utf-8", "surrogateescape")
        told = b"" if record is None else json.dumps(record, sort_keys=True, default=str).encode()
        data = b"%c%b\0%b" % (RECORD, what, _ROW.pack(0, len(told), crc32(told)))
        self._parts.append((-2 - crc32(what), data))
