"""The store's settings: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import UserError
from coterie.settings import setting

SEGMENT_MOST = 1 << 30
"""Places in a segment are 32-bit numbers, and the last append may go beyond the size that was set."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How the log on disk is cut, synced, bounded and cleaned up."""

    segment_bytes: int = setting(64 << 20, "size from which on a new segment is begun", unit="bytes", minimum=1)
    record_bytes: int = setting(
        256 << 10, "size from which on what is told in one turn is cut into several records", unit="bytes", minimum=1
    )
    sync_interval: float = setting(
        0.05, "time after which what nobody waits for (acks) is synced as well", unit="s", minimum=0
    )
    pending_max: int = setting(
        128 << 20, "bytes not synced yet above which publishers are blocked until the disk has caught up",
        unit="bytes", minimum=1,
    )  # fmt: skip
    retry_interval: float = setting(1.0, "pause after the disk refused, before it is asked again", unit="s", minimum=0)
    reserve_bytes: int = setting(
        4 << 20, "space kept so that a full disk still takes acks; publishers go on once it is free again; 0: none",
        unit="bytes", minimum=0,
    )  # fmt: skip
    positions_ahead: int = setting(
        65_536, "positions of a queue that are noted as given before they are, so that none is given twice", minimum=2
    )
    compact_garbage: float = setting(
        0.5, "part of a segment that must be garbage before it is written anew without it", minimum=0.05
    )
    compact_merge: int = setting(
        8, "neighbouring segments, each under a quarter of the full size, that are merged into one", minimum=2
    )
    compact_bytes: int = setting(1 << 20, "bytes that compaction reads or writes in one step", unit="bytes", minimum=1)
    compact_pause: float = setting(0.0, "rest after each such step", unit="s", minimum=0)
    read_bytes: int = setting(4 << 20, "bytes that recovery reads in one step", unit="bytes", minimum=64)
    load_bytes: int = setting(1 << 20, "paged-out bytes that are read in one step", unit="bytes", minimum=1)
    load_gap: int = setting(
        16 << 10, "bytes of other messages that are read too rather than reading twice", unit="bytes", minimum=0
    )
    copy_max: int = setting(
        8 << 10, "bodies up to this size are copied into the record, which is quicker than gathering them",
        unit="bytes", minimum=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.segment_bytes > SEGMENT_MOST:
            raise UserError(f"store: segment_bytes must be at most {SEGMENT_MOST}, not {self.segment_bytes}")
