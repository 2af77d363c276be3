"""Events from the log: of records that are on disk or on their way there, whole or what a merge has left of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.broker.columns.contents import Unreadable
from coterie.broker.columns.event import PublishEvent
from coterie.broker.columns.layout import MalformedEvent
from coterie.broker.columns.routes import KnownRoutes
from coterie.log.body_reader import BodyReader
from coterie.log.place import Place
from coterie.runtime.base import Buffer


def _whole(head: Buffer) -> Buffer:
    return head


class LogSource:
    """`place_of`: where the event of a reference is; both rise together. `head_of`: the event's own head in that of a
    record, which may have something of others before it."""

    def __init__(
        self,
        reader: BodyReader,
        known: KnownRoutes,
        place_of: Callable[[int], Place],
        head_of: Callable[[Buffer], Buffer] = _whole,
    ) -> None:
        self._reader = reader
        self._known = known
        self._place_of = place_of
        self._head_of = head_of

    async def read(self, refs: Sequence[int]) -> list[PublishEvent | Unreadable]:
        found = await self._reader.read([self._place_of(ref) for ref in refs], with_heads=True)
        events: list[PublishEvent | Unreadable] = []
        for bodies in found:
            if bodies.data is None:
                events.append(Unreadable(bodies.problem, bodies.lasting))
                continue
            try:
                events.append(PublishEvent.of_record(self._head_of(bodies.head), bodies.data, self._known))
            except MalformedEvent as error:
                events.append(Unreadable(f"record {bodies.place} has no messages to read: {error}", True))
        return events
