"""The store of a node that does not run: a change of it is there as a whole or not at all; a look changes nothing."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from store_rig import SMALL, Host, Line, PowerCut, TroubledDisk, body, persistent

from coterie.broker.delivery import positions_in
from coterie.broker.log_store import StoreSettings
from coterie.broker.log_store.offline import OfflineStore, Unreadable
from coterie.broker.storage import Recovered
from coterie.errors import DiskError, UserError
from coterie.node.offline import stopped_node
from coterie.runtime.aio import AioRuntime, run
from coterie.sim.runtime import SimRuntime

T = TypeVar("T")
COUNT = 30


def filled(seed: str = "1") -> Host:
    """A node with a queue, which has stopped."""
    host = Host(seed)
    line = Line(host.store, "q")
    line.fill(1, COUNT)
    host.store.save("thing", "kept", {"is": "old"})
    host.store.save("thing", "goes", {"is": "old"})
    host.sync()
    ended: list[bool] = []
    host.store.close(lambda: ended.append(True))
    host.until(lambda: bool(ended))
    host.node.exit(host.node.process.incarnation if host.node.process is not None else 0)
    return host


def offline(host: Host) -> SimRuntime:
    """Another process on that host, which is no node."""
    runtime = host.node.boot()
    host.disk = TroubledDisk(host.world, host.node.platter)
    host.disk.owner = runtime.owner
    runtime.disk = host.disk
    return runtime


def do(host: Host, runtime: SimRuntime, work: Coroutine[Any, Any, T]) -> T:
    found: list[T | DiskError] = []

    async def caught() -> None:
        try:
            found.append(await work)
        except DiskError as error:
            found.append(error)

    runtime.spawn(caught())
    host.until(lambda: bool(found))
    if isinstance(found[0], DiskError):
        raise found[0]
    return found[0]


async def changed(runtime: SimRuntime, done: list[bool]) -> Unreadable:
    store = await OfflineStore.open(runtime, SMALL)
    bad = await store.check()
    await store.change({("thing", "kept"): {"is": "new"}, ("thing", "goes"): None}, bad.ranges)
    done.append(True)
    await store.close()
    return bad


def bodies(host: Host, found: Recovered) -> dict[int, bytes]:
    line = Line(host.store, "q")
    line.restore(host.store, found)
    return host.bodies(line)


def which(found: Recovered) -> str:
    told = {key: record["is"] for (_, key), record in found.records.items()}
    assert told in ({"kept": "old", "goes": "old"}, {"kept": "new"})
    return str(told["kept"])


def test_what_was_changed_is_there_at_the_next_start_and_every_message_too() -> None:
    host = filled()
    runtime = offline(host)
    assert do(host, runtime, changed(runtime, [])).count == 0
    found = host.crash()
    assert which(found) == "new"
    assert bodies(host, found) == {n: body("q", n) for n in range(1, COUNT + 1)}


def test_after_a_change_positions_go_on_behind_all_that_were_ever_given_and_all_may_have_been_delivered() -> None:
    host = filled()
    runtime = offline(host)
    do(host, runtime, changed(runtime, []))
    ((following, entries),) = host.crash().queues.values()
    assert following >= runtime.wall() * 1_000_000
    assert all(entry.redelivered for entry in entries)


@pytest.mark.parametrize("when", ["before", "after"])
def test_power_may_fail_at_any_operation_of_a_change_and_it_is_whole_or_was_not(when: str) -> None:
    outcomes: list[str] = []
    for number in range(1, 300):
        host = filled(f"{when}/{number}")
        runtime = offline(host)
        left = number
        done: list[bool] = []

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise PowerCut

        setattr(host.disk, when, count)
        try:
            do(host, runtime, changed(runtime, done))
        except PowerCut:
            pass
        found = host.crash()
        outcomes.append(which(found))
        assert outcomes[-1] == "new" or not done
        assert bodies(host, found) == {n: body("q", n) for n in range(1, COUNT + 1)}
        if left > 0:
            break
    assert left > 0
    assert {*outcomes} == {"old", "new"}


def test_a_message_whose_content_is_damaged_is_found_and_leaves_and_no_other() -> None:
    host = filled()
    name, at = next(
        (name, data.index(b"q:7:")) for name, data in sorted(host.files.items()) if b"q:7:" in data and ".seg" in name
    )
    file = host.node.platter.files[name]
    file.data[at + 5] ^= 1
    file.safe = bytes(file.data)
    runtime = offline(host)
    bad = do(host, runtime, changed(runtime, []))
    (ranges,) = bad.ranges.values()
    positions = {*positions_in(ranges)}
    assert 7 in positions
    assert bad.queues == {("/", "q", 1): len(positions)}
    found = host.crash()
    assert bodies(host, found) == {n: body("q", n) for n in range(1, COUNT + 1) if n not in positions}
    assert found.damage == []


def test_a_disk_that_refuses_a_change_is_told_and_not_waited_for() -> None:
    host = filled()
    runtime = offline(host)
    host.disk.sync_fails = lambda name: True
    with pytest.raises(DiskError, match="is not known"):
        do(host, runtime, changed(runtime, []))


def on_real_disk(folder: Path) -> None:
    """A store that a kill has left."""
    from coterie.broker.log_store import LogStore

    async def write() -> None:
        runtime = AioRuntime("a", disk_dir=folder)
        store = LogStore(runtime, StoreSettings(reserve_bytes=0, snapshot_bytes=1))
        ready = runtime.future()
        store.recover(ready.set_result)
        await ready
        line = Line(store, "q")
        line.put(*(persistent(body("q", n)) for n in range(1, COUNT + 1)))
        for number in range(2):  # what is behind tells that what is before was synced
            store.save("thing", "k", {"is": number})
            synced = runtime.future()
            store.when_synced(store.written(), lambda future=synced: future.set_result(None))  # type: ignore[misc]
            await synced
        await runtime.close()

    run(write())


def test_a_look_at_a_store_that_was_killed_leaves_every_byte_as_it_was(tmp_path: Path) -> None:
    on_real_disk(tmp_path)
    torn = sorted((tmp_path / "log").glob("*.seg"))[-1]
    torn.write_bytes(torn.read_bytes() + b"half a record")
    (tmp_path / "log" / "0000000000000000009.snap.tmp").write_bytes(b"unfinished")
    before = {path: path.read_bytes() for path in (tmp_path / "log").iterdir()}

    async def look() -> int:
        async with stopped_node(tmp_path, StoreSettings()) as (_, store):
            assert (await store.check()).count == 0
            return sum(store.messages.values())

    assert run(look()) == COUNT
    assert {path: path.read_bytes() for path in (tmp_path / "log").iterdir()} == before


def test_nobody_can_use_a_folder_while_it_is_looked_at_nor_look_while_somebody_uses_it(tmp_path: Path) -> None:
    on_real_disk(tmp_path)

    async def twice() -> None:
        async with stopped_node(tmp_path, StoreSettings()):
            with pytest.raises(UserError, match="another node is using that folder"):
                async with stopped_node(tmp_path, StoreSettings()):
                    pass

    run(twice())


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_without_a_store_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()

    async def look() -> None:
        async with stopped_node(tmp_path / name, StoreSettings()):
            pass

    with pytest.raises(UserError, match=f"{name}: there is no"):
        run(look())
