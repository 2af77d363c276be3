"""The channel: what an application holds of a group.

It joins and leaves, sends (outbox.py), flushes (flushing.py) and asks for another member's state; what comes from the
group reaches the application's `Receiver` (receiver.py) through the top of the stack (inbox.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from coterie.errors import UserError
from coterie.group.events import Replaced
from coterie.group.flushing import Flush, FlushFailed
from coterie.group.inbox import Inbox
from coterie.group.members import Address, View
from coterie.group.outbox import BufferFull, ChannelClosed, ChannelSettings, Sending
from coterie.group.packet import NAME_MAX
from coterie.group.presets import REGISTRY, preset
from coterie.group.protocols.flush_base import FlushProtocol
from coterie.group.protocols.state import State, StateFailed, StateProgress
from coterie.group.protocols.total import Total
from coterie.group.receiver import Delivery, Receiver, StateInterrupted
from coterie.group.stack import Layer, Stack, build
from coterie.runtime.base import Future, Runtime
from coterie.settings import load

__all__ = [
    "BufferFull", "Channel", "ChannelClosed", "ChannelSettings", "Delivery", "Flush", "FlushFailed", "Receiver",
    "StateFailed", "StateInterrupted", "StateProgress",
]  # fmt: skip

log = logging.getLogger("coterie.channel")

_OWN = ("unsent", "waiting", "multicasts", "unacked", "transfers")
"""What a stack holds back of what its own application sent or gives, as its layers call it."""


class Channel(Sending):
    """A member of a group: a stack of protocols, and the application's handle on it."""

    def __init__(
        self,
        runtime: Runtime,
        layers: str | Sequence[Layer] = "reliable",
        *,
        group: str,
        name: str,
        incarnation: int | None = None,
        receiver: Receiver | None = None,
        **settings: object,
    ) -> None:
        super().__init__()
        self.settings = load(ChannelSettings, settings, "channel")
        if not 0 < len(name.encode()) <= NAME_MAX:
            raise UserError(f"a member's name has 1 to {NAME_MAX} bytes, not {len(name.encode())}")
        self.runtime = runtime
        self.local = Address(name, int(runtime.wall() * 1000) if incarnation is None else incarnation)
        self._connected = False
        self._views = 0
        """How many have been accepted."""
        self._view_waiters: list[tuple[int, Future[None]]] = []
        self._futures: list[Future[None]] = []
        """What somebody waits for in `flush` or `get_state`."""
        self._flushes: list[Flush] = []
        """Those of `start_flush` that hold."""
        inbox = Inbox(
            Receiver() if receiver is None else receiver,
            view_changed=self._view_changed,
            writable=self._flush,
            stopped=self._stopped,
            unsent=self._unsent,
            push_out=self._push_out,
            replaced=self._replaced,
        )
        self._receiver = inbox.receiver
        protocols = build(preset(layers) if isinstance(layers, str) else layers, REGISTRY)
        self._membership: Any = next((p for p in protocols if p.role == "membership"), None)
        self._send_through(Stack(runtime, group, self.local, protocols, inbox), inbox.pass_down)
        self._state = self.stack.find(State) if self.stack.has(State) else None

    @property
    def view(self) -> View:
        return self.stack.view

    # Joining and leaving.

    async def connect(self, members: int = 1, state: bool = False) -> None:
        """Join the group, and wait until the view has at least so many members. A channel connects once.

        With `state`, the member joins with the state of the group, as it is at the beginning of its first view, and
        waits until its application has set it. Raises StateFailed if nobody can give it: the member is in the group,
        and may try `get_state()`, or close.
        """
        if self._connected:
            raise UserError("this channel has been connected before: make another one")
        future: Future[None] | None = None
        if state:
            if self._state is None or not hasattr(self._membership, "want_state"):
                raise UserError("connect(state=True): the stack needs STATE, and a membership that agrees on views")
            self._membership.want_state = True
            future = self._future()
            self._state.joins(future)
        self._connected = True
        self.stack.start()
        if future is not None:
            await future
        if self._membership is not None and not self._views:
            await self._view_with(1)
        await self.has_members(members)

    async def has_members(self, count: int) -> None:
        """Wait until the view has at least so many members."""
        if len(self.view.members) < count:
            await self._view_with(count)

    async def _view_with(self, count: int) -> None:
        future = self.runtime.future()
        self._view_waiters.append((count, future))
        await future

    async def close(self) -> None:
        """Send what waits, give it time to arrive, leave the group. A second call does nothing."""
        if not self.stack.running:
            return
        self._flush()
        leaves = hasattr(self._membership, "leave")
        deadline = self.runtime.now() + self.settings.close_timeout
        while self._owes(leaves) and self.runtime.now() < deadline and len(self.view.members) > 1:
            await self._pause(0.01)
        if self.stack.running and leaves:
            left: Future[None] = self._membership.leave()
            timer = self.runtime.call_later(self.settings.close_timeout, _let_go, left)
            await left
            timer.cancel()
        self.stack.stop()

    def _owes(self, leaves: bool) -> bool:
        """Something has not arrived yet. Who is let go by the group has its multicasts delivered in that view change,
        as soon as they are sent: then what others send, and may never cease to, is not waited for."""
        held = self.stack.held()
        return any(amount for what, amount in held.items() if not leaves or what.partition(".")[2] in _OWN)

    async def _pause(self, seconds: float) -> None:
        pause = self.runtime.future()
        timer = self.runtime.call_later(seconds, pause.set_result, None)
        try:
            await pause
        finally:  # the node may be closed meanwhile, and with it whoever waits here
            timer.cancel()

    # Flushing.

    def flush(
        self,
        targets: Sequence[Address] | None = None,
        timeout: float | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> Flush:
        """`async with channel.flush():` nobody multicasts, and all have delivered the same. Raises FlushFailed.

        Only one such flush holds at a time, of all members whose targets overlap. Without `targets`: the whole view. A
        flush can be lost while it is held: after `exclusive_max` of FLUSH2, when groups merge, when a member leaves it
        because it takes us for dead or its gate was shut for too long. Then it is released, `lost` of it says why,
        the callback `lost` is called with that, and leaving the block raises FlushFailed.
        """
        if not self.stack.has(FlushProtocol):
            raise UserError("flush(): the stack has no FLUSH2: use the stack 'virtual-synchrony' or 'total-order'")
        self._check_running()
        strangers = [str(member) for member in targets or () if member not in self.view]
        if strangers:
            raise UserError(f"flush(): not in the view: {', '.join(strangers)}")
        layer = self.stack.find(FlushProtocol)  # type: ignore[type-abstract]
        members = self.view.members if targets is None else tuple(dict.fromkeys(targets))
        return Flush(self.runtime, layer, members, timeout, self._future, lost)

    async def start_flush(
        self,
        targets: Sequence[Address] | None = None,
        timeout: float | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> bool:
        """The same without a block of code: True if it holds, and then `stop_flush` must follow, even if it is lost."""
        flush = self.flush(targets, timeout, lost)
        try:
            await flush.start()
        except FlushFailed:
            return False
        self._flushes.append(flush)
        return True

    def stop_flush(self) -> bool:
        """Release the flush that `start_flush` began, the oldest if there are several.

        False if there is none, or if it has not held until now.
        """
        return self._flushes.pop(0).stop() if self._flushes else False

    # Total order.

    def count_holders(self, members: Sequence[Address], need: int) -> None:
        """Until the next view, `Receiver.held` speaks of so many of these members, not of a majority of the view."""
        self.stack.find(Total).count_holders(members, need)

    # State transfer.

    async def get_state(self, provider: Address | None = None, timeout: float | None = None) -> None:
        """Have the application set the state of another member, of `provider` first, if it is named.

        What it is at one cut through the group: what is delivered after that arrives once the state is set. Not to be
        awaited in `receive`, which would wait for itself. Raises StateFailed when nobody gives it.
        """
        if self._state is None:
            raise UserError("get_state(): the stack has no STATE: use the stack 'virtual-synchrony' or 'total-order'")
        self._check_running()
        future = self._future()
        fetch = self._state.fetch(provider, future)
        timer = None
        if timeout is not None:
            timer = self.runtime.call_later(timeout, fetch.give_up, f"it took longer than {timeout:g} s")
        try:
            await future
        except BaseException as why:
            if not isinstance(why, GeneratorExit):  # then the process is gone, and does nothing any more
                fetch.give_up("it was cancelled")  # does nothing if it is over
            raise
        finally:
            if timer is not None:
                timer.cancel()

    @property
    def state_progress(self) -> StateProgress | None:
        """How far the state that this member gets has come, or the last one came; None before the first."""
        return None if self._state is None else self._state.progress

    def _future(self) -> Future[None]:
        """One that fails when the channel is closed."""
        self._futures = [future for future in self._futures if not future.done()]
        future: Future[None] = self.runtime.future()
        self._futures.append(future)
        return future

    # What the stack tells.

    def _view_changed(self, view: View) -> None:
        self._views += 1
        self._forget_departed(view)
        for count, future in self._view_waiters:
            if len(view.members) >= count and not future.done():
                future.set_result(None)
        self._view_waiters = [entry for entry in self._view_waiters if not entry[1].done()]

    def _stopped(self) -> None:
        waiting = [*(future for _, future in self._writers), *(future for _, future in self._view_waiters)]
        for future in (*waiting, *self._futures):
            if not future.done():
                future.set_exception(ChannelClosed(self.failure or "the channel was closed"))
        self._writers.clear()
        self._view_waiters.clear()
        self._futures.clear()

    def _replaced(self, event: Replaced) -> None:
        if not self.failure:
            self.failure = (
                f"another process has joined as {self.local.name}: {event.by} at {event.endpoint}, which is newer than "
                f"this one, {self.local}; so this channel was closed: give each process a name of its own"
            )
            self.runtime.call_soon(self._give_way)  # not in the middle of what the layers do

    def _give_way(self) -> None:
        """A group has one process of a name. The others take us for dead already, or will."""
        if self.stack.running:
            log.error("%s", self.failure)
            self.stack.stop()
            try:
                self._receiver.closed(self.failure)
            except Exception:
                log.exception("the receiver of %s failed on the end of its channel", self.local)

    def stats(self) -> dict[str, dict[str, int]]:
        """Every layer's counters, by the layer's name."""
        return self.stack.stats()


def _let_go(left: Future[None]) -> None:
    """The group takes too long."""
    if not left.done():
        left.set_result(None)
