"""The folder of a stopped node as what is backed up: it is a cut as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.broker.log_store import StoreSettings
from coterie.cluster.recovering.candidate import STATE
from coterie.errors import CoterieError
from coterie.log.folder import parse_segment_name, parse_snapshot_name
from coterie.node.backup.source import Facts
from coterie.node.offline import hold, name_of, stopped_node
from coterie.runtime.aio import run


class FolderSource:
    """The store in a data folder that nobody uses."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        self._folder = folder
        self.facts = facts

    def read(self, name: str, start: int, size: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(size)
        except OSError as error:
            raise CoterieError(f"{self._folder / name}: cannot be read: {error.strerror}") from None


@contextmanager
def stopped_source(folder: Path, settings: StoreSettings) -> Iterator[FolderSource]:
    """No node can start meanwhile. Raises UserError and CoterieError."""
    store, cluster, at, last = run(_look(folder, settings))
    held = hold(folder)
    try:
        where = folder / store
        names = sorted(each.name for each in where.iterdir() if _is_of_log(each.name))
        files = tuple((name, (where / name).stat().st_size) for name in names)
        yield FolderSource(where, Facts(name_of(folder), cluster, at, last, files))
    except OSError as error:
        raise CoterieError(f"{folder}: cannot be read: {error.strerror}") from None
    finally:
        os.close(held)


async def _look(folder: Path, settings: StoreSettings) -> tuple[str, str, str, int]:
    """Which folder in it is the store, of which cluster it is, and how far it has come."""
    async with stopped_node(folder, settings) as (_, store):
        state = store.found.records.get(STATE, {})
        at = f"{state['epoch']}.{state['index']}" if state else ""
        return store.folder, str(state.get("cluster", "")), at, store.last


def _is_of_log(name: str) -> bool:
    return parse_segment_name(name) is not None or parse_snapshot_name(name) is not None
