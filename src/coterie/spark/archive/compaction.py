"""Small files become larger ones: files of one date, in the order in which they came, until they are large enough.

Tasks write the larger files; the table exchanges them all at once. An exchange that did not come to its end leaves
orphans, which the next one deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coterie.spark.archive.files import DataFile, rewritten
from coterie.spark.archive.job import Compaction
from coterie.spark.archive.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LABEL: Final = "compact"


@dataclass(slots=True)
class Compacted:
    """What was done."""

    before: int = 0
    after: int = 0
    orphans: int = 0


def bins(files: Sequence[DataFile], settings: Compaction) -> list[list[DataFile]]:
    """What is to become one file each."""
    found: list[list[DataFile]] = []
    if not settings.least:
        return found
    by_date: dict[str, list[DataFile]] = {}
    for file in files:
        if file.bytes < settings.bytes / 2:
            by_date.setdefault(file.date, []).append(file)
    for date in sorted(by_date):
        one: list[DataFile] = []
        size = 0
        for file in by_date[date]:
            if one and size + file.bytes > settings.bytes:
                found.append(one)
                one, size = [], 0
            one.append(file)
            size += file.bytes
        found.append(one)
    return [one for one in found if len(one) >= max(2, settings.least)]


def compact(spark: SparkSession, table: Table, url: str, settings: Compaction) -> Compacted:
    """No query of this archive may run meanwhile."""
    done = Compacted(orphans=table.clean(settings.keep))
    work = bins(table.files(), settings)
    if work:
        new = rewritten(spark, url, LABEL, work)
        old = [file for one in work for file in one]
        table.replace(old, new)
        done.before, done.after = len(old), len(new)
        done.orphans += table.clean(settings.keep)
    return done
