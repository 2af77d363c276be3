"""What is archived, where to, and how: what the command and its config file come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from coterie.spark import places

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
CHECKPOINT: Final = "_checkpoint"
"""In the target, where it is not told otherwise. Readers of Parquet leave out what begins so."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When small files become larger ones."""

    least: int = 8
    """So many small files of one date together; 0: never."""
    bytes: int = 128 << 20
    """As large as files become. Those that are half as large are not small."""
    every: float = 3600.0
    """Seconds from one time to the next, of an archive that goes on."""
    keep: float = 7 * 86400.0
    """Seconds for which files that nobody needs any more are kept in a table with versions (Delta, Iceberg)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One archive."""

    source: Mapping[str, str]
    """Options of `format("coterie")`: they hold a password."""
    what: str
    """The queues, for people and to be recognized by."""
    target: str
    format: str
    checkpoint: str
    schema: str = ""
    """Of bodies; empty: they are bytes."""
    trigger: float = 10.0
    once: bool = False
    compaction: Compaction = field(default_factory=Compaction)
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Of Iceberg: properties of the catalog, its name and the table's; nothing: one in the target."""

    def __str__(self) -> str:
        return f"{self.what} -> {places.shown(self.target)} ({self.format})"
