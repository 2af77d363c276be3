"""Futures and tasks of the simulator: asyncio's shape without asyncio, and without any order but the world's.

A task is stepped by the loop, never inside the call that completes what it waits for, just as with asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

from coterie.sim.clock import Owner, World

T = TypeVar("T")


class SimFuture(Generic[T]):
    """A value that is not known yet."""

    __slots__ = ("_done", "_error", "_owner", "_result", "_ticket", "_waiters", "_world")

    def __init__(self, world: World, owner: Owner) -> None:
        self._world = world
        self._owner = owner
        self._done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[Callable[[SimFuture[T]], object]] = []
        self._ticket = 0

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: T, /) -> None:
        self._finish(result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._finish(None, exception)

    def result(self) -> T:
        if not self._done:
            raise RuntimeError("the result is not known yet")
        if self._error is not None:
            self._world.unhandled.pop(self._ticket, None)
            raise self._error
        return cast(T, self._result)

    def exception(self) -> BaseException | None:
        self._world.unhandled.pop(self._ticket, None)
        return self._error

    def add_done_callback(self, call: Callable[[SimFuture[T]], object]) -> None:
        if self._done:
            self._world.soon(self._owner, call, self)
        else:
            self._waiters.append(call)

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        if self._done:
            raise RuntimeError("the result is known already")
        self._done = True
        self._result, self._error = result, error
        for call in self._waiters:
            self._world.soon(self._owner, call, self)
        self._waiters.clear()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            yield self
        return self.result()


class Task(SimFuture[T]):
    """A coroutine under way. It may await only futures of the simulator."""

    __slots__ = ("_coroutine",)

    def __init__(self, world: World, owner: Owner, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(world, owner)
        self._coroutine = coroutine
        world.soon(owner, self._step, None)

    def _step(self, _: object) -> None:
        try:
            waited = self._coroutine.send(None)
        except StopIteration as stop:
            self.set_result(stop.value)
        except Exception as error:
            self._ticket = self._world.failed(self._owner.name, error)
            self.set_exception(error)
        else:
            if not isinstance(waited, SimFuture):
                self._coroutine.close()
                self.set_exception(TypeError(f"a task awaited {waited!r}, which is no future of the simulator"))
                return
            waited.add_done_callback(self._step)

    def close(self) -> None:
        """The process died under it: free what the coroutine holds. Whatever its clean-up does no longer counts."""
        try:
            self._coroutine.close()
        except Exception:
            pass
