"""The store of a broker with a data folder: a segmented log with group commit, recovery, compaction and paging."""

from coterie.broker.store.log import LogStore
from coterie.broker.store.settings import StoreSettings

__all__ = ["LogStore", "StoreSettings"]
