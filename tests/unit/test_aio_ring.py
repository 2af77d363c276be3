"""Writes that the kernel does by itself: what they do to a file, and what is told of those that fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import DiskError
from coterie.runtime.aio import run
from coterie.runtime.aio.disk import FolderDisk
from coterie.runtime.aio.files import Folder
from coterie.runtime.aio.ring import SLOT_BYTES, SLOTS, Ring
from coterie.runtime.aio.workers import Workers
from coterie.runtime.base import Buffer

FORBIDDEN = "|".join(map(os.strerror, (errno.ENOSYS, errno.EPERM, errno.EACCES)))


def with_ring(scenario: Callable[[Ring], Coroutine[Any, Any, None]]) -> None:
    """Where the kernel has no rings, or lets us have none, that is all there is to see."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ring = Ring.of(loop)
        if ring is None:
            with pytest.raises(OSError, match=FORBIDDEN):
                Ring(loop)
            return
        try:
            await scenario(ring)
        finally:
            ring.close()

    run(main())


async def written(ring: Ring, fd: int, data: bytes, offset: int, flags: int = 0, sync: bool = False) -> tuple[int, ...]:
    future: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
    assert ring.write(fd, [data], offset, flags, sync, lambda *result: future.set_result(result))
    return await future


def test_what_is_given_in_parts_is_written_where_it_should_be(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)

    async def scenario(ring: Ring) -> None:
        future: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        parts: list[Buffer] = [b"one", memoryview(b"-two-")[1:4], bytearray(b"three")]
        assert ring.write(fd, parts, 2, 0, False, lambda *result: future.set_result(result))
        parts.clear()  # nobody has to keep them
        assert await future == (11, 11, 0)
        for number in range(100):  # more than there are places in the ring
            assert await written(ring, fd, b"%03d" % number, 13 + 3 * number, os.RWF_DSYNC) == (3, 3, 0)
            assert await written(ring, fd, b"!", 313, sync=True) == (1, 1, 0)
        text = b"".join(b"%03d" % number for number in range(100))
        assert (tmp_path / "log").read_bytes() == b"\0\0onetwothree" + text + b"!"

    with_ring(scenario)
    os.close(fd)


def test_it_takes_so_many_writes_at_a_time_and_none_that_is_too_large(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)

    async def scenario(ring: Ring) -> None:
        ends = [asyncio.get_running_loop().create_future() for _ in range(SLOTS)]
        for number, end in enumerate(ends):
            done = lambda *result, end=end: end.set_result(result)  # noqa: E731
            assert ring.write(fd, [b"x"], number, 0, True, done)
        assert not ring.write(fd, [b"y"], 0, 0, False, lambda *result: None)
        assert await asyncio.gather(*ends) == [(1, 1, 0)] * SLOTS
        assert not ring.write(fd, [bytes(SLOT_BYTES), b"y"], 0, 0, False, lambda *result: None)
        assert await written(ring, fd, bytes(SLOT_BYTES), 0) == (SLOT_BYTES, SLOT_BYTES, 0)

    with_ring(scenario)
    os.close(fd)


@pytest.mark.parametrize("taken", [0, 1])
def test_what_a_busy_kernel_does_not_take_is_handed_over_again(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a write and its sync, or only the sync."""
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)

    async def scenario(ring: Ring) -> None:
        enter = ring._call
        calls = 0

        def busy(number: int, ring_fd: int, count: int, *more: int) -> int:
            nonlocal calls
            calls += 1
            if calls % 2 and not taken:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return enter(number, ring_fd, taken if calls % 2 else count, *more)

        monkeypatch.setattr(ring, "_call", busy)
        async with asyncio.timeout(10):
            for number in range(4):
                assert await written(ring, fd, b"%d" % number, number, sync=True) == (1, 1, 0)
        assert calls == 8
        assert (tmp_path / "log").read_bytes() == b"0123"

    with_ring(scenario)
    os.close(fd)


def test_what_fails_is_told_with_the_number_of_its_error(tmp_path: Path) -> None:
    full, null = os.open("/dev/full", os.O_RDWR), os.open("/dev/null", os.O_RDWR)

    async def scenario(ring: Ring) -> None:
        assert await written(ring, full, b"x", 0) == (1, -errno.ENOSPC, 0)
        assert await written(ring, full, b"x", 0, sync=True) == (1, -errno.ENOSPC, -errno.ECANCELED)
        assert await written(ring, null, b"x", 0, sync=True) == (1, 1, -errno.EINVAL)  # it cannot be synced
        assert await written(ring, 1 << 20, b"x", 0) == (1, -errno.EBADF, 0)

    with_ring(scenario)
    os.close(full)
    os.close(null)


def test_a_synced_file_is_appended_to_and_synced_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over: list[object] = []
    submit = Workers.submit

    def counted(workers: Workers, call: Callable[..., object], *args: object) -> None:
        handed_over.append(call)
        submit(workers, call, *args)

    async def scenario(_: Ring) -> None:
        loop = asyncio.get_running_loop()
        disk = FolderDisk(loop, tmp_path)

        async def append(data: bytes, sync: bool) -> list[object]:
            ends = [loop.create_future() for _ in range(1 + sync)]
            disk.append("log", [data], ends[0].set_result)
            if sync:
                disk.sync("log", ends[1].set_result)
            return list(await asyncio.gather(*ends))

        assert await append(b"one", sync=True) == [0, None]  # it is made, and its name is synced
        monkeypatch.setattr(Workers, "submit", counted)
        assert await append(b"two", sync=True) == [3, None]
        assert await append(b"three", sync=False) == [6]
        assert await append(b"four", sync=True) == [11, None]
        assert handed_over == []
        assert await append(bytes(SLOT_BYTES + 1), sync=True) == [15, None]
        assert len(handed_over) == 1  # too large
        await disk.close()
        assert (tmp_path / "log").read_bytes() == b"onetwothreefour" + bytes(SLOT_BYTES + 1)

    with_ring(scenario)


@pytest.mark.parametrize(
    ("written", "synced", "verdict"),
    [
        (3, 0, "durable"),
        (2, -errno.ECANCELED, "again"),
        (-errno.ENOSPC, -errno.ECANCELED, "again"),
        (-errno.EOPNOTSUPP, -errno.ECANCELED, "again"),
        (-errno.EIO, -errno.ECANCELED, "broken"),
        (3, -errno.EIO, "broken"),
    ],
)
def test_after_a_sync_that_failed_a_file_is_not_written_to_again(
    tmp_path: Path, written: int, synced: int, verdict: str
) -> None:
    folder = Folder(tmp_path)
    folder.append("log", [b"one"])
    folder.sync("log")
    folder.append("log", [b"two"])
    write = folder.write("log", sync_follows=True)
    assert write is not None
    assert (write.start, write.flags, write.sync) == (6, 0, True)  # more than the next bytes is to be synced
    if verdict == "broken":
        with pytest.raises(DiskError):
            write.ended(3, written, synced)
        assert folder.write("log", sync_follows=True) is None
        with pytest.raises(DiskError):
            folder.append("log", [b"six"])
    else:
        assert write.ended(3, written, synced) == (verdict == "durable")
        if verdict == "again":
            assert folder.append("log", [b"six"]) == 6
    folder.close()
