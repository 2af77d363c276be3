"""What the store costs: processor time for each message, memory for each queued one, and a restart.

    python scripts/bench_store.py [--messages 100000] [--events 50] [--size 100] [--folder DIR]

A queue of its own tells the store what a broker would tell it, on real files; nothing else runs. Each measurement is
a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coterie.amqp.wire.properties import Properties
from coterie.broker.log_store import LogStore
from coterie.broker.message import make_message
from coterie.broker.observer import Arrived, Reason
from coterie.runtime.aio import AioRuntime, run


async def outcome(start: Any) -> Any:
    future = asyncio.get_running_loop().create_future()
    start(lambda *result: future.set_result(result[0] if result else None))
    return await future


class Line:
    """What a store sees of a queue."""

    name, incarnation, vhost = "q", 1, SimpleNamespace(name="/")

    def __init__(self) -> None:
        self.next_position = 1


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def write(args: argparse.Namespace) -> dict[str, float]:
    runtime = AioRuntime("a", disk_dir=Path(args.folder))
    store = LogStore(runtime)
    await outcome(store.recover)
    line: Any = Line()
    store.opened(line)
    properties, body = Properties(delivery_mode=2), b"x" * args.size
    spent = gone = 0.0
    drop = args.messages // 10
    kept: list[tuple[int, int]] = []
    gc.collect()
    before, size = resident(), 0
    for _ in range(args.messages // args.events):
        messages = [make_message("", "q", body, properties) for _ in range(args.events)]
        arrived = Arrived(line.next_position, messages)
        line.next_position += args.events
        began = time.process_time()
        store.enqueued(line, arrived)
        await outcome(partial(store.when_synced, store.written()))
        spent += time.process_time() - began
        if len(kept) * args.events < drop:
            kept.append((arrived.first, arrived.stop))
        del messages, arrived
    gc.collect()
    size = resident() - before
    for gone_now in kept:
        began = time.process_time()
        store.dequeued(line, [gone_now], Reason.ACCEPTED)
        await asyncio.sleep(0)
        gone += time.process_time() - began
    await outcome(lambda done: store.when_synced(store.written(), done))
    if args.proper:
        await outcome(store.close)
    await runtime.close()
    return {
        "write_us": 1e6 * spent / args.messages, "ack_us": 1e6 * gone / (len(kept) * args.events),
        "bytes_each": size / args.messages,
    }  # fmt: skip


async def restart(args: argparse.Namespace) -> dict[str, float]:
    runtime = AioRuntime("a", disk_dir=Path(args.folder))
    store = LogStore(runtime)
    gc.collect()
    before, began, spent = resident(), time.perf_counter(), time.process_time()
    found = await outcome(store.recover)
    opened = time.perf_counter() - began
    size = resident() - before
    entries = sum(1 for _ in found.queues["/", "q", 1][1])
    took = {"restart_s": opened, "with_entries_s": time.perf_counter() - began, "cpu_s": time.process_time() - spent}
    await runtime.close()
    return {**took, "entries": entries, "restart_bytes_each": size / entries}


def measure(what: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--do", what, "--folder", args.folder]
    command += [f"--messages={args.messages}", f"--events={args.events}", f"--size={args.size}"]
    command += ["--proper"] * args.proper
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--folder", default="")
    parser.add_argument("--proper", action="store_true", help="the store is closed before the restart, not killed")
    parser.add_argument("--do", choices=("write", "restart"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.do:
        print(json.dumps(run(write(args) if args.do == "write" else restart(args))))
        return
    made = args.folder or tempfile.mkdtemp()
    args.folder = made
    try:
        found = measure("write", args) | measure("restart", args)
        print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    finally:
        shutil.rmtree(made)


if __name__ == "__main__":
    main()
