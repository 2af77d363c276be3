"""The mark of a recovery: a record of the replicated state, so that every broker of the new cluster knows which one was
given up for it. Restored backups are marked too, but what they are copies of may be alive.

The key is the new cluster; `from` is the one that was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coterie.broker.storage import Record

RECOVERED: Final = "cluster.recovered"
RESTORED: Final = "cluster.restored"


def given_up(records: Mapping[tuple[str, str], Record]) -> tuple[str, ...]:
    """Of the records that a broker has: the clusters that it goes on for."""
    return tuple(sorted(str(record.get("from")) for (kind, _), record in records.items() if kind == RECOVERED))
