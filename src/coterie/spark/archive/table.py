"""What every kind of table can: take a batch once, and have small files replaced by larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from coterie.spark.archive.files import DataFile
from coterie.spark.archive.job import DELTA, ICEBERG, Job

if TYPE_CHECKING:
    import pyarrow as pa


class Table(Protocol):
    """A batch belongs to a query (by its id, which is in its checkpoint) and has a number."""

    def latest(self, query: str) -> int:
        """The last batch of that query that is in the table; -1: none is."""

    def commit(self, query: str, batch: int, files: Sequence[DataFile], schema: pa.Schema) -> bool:
        """All of the batch at once. False: it was there. `schema`: of the rows, with the date."""

    def files(self) -> list[DataFile]:
        """Those that are in the table and may be replaced, in the order in which they came."""

    def readable(self) -> list[DataFile]:
        """All that are in the table, for whoever reads the files themselves. Raises UserError where that is not the
        table."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """By files with the same rows, all at once."""

    def clean(self, keep: float) -> int:
        """Delete what is in the folder and belongs to no version of the table that is younger than `keep` seconds; says
        how many files that were. Nobody may be writing for this archive."""


def table_of(job: Job) -> Table:
    """The one that a job writes to."""
    if job.format == DELTA:
        from coterie.spark.archive.delta import Delta

        return Delta(job.target)
    if job.format == ICEBERG:
        from coterie.spark.archive.iceberg import Iceberg

        return Iceberg(job.target, job.catalog)
    from coterie.spark.archive.parquet import Parquet

    return Parquet(job.target)
