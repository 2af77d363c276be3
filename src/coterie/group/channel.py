"""The channel: what an application holds of a group.

Promises: messages sent during one turn of the event loop go out as one bundle, at the end of that turn or as soon as
it is full, so an idle channel adds no delay and a busy one pays per bundle. Messages arrive as batches of bundles,
each split into memoryviews (inbox.py). What has no credit yet waits here, bounded; it has no number, so it belongs to
the next view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.errors import CoterieError, UserError
from coterie.group import bundle
from coterie.group.bundle import OFFSET_SIZE
from coterie.group.inbox import Delivery, Inbox, Receiver
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, NAME_MAX, UCAST, Packet
from coterie.group.presets import REGISTRY, preset
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.fragment import Fragment
from coterie.group.protocols.transport import Transport
from coterie.group.stack import Layer, Stack, build
from coterie.runtime.base import Buffer, Future, Runtime
from coterie.settings import load, setting

__all__ = ["BufferFull", "Channel", "ChannelClosed", "ChannelSettings", "Delivery", "Receiver"]


class BufferFull(CoterieError):
    """So much waits for credit already that nothing more is taken: await `Channel.send` instead, or wait."""


class ChannelClosed(CoterieError):
    """The channel is not connected."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    bundle_size: int = setting(60_000, "Messages are gathered up to this size.", unit="B", minimum=64)
    buffer_max: int = setting(1 << 20, "Bytes per destination that may wait for credit.", unit="B", minimum=1)
    close_timeout: float = setting(2.0, "How long close() waits for what was sent to arrive.", unit="s", minimum=0)


class Outbox:
    """Messages for one destination that are not in a bundle yet."""

    __slots__ = ("dest", "gathered", "messages", "ready", "waiting")

    def __init__(self, dest: Address | None) -> None:
        self.dest = dest
        self.messages: list[Buffer] = []
        self.gathered = 0
        """Bytes in `messages`."""
        self.ready: deque[tuple[list[Buffer], int]] = deque()
        """Full bundles, each with its size, that wait for credit."""
        self.waiting = 0
        """Bytes in `ready`."""

    def cut(self) -> None:
        """What is gathered is a bundle."""
        self.ready.append((self.messages, self.gathered))
        self.waiting += self.gathered
        self.messages, self.gathered = [], 0


