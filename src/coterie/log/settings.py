"""The log's settings: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the log is cut into segments, synced, bounded, read and merged."""

    segment_bytes: int = setting(64 << 20, "size from which on a new segment is begun", unit="bytes", minimum=1)
    segment_records: int = setting(
        16_384,
        "records from which on a new segment is begun: its table is read in one turn",
        minimum=1,
    )
    append_bytes: int = setting(8 << 20, "most bytes of one write, unless one record has more", unit="bytes", minimum=1)
    backlog_bytes: int = setting(
        128 << 20, "bytes not synced yet above which the log asks not to be given more", unit="bytes", minimum=1
    )
    sync_interval: float = setting(0.05, "delay before what nobody waits for is synced", unit="s", minimum=0)
    gather_delay: float = setting(
        0.005, "time that what nobody waits for waits for something to be written with", unit="s", minimum=0
    )
    note_delay: float = setting(
        1.0, "idle time after which it is noted on disk that everything is synced", unit="s", minimum=0
    )
    retry_interval: float = setting(1.0, "pause after a disk error, before the next try", unit="s", minimum=0)
    retain_bytes: int = setting(
        1 << 30, "newest records kept verbatim, so that a broker that was away can catch up", unit="bytes", minimum=0
    )
    snapshots: int = setting(2, "newest snapshots that are kept", minimum=1)
    read_bytes: int = setting(4 << 20, "bytes that recovery and merges read in one step", unit="bytes", minimum=256)
    batch_bytes: int = setting(1 << 20, "bytes of records or bodies read in one batch", unit="bytes", minimum=1)
    gap_bytes: int = setting(
        16 << 10, "bytes between two bodies that are read too, rather than reading twice", unit="bytes", minimum=0
    )
    slice_bytes: int = setting(256 << 10, "bytes that background work handles in one turn", unit="bytes", minimum=1)
    slice_seconds: float = setting(0.004, "time that background work takes in one turn", unit="s", minimum=0)
    merge_live: float = setting(0.5, "part of a segment's bytes that must be garbage before it is merged", minimum=0.05)
    merge_count: int = setting(16, "most neighbouring segments merged into one", minimum=2)
    tables_bytes: int = setting(
        64 << 20, "memory for tables of places of closed segments; others are read when needed", unit="bytes", minimum=0
    )
