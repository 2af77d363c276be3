"""What the streaming audit writes: a row of folders `batch=N` in each table, and nothing twice.

Spark repeats a batch that was not committed, with the same input and the same state. So a batch is written as a whole,
in the place of whatever an earlier attempt left: whoever reads the Parquet files, with Spark or without, sees each row
once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.audit import Violation
from coterie.audit.live import LiveRun
from coterie.spark.schema import CORRUPT, RUNS, VIOLATIONS, Table
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATE = Table(
    "late",
    "every event that came when its place had been given up: its run was over, or its incarnation taken to end before",
    {
        "run": ("string", "its run"),
        "node": ("string", "the node"),
        "inc": ("bigint", "its incarnation"),
        "n": ("bigint", "number of the event"),
        "line": ("string", "the event, as a line of the trace"),
        "reason": ("string", "hole: it stands behind one; over: the verdict on its run was out"),
    },
)
TABLES = (VIOLATIONS, RUNS, LATE, CORRUPT)
OPEN = "open_"
"""In front of a table's name: what a stream that was stopped would say of the runs that were not over by then."""
OUT_DDL = "what string, body string"
"""What leaves the state: the name of a table, and a row of it as JSON."""

Row = tuple[str, str]


def violation_rows(run: str, found: Iterable[Violation]) -> Iterator[Row]:
    for violation in found:
        proof = [event.to_json() for event in violation.events]
        row = {"run": run, "text": violation.text, "proof": proof, "property": violation.property}
        yield VIOLATIONS.name, _json(row)


def run_row(run: LiveRun) -> Row:
    return RUNS.name, _json({
        "run": run.name, "events": run.events, "files": run.files,
        "incarnations": sum(node != "world" for node, _ in run.incarnations),
        "causal": run.causal, "ignored": run.ignored, "seconds": run.last - run.first, "violations": run.told,
        "origin": "live" if run.real else "simulated",
    })  # fmt: skip


def late_rows(events: Iterable[Event], reason: str) -> Iterator[Row]:
    for event in events:
        row = {"run": event.run, "node": event.node, "inc": event.inc, "n": event.n, "line": event.to_json()}
        yield LATE.name, _json({**row, "reason": reason})


def corrupt_rows(rows: Iterable[dict[str, Any]]) -> Iterator[Row]:
    for row in rows:
        yield CORRUPT.name, _json({**row, "place": row["place"] + 1})  # lines count from 1


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)


def write_batch(out: str, rows: DataFrame, batch: int) -> None:
    """Rows of OUT_DDL to their tables, as that batch of them."""
    rows.persist()  # it is looked at several times, and must not be computed as often: the state would change again
    try:
        present = {row["what"] for row in rows.select("what").distinct().collect()}
        for table in TABLES:
            if table.name in present:
                write(rows, table, f"{out}/{table.name}/batch={batch}")
    finally:
        rows.unpersist()


def write(rows: DataFrame, table: Table, folder: str) -> None:
    """Those rows of OUT_DDL that are the table's."""
    from pyspark.sql import functions as F

    columns = F.from_json("body", table.ddl).alias("row")
    mine = rows.where(F.col("what") == table.name).select(columns).select("row.*")
    mine.coalesce(1).write.mode("overwrite").partitionBy(*table.partitions).parquet(folder)


def fresh(out: Path, batch: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """How many violations that batch brought, and the first of them. It takes no job: the driver sees the files."""
    import pyarrow.dataset as ds

    folder = out / VIOLATIONS.name / f"batch={batch}"
    if not folder.is_dir():
        return 0, []
    found = ds.dataset(folder, format="parquet", partitioning="hive")
    return found.count_rows(), found.head(limit, columns=["run", "text", "property"]).to_pylist()


def forget(out: Path, latest: int) -> None:
    """Take away what was written by batches after that one."""
    for table in TABLES:
        for folder in (out / table.name).glob("batch=*"):
            if int(folder.name.partition("=")[2]) > latest:
                shutil.rmtree(folder)


def written(folder: Path) -> Iterator[Path]:
    """The files of a table, but not those that are still being written."""
    for place, folders, names in os.walk(folder):  # which takes it calmly when something disappears meanwhile
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        yield from (Path(place, name) for name in names if name.endswith(".parquet") and not name.startswith("."))


def read(spark: SparkSession, out: Path, table: Table, opened: bool = False) -> DataFrame:
    """A table as far as it is written; empty if nothing is. `opened`: the one about runs that are not over."""
    folder = out / ((OPEN if opened else "") + table.name)
    if next(written(folder), None) is None:
        return spark.createDataFrame([], table.ddl)
    return spark.read.schema(table.ddl).parquet(str(folder.absolute())).select(*table.columns)
