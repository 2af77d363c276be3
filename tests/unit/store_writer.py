"""A process that writes to a store until it is killed, and tells on standard output what it was told is safe.

    python store_writer.py FOLDER

Each line is `safe POSITION` (all messages up to it are on disk) or `gone POSITION` (those up to it are accepted, and
that is on disk).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from store_rig import Line, body, persistent

from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.storage import Recovered
from coterie.runtime.aio import AioRuntime, run

SETTINGS = StoreSettings(
    segment_bytes=200_000, reserve_bytes=10_000, positions_ahead=100, snapshot_bytes=100_000, compact_bytes=20_000
)


async def opened(folder: Path) -> tuple[AioRuntime, LogStore, Recovered]:
    runtime = AioRuntime("a", disk_dir=folder)
    store = LogStore(runtime, SETTINGS)
    done: asyncio.Future[Recovered | Exception] = asyncio.get_running_loop().create_future()
    store.recover(done.set_result)
    found = await done
    if isinstance(found, Exception):
        raise found
    return runtime, store, found


async def write(folder: Path) -> None:
    _, store, found = await opened(folder)
    line = Line(store)
    line.restore(store, found)

    def tell(word: str, position: int) -> None:
        store.when_synced(store.written(), lambda: print(word, position, flush=True))

    while True:
        line.put(*(persistent(body("q", line.next_position + n, 500)) for n in range(10)))
        tell("safe", line.next_position - 1)
        waiting = list(line.entries.values())
        if len(waiting) > 300:
            gone = waiting[:40]
            line.deliver(gone)
            line.take(gone)
            tell("gone", gone[-1].position)
        await asyncio.sleep(0)


if __name__ == "__main__":
    run(write(Path(sys.argv[1])))
