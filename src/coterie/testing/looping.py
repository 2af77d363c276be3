"""An event loop in a thread of its own, into which other threads call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from coterie.errors import CoterieError
from coterie.runtime.aio.loop import new_loop

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which whatever was asked for counts as stuck."""


class LoopThread:
    """Nothing about the process is changed for it: no signal handlers, no garbage collector's thresholds. The thread is
    a daemon, so that a process which forgets to `close` it ends all the same."""

    def __init__(self, name: str) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it there; its outcome is the future's."""
        if self._loop.is_closed():
            coroutine.close()
            raise CoterieError("this broker is closed: a new one is needed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], patience: float = PATIENCE) -> T:
        """Run it there, and wait for it."""
        return self.begin(coroutine).result(patience)

    def call(self, call: Callable[..., T], *args: object) -> T:
        """Call it there, and wait for it."""

        async def called() -> T:
            return call(*args)

        return self.run(called())

    def close(self) -> None:
        """End everything that runs there, then the thread. A second call does nothing."""
        if self._loop.is_closed():
            return
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    loop = asyncio.get_running_loop()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