class Channel:
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
        self.settings = load(ChannelSettings, settings, "channel")
        if not 0 < len(name.encode()) <= NAME_MAX:
            raise UserError(f"a member's name has 1 to {NAME_MAX} bytes, not {len(name.encode())}")
        self.runtime = runtime
        self.local = Address(name, int(runtime.wall() * 1000) if incarnation is None else incarnation)
        self._all = self._last_box = Outbox(None)
        self._to: dict[Address, Outbox] = {}
        self._connected = False
        self._flush_comes = False
        self._writers: deque[tuple[Outbox, Future[None]]] = deque()
        self._view_waiters: list[tuple[int, Future[None]]] = []
        inbox = Inbox(
            Receiver() if receiver is None else receiver,
            view_changed=self._view_changed,
            writable=self._flush,
            stopped=self._stopped,
            unsent=self._unsent,
        )
        protocols = build(preset(layers) if isinstance(layers, str) else layers, REGISTRY)
        self.stack = Stack(runtime, group, self.local, protocols, inbox)
        self._send_down = inbox.pass_down
        self._transport = self.stack.find(Transport)  # type: ignore[type-abstract]
        self._flow = self.stack.find(Flow) if self.stack.has(Flow) else None
        size = self._message_max = self.settings.bundle_size
        if self.stack.has(Fragment):
            fragment = self.stack.find(Fragment).settings
            size, self._message_max = min(size, fragment.size), fragment.message_max
        self._cut_at = size - OFFSET_SIZE  # a table has one entry more than there are messages

    @property
    def view(self) -> View:
        return self.stack.view

    async def connect(self, members: int = 1) -> None:
        """Start the stack and wait until the view has at least so many members. A channel connects once."""
        if self._connected:
            raise UserError("this channel has been connected before: make another one")
        self._connected = True
        self.stack.start()
        await self.has_members(members)

    async def has_members(self, count: int) -> None:
        """Wait until the view has at least so many members."""
        if len(self.view.members) < count:
            future = self.runtime.future()
            self._view_waiters.append((count, future))
            await future

    async def close(self) -> None:
        """Send what waits, give it time to arrive, say good-bye. A second call does nothing."""
        if not self.stack.running:
            return
        self._flush()
        deadline = self.runtime.now() + self.settings.close_timeout
        while any(self.stack.held().values()) and self.runtime.now() < deadline and len(self.view.members) > 1:
            pause = self.runtime.future()
            self.runtime.call_later(0.01, pause.set_result, None)
            await pause
        self.stack.stop()

    # Sending.

    def send_nowait(self, data: Buffer, dest: Address | None = None) -> None:
        """Send to one member, or to all of the view including ourselves. The data must not be changed afterwards.

        Raises BufferFull when too much waits for credit already.
        """
        box = self._last_box  # most messages go where the one before went
        if dest is not box.dest:
            self._last_box = box = self._box(dest)
        gathered = box.gathered + len(data) + OFFSET_SIZE
        if gathered > self._cut_at:
            gathered = self._next_bundle(box, len(data) + OFFSET_SIZE)
        elif not self._flush_comes:
            self._begin_turn()
        box.messages.append(data)
        box.gathered = gathered

    def _next_bundle(self, box: Outbox, size: int) -> int:
        """The message does not fit into the bundle that is being gathered: that one is complete."""
        if box.waiting >= self.settings.buffer_max:
            raise BufferFull(f"{box.waiting} bytes wait for credit")
        if size - OFFSET_SIZE > self._message_max:
            limit = "message_max of FRAG" if self.stack.has(Fragment) else "bundle_size, without FRAG in the stack"
            size -= OFFSET_SIZE
            raise UserError(f"a message of {size} bytes: the limit is {self._message_max} ({limit})")
        if not self._flush_comes:
            self._begin_turn()
        if box.messages:
            box.cut()
            self._send_ready(box)
        return size

    def _begin_turn(self) -> None:
        if not self.stack.running:
            raise ChannelClosed("not connected: await connect() first")
        self._flush_comes = True
        self.runtime.call_soon(self._flush)

    async def send(self, data: Buffer, dest: Address | None = None) -> None:
        """Send, and wait as long as there is no credit."""
        await self.writable(dest)
        self.send_nowait(data, dest)

    async def writable(self, dest: Address | None = None) -> None:
        """Wait until `send_nowait` to that destination has room."""
        box = self._box(dest)
        while box.waiting >= self.settings.buffer_max:
            future = self.runtime.future()
            self._writers.append((box, future))
            await future

    def _box(self, dest: Address | None) -> Outbox:
        if dest is None:
            return self._all
        box = self._to.get(dest)
        if box is None:
            box = self._to[dest] = Outbox(dest)
        return box

    def _flush(self) -> None:
        """The turn is over, or there is credit again: whatever was gathered goes out, if there is credit for it."""
        self._flush_comes = False
        for box in (self._all, *self._to.values()):
            self._send_ready(box)
            if box.messages and not box.ready and (self._flow is None or self._flow.ready(box.dest)):
                box.cut()
                self._send_ready(box)

    def _send_ready(self, box: Outbox) -> None:
        flow, dest = self._flow, box.dest
        carrier = MCAST if dest is None else UCAST
        burst = len(box.ready) > 1
        if burst:
            self._transport.cork()
        while box.ready and (flow is None or flow.ready(dest)):
            messages, size = box.ready.popleft()
            box.waiting -= size
            self._send_down(Packet(bundle.join(messages), dest, APP, carrier))
        if burst:
            self._transport.uncork()
        if self._writers:
            self._wake_writers()

    def _wake_writers(self) -> None:
        for _ in range(len(self._writers)):
            box, future = self._writers.popleft()
            if box.waiting >= self.settings.buffer_max:
                self._writers.append((box, future))
            elif not future.done():
                future.set_result(None)

    def _unsent(self) -> int:
        return sum(len(box.messages) + len(box.ready) for box in (self._all, *self._to.values()))

    # What the stack tells.

    def _view_changed(self, view: View) -> None:
        for dest in [d for d, box in self._to.items() if d not in view and not box.messages and not box.ready]:
            del self._to[dest]
            self._last_box = self._all
        for count, future in self._view_waiters:
            if len(view.members) >= count and not future.done():
                future.set_result(None)
        self._view_waiters = [entry for entry in self._view_waiters if not entry[1].done()]

    def _stopped(self) -> None:
        for _, future in (*self._writers, *self._view_waiters):
            if not future.done():
                future.set_exception(ChannelClosed("the channel was closed"))
        self._writers.clear()
        self._view_waiters.clear()

    def stats(self) -> dict[str, dict[str, int]]:
        """Every layer's counters, by the layer's name."""
        return self.stack.stats()
