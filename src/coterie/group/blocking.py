"""block() and unblock(): what a flush asks of the application, and how long it is given.

Promises: `block()` is called at once, never behind deliveries, because it may wait for some of them. It is answered
when the application has returned from it and, if it has one of its own, what it had sent by then has left the
channel. `unblock()` comes once for each `block()`, and after it. An application that fails is logged and holds up
nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from coterie.group.members import Address
from coterie.group.receiver import Receiver
from coterie.runtime.base import Runtime

log = logging.getLogger("coterie.channel")

Done = Callable[[], None]


class Blocking:
    """The application's part in flushes."""

    def __init__(self, receiver: Receiver, push_out: Callable[[Done, bool], None]) -> None:
        self._receiver = receiver
        self._push_out = push_out
        """Sends what the channel has gathered; waits, if told so, until all of it has gone."""
        self._waits = type(receiver).block is not Receiver.block
        """An application without a `block()` has nothing that must be sent before."""
        self._under_way: Done | None = None
        """Called when the `block()` that has not returned yet does. Only the latest flush that asked waits for it:
        those before have given up, or are over."""
        self._blocked = False
        self._unblock_follows = False

    def block(self, runtime: Runtime, local: Address, done: Done) -> None:
        self._unblock_follows = False
        if self._under_way is not None:  # an earlier flush did not wait for it any longer: it answers for this one
            self._under_way = done
            return
        self._blocked = True
        try:
            waits = self._receiver.block()
        except Exception:
            log.exception("block() of %s failed", local)
            waits = None
        if waits is None:
            self._push_out(done, self._waits)
        else:
            self._under_way = done
            runtime.spawn(self._await(waits, local))

    async def _await(self, waits: Awaitable[None], local: Address) -> None:
        try:
            await waits
        except Exception:
            log.exception("block() of %s failed", local)
        done, self._under_way = self._under_way, None
        if done is not None:
            self._push_out(done, True)
        if self._unblock_follows:
            self.unblock(local)

    def unblock(self, local: Address) -> None:
        if self._under_way is not None:
            self._unblock_follows = True
        elif self._blocked:
            self._blocked = self._unblock_follows = False
            try:
                self._receiver.unblock()
            except Exception:
                log.exception("unblock() of %s failed", local)

    def held(self) -> int:
        return int(self._under_way is not None)
