"""The sending half of a channel.

Promises: messages sent during one turn of the event loop go out as one bundle, at the end of that turn or as soon as
it is full, so an idle channel adds no delay and a busy one pays per bundle. What has no credit yet waits here, bounded;
it has no number, so it belongs to the next view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from coterie.errors import CoterieError, UserError
from coterie.group import bundle
from coterie.group.bundle import OFFSET_SIZE
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, UCAST, Packet
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.fragment import Fragment
from coterie.group.protocols.transport import Transport
from coterie.group.stack import Stack
from coterie.runtime.base import Buffer, Future, Runtime
from coterie.settings import setting


class BufferFull(CoterieError):
    """So much waits for credit already that nothing more is taken: await `Channel.send` instead, or wait."""


class ChannelClosed(CoterieError):
    """The channel is not connected."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    bundle_size: int = setting(60_000, "Messages are gathered up to this size.", unit="B", minimum=64)
    buffer_max: int = setting(1 << 20, "Bytes per destination that may wait for credit.", unit="B", minimum=1)
    close_timeout: float = setting(
        2.0,
        "How long close() waits for what was sent to arrive, and then for the group to let the member go.",
        unit="s",
        minimum=0,
    )


class Outbox:
    """Messages for one destination that are not in a bundle yet."""

    __slots__ = ("dest", "gathered", "gone", "messages", "ready", "waiting")

    def __init__(self, dest: Address | None) -> None:
        self.dest = dest
        self.messages: list[Buffer] = []
        self.gathered = 0
        """Bytes in `messages`."""
        self.ready: deque[tuple[list[Buffer], int]] = deque()
        """Full bundles, each with its size, that wait for credit."""
        self.waiting = 0
        """Bytes in `ready`."""
        self.gone = 0
        """Bundles that went down."""

    def cut(self) -> None:
        """What is gathered is a bundle."""
        self.ready.append((self.messages, self.gathered))
        self.waiting += self.gathered
        self.messages, self.gathered = [], 0


class Sending:
    """What a channel sends with."""

    settings: ChannelSettings
    runtime: Runtime
    failure = ""
    """Why the channel has closed by itself; empty if it has not."""

    def __init__(self) -> None:
        self._all = self._last_box = Outbox(None)
        self._to: dict[Address, Outbox] = {}
        self._flush_comes = False
        self._writers: deque[tuple[Outbox, Future[None]]] = deque()
        self._pushed: tuple[int, Callable[[], None]] | None = None
        """Which flush wants to know when so many multicast bundles have gone down: the latest."""

    def _send_through(self, stack: Stack, send_down: Callable[[Packet], None]) -> None:
        self.stack = stack
        self._send_down = send_down
        self._transport = stack.find(Transport)  # type: ignore[type-abstract]
        self._flow = stack.find(Flow) if stack.has(Flow) else None
        size = self._message_max = self.settings.bundle_size
        if stack.has(Fragment):
            fragment = stack.find(Fragment).settings
            size, self._message_max = min(size, fragment.size), fragment.message_max
        self._cut_at = size - OFFSET_SIZE  # a table has one entry more than there are messages

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
        self._check_running()
        self._flush_comes = True
        self.runtime.call_soon(self._flush)

    def _check_running(self) -> None:
        if not self.stack.running:
            raise ChannelClosed(self.failure or "not connected: await connect() first")

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
            if box.ready or self._writers:
                self._send_ready(box)
            if box.messages and not box.ready and (self._flow is None or self._flow.ready(box.dest)):
                messages, box.messages, box.gathered = box.messages, [], 0
                self._send_bundle(box, messages)
        if self._pushed is not None:
            self._tell_pushed()

    def _send_ready(self, box: Outbox) -> None:
        flow, dest = self._flow, box.dest
        burst = len(box.ready) > 1
        if burst:
            self._transport.cork()
        while box.ready and (flow is None or flow.ready(dest)):
            messages, size = box.ready.popleft()
            box.waiting -= size
            self._send_bundle(box, messages)
        if burst:
            self._transport.uncork()
        if self._writers:
            self._wake_writers()
        if self._pushed is not None:
            self._tell_pushed()

    def _send_bundle(self, box: Outbox, messages: list[Buffer]) -> None:
        box.gone += 1
        dest = box.dest
        self._send_down(Packet(bundle.join(messages), dest, APP, MCAST if dest is None else UCAST))

    def _tell_pushed(self) -> None:
        """What a flush waits for may have gone down."""
        if self._pushed is not None and self._pushed[0] <= self._all.gone:
            self.runtime.call_soon(self._pushed[1])
            self._pushed = None

    def _wake_writers(self) -> None:
        for _ in range(len(self._writers)):
            box, future = self._writers.popleft()
            if box.waiting >= self.settings.buffer_max:
                self._writers.append((box, future))
            elif not future.done():
                future.set_result(None)

    def _push_out(self, done: Callable[[], None], wait: bool) -> None:
        """A flush begins: what was sent so far goes out, as far as there is credit. Wait for all multicasts of it?"""
        self._flush()
        box = self._all
        if wait and box.messages:
            box.cut()
        if wait and box.ready:
            self._pushed = box.gone + len(box.ready), done
        else:
            done()

    def _unsent(self) -> int:
        return sum(len(box.messages) + len(box.ready) for box in (self._all, *self._to.values()))

    def _forget_departed(self, view: View) -> None:
        for dest in [d for d, box in self._to.items() if d not in view and not box.messages and not box.ready]:
            del self._to[dest]
            self._last_box = self._all
