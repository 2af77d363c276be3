"""Events on their way to the task that checks their run: not a row for each but a chunk for each run and file.

A chunk is a table of Arrow in one value, so that the events of a run cross Spark's shuffle, and the borders between
Spark and Python, by the thousand: neither knows what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from coterie.spark.rows import arrow_schema, events_of, segments
from coterie.spark.schema import EVENT_COLUMNS
from coterie.trace import Event

CHUNK: dict[str, tuple[str, str]] = {
    "run": ("string", "whose events these are"),
    "file": ("string", "from where"),
    "place": ("bigint", "of the first of them"),
    "payload": ("binary", "the events and their places"),
}
SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20)}
"""What a session needs for them: rows are of any size here, and only so much of them is handed to Python at a time."""

_SCHEMA = arrow_schema(CHUNK)
COLUMNS = [*EVENT_COLUMNS, "place"]
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def chunked(events: pa.Table) -> pa.RecordBatch:
    """Rows of the events table -> rows of CHUNK."""
    batch = _sorted(events.combine_chunks().to_batches()[0])
    pieces = [*segments(batch.column("run"), batch.column("file"))]
    slim = batch.select(COLUMNS)
    starts = pa.array([start for start, _ in pieces])
    payloads = [packed(slim.slice(start, stop - start)) for start, stop in pieces]
    heads = [batch.column(name).take(starts) for name in ("run", "file", "place")]
    return pa.RecordBatch.from_arrays([*heads, pa.array(payloads, pa.binary())], schema=_SCHEMA)


def _sorted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each run in one piece, by file and place."""
    files = batch.column("file").dictionary_encode()
    runs = batch.column("run").dictionary_encode().indices.to_numpy()
    homes = runs.astype(np.int64) * len(files.dictionary) + files.indices.to_numpy()
    places = batch.column("place").to_numpy()
    steps = np.diff(homes)
    if np.all((steps > 0) | ((steps == 0) & (np.diff(places) >= 0))):
        return batch
    return batch.take(pa.array(np.lexsort((places, homes))))


def packed(batch: pa.RecordBatch) -> bytes:
    """The value that holds a chunk."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def unpacked(payload: bytes) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(payload)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A run, put together from its chunks."""

    name: str
    events: list[Event] | None
    """In the order of the file, if it is one; None if there are too many."""
    count: int
    files: int


class Gathering:
    """Runs from chunks that come sorted by run, file and place. It holds one run, of so many events at most."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._name: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._events: list[Event] = []
        self._places: list[int] = []
        self._files: set[str] = set()
        self._count = 0

    def take(self, batch: pa.RecordBatch) -> Iterator[Gathered]:
        """The runs that are over with these rows of CHUNK."""
        columns = (batch.column(key).to_pylist() for key in ("run", "file", "payload"))
        for run, file, payload in zip(*columns, strict=True):
            if run != self._name:
                yield from self.finish()
                self._name = run
            self._files.add(file)
            for piece in unpacked(payload):
                self._count += piece.num_rows
                if self._count <= self._events_max:
                    self._events += events_of(piece)
                    self._places += piece.column("place").to_pylist()
                else:
                    self._events, self._places = [], []

    def finish(self) -> Iterator[Gathered]:
        """The last one."""
        if self._name is not None:
            whole = self._count <= self._events_max
            events = _in_order(self._events, self._places, len(self._files)) if whole else None
            yield Gathered(self._name, events, self._count, len(self._files))
        self._name = None
        self._begin()


def _in_order(events: list[Event], places: list[int], files: int) -> list[Event]:
    """In the order of the file, if it is one: chunks of an events table need not have kept it."""
    if files == 1 and any(one > other for one, other in pairwise(places)):
        return [event for _, event in sorted(zip(places, events, strict=True), key=lambda pair: pair[0])]
    return events
