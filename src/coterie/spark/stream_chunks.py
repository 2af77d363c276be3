"""What arrived, on its way to the state of its run: not a row for each event but a chunk for each run and file.

A chunk is a table of Arrow in one value, so that the events of a run cross the shuffle, and the border between Spark
and Python, by the thousand. Lines are read by the batch audit's own code (lines.py), and those that are no events
travel the same way. Where Spark split a file, or looked at some of its lines more closely, `place` puts it together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from coterie.spark import lines
from coterie.spark.rows import events_of, segments
from coterie.spark.schema import CORRUPT, EVENT_COLUMNS
from coterie.trace import Event

EVENTS_OF, NO_EVENTS = "events", "corrupt"
"""What a chunk holds; its key is a run, or a file."""
CHUNK_DDL = "what string, key string, file string, payload binary"
_CHUNK = pa.schema([("what", pa.string()), ("key", pa.string()), ("file", pa.string()), ("payload", pa.binary())])
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of value, file and block (see lines.parsed_in_blocks) -> chunks."""
    for batch in lines.parsed_in_blocks(batches):
        events = batch.filter(batch.column("run").is_valid())
        yield from _chunks(EVENTS_OF, "run", events, [*EVENT_COLUMNS, "place"])
        yield from _chunks(NO_EVENTS, "file", batch.filter(batch.column("reason").is_valid()), list(CORRUPT.columns))


def _chunks(what: str, key: str, batch: pa.RecordBatch, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    order = [(key, "ascending"), ("file", "ascending"), ("place", "ascending")]
    pieces = list(segments(batch.column(key), batch.column("file")))
    if len(pieces) > 1:
        batch = batch.take(pc.sort_indices(batch, sort_keys=order))
        pieces = list(segments(batch.column(key), batch.column("file")))
    slim = batch.select(columns)
    starts = [start for start, _ in pieces]
    payloads = [_packed(slim.slice(start, stop - start)) for start, stop in pieces]
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([what] * len(pieces)), batch.column(key).take(starts), batch.column("file").take(starts),
            pa.array(payloads, pa.binary()),
        ],
        schema=_CHUNK,
    )  # fmt: skip


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpacked(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def files_of(chunks: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[Event]]]:
    """Chunks of one run, as file and payload, in any order -> its files by name, each with its events in order."""
    by_file: dict[str, list[pa.Table]] = {}
    for file, payload in chunks:
        by_file.setdefault(file, []).append(unpacked(payload))
    for file in sorted(by_file):
        table = pa.concat_tables(by_file.pop(file)).sort_by("place").combine_chunks()
        yield file, [event for batch in table.to_batches() for event in events_of(batch)]
