"""What recovery found and has to tell. Nothing is cut, skipped or removed without one of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from coterie.log.place import Place, Position
from coterie.log.snapshot import Snapshot


class Kind(Enum):
    """What is wrong, and what became of it."""

    LEFTOVER = "unfinished or replaced file, removed"
    STRANGER = "unknown file, left alone"
    FOREIGN = "file of another log, left alone"
    EMPTY = "empty segment, removed"
    TORN = "end of the log that a crash cut off: not known to be synced, given up"
    UNREADABLE = "file that the disk cannot read"
    BAD_HEADER = "segment with a damaged header"
    BAD_SNAPSHOT = "damaged snapshot, an older one is used"
    BAD_BODY = "record with damaged bodies: they have to be fetched"
    BAD_RECORD = "synced record that is damaged"
    MISSING = "synced records that are missing"
    BROKEN_CHAIN = "synced record that does not follow the one before it"


PLACES_MAX = 1000
"""Places that one problem lists."""


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Kind
    file: str
    text: str = ""
    places: tuple[Place, ...] = ()
    """The records that are concerned, as far as it is known which."""
    halts: bool = False
    """The log ends before it, and takes no records until it was truncated there."""

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        more = ", ..." if len(self.places) > 5 else ""
        places = f" ({', '.join(map(str, self.places[:5]))}{more})" if self.places else ""
        return f"{self.file or 'the log'}: {self.kind.value}{text}{places}"


@dataclass(slots=True)
class Found:
    """What a recovery came to."""

    log_id: bytes
    snapshot: Snapshot | None
    last: Position
    """The last record that counts."""
    synced: Position
    """The last one that is on disk: `last`, unless the log is halted."""
    replayed: int
    problems: list[Problem] = field(default_factory=list)

    @property
    def halted(self) -> str:
        """Why the log takes no records; empty: it does."""
        return "; ".join(str(problem) for problem in self.problems if problem.halts)

    @property
    def bad_bodies(self) -> list[Place]:
        return [place for problem in self.problems if problem.kind is Kind.BAD_BODY for place in problem.places]
