"""Traces into a table: files of JSON lines, and events tables of earlier audits, become the table of events.

Promises: every line that is an event is in the table, with the file and the place that it came from; every other line
that is not empty is in `corrupt`, with the reason; which is which is decided by `audit.files.parse` alone (lines.py).
The driver and the executors must see the files, by paths or URLs, and the audit's folder, under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from coterie.audit import files
from coterie.errors import UserError
from coterie.spark import places
from coterie.spark.intake import FOUND, Piece, take_in
from coterie.spark.rows import arrow_schema
from coterie.spark.schema import CORRUPT, EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET = ".parquet"
TASK_BYTES = 32 << 20
"""Of lines, for one task: a second or two of work."""
TASKS_MIN = 8
LINE_BYTES = 160
"""Of an event, more or less."""
_DDL = ", ".join(f"`{name}` {kind}" for name, (kind, _) in FOUND.items())


@dataclass(slots=True)
class Inputs:
    """The files behind what a user named."""

    lines: list[str]
    """Paths, or URLs."""
    tables: list[str]
    """Of Parquet."""

    @property
    def files(self) -> list[str]:
        return [*self.lines, *self.tables]


def find(paths: Sequence[str]) -> Inputs:
    """Files, folders and patterns, or URLs of files and folders elsewhere: *.jsonl, and Parquet that an audit wrote.
    Raises UserError if one has none."""
    found: dict[str, None] = {}
    for text in paths:
        if places.is_remote(text):
            found.update(dict.fromkeys(_elsewhere(text)))
            continue
        text = text.removeprefix("file://")
        path = Path(text)
        if path.is_dir():
            tables = [*path.glob(f"*{PARQUET}"), *(path / EVENTS.name).glob(f"*{PARQUET}")]
            if tables and not any(path.rglob(f"*{files.SUFFIX}")):
                found.update(dict.fromkeys(sorted(str(table.absolute()) for table in tables)))
                continue
        found.update(dict.fromkeys(str(file.absolute()) for file in files.find([text])))
    tables_of = [file for file in found if file.partition("?")[0].endswith(PARQUET)]
    return Inputs([file for file in found if file not in {*tables_of}], tables_of)


def _elsewhere(url: str) -> list[str]:
    """Lines, or if there are none, what an audit wrote: its events, if it is a whole audit."""
    found = [*places.find(url, (files.SUFFIX, PARQUET))]
    lines = [file for file in found if file.partition("?")[0].endswith(files.SUFFIX)]
    events = [file for file in found if f"/{EVENTS.name}/" in file]
    return lines or events or found


def read(spark: SparkSession, inputs: Inputs, events: Path) -> DataFrame:
    """FOUND. Whoever computes it has all that read into the folder `events`."""
    for file in inputs.tables:
        _must_be_events(file)
    tasks = planned(inputs)
    events.mkdir(parents=True, exist_ok=True)
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(partial(take_in, tasks, str(events)), _DDL)


def about(inputs: Inputs) -> int:
    """How many events there may be."""
    rows = sum(map(_rows, inputs.tables))
    return sum(map(_size, inputs.lines)) // LINE_BYTES + rows


def planned(inputs: Inputs) -> list[list[Piece]]:
    """Who reads what: pieces of large files, and small files together, so that all have about the same to do."""
    sizes = {file: _size(file) for file in inputs.lines}
    share = max(1, min(TASK_BYTES, -(-sum(sizes.values()) // TASKS_MIN)))
    tasks: list[list[Piece]] = []
    room = 0
    for file, size in sizes.items():
        begin = 0
        while begin < size:
            if room <= 0:
                tasks.append([])
                room = share
            # A rest that is not worth a task goes with what is before it.
            end = size if size - begin <= room + share // 4 else begin + room
            tasks[-1].append(Piece(file, begin, end))
            room -= end - begin
            begin = end
    return tasks + [[Piece(file, parquet=True)] for file in inputs.tables]


def _size(file: str) -> int:
    try:
        return places.size_of(file)
    except OSError as error:
        raise UserError(f"{places.shown(file)}: cannot be read: {error.strerror or error}") from None


def _rows(file: str) -> int:
    with places.opened(file) as opened:
        return int(pq.read_metadata(opened).num_rows)


def _must_be_events(file: str) -> None:
    try:
        with places.opened(file) as opened:
            schema = pq.read_schema(opened)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{places.shown(file)}: cannot be read: {error}") from None
    wanted = arrow_schema(EVENTS.columns)
    if dict(zip(schema.names, schema.types, strict=True)) != dict(zip(wanted.names, wanted.types, strict=True)):
        raise UserError(
            f"{places.shown(file)}: is Parquet, but not the events of an audit: name the folder `events` of one"
        )


def corrupt(found: DataFrame) -> DataFrame:
    """CORRUPT of FOUND, with the number of the line as its place: lines in the blocks before, and number in its own."""
    along = Window.partitionBy("file").orderBy("place", "what")  # "block" stands before "corrupt"
    upto, lines_here = F.sum("count").over(along), F.last("count", ignorenulls=True).over(along)
    begin = F.last(F.when(F.col("what") == "block", F.col("place")), ignorenulls=True).over(along)
    # A table has no blocks: there the place is the one that its writer gave.
    number = F.coalesce(upto - lines_here + F.col("place") - begin + 1, F.col("place"))
    rows = found.where("what IN ('block', 'corrupt')").withColumn("number", number).where("what = 'corrupt'")
    return rows.withColumn("place", F.col("number")).select(*CORRUPT.columns)
