"""Events on their way to the task that checks their run: not a row for each but a chunk for each run and file.

A chunk is a table of Arrow in one value, so that the events of a run cross Spark's shuffle, and the borders between
Spark and Python, by the thousand: neither knows what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.spark.rows import events_of, segments
from coterie.spark.schema import EVENT_COLUMNS
from coterie.trace import Event

CHUNK: dict[str, tuple[str, str]] = {
    "run": ("string", "whose events these are"),
    "file": ("string", "from where"),
    "place": ("bigint", "of the first of them"),
    "payload": ("binary", "the events and their places"),
}
CHUNK_DDL = ", ".join(f"`{name}` {kind}" for name, (kind, _) in CHUNK.items())
SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20)}
"""What a session needs for them: rows are of any size here, and only so much of them is handed to Python at a time."""

_SCHEMA = pa.schema([("run", pa.string()), ("file", pa.string()), ("place", pa.int64()), ("payload", pa.binary())])
_COLUMNS = [*EVENT_COLUMNS, "place"]
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def gathered(files: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of numbers of `files`, which are of the events table -> batches of CHUNK."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            with pq.ParquetFile(files[number]) as file:
                for group in range(file.num_row_groups):
                    yield _chunks(file.read_row_group(group, use_threads=False))


def _chunks(events: pa.Table) -> pa.RecordBatch:
    batch = _sorted(events.combine_chunks().to_batches()[0])
    pieces = [*segments(batch.column("run"), batch.column("file"))]
    slim = batch.select(_COLUMNS)
    starts = pa.array([start for start, _ in pieces])
    payloads = [_packed(slim.slice(start, stop - start)) for start, stop in pieces]
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


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def runs_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, list[Event], int]]:
    """Batches of CHUNK, sorted by run, file and place -> each run with its events and its number of files."""
    name: str | None = None
    events: list[Event] = []
    places: list[int] = []
    files: set[str] = set()
    for batch in batches:
        columns = (batch.column(key).to_pylist() for key in ("run", "file", "payload"))
        for run, file, payload in zip(*columns, strict=True):
            if run != name:
                if name is not None:
                    yield name, _in_order(events, places, len(files)), len(files)
                name, events, places, files = run, [], [], set()
            for piece in pa.ipc.open_stream(payload):
                events += events_of(piece)
                places += piece.column("place").to_pylist()
            files.add(file)
    if name is not None:
        yield name, _in_order(events, places, len(files)), len(files)


def _in_order(events: list[Event], places: list[int], files: int) -> list[Event]:
    """In the order of the file, if it is one: chunks of an events table need not have kept it."""
    if files == 1 and any(one > other for one, other in pairwise(places)):
        return [event for _, event in sorted(zip(places, events, strict=True), key=lambda pair: pair[0])]
    return events
