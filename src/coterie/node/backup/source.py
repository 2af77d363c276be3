"""What is backed up: a cut of a store, whose files can be read as long as it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cut is of."""

    node: str
    cluster: str
    """Empty: the node stands alone."""
    at: str
    """The place of the cluster's log that it has come to; empty: it is of no cluster."""
    last: int
    """The ordinal of the last record of the log in it."""
    files: tuple[tuple[str, int], ...]
    """Names and sizes, in the order in which they are copied."""


class Source(Protocol):
    @property
    def facts(self) -> Facts: ...

    def read(self, name: str, start: int, size: int) -> bytes:
        """Some of these bytes, at least one unless the file ends before. Raises CoterieError."""
