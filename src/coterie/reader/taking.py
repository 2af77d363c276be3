"""Messages of a work queue under a lease, batch by batch: taken, and retired when whoever reads says so.

What is taken is nobody else's: no consumer gets it, no time to live or limit touches it. What is done is gone for good.
When the block is left, in whatever way, everything that is not done is ready again, flagged as redelivered. A process
that is killed leaves its lease: the next one under the same name takes it over, and is given first what is not done of
it. So each message is given at least once, and exactly once if what is stored and what is done go together.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Unpack

import pyarrow as pa

from coterie.errors import UserError
from coterie.logs import Log
from coterie.reader.batches import ROWS, Batches, Columns, checked, schema, sliced
from coterie.reader.brokers import Brokers, Login, Nodes, brokers
from coterie.streams.arrow import record_batch
from coterie.streams.client import Client, Gone, Lease, NotFound, Piece, StreamError

BYTES: Final = 16 << 20
"""Of bodies that are taken at a time."""
WAIT: Final = 10.0
"""Seconds for which a node holds its answer back, at most, while there is nothing."""
PAUSE: Final = 0.1
"""Seconds until it is asked again, if it does not: it has too many who wait."""
LEAVING: Final = 5.0
"""Seconds for which it is tried to give everything back when an error leaves the block."""
_log = Log(__name__)


class Taken(Batches):
    """A context manager, for one thread. Iterating ends when there is nothing for so long as `wait` says."""

    def __init__(
        self,
        brokers: Brokers,
        queue: str,
        name: str,
        columns: Columns = None,
        batch_rows: int = ROWS,
        batch_bytes: int = BYTES,
        wait: float | None = 0.0,
    ) -> None:
        """Raises UserError."""
        checked("batch_rows", batch_rows, 1)
        checked("batch_bytes", batch_bytes, 1)
        if not queue or not name:
            raise UserError("a queue has a name, and so has a lease")
        self.schema: pa.Schema = schema(columns)
        self.queue = queue
        self.name = name
        self._brokers = brokers
        self._rows = batch_rows
        self._bytes = batch_bytes
        self._wait = wait
        self._session = f"reader {uuid.uuid4().hex}"
        self._held: Lease | None = None
        self._steps: Client | None = None
        self._given = 0
        """The offset behind the last row that was given."""
        self._open: deque[tuple[int, int]] = deque()
        """Offsets that were given and are not done: from, and up to."""

    def __enter__(self) -> Taken:
        if self._steps is not None:
            raise UserError(f"the lease '{self.name}' is in use: make another one")
        steps = self._brokers.client()
        try:
            steps.spread()
            self._held = self._begin(steps)
        except BaseException:
            steps.close()
            raise
        self._steps = steps
        self._given = self._held.first
        self._open.clear()
        return self

    def _begin(self, steps: Client) -> Lease:
        known = steps.lease(self.queue, self.name)
        if known is not None:
            try:
                return steps.take(known, self._session)
            except (NotFound, Gone):
                pass  # it has just ended
        return steps.acquire(self.queue, self.name, self._session, self._rows, self._bytes)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        steps, held = self._inside()
        self._steps = self._held = None
        if error is None:
            with steps:
                steps.end(held)
            return
        steps.close()
        try:
            with self._brokers.hasty(LEAVING).client() as hasty:
                hasty.prefer(steps.urls)
                hasty.end(held)
        except StreamError as problem:
            _log.warning(f"lease '{self.name}' of queue '{self.queue}' could not be ended: {problem}")

    def _inside(self) -> tuple[Client, Lease]:
        if self._steps is None or self._held is None:
            raise UserError(f"the lease '{self.name}' is not held: use it within its with block")
        return self._steps, self._held

    @property
    def lease(self) -> Lease:
        """As a node told it last."""
        return self._inside()[1]

    @property
    def pending(self) -> int:
        """Rows that were given and are not done."""
        return sum(stop - first for first, stop in self._open)

    def done(self, rows: int | None = None) -> int:
        """Everything that was given so far, or the oldest so many rows of it, is done with for good. Gives how many
        rows that are. May be called again when it fails."""
        steps, held = self._inside()
        checked("rows", rows, 0)
        count = self.pending if rows is None else rows
        if count > self.pending:
            raise UserError(f"rows: {self.pending} are given and not done, not {count}")
        if count:
            upto = self._offset_behind(count)
            self._held = steps.retire(held, upto)
            while self._open and self._open[0][1] <= upto:
                self._open.popleft()
            if self._open and self._open[0][0] < upto:
                self._open[0] = (upto, self._open[0][1])
        return count

    def _offset_behind(self, rows: int) -> int:
        """Of so many that are open."""
        for first, stop in self._open:
            if rows <= stop - first:
                return first + rows
            rows -= stop - first
        raise AssertionError("more rows than are open")

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._inside()
        with self._brokers.client() as reading:  # connections of its own: steps are taken while an answer comes
            reading.prefer(self._inside()[0].urls)
            while True:
                for first, stop in spans(self._inside()[1].pieces, self._given):
                    yield from self._read(reading, first, stop)
                if not self._take_more():
                    return

    def _read(self, reading: Client, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        for batch in reading.read_lease(self._inside()[1], first, stop):
            for rows in sliced(record_batch(batch, self.queue, self.schema), self._rows):
                self._give(max(first, self._given), rows.num_rows)
                yield rows
                self._inside()

    def _give(self, first: int, rows: int) -> None:
        """Rows of a span have neighbouring offsets."""
        self._given = first + rows
        if self._open and self._open[-1][1] == first:
            first = self._open.pop()[0]
        self._open.append((first, self._given))

    def _take_more(self) -> bool:
        """Whether there is more."""
        until = None if self._wait is None else time.monotonic() + self._wait
        while True:
            steps, held = self._inside()
            self._held = held = steps.acquire(
                self.queue, self.name, self._session, self._rows, self._bytes, after=held.next,
                incarnation=held.incarnation, id=held.id,
            )  # fmt: skip
            if held.acquired:
                return True
            left = WAIT if until is None else until - time.monotonic()
            if left <= 0:
                return False
            self._await_messages(steps, min(left, WAIT, self._brokers.timeout / 2))

    def _await_messages(self, steps: Client, seconds: float) -> None:
        begun = time.monotonic()
        steps.tails([self.queue], wait=seconds)
        rest = min(PAUSE, seconds) - (time.monotonic() - begun)
        if rest > 0:
            time.sleep(rest)

    def __repr__(self) -> str:
        return f"<lease '{self.name}' of '{self.queue}'>"


def spans(pieces: Sequence[Piece], at: int) -> list[tuple[int, int]]:
    """What a lease holds from an offset on, in runs of neighbouring offsets; those between were released or lost."""
    found: list[tuple[int, int]] = []
    for piece in pieces:
        first = max(piece.offset, at)
        if first >= piece.stop:
            continue
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, piece.stop))
    return found


def lease(
    queue: str,
    name: str,
    nodes: Nodes = None,
    *,
    columns: Columns = None,
    batch_rows: int = ROWS,
    batch_bytes: int = BYTES,
    wait: float | None = 0.0,
    **login: Unpack[Login],
) -> Taken:
    """Take messages of a queue, as many rows and bytes of bodies at a time, until there are none for `wait` seconds;
    None: for ever. The lease is called `name`: one process at a time uses it, and one that is killed is followed by the
    next of that name. The rest of the arguments is in `Login`."""
    return Taken(brokers(nodes, login), queue, name, columns, batch_rows, batch_bytes, wait)
