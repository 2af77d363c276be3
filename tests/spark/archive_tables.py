"""Batches of rows for tables, without Spark: the files that tasks would write, and what is in a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.spark.archive import files
from coterie.spark.archive.files import DataFile
from coterie.spark.archive.job import Job
from coterie.spark.archive.table import Table, table_of

QUERY = "3ef9b188-3b74-4d79-b1d6-d0e91ef67898"
SCHEMA = pa.schema(
    {
        "value": pa.binary(),
        "queue": pa.string(),
        "position": pa.int64(),
        "headers": pa.map_(pa.string(), pa.string()),
        "arrived": pa.timestamp("us", "UTC"),
        "date": pa.date32(),
    }
)


def table_in(folder: Path | str, format: str, **given: Any) -> Table:
    return table_of(Job({}, "queue orders", str(folder), format, "", **given))


def written(folder: Path | str, batch: int, positions: Sequence[int], day: int = 18) -> list[DataFile]:
    """What a task leaves that has written these rows."""
    count = len(positions)
    moment = datetime(2026, 11, day, 12, tzinfo=UTC)
    rows = {
        "value": [b"%d" % each for each in positions], "queue": ["orders"] * count, "position": [*positions],
        "headers": [[("a", "x")]] * count, "arrived": [moment] * count, "date": [date(2026, 11, day)] * count,
    }  # fmt: skip
    found = files._write(str(folder), f"{QUERY[:8]}-{batch:06}", iter([pa.RecordBatch.from_pydict(rows, SCHEMA)]))
    return [files._of(row) for told in found for row in told.to_pylist()]


def positions(table: Table, folder: Path) -> list[int]:
    """Of all rows that are in the table."""
    found: list[int] = []
    for each in table.readable():
        with pq.ParquetFile(folder / each.path) as file:
            found += file.read(columns=["position"]).column("position").to_pylist()
    return sorted(found)
