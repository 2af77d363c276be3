"""The folder of an audit: its tables, its report, and a note of what it is.

    audit.json               what was audited, whether it is done, and what came of it
    events/, runs/, ...      the tables of schema.py
    report.html, diagrams/   for people

Promises: nothing is written into a folder that holds anything else; what `overwrite` takes away, an audit has written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from coterie import __version__
from coterie.errors import UserError
from coterie.spark.places import shown
from coterie.spark.rows import arrow_schema
from coterie.spark.schema import TABLES, Table
from coterie.trace import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTE = "audit.json"
REPORT = "report.html"
DIAGRAMS = "diagrams"
NO_VALUE = "none"
"""Of the folder that holds a table's columns where there are no rows."""

_SPARK_FILE = re.compile(r"\.?(part-.*\.parquet|_SUCCESS)(\.crc)?|_temporary|_part-\d+\.parquet-.*")


class AuditFolder:
    """The folder, for one audit."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def begin(self, traces: Sequence[str], inputs: Sequence[str], overwrite: bool) -> None:
        """Make it ready to be written to. Raises UserError if it must not be."""
        for file in inputs:
            if Path(file).is_relative_to(self.path):
                raise UserError(f"--out {self.path}: holds {file}, which is to be audited: name another folder")
        try:
            if self.path.exists() and any(self.path.iterdir()):
                self._clear(overwrite)
            self.path.mkdir(parents=True, exist_ok=True)
            self.note({"state": "running", "traces": [*map(shown, traces)]})
        except OSError as error:
            raise UserError(f"--out {self.path}: {error.strerror or error}") from None

    def _clear(self, overwrite: bool) -> None:
        if not (self.path / NOTE).is_file():
            raise UserError(f"--out {self.path}: holds other things than an audit: name another folder")
        if not overwrite:
            raise UserError(f"--out {self.path}: holds an audit already: name another folder, or add --overwrite")
        found = [*self._ours()]  # all of it, before anything is gone
        for path in found:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    def _ours(self) -> Iterator[Path]:
        """Everything that an audit writes, folders behind what is in them. Raises UserError if there is more."""
        for table in TABLES:
            yield from _written(self.path / table.name, table.partitions)
        yield from _written(self.path / DIAGRAMS, (), re.compile(r".*\.html"))
        yield from (path for name in (REPORT, NOTE) if (path := self.path / name).exists())

    def discard(self) -> None:
        """Take away what was written: it came to nothing."""
        self._clear(overwrite=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def note(self, what: dict[str, Json]) -> None:
        """Renew audit.json."""
        path = self.path / NOTE
        known: dict[str, Json] = json.loads(path.read_text()) if path.exists() else {"coterie": __version__}
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps({**known, **what}, indent=2) + "\n")
        fresh.replace(path)

    def write(self, table: Table, rows: DataFrame) -> None:
        """The table. Even if it has no rows anyone can read it: there is always a file that tells its columns."""
        folder = self.path / table.name
        rows.write.partitionBy(*table.partitions).parquet(f"file://{folder}")
        if not any(folder.rglob("*.parquet")):
            self.write_empty(table)

    def write_empty(self, table: Table) -> None:
        folder = self.path / table.name
        for name in table.partitions:
            folder /= f"{name}={NO_VALUE}"
        folder.mkdir(parents=True, exist_ok=True)
        columns = {name: column for name, column in table.columns.items() if name not in table.partitions}
        pq.write_table(arrow_schema(columns).empty_table(), folder / "part-00000-empty.parquet")

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        return spark.read.schema(table.ddl).parquet(f"file://{self.path / table.name}")


def _written(folder: Path, partitions: Sequence[str], ours: re.Pattern[str] = _SPARK_FILE) -> Iterator[Path]:
    """A folder that an audit wrote, with all that is in it. Raises UserError if something else is."""
    if not folder.exists():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise UserError(f"{folder}: was not written by an audit: move it away first")
    for path in sorted(folder.iterdir()):
        if partitions and path.is_dir() and path.name.startswith(f"{partitions[0]}="):
            yield from _written(path, partitions[1:], ours)
        elif not ours.fullmatch(path.name):
            raise UserError(f"{path}: was not written by an audit: move it away first")
        elif path.name == "_temporary" and path.is_dir():
            yield from _left_over(path)
        elif path.is_dir():
            raise UserError(f"{path}: was not written by an audit: move it away first")
        else:
            yield path
    yield folder


def _left_over(folder: Path) -> Iterator[Path]:
    """What a write that was interrupted leaves: a tree of Spark's own."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _left_over(path)
        else:
            yield path
    yield folder
