"""The log on a real folder."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from log_rig import LOG_ID, History, content, event

from coterie.log.event_log import EventLog
from coterie.log.generation import Generations
from coterie.log.place import Place
from coterie.log.settings import LogSettings
from coterie.runtime.aio import AioRuntime, run


def test_a_log_on_a_real_disk_is_there_after_a_restart(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1 << 20, retain_bytes=2 << 20)
    records = []

    async def first() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        owner = History()
        log = await EventLog.open(runtime, "log", settings, LOG_ID, owner)
        for index in range(1, 301):
            records.append(event(log.writer.last, Place(1, index), b"%d" % index * 5000))
            log.append(records[-1])
            if index % 20 == 0:
                synced = runtime.future()
                log.writer.when_synced(records[-1].place, lambda future=synced: future.set_result(None))  # type: ignore[misc]
                await synced
        owner.records = {record.ordinal: record for record in records}
        for index in (150, 200):
            await log.snapshot(Place(1, index), Place(1, 300), [(1, b"x" * 100_000)] * 20)
        owner.dead = {Place(1, index) for index in range(1, 200) if index % 10}
        while await log.merger.run():
            while log.merger._folder.garbage:
                await log.merger._folder.turn()
        await runtime.close()  # as if it was killed

    async def second() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        owner = History()
        began = time.perf_counter()
        log = await EventLog.open(runtime, "log", settings, LOG_ID, owner)
        assert time.perf_counter() - began < 5
        assert log.found.problems == []
        assert log.found.last.place == Place(1, 300)
        assert list(owner.records) == list(range(201, 301))
        found = [record async for batch in log.tail.read(Place(1, 250)) for record in batch]
        assert [content(record) for record in found] == [content(record) for record in records[250:]]
        (bodies,) = await log.reader.read([Place(1, 20)])
        assert bytes(bodies.data or b"") == b"".join(records[19].bodies)
        log.append(event(log.writer.last, Place(1, 301), b"more"))
        await log.close()
        await runtime.close()

    run(first())
    run(second())


def test_a_folder_that_has_the_name_of_a_segment_is_passed_by(tmp_path: Path) -> None:
    settings = LogSettings(retry_interval=0.01)
    (tmp_path / "log" / "0000000001-0000000001.0.seg").mkdir(parents=True)
    (tmp_path / "log" / "0000000002-0000000002.0.seg").symlink_to("/nowhere/at/all")

    async def main() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        log = await EventLog.open(runtime, "log", settings, LOG_ID, History())
        log.append(event(log.writer.last, Place(1, 1), b"body"))
        synced = runtime.future()
        log.writer.when_synced(Place(1, 1), lambda: synced.set_result(None))
        await synced
        await log.close()
        await runtime.close()

    async def again() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        log = await EventLog.open(runtime, "log", settings, LOG_ID, owner)
        await runtime.close()
        assert log.found.halted == ""

    owner = History()
    run(main())
    run(again())
    assert [record.place for record in owner.records.values()] == [Place(1, 1)]


def test_a_log_and_one_that_was_put_aside_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Whatever the process would let others do with what it makes."""
    data = tmp_path / "data"

    async def fill() -> None:
        runtime = AioRuntime("a", disk_dir=data)
        generations = Generations(runtime, "log", aside_max=1)
        owner = History()
        log = await EventLog.open(runtime, "log", LogSettings(segment_bytes=1 << 20), LOG_ID, owner)
        log.append(event(log.writer.last, Place(1, 1), b"secret"))
        await log.close()
        await generations.keep_aside(0)
        await EventLog.open(runtime, generations.path(generations.new()), LogSettings(), LOG_ID, History())
        await generations.complete(1)
        await generations.remove(0)
        assert generations.aside == ["log.aside.1"]
        await runtime.close()

    before = os.umask(0)
    try:
        run(fill())
    finally:
        os.umask(before)
    there = [data, *data.rglob("*")]
    assert any(b"secret" in path.read_bytes() for path in (data / "log.aside.1").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in there if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in there if path.is_file()} == {0o600}
