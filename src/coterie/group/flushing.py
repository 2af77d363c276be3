"""An application's own flush: `async with channel.flush():`.

Promises: inside the block no member of the targets sends multicasts, all of them have delivered the same, and no other
application's flush holds. If that cannot be had, FlushFailed says why, and nobody stays blocked. A flush that does not
last until its holder stops it is *lost*: it took too long, another group came with a merge, a member has left it by
itself. Then `lost` says why, whoever gave a callback is called, and leaving the block raises FlushFailed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

from coterie.errors import CoterieError
from coterie.group.members import Address
from coterie.group.protocols.flush_base import FlushProtocol, Kind, Outcome
from coterie.runtime.base import Future, Runtime, Timer

log = logging.getLogger("coterie.channel")


class FlushFailed(CoterieError):
    """The group could not be flushed: somebody else's flush holds, or somebody did not answer. Try again later.

    Or it was flushed, and the flush did not last until its holder stopped it.
    """


class Flush:
    """One exclusive flush. It is used once."""

    def __init__(
        self,
        runtime: Runtime,
        layer: FlushProtocol,
        targets: tuple[Address, ...],
        timeout: float | None,
        future: Callable[[], Future[None]],
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._layer = layer
        self._timeout = timeout
        self._new_future = future
        self._on_lost = on_lost
        self._number: int | None = None
        self._over = False
        self.targets = targets
        self.held = False
        """It holds now."""
        self.lost = ""
        """Why it does not hold any more although it was not stopped: what is done from then on is not exclusive."""

    async def start(self) -> None:
        """Flush. Raises FlushFailed."""
        future = self._new_future()
        timer: Timer | None = None
        if self._timeout is not None:
            timer = self._runtime.call_later(self._timeout, self._timed_out, future)
        self._number = self._layer.suspend(
            Kind.EXCLUSIVE, self.targets, lambda outcome: self._end(future, outcome), self._lose
        )
        try:
            await future
            if self.lost:
                raise FlushFailed(self.lost)
            self.held = True
        except BaseException as why:
            if not isinstance(why, GeneratorExit):  # then the process is gone, and does nothing any more
                self.stop()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def stop(self) -> bool:
        """Release it, or give it up while it is under way. True if it held until now."""
        held, self.held = self.held, False
        if self._number is not None and not self._over:
            self._over = True
            self._layer.resume(self._number)
        return held and not self.lost

    def _lose(self, why: str) -> None:
        held, self.held = self.held, False
        self.lost = f"the flush {why} before it was stopped: what was done since was not exclusive"
        if held and self._on_lost is not None:  # in a turn of its own: it may stop the flush, or begin another
            self._runtime.call_soon(self._tell_lost, self._on_lost)

    def _tell_lost(self, on_lost: Callable[[str], None]) -> None:
        try:
            on_lost(self.lost)
        except Exception:
            log.exception("what was to be told that a flush is lost has failed")

    def _end(self, future: Future[None], outcome: Outcome) -> None:
        if not outcome.ok:
            self._over = True
            if not future.done():
                others = [str(member) for member in self._layer.holders()]
                by = f" (held by {', '.join(others)})" if others else ""
                reason = outcome.reason or "a member did not take part"
                future.set_exception(FlushFailed(f"the flush failed: {reason}{by}; nothing is blocked, try again"))
        elif not future.done():
            future.set_result(None)

    def _timed_out(self, future: Future[None]) -> None:
        if not future.done():
            text = f"the flush did not hold within {self._timeout:g} s; nothing is blocked, try again"
            future.set_exception(FlushFailed(text))

    async def __aenter__(self) -> Flush:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:
            return
        self.stop()
        if self.lost and error is None:  # what went wrong inside is told first
            raise FlushFailed(self.lost)
