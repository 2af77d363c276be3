"""A consistent cut of a store that is written to: which files of the log, and how much of each, hold what is synced.

Files of the log only grow, or are replaced as a whole: whoever has opened all of them at one time can read the cut from
them for as long as it likes, whatever becomes of their names.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.broker.log_store.store import LogStore
from coterie.errors import CoterieError
from coterie.log.folder import snapshot_name
from coterie.log.segment import HEADER_SIZE, Segment


@dataclass(frozen=True, slots=True)
class Cut:
    folder: str
    """In the data folder."""
    last: int
    """The ordinal of the last record in it."""
    files: tuple[tuple[str, int | None], ...]
    """Names and sizes; None: all of it."""


def cut_of(store: LogStore) -> Cut:
    """As it is now. Raises CoterieError while the store is being replaced by another broker's state."""
    if store.keeps_old:
        raise CoterieError("this broker is being brought up to date: its store is not whole yet")
    generation = store.current
    log = generation.log
    synced = log.writer.synced.ordinal
    files: list[tuple[str, int | None]] = [(snapshot_name(ordinal), None) for ordinal in log.snapshots.kept]
    files += [(each.file, _size(each, synced)) for each in log.segments.list if each.before.ordinal <= synced]
    folder = store.folder_of(generation.number)
    return Cut(folder, synced, tuple(files))


def _size(segment: Segment, synced: int) -> int | None:
    """Of one that is written to: up to the end of the last record that is on disk."""
    if segment.closed or segment.table is None:
        return None if segment.file_size else segment.size
    rows = segment.table.first_after(synced)
    return segment.table.row(rows - 1).end if rows else HEADER_SIZE
