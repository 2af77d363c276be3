"""Data files: tasks write them, and the driver gets their names and sizes, which are few.

A file counts when a table's commit names it, and not before: what an attempt leaves that failed is an orphan. Its name
says which batch of which archive it was for, and is like no other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coterie.spark.archive.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATE: Final = "date"
"""The column by which files are in folders, and which is not in them."""
BOUNDED: Final = ("queue", "position", "arrived")
"""Columns whose least and greatest values are told, so that readers can leave files out."""
COMPRESSION: Final = "zstd"
GROUP_BYTES: Final = 64 << 20
"""About so much of a file, uncompressed, is one row group, and is in a task's memory until it is written."""
_DDL: Final = "path string, date string, rows bigint, bytes bigint, bounds string"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One that is whole."""

    path: str
    """Its name in the table's folder."""
    date: str
    bytes: int
    rows: int = 0
    """0: the table does not say."""
    bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict, compare=False)


def written(rows: DataFrame, url: str, label: str) -> list[DataFile]:
    """The rows, which have a column `date`, as files behind that URL."""
    return [_of(row) for row in rows.mapInArrow(partial(_write, url, label), _DDL).collect()]


def rewritten(spark: SparkSession, url: str, label: str, bins: Sequence[Sequence[DataFile]]) -> list[DataFile]:
    """The files of each bin, which are of one date, as one file."""
    work = [(json.dumps([each.path for each in one]), one[0].date) for one in bins]
    each = spark.createDataFrame(work, "paths string, date string").repartition(len(work))
    return [_of(row) for row in each.mapInArrow(partial(_rewrite, url, label), _DDL).collect()]


def _of(row: Any) -> DataFile:
    bounds = {name: (low, high) for name, (low, high) in json.loads(row["bounds"]).items()}
    return DataFile(row["path"], row["date"], row["bytes"], row["rows"], bounds)


class _File:
    """One that is being written: rows of one date."""

    def __init__(self, place: Place, label: str, date: str, schema: pa.Schema) -> None:
        self._date, self._rows, self._held = date, 0, 0
        self._bounds: dict[str, list[Any]] = {}
        self._name = f"{DATE}={date}/{label}-{uuid.uuid4().hex}.parquet"
        self._batches: list[pa.RecordBatch] = []
        self._place = place
        place.system.create_dir(place.path(f"{DATE}={date}"))
        self._sink = place.system.open_output_stream(place.path(self._name))
        self._writer = pq.ParquetWriter(self._sink, schema, compression=COMPRESSION, coerce_timestamps="us")

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._rows += rows.num_rows
        self._held += rows.nbytes
        for name in BOUNDED:
            if name in rows.schema.names and rows.num_rows > rows.column(name).null_count:
                found = pc.min_max(rows.column(name))
                low, high = found["min"].as_py(), found["max"].as_py()
                before = self._bounds.setdefault(name, [low, high])
                before[:] = [min(before[0], low), max(before[1], high)]
        if self._held >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._held = [], 0

    def close(self) -> tuple[str, str, int, int, str]:
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        return self._name, self._date, self._rows, size, json.dumps(self._bounds, default=_iso)


def _iso(moment: Any) -> str:
    return str(moment.isoformat())


def _told(done: list[tuple[str, str, int, int, str]]) -> Iterator[pa.RecordBatch]:
    if done:
        columns = zip(*done, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(each) for each in columns], ["path", "date", "rows", "bytes", "bounds"]
        )


def _write(url: str, label: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    place: Place | None = None
    opened: dict[str, _File] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        place = place or Place(url)
        at = batch.schema.get_field_index(DATE)
        dates = batch.column(at).cast(pa.string())
        rows = pa.RecordBatch.from_arrays(
            [column for number, column in enumerate(batch.columns) if number != at], schema=batch.schema.remove(at)
        )
        for date in pc.unique(dates).to_pylist():
            if date not in opened:
                opened[date] = _File(place, label, date, rows.schema)
            opened[date].add(rows.filter(pc.equal(dates, date)))
    yield from _told([file.close() for file in opened.values()])


def _rewrite(url: str, label: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            place = Place(url)
            file: _File | None = None
            for path in json.loads(row["paths"]):
                with place.system.open_input_file(place.path(path)) as source, pq.ParquetFile(source) as old:
                    for rows in old.iter_batches():
                        file = file or _File(place, label, row["date"], rows.schema)
                        file.add(rows)
            if file is not None:
                yield from _told([file.close()])
