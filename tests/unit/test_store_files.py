"""The store on real files: a writer that is killed with -9, and a real broker that is started again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from store_rig import Line, body, load, page_out, persistent
from store_writer import opened

from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.message import make_message
from coterie.broker.queue import Queue
from coterie.broker.specs import QueueSpec
from coterie.runtime.aio import AioRuntime, run

WRITER = Path(__file__).with_name("store_writer.py")


async def outcome(start: Callable[[Callable[..., None]], None]) -> Any:
    future = asyncio.get_running_loop().create_future()
    start(lambda *result: future.set_result(result[0] if result else None))
    return await future


def kill_after(folder: Path, lines: int) -> tuple[int, int]:
    """Let the writer write until it has said so much, then kill it: what it said last."""
    command = [sys.executable, str(WRITER), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = {"safe": 0, "gone": 0}
        for _ in range(lines):
            word, position = process.stdout.readline().split()
            told[word] = int(position)
        process.kill()
        for line in process.stdout.read().splitlines():  # what it said before it died
            match line.split():
                case [word, position] if word in told:
                    told[word] = int(position)
    return told["safe"], told["gone"]


def test_a_writer_that_is_killed_again_and_again_loses_nothing_that_was_safe(tmp_path: Path) -> None:
    async def check(safe: int, gone: int) -> None:
        runtime, store, found = await opened(tmp_path)
        assert found.damage == []
        line = Line(store)
        line.restore(store, found)
        assert await outcome(lambda done: load(store, list(line.entries.values()), done)) is None
        bodies = {n: bytes(entry.message.body) for n, entry in line.entries.items() if entry.message is not None}
        positions = list(bodies)
        assert positions == sorted(positions)
        assert bodies == {n: body("q", n, 500) for n in positions}
        assert positions[0] > gone
        assert line.next_position > safe
        assert positions[-1] >= safe
        # Positions are skipped after a kill, and only then: what is there has no other holes.
        missing = set(range(positions[0], positions[-1] + 1)) - set(positions) - skipped
        assert missing == set()
        skipped.update(range(positions[-1] + 1, line.next_position))
        await runtime.close()  # as a kill would

    skipped: set[int] = set()
    for lines in (3, 60, 200, 350):
        safe, gone = kill_after(tmp_path, lines)
        run(check(safe, gone))
    assert gone > 0
    assert len(list((tmp_path / "log").iterdir())) < 25, "compaction went on"


def test_messages_of_all_sizes_are_the_same_after_they_were_paged_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        store = LogStore(runtime, StoreSettings(segment_bytes=1 << 20, reserve_bytes=0))
        await outcome(store.recover)
        line = Line(store)
        sizes = [0, 1, 100, 8191, 8192, 8193, 70_000, 3_000_000, 5]
        bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
        entries = line.put(*map(persistent, bodies))
        await outcome(lambda done: store.when_synced(store.written(), done))
        assert page_out(store, entries) == len(sizes)
        assert await outcome(lambda done: load(store, entries, done)) is None
        assert [entry.message.body for entry in entries if entry.message is not None] == bodies
        await runtime.close()

    run(scenario())


def with_broker(folder: Path, scenario: Callable[[Broker], Coroutine[Any, Any, None]], proper: bool) -> None:
    async def main() -> None:
        runtime = AioRuntime("a", disk_dir=folder)
        broker = Broker(runtime, store=LogStore(runtime, StoreSettings(reserve_bytes=0)))
        error = await outcome(broker.start)
        assert error is None
        await scenario(broker)
        if proper:
            await outcome(broker.stop)
        await runtime.close()

    run(main())


@pytest.mark.parametrize("proper", [True, False], ids=["stopped", "killed"])
def test_a_broker_has_its_durable_queues_and_their_persistent_messages_after_a_restart(
    tmp_path: Path, proper: bool
) -> None:
    async def declare(broker: Broker, name: str) -> Queue:
        vhost = broker.vhost("/")
        queue = await outcome(lambda done: vhost.declare_queue(name, QueueSpec(durable=True), False, None, done))
        assert isinstance(queue, Queue)
        return queue

    async def before(broker: Broker) -> None:
        queue = await declare(broker, "orders")
        queue.enqueue([persistent(b"%d" % n) for n in range(5)] + [make_message("", "orders", b"transient")])
        found = queue.get("somebody")
        assert found is not None
        queue.accept("somebody", found.ranges)
        found = queue.get("somebody")  # delivered, and never accepted
        other = await declare(broker, "short-lived")
        other.enqueue([persistent(b"gone with its queue")])
        vhost = broker.vhost("/")
        await outcome(lambda done: vhost.delete_queue("short-lived", False, False, done))
        await outcome(lambda done: broker.store.when_synced(broker.store.written(), done))

    async def after(broker: Broker) -> None:
        vhost = broker.vhost("/")
        assert list(vhost.queues) == ["orders"]
        queue = vhost.queues["orders"]
        got = []
        while True:
            await outcome(lambda done: queue.pager.bring(done))
            found = queue.get("somebody")
            if found is None:
                break
            got += [(position, bytes(message.body), flag) for position, message, flag in found.rows()]
        assert [(position, content) for position, content, _ in got] == [(n + 1, b"%d" % n) for n in range(1, 5)]
        assert got[0][2], "it may have been delivered before"
        if proper:
            assert [again for _, _, again in got] == [True, False, False, False]
            assert queue.next_position == 7

    with_broker(tmp_path, before, proper)
    with_broker(tmp_path, after, proper)
