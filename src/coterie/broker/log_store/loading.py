"""Bringing paged-out messages back: in few reads, in the order in which they were asked for, one batch at a time.

Records are read whole, and checked against their checksums; a message that cannot be read stays out, and whoever asked
gets the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.broker.delivery import count_of
from coterie.broker.log_store.content import decode_content
from coterie.broker.log_store.head import decode_head
from coterie.broker.log_store.index import EPOCH, Index
from coterie.broker.storage import Damaged, Loaded
from coterie.errors import DiskError, WireError
from coterie.log.body_reader import Bodies, BodyReader
from coterie.log.place import Place
from coterie.logs import Log
from coterie.runtime.base import Runtime

if TYPE_CHECKING:
    from coterie.broker.log_store.lines import Line
    from coterie.broker.message import Message
    from coterie.broker.ranges import Range

log = Log(__name__)

Wanted = dict[int, list[tuple[int, int]]]
"""By record: offsets and positions."""


class Loader:
    """Bounded by who asks: each queue asks for one batch at a time."""

    def __init__(self, runtime: Runtime, index: Index, reader: BodyReader) -> None:
        self._runtime = runtime
        self._index = index
        self._reader = reader
        self._waiting: deque[tuple[Line | None, Sequence[Range], Loaded]] = deque()
        self._running = False
        self.damaged = 0
        """Messages that could not be read."""

    def load(self, line: Line | None, ranges: Sequence[Range], done: Loaded) -> None:
        self._waiting.append((line, ranges, done))
        if not self._running:
            self._running = True
            self._runtime.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                line, ranges, done = self._waiting.popleft()
                done(*await self._load(line, ranges))
        except Exception:  # somebody's `done` raised: the others are served all the same
            self._running = bool(self._waiting)
            if self._running:
                self._runtime.spawn(self._run())
            raise
        self._running = False

    async def _load(self, line: Line | None, ranges: Sequence[Range]) -> tuple[dict[int, Message], Exception | None]:
        error: Exception | None = None
        found: dict[int, Message] = {}
        wanted: Wanted = {}
        missing = count_of(ranges)
        for record, offset, position in () if line is None else self._index.places(line, ranges):
            missing -= 1
            wanted.setdefault(record, []).append((offset, position))
        if missing:
            error = DiskError(f"{missing} messages are not in the store")
        places = [Place(EPOCH, record) for record in sorted(wanted)]
        while places:
            for bodies in await self._reader.read(places, with_heads=True):
                failed = self._fill(bodies, wanted[bodies.place.index], found)
                error = failed or error
                del places[0]
        return found, error

    def _fill(self, bodies: Bodies, wanted: list[tuple[int, int]], found: dict[int, Message]) -> Exception | None:
        if bodies.data is None:
            log.error("messages cannot be read", record=bodies.place, count=len(wanted), why=bodies.problem)
            if not bodies.lasting:
                return DiskError(bodies.problem)
            self.damaged += len(wanted)
            return Damaged(bodies.problem)
        try:
            contents = decode_head(bytes(bodies.head)).contents
            if contents is None:
                raise Damaged("there are no messages in the record")
            starts = contents.starts()
            for offset, position in wanted:
                at = contents.at(offset)
                if at is None:
                    raise Damaged("the message is not in the record")
                message = decode_content(bytes(bodies.data[starts[at] : starts[at + 1]]))
                message.stored = bodies.place.index << 32 | offset
                found[position] = message
        except (WireError, Damaged) as error:
            log.error("messages make no sense", record=bodies.place, count=len(wanted), why=error)
            self.damaged += len(wanted)
            return Damaged(str(error))
        return None
