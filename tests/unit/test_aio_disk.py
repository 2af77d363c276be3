"""The disk of a real node: order, completions on the loop, and what happens when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import DiskError, UserError
from coterie.runtime.aio import AioRuntime, files, run
from coterie.runtime.aio.disk import FolderDisk
from coterie.runtime.aio.files import MOST_OPEN
from coterie.runtime.aio.ring import Ring
from coterie.runtime.base import Disk

Start = Callable[[Callable[[Any], None]], None]


@pytest.fixture(autouse=True, params=["kernel", "threads"])
def small_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is the same whether the kernel writes what is small, where it can, or threads do."""
    if request.param == "threads":
        monkeypatch.setattr(Ring, "of", lambda loop: None)


def with_disk(folder: Path | None, scenario: Callable[[Disk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        runtime = AioRuntime("a", disk_dir=folder)
        try:
            await scenario(runtime.disk)
        finally:
            await runtime.close()

    run(main())


async def outcome(start: Start) -> Any:
    """What a call completes with."""
    future = asyncio.get_running_loop().create_future()
    start(future.set_result)
    return await future


async def refusal(start: Start) -> str:
    """The text of the DiskError that a call completes with."""
    result = await outcome(start)
    assert isinstance(result, DiskError)
    return str(result)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`: a write that crosses it is cut short, the next one refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_appended_is_read_back_from_where_it_was_put(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        assert await outcome(lambda done: disk.append("log", [b"one", bytearray(b"two")], done)) == 0
        assert await outcome(lambda done: disk.append("log", [memoryview(b"three")], done)) == 6
        assert await outcome(lambda done: disk.append("log", [], done)) == 11
        assert await outcome(lambda done: disk.sync("log", done)) is None
        assert await outcome(lambda done: disk.read("log", 3, 5, done)) == b"twoth"
        assert await outcome(lambda done: disk.read("log", 8, 100, done)) == b"ree"
        assert await outcome(lambda done: disk.read("log", 11, 1, done)) == b""

    with_disk(tmp_path / "data", scenario)
    assert (tmp_path / "data" / "log").read_bytes() == b"onetwothree"


def test_an_append_of_many_buffers_is_whole(tmp_path: Path) -> None:
    parts = [os.urandom(1 + i % 700) for i in range(5000)]

    async def scenario(disk: Disk) -> None:
        await outcome(lambda done: disk.append("log", parts, done))
        assert await outcome(lambda done: disk.append("log", [b"."], done)) == sum(map(len, parts))

    with_disk(tmp_path, scenario)
    assert (tmp_path / "log").read_bytes() == b"".join(parts) + b"."


def test_a_file_from_before_is_continued(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before")

    async def scenario(disk: Disk) -> None:
        assert await outcome(lambda done: disk.append("log", [b" and after"], done)) == 6
        assert await outcome(lambda done: disk.list(done)) == {"log": 16}

    with_disk(tmp_path, scenario)


def test_calls_about_one_file_happen_and_complete_in_order_on_the_loop(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        here = threading.get_ident()
        completed: list[tuple[str, object]] = []

        def note(what: str) -> Callable[[Any], None]:
            def done(result: object) -> None:
                assert threading.get_ident() == here
                completed.append((what, result))

            return done

        for i in range(50):
            disk.append("log", [b"%02d" % i], note("append"))
            disk.sync("log", note("sync"))
        disk.truncate("log", 10, note("truncate"))
        disk.replace("log", "old", note("replace"))
        disk.append("log", [b"new"], note("append"))
        disk.read("old", 0, 100, note("read"))
        disk.remove("old", note("remove"))
        assert completed == []
        assert await outcome(lambda done: disk.list(done)) == {"log": 3}
        expected: list[tuple[str, object]] = []
        for i in range(50):
            expected += [("append", 2 * i), ("sync", None)]
        assert completed[:102] == [*expected, ("truncate", None), ("replace", None)]
        of_old = [entry for entry in completed[102:] if entry[0] != "append"]
        assert of_old == [("read", b"0001020304"), ("remove", None)]

    with_disk(tmp_path, scenario)


def test_a_slow_call_about_one_file_holds_up_that_file_only(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        disk = runtime.disk
        assert isinstance(disk, FolderDisk)
        release = threading.Event()
        completed: list[str] = []
        # An fsync that takes as long as the test wants, put where a real one would be.
        disk._do(("slow",), lambda _: release.wait(), lambda _: completed.append("slow sync"))
        disk.append("slow", [b"x"], lambda _: completed.append("slow append"))
        assert await outcome(lambda done: disk.append("quick", [b"x"], done)) == 0
        assert await outcome(lambda done: disk.sync("quick", done)) is None
        assert completed == []
        assert not (tmp_path / "slow").exists()
        disk.replace("slow", "quick", lambda _: completed.append("replaced"))
        disk.append("quick", [b"y"], lambda offset: completed.append(f"appended at {offset}"))
        release.set()
        await runtime.close()
        assert completed == ["slow sync", "slow append", "replaced", "appended at 1"]

    run(main())
    assert (tmp_path / "quick").read_bytes() == b"xy"


def test_an_append_that_fails_halfway_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        await outcome(lambda done: disk.append("log", [bytes(1000)], done))
        with file_size_limit(1500):
            assert "log: File too large" in await refusal(lambda done: disk.append("log", [b"x" * 900], done))
        assert (tmp_path / "log").stat().st_size == 1000
        assert await outcome(lambda done: disk.append("log", [b"y"], done)) == 1000
        assert await outcome(lambda done: disk.sync("log", done)) is None
        assert await outcome(lambda done: disk.read("log", 999, 10, done)) == b"\0y"

    with_disk(tmp_path, scenario)


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "log")

    async def scenario(disk: Disk) -> None:
        assert "log: the disk is full" in await refusal(lambda done: disk.append("log", [b"x"], done))
        assert await outcome(lambda done: disk.append("other", [b"x"], done)) == 0

    with_disk(tmp_path, scenario)


def test_after_a_failed_sync_the_file_takes_nothing_more(tmp_path: Path) -> None:
    os.symlink("/dev/null", tmp_path / "log")  # takes every write and refuses to sync

    async def scenario(disk: Disk) -> None:
        assert await outcome(lambda done: disk.append("log", [b"x"], done)) == 0
        text = await refusal(lambda done: disk.sync("log", done))
        assert text.startswith("log: ")
        assert await refusal(lambda done: disk.append("log", [b"x"], done)) == text
        assert await refusal(lambda done: disk.sync("log", done)) == text

    with_disk(tmp_path, scenario)


def test_truncating_cuts_and_never_grows(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        await outcome(lambda done: disk.append("log", [b"0123456789"], done))
        assert await outcome(lambda done: disk.truncate("log", 4, done)) is None
        assert await outcome(lambda done: disk.truncate("log", 100, done)) is None
        assert await outcome(lambda done: disk.append("log", [b"x"], done)) == 4

    with_disk(tmp_path, scenario)
    assert (tmp_path / "log").read_bytes() == b"0123x"


def test_replacing_renames_over_the_other_file_which_is_then_appended_to(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        await outcome(lambda done: disk.append("log", [b"long and old"], done))
        await outcome(lambda done: disk.append("log.new", [b"new"], done))
        assert await outcome(lambda done: disk.replace("log.new", "log", done)) is None
        assert await outcome(lambda done: disk.append("log", [b"er"], done)) == 3
        assert await outcome(lambda done: disk.list(done)) == {"log": 5}
        assert "no such file" in await refusal(lambda done: disk.read("log.new", 0, 1, done))

    with_disk(tmp_path, scenario)
    assert (tmp_path / "log").read_bytes() == b"newer"


def test_a_removed_file_begins_anew(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        await outcome(lambda done: disk.append("log", [b"old"], done))
        assert await outcome(lambda done: disk.remove("log", done)) is None
        assert await outcome(lambda done: disk.list(done)) == {}
        assert await outcome(lambda done: disk.append("log", [b"new"], done)) == 0

    with_disk(tmp_path, scenario)


def test_files_in_subfolders_are_made_and_listed_in_order(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        for name in ("b", "queues/q2/log", "queues/q1/log", "a"):
            await outcome(lambda done, name=name: disk.append(name, [b"x"], done))  # type: ignore[misc]
        await outcome(lambda done: disk.replace("b", "old/b", done))
        assert list(await outcome(lambda done: disk.list(done))) == ["a", "old/b", "queues/q1/log", "queues/q2/log"]

    with_disk(tmp_path, scenario)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "..", "a//b", "a/", "./a", "a\0b"])
def test_a_name_that_is_not_inside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    async def scenario(disk: Disk) -> None:
        assert "is not the name of a file" in await refusal(lambda done: disk.append(name, [b"x"], done))
        assert "is not the name of a file" in await refusal(lambda done: disk.remove(name, done))
        assert "is not the name of a file" in await refusal(lambda done: disk.replace("log", name, done))

    with_disk(tmp_path / "data", scenario)
    assert [path.name for path in tmp_path.rglob("*")] == ["data"]


def test_calls_about_a_file_that_is_not_there_complete_with_an_error(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        calls: list[Start] = [
            lambda done: disk.read("log", 0, 1, done),
            lambda done: disk.sync("log", done),
            lambda done: disk.truncate("log", 0, done),
            lambda done: disk.remove("log", done),
            lambda done: disk.replace("log", "new", done),
        ]
        for call in calls:
            assert await refusal(call) == "log: no such file"

    with_disk(tmp_path, scenario)


def test_files_are_kept_open_up_to_a_limit_and_closed_with_the_node(tmp_path: Path) -> None:
    before = open_files()

    async def scenario(disk: Disk) -> None:
        started = open_files()
        for i in range(MOST_OPEN + 50):
            disk.append(f"f{i}", [b"x"], lambda _: None)
            disk.sync(f"f{i}", lambda _: None)
        assert len(await outcome(lambda done: disk.list(done))) == MOST_OPEN + 50
        assert MOST_OPEN - 5 <= open_files() - started <= MOST_OPEN + 10
        assert await outcome(lambda done: disk.append("f0", [b"y"], done)) == 1

    with_disk(tmp_path, scenario)
    assert open_files() <= before + 1


def test_closing_does_what_was_asked_for_and_then_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        results: list[object] = []
        for _ in range(100):
            runtime.disk.append("log", [b"x"], results.append)
        await runtime.close()
        assert results == list(range(100))
        assert "stopping" in await refusal(lambda done: runtime.disk.append("log", [b"x"], done))

    run(main())
    assert (tmp_path / "log").stat().st_size == 100


def test_a_node_without_a_data_folder_says_so_at_every_call() -> None:
    async def scenario(disk: Disk) -> None:
        calls: list[Start] = [
            lambda done: disk.append("log", [b"x"], done),
            lambda done: disk.read("log", 0, 1, done),
            lambda done: disk.sync("log", done),
            lambda done: disk.truncate("log", 0, done),
            lambda done: disk.replace("log", "new", done),
            lambda done: disk.remove("log", done),
            disk.list,
        ]
        for call in calls:
            assert await refusal(call) == "this node has no data folder"

    with_disk(None, scenario)


def test_a_data_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        with pytest.raises(UserError, match=r"cannot use .* as the data folder"):
            AioRuntime("a", disk_dir=tmp_path / "file" / "data")

    run(main())


def test_an_append_and_the_sync_behind_it_are_told_in_their_order(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        told: list[object] = []
        for part in (b"one", b"two", b"three"):
            disk.append("log", [part], told.append)
            told.append(await outcome(lambda done: disk.sync("log", done)))
        assert told == [0, None, 3, None, 6, None]
        assert (tmp_path / "log").read_bytes() == b"onetwothree"

    with_disk(tmp_path, scenario)


def test_what_is_synced_as_it_is_written_needs_no_other_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files, "_sync_data", synced.append)
    folder = files.Folder(tmp_path)
    assert folder.append("log", [b"one"], sync_follows=True) == 0
    folder.sync("log")
    assert len(synced) == 1  # a new file: its name has to be durable, too
    assert folder.append("log", [b"two"], sync_follows=True) == 3
    folder.sync("log")
    assert len(synced) == (1 if hasattr(os, "RWF_DSYNC") else 2)
    folder.append("log", [b"three"])
    folder.append("log", [b"four"], sync_follows=True)
    folder.sync("log")
    assert len(synced) == (2 if hasattr(os, "RWF_DSYNC") else 3)  # the third part was not synced as it was written
    folder.close()


def test_a_disk_that_is_full_takes_nothing_of_an_append_that_is_to_be_synced_and_goes_on(tmp_path: Path) -> None:
    folder = files.Folder(tmp_path)
    folder.append("log", [bytes(1000)])
    folder.sync("log")
    with file_size_limit(1500), pytest.raises(DiskError, match="File too large"):
        folder.append("log", [b"x" * 900], sync_follows=True)
    assert folder.append("log", [b"y"], sync_follows=True) == 1000
    folder.sync("log")
    folder.close()


def test_a_limit_that_is_met_by_an_append_to_a_synced_file_leaves_it_as_it_was(tmp_path: Path) -> None:
    async def scenario(disk: Disk) -> None:
        async def append_and_sync(data: bytes) -> tuple[object, object]:
            told: list[object] = []
            disk.append("log", [data], told.append)
            return await outcome(lambda done: disk.sync("log", done)), told[0]

        assert await append_and_sync(bytes(1000)) == (None, 0)
        with file_size_limit(1500):
            synced, appended = await append_and_sync(b"x" * 900)
            assert synced is None  # what was there before
            assert "File too large" in str(appended)
        assert (tmp_path / "log").stat().st_size == 1000
        assert await append_and_sync(b"y") == (None, 1000)

    with_disk(tmp_path, scenario)


def test_a_file_system_that_cannot_sync_as_it_writes_is_written_to_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev
    refused: list[int] = []
    synced: list[int] = []

    def plain(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            refused.append(flags)
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return write(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", plain)
    monkeypatch.setattr(files, "_SYNCED", 2)
    monkeypatch.setattr(files, "_sync_data", synced.append)
    folder = files.Folder(tmp_path)
    for number, part in enumerate((b"one", b"two", b"six")):
        assert folder.append("log", [part], sync_follows=True) == 3 * number
        folder.sync("log")
    assert (tmp_path / "log").read_bytes() == b"onetwosix"
    assert refused == [2]  # it is asked once
    assert len(synced) == 3
    folder.close()
