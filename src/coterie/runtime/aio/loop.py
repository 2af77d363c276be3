"""AioRuntime: one node's clock, timers, randomness, tasks and offloaded work over the running asyncio loop.

Everything is called from that loop, one call at a time. What a callback or a task raises and nobody handles is logged
by the logger "coterie". Several runtimes may share a loop: each has its own sockets, files and threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from coterie.errors import CoterieError
from coterie.runtime.aio import failures
from coterie.runtime.aio.disk import FolderDisk, NoDisk
from coterie.runtime.aio.overlay import OverlayDisk
from coterie.runtime.aio.sockets import AioNetwork
from coterie.runtime.aio.tracefile import FileTracer
from coterie.runtime.base import Future, Runtime, Timer
from coterie.trace import Tracer

T = TypeVar("T")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 32 << 20
_LARGE = 8 << 20
OFFLOAD_THREADS = 4
OFFLOAD_PENDING = 4096
"""More work than this waiting for a thread is refused: whoever offloads must bound what it asks for."""


class AioRuntime(Runtime):
    """Make it inside a running loop; `await close()` when the node is done."""

    disk: FolderDisk | OverlayDisk | NoDisk
    net: AioNetwork

    def __init__(
        self,
        node: str,
        *,
        disk_dir: Path | None = None,
        seed: int | None = None,
        trace: Tracer | None = None,
        guest: bool = True,
        read_only: bool = False,
    ) -> None:
        """`guest`: the process has other things to do, and its memory says nothing about this node. `read_only`: the
        files stay as they are, whatever is written."""
        self._loop = loop = asyncio.get_running_loop()
        failures.watch(loop)
        self.node = node
        self.rng = random.Random(int.from_bytes(os.urandom(16), "big") if seed is None else seed)
        self.trace = Tracer() if trace is None else trace
        if isinstance(self.trace, FileTracer):
            self.trace.attach(self.call_later)
        self.net = AioNetwork(loop)
        self.disk = NoDisk(loop) if disk_dir is None else FolderDisk(loop, disk_dir)
        if read_only and isinstance(self.disk, FolderDisk):
            self.disk = OverlayDisk(self.disk, loop.call_soon)
        self._threads = ThreadPoolExecutor(OFFLOAD_THREADS, thread_name_prefix=f"{node}-offload")
        self._offloaded = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        """Only to keep them alive, as asyncio does not; never iterated over but to end them."""
        self._closed = False
        self._guest = guest

    def memory(self) -> int:
        return 0 if self._guest else resident_memory()

    def give_back(self) -> None:
        if not self._guest:
            self.offload(_trim, lambda _: None)

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(call, *args)

    def call_later(self, delay: float, call: Callable[..., object], *args: object) -> Timer:
        # By absolute time, for uvloop's idea of now is as old as this turn of the loop; and half a millisecond more,
        # for it rounds to whole ones: a timer never fires before its time by `now()`.
        return self._loop.call_at(time.monotonic() + delay + 0.0005, call, *args)

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)

    def offload(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        if self._closed or self._offloaded >= OFFLOAD_PENDING:
            text = "the node is stopping" if self._closed else "too much offloaded work is waiting already"
            self._loop.call_soon(done, CoterieError(text))
            return
        self._offloaded += 1

        def ended(future: ThreadFuture[T]) -> None:
            try:
                self._loop.call_soon_threadsafe(finish, future)
            except RuntimeError:  # the loop has ended, and with it whoever waited
                pass

        def finish(future: ThreadFuture[T]) -> None:
            self._offloaded -= 1
            if self._closed or future.cancelled():
                return
            error = future.exception()
            if error is None:
                done(future.result())
            else:
                done(error if isinstance(error, Exception) else CoterieError(f"offloaded work ended with {error!r}"))

        self._threads.submit(work).add_done_callback(ended)

    def future(self) -> Future[Any]:
        return self._loop.create_future()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Abort every socket, end every task, finish what the disk was asked to do. A second call does nothing.

        Handlers of streams get their `closed`; timers are their owners' to cancel; offloaded work is not waited for.
        """
        if self._closed:
            return
        self._closed = True
        current = asyncio.current_task()
        await failures.end(f"a task of {self.node}", [task for task in self._tasks if task is not current])
        await self.net.close()
        await self.disk.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if isinstance(self.trace, FileTracer):
            self.trace.seal()
        else:
            self.trace.flush()


def resident_memory() -> int:
    """Of this process; 0: the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _trim() -> None:
    """Where the C library is glibc. It lets other threads run meanwhile."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, on uvloop where it is installed, and with a garbage collector that suits a node."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        failures.watch(runner.get_loop())
        thresholds = gc.get_threshold()
        calm_collector()
        calm_allocator()
        try:
            return runner.run(main)
        finally:
            gc.set_threshold(*thresholds)
            gc.collect()  # a failed task that nobody awaited is reported when it is freed: do it while there is a loop


def calm_collector() -> None:
    """Let the cyclic garbage collector run once per many bundles rather than several times per bundle.

    Each message is handed over as a memoryview, which the collector counts, so that by its defaults it looks for cycles
    every 700 messages among all that is kept for retransmission: a tenth of a busy member's time, for nothing.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def calm_allocator() -> None:
    """Keep freed memory instead of giving it back at once, where the C library is glibc.

    Bundles of 60 KB come and go by the thousand a second; by its defaults glibc returns the top of the heap each time
    it is free and asks for it again a moment later, which costs a page fault per 4 KiB. What is larger than any of
    them, such as the 16 MiB that a password takes to check, is given back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def new_loop() -> asyncio.AbstractEventLoop:
    """On uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
