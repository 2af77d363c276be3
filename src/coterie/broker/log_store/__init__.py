"""The store of a node with a data folder: what durable queues have, as ranges over a log (see docs/store.md)."""

from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.log_store.store import LogStore

__all__ = ["LogStore", "StoreSettings"]
