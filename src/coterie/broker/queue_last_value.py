"""A last-value queue: of the messages with one key, only the newest is of interest.

`x-last-value-key` names the header that is the key. A message replaces the one with the same key, whoever holds that,
and stands at the tail with a position of its own. A holder may go on with a value that was replaced; what he accepts,
or gives back, is gone already, so that an old value never comes after a new one. What is leased stays with its lease,
and is dropped when that gives it back. Messages without the header, or with a table or list for it, are not replaced
and replace nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from coterie.broker.delivery import ranges_of
from coterie.broker.message_table import within
from coterie.broker.observer import Arrived, Mark, Reason
from coterie.broker.queue import Queue
from coterie.broker.ranges import PositionSet, Range
from coterie.broker.state.dedup_window import DIGEST
from coterie.broker.state.positions import cut
from coterie.broker.state.queue_state import QueueConfig
from coterie.broker.state.vocabulary import Kind
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.specs import QueueSpec

Keyed = tuple[int, bytes]


class LastValueQueue(Queue):
    kind = "last-value"
    marked = True

    @staticmethod
    def _config(spec: QueueSpec) -> QueueConfig:
        return QueueConfig(Kind.LAST_VALUE)

    def mark_of(self, message: Message) -> Mark:
        return _key(message, self.spec.last_value_key)

    def _mark(self, first: int, messages: Sequence[Message]) -> Sequence[Mark]:
        return [self.mark_of(message) for message in messages]

    def restore_mark(self, position: int, mark: Mark) -> None:
        if isinstance(mark, str):
            self.table.key([(position, _digest(mark))])

    def _restored(self) -> None:
        """What a lease holds and was replaced is no newest value, also if that has gone since. What nobody has replaced
        yet is so now."""
        values = self.table.state.last_values
        for lease in self.leases:
            for position in sorted(lease.replaced):
                key = values.keys.get(position)
                if key is not None and values.newest.get(key) == position:
                    del values.newest[key]
        older = [position for position, key in sorted(values.keys.items()) if values.newest.get(key) != position]
        self._replace(older)

    def _fit(self, arrived: Arrived | None, now: float | None) -> None:
        if arrived is not None and arrived.marks is not None:
            marks = enumerate(arrived.marks, arrived.first)
            keyed = [(position, _digest(mark)) for position, mark in marks if isinstance(mark, str)]
            if keyed:
                older = self._older(keyed)
                self.table.key(keyed)
                self._replace(older)
        super()._fit(arrived, now)

    def _older(self, keyed: Iterable[Keyed]) -> list[int]:
        """What these replace, in the order in which they come."""
        newest = self.table.state.last_values.newest
        latest: dict[bytes, int] = {}
        found: list[int] = []
        for position, key in keyed:
            before = latest.get(key, newest.get(key))
            if before is not None:
                found.append(before)
            latest[key] = position
        return found

    def _replace(self, positions: list[int]) -> None:
        """Values of which there are newer ones leave; those that are leased, when they are given back."""
        ranges = ranges_of(positions)
        for lease in self.leases:
            held = self.table.held_of(lease, ranges)
            new = [position for first, stop in held for position in range(first, stop)]
            for position in new:
                if position not in lease.replaced:
                    self.keep()
                    lease.replaced.add(position)
                    self.leases.save(lease)
            ranges = _without(ranges, held)
        ready = self.table.ready_of(ranges)
        if ready:
            self.leave(ready, Reason.REPLACED)
        self.dequeue_all(self.table.shares(ranges), ranges, Reason.REPLACED)

    def give_back(self, holder: object, ranges: list[Range], redelivered: bool) -> None:
        replaced = self.table.state.last_values.replaced_in(ranges)
        if replaced:
            self.dequeue(holder, within(ranges, replaced), Reason.REPLACED)
            ranges = self.table.held_of(holder, ranges)
        super().give_back(holder, ranges, redelivered)


def _without(ranges: list[Range], others: list[Range]) -> list[Range]:
    if not others:
        return ranges
    left = PositionSet(ranges)
    cut(left, others)
    return within(ranges, left)


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=DIGEST).digest()


def _key(message: Message, header: str) -> str | None:
    """The key as a text that tells 1 from "1"."""
    if not message.has_headers:
        return None
    try:
        value = (message.properties().headers or {}).get(header)
    except ProtocolError:  # a store, or a peer, has let it in
        return None
    if value is None or isinstance(value, list | tuple | dict):
        return None
    return f"{type(value).__name__}:{value}"
