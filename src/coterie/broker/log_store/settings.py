"""The store's settings: every limit has one, with a default, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.log.settings import LogSettings
from coterie.settings import setting


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
    gather_delay: float = setting(
        0.005, "time that what nobody waits for waits for something to be written with", unit="s", minimum=0
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
    aside_max: int = setting(
        2, "stores of a broker that had made another state of the log than the others, kept for a look", minimum=0
    )
    positions_ahead: int = setting(
        65_536, "positions of a queue that are noted as given before they are, so that none is given twice", minimum=2
    )
    snapshot_bytes: int = setting(
        32 << 20, "growth of the log, at least, after which another snapshot of the queues is written",
        unit="bytes", minimum=1,
    )  # fmt: skip
    compact_garbage: float = setting(
        0.5, "part of a segment that must be garbage before it is written anew without it", minimum=0.05
    )
    compact_merge: int = setting(16, "most neighbouring segments that are merged into one", minimum=2)
    compact_bytes: int = setting(
        256 << 10, "bytes that snapshots and merges read or write in one step", unit="bytes", minimum=1
    )
    read_bytes: int = setting(4 << 20, "bytes that recovery reads in one step", unit="bytes", minimum=256)
    load_bytes: int = setting(1 << 20, "paged-out bytes that are read in one step", unit="bytes", minimum=1)
    load_gap: int = setting(
        16 << 10, "bytes of other messages that are read too rather than reading twice", unit="bytes", minimum=0
    )
    tables_bytes: int = setting(
        16 << 20, "memory for tables that tell where records are; others are read when needed", unit="bytes", minimum=0
    )
    copy_max: int = setting(
        8 << 10, "bodies up to this size are copied into the record, which is quicker than gathering them",
        unit="bytes", minimum=0,
    )  # fmt: skip

    def of_log(self) -> LogSettings:
        """Those of its log. Nobody else has it: nothing is kept for others."""
        return LogSettings(
            segment_bytes=self.segment_bytes, append_bytes=max(self.record_bytes, 8 << 20),
            backlog_bytes=self.pending_max, sync_interval=self.sync_interval, gather_delay=self.gather_delay,
            retry_interval=self.retry_interval, retain_bytes=0, read_bytes=self.read_bytes,
            batch_bytes=self.load_bytes, gap_bytes=self.load_gap, slice_bytes=self.compact_bytes,
            merge_live=self.compact_garbage, merge_count=self.compact_merge, tables_bytes=self.tables_bytes,
        )  # fmt: skip
