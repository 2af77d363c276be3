"""What a task does to read traces: pieces of files in, one Parquet file of events out.

Python and Arrow do this without Spark's help: a task opens the files it was told to, parses them (lines.py) and writes
its part of the events table under a name of its own, whole or not at all, so that a task that is run twice does no
harm. Spark gets the events in chunks, for who checks them, an outline of them, and the lines that are none.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coterie.errors import UserError
from coterie.spark import lines, places
from coterie.spark.chunks import chunked
from coterie.spark.rows import arrow_schema
from coterie.spark.schema import EVENTS

CHUNK = 4 << 20
"""Bytes of a file that are parsed at a time, and a line's rest."""
LINE_MAX = 64 << 20
"""Bytes of a line; a longer one is several, none of them an event."""
GROUP_ROWS = 128 * 1024
"""Events that are written at a time."""

FOUND: dict[str, tuple[str, str]] = {
    "what": ("string", "chunk, outline, corrupt or block"),
    "file": ("string", "where it was read"),
    "place": ("bigint", "of a corrupt line or of a chunk's first event; of a block, where it begins"),
    "count": ("bigint", "events of an incarnation; lines of a block"),
    "text": ("string", "the corrupt line"),
    "reason": ("string", "what is wrong with it"),
    "run": ("string", "outline: what one incarnation wrote into one file"),
    "node": ("string", ""),
    "inc": ("bigint", ""),
    "first_t": ("double", "by its own clock"),
    "last_t": ("double", ""),
    "first": ("double", "by the clock that nodes share"),
    "last": ("double", ""),
    "end": ("bigint", "the highest number and, in the last two bits, the index of its kind in ENDS"),
    "real": ("boolean", "some event has a wall clock"),
    "payload": ("binary", "of a chunk: chunks.CHUNK"),
}
"""What a task tells Spark."""
ENDS = ("", "stop", "crash", "truncated")
_SCHEMA = arrow_schema(FOUND)
_EVENTS_SCHEMA = arrow_schema(EVENTS.columns)


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that begin in a part of a file; or all of a Parquet file."""

    file: str
    begin: int = 0
    end: int = 0
    parquet: bool = False


def take_in(tasks: Sequence[Sequence[Piece]], out: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of numbers of tasks -> batches of FOUND; the events go to the folder `out`."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from _take_in(tasks[number], Part(Path(out) / f"part-{number:05d}.parquet"))


def _take_in(pieces: Sequence[Piece], part: Part) -> Iterator[pa.RecordBatch]:
    from_lines = lines.parsed_in_blocks(_lines(piece for piece in pieces if not piece.parquet))
    from_tables = lines.verified(_rows(piece for piece in pieces if piece.parquet))
    with part:
        for batch in chain(from_lines, from_tables):
            if batch.column("run").null_count == 0:
                part.add(batch)
                yield from part.chunks()
            else:
                is_block = batch.column("reason").is_null()
                what = pc.if_else(is_block, "block", "corrupt")
                yield _found(batch.num_rows, what=what, **{name: batch.column(name) for name in _NOTED})
    yield from part.chunks()
    yield from part.outline()


_NOTED = ("file", "place", "count", "text", "reason")


def _lines(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    """Batches of value, file and block, as parsed_in_blocks wants them."""
    for piece in pieces:
        for data in _read(piece):
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            value = pc.split_pattern(pa.array([data.removesuffix(b"\n")], pa.binary()), b"\n").flatten()
            file = pa.repeat(places.shown(piece.file), len(value))
            block = pa.repeat(piece.begin, len(value))
            yield pa.RecordBatch.from_arrays([value, file, block], names=["value", "file", "block"])


def _read(piece: Piece) -> Iterator[bytes]:
    """The lines that begin in that piece, some at a time."""
    try:
        with places.opened(piece.file) as file:
            if piece.begin:
                file.seek(piece.begin - 1)
                file.readline()  # it began before, and belongs to whoever reads there
            elif file.read(3) != b"\xef\xbb\xbf":  # a byte order mark is no part of the line
                file.seek(0)
            while (here := file.tell()) < piece.end and (data := file.read(min(CHUNK, piece.end - here))):
                yield data if data.endswith(b"\n") else data + file.readline(LINE_MAX)
    except OSError as error:
        raise UserError(f"{places.shown(piece.file)}: cannot be read: {error.strerror or error}") from None


def _rows(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        try:
            with places.opened(piece.file) as opened, pq.ParquetFile(opened) as file:
                yield from file.iter_batches(columns=list(EVENTS.columns))
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{places.shown(piece.file)}: cannot be read: {error}") from None


class Part:
    """A file of the events table. It appears when the block is over; until then it has a name that nobody reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fresh = path.with_name(f"_{path.name}-{uuid.uuid4()}")
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._outlines: list[pa.Table] = []
        self._fresh_chunks: list[pa.RecordBatch] = []

    def __enter__(self) -> None:
        pass

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch.select(_EVENTS_SCHEMA.names))
        self._rows += batch.num_rows
        if self._rows >= GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, _EVENTS_SCHEMA)
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._fresh, _EVENTS_SCHEMA, compression="snappy")
            self._writer.write_table(table, row_group_size=2 * GROUP_ROWS)
            self._outlines.append(outlined(table))
            self._fresh_chunks.append(chunked(table))
            self._waiting, self._rows = [], 0

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._write()
        if self._writer is not None:
            self._writer.close()
            if kind is None:
                self._fresh.replace(self._path)
            else:
                os.unlink(self._fresh)

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """Of the events that were written since this was asked."""
        for batch in self._fresh_chunks:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield _found(batch.num_rows, what=pa.repeat("chunk", batch.num_rows), **columns)
        self._fresh_chunks = []

    def outline(self) -> Iterator[pa.RecordBatch]:
        for table in self._outlines:
            columns = {name: table[name].combine_chunks() for name in table.column_names}
            yield _found(table.num_rows, what=pa.repeat("outline", table.num_rows), **columns)


def outlined(events: pa.Table) -> pa.Table:
    """For each incarnation and file: how many events there are, from when to when, and how they end."""
    code = pc.fill_null(pc.index_in(events["kind"], pa.array(ENDS[1:])), -1)
    end = pc.bit_wise_or(pc.shift_left(events["n"], 2), pc.cast(pc.add(code, 1), pa.int64()))
    keys = ["run", "node", "inc", "file"]
    wanted = events.select([*keys, "t"]).append_column("end", end)
    wanted = wanted.append_column("at", pc.coalesce(events["wall"], events["t"]))
    wanted = wanted.append_column("real", events["wall"].is_valid())
    found = wanted.group_by(keys, use_threads=False).aggregate(
        [([], "count_all"), ("t", "min_max"), ("at", "min_max"), ("end", "max"), ("real", "any")]
    )
    times, moments = found["t_min_max"].combine_chunks(), found["at_min_max"].combine_chunks()
    return pa.table({
        **{name: found[name] for name in keys},
        "count": found["count_all"], "first_t": times.field("min"), "last_t": times.field("max"),
        "first": moments.field("min"), "last": moments.field("max"), "end": found["end_max"], "real": found["real_any"],
    })  # fmt: skip


def _found(rows: int, **columns: pa.Array) -> pa.RecordBatch:
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
