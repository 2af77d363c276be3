"""Where the audit log of a node goes, and how much of it there may be."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Section `audit`: who did what, from where, with what result."""

    folder: str = setting(
        "", "folder of the audit log's files; empty: `audit` in the data folder, and without one there are no files"
    )
    segment_bytes: int = setting(
        8 << 20, "a file is closed and the next begun when it is so large", unit="bytes", minimum=65536
    )
    segments_kept: int = setting(10, "files of this node that are kept; the oldest are deleted", minimum=1)
    publish: bool = setting(False, "whether its lines are published to the exchange coterie.audit of the vhost /, too")
    hold: int = setting(
        1 << 20, "with publish: lines that are held in memory until a queue is bound there", unit="bytes", minimum=0
    )
    window: float = setting(
        60.0, "what comes often (logins, refusals, leases) has so many lines within this time", unit="s", minimum=1
    )
    lines_per_host: int = setting(
        10, "of one kind and from one host; the rest are counted, and told as one line", minimum=1
    )
    lines_in_all: int = setting(200, "of one kind, whoever they come from", minimum=1)
