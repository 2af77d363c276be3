"""A channel that several share: building blocks, and the application itself, each behind a port with a name.

Promises: what is sent through a port reaches the ports of that name, one port's messages in the order in which the
channel delivers them; views, flushes and held positions are told to every port. The state of a hub is that of all its
ports, cut at one point, and each port is given its own part. A port that fails does not disturb the others. Messages
for a port that this member does not have are counted and dropped: members open the same ports before they connect.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from coterie.errors import UserError, WireError
from coterie.group.channel import Channel, Delivery, Receiver, StateFailed
from coterie.group.members import Address, View, ViewId
from coterie.group.stack import Layer
from coterie.runtime.base import Buffer, Runtime
from coterie.settings import load, setting

log = logging.getLogger("coterie.blocks")

NAME_MAX = 32
_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class HubSettings:
    majority_of: int = setting(
        0,
        "Replicated blocks take updates only where more than half of so many members are; 0: everywhere.",
        unit="members",
        minimum=0,
    )
    retry_delay: float = setting(
        0.1, "Pause before a member asks again for the state of its blocks.", unit="s", minimum=0.001
    )
    chunk_size: int = setting(256 << 10, "Size of the chunks in which blocks give their state.", unit="B", minimum=1)


class Port:
    """One user's part of a hub. Its messages carry its name, so that they find the port of that name elsewhere."""

    def __init__(self, hub: Hub, name: str, receiver: Receiver) -> None:
        self.hub = hub
        self.name = name
        self.receiver = receiver
        self.mark = bytes((len(name.encode()),)) + name.encode()
        """What each message begins with."""

    def send_nowait(self, data: Buffer, dest: Address | None = None) -> None:
        """As `Channel.send_nowait`."""
        self.hub.channel.send_nowait(b"".join((self.mark, data)), dest)

    async def send(self, data: Buffer, dest: Address | None = None) -> None:
        """As `Channel.send`."""
        await self.hub.channel.send(b"".join((self.mark, data)), dest)


class Hub(Receiver):
    """A channel with ports. It takes what `Channel` takes, but for the receiver, and settings of its own."""

    def __init__(
        self,
        runtime: Runtime,
        layers: str | Sequence[Layer] = "total-order",
        *,
        group: str,
        name: str,
        incarnation: int | None = None,
        **settings: object,
    ) -> None:
        names = [field.name for field in fields(HubSettings)]
        self.settings = load(HubSettings, {n: v for n, v in settings.items() if n in names}, "hub")
        self.runtime = runtime
        self.channel = Channel(
            runtime, layers, group=group, name=name, incarnation=incarnation, receiver=self,
            **{n: v for n, v in settings.items() if n not in names},
        )  # fmt: skip
        self.view: View | None = None
        """The last one that the ports were told of: the channel's may be ahead of it. None before the first."""
        self.connecting = False
        self.closing = False
        self.unknown = 0
        """Messages for ports that there are not."""
        self.when_connected: list[Callable[[], Awaitable[None]]] = []
        """What `connect` waits for in the end."""
        self.when_restored: list[Callable[[], None]] = []
        """Called when the whole of a state has come: before that, another one may come in its place."""
        self.when_closed: list[Callable[[], None]] = []
        self._ports: dict[bytes, Port] = {}

    @property
    def local(self) -> Address:
        return self.channel.local

    def port(self, name: str, receiver: Receiver) -> Port:
        """Open a port: the receiver gets what is sent through the ports of that name, and this member's views."""
        if not 0 < len(name.encode()) <= NAME_MAX:
            raise UserError(f"a port's name has 1 to {NAME_MAX} bytes, not {len(name.encode())}")
        port = Port(self, name, receiver)
        if port.mark in self._ports:
            raise UserError(f"there is a port '{name}' already: give each its own name")
        self._ports[port.mark] = port
        return port

    def find(self, name: str) -> Port | None:
        return next((port for port in self._ports.values() if port.name == name), None)

    async def connect(self, members: int = 1, state: bool = False) -> None:
        """Join the group and wait until the view has so many members, and the blocks their part of its state.

        `state` is for ports of the application's own that have one; what blocks need, they ask for themselves.
        """
        self.connecting = True
        try:
            await self.channel.connect(members, state or bool(self.when_connected))
        except StateFailed:
            if state or not self.when_connected:
                raise
            await self.channel.has_members(members)  # blocks go on asking
        finally:
            self.connecting = False
        for ready in self.when_connected:
            await ready()

    async def close(self) -> None:
        """Leave the group. Whoever waits for an answer gets ChannelClosed."""
        self.closing = True
        await self.channel.close()
        self._closed()

    def closed(self, why: str) -> None:
        self.closing = True
        self._closed()
        self._tell("the end of the channel", lambda receiver: receiver.closed(why))

    def _closed(self) -> None:
        for closed in self.when_closed:
            closed()

    # Messages.

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        waits = []
        for port, deliveries in self._by_port(batch):
            try:
                wait = port.receiver.receive(deliveries)
            except Exception:
                log.exception("port '%s' of %s failed on a batch", port.name, self.local)
            else:
                if wait is not None:
                    waits.append((port, wait))
        return self._all(waits, "a batch") if waits else None

    def _by_port(self, batch: list[Delivery]) -> list[tuple[Port, list[Delivery]]]:
        """The batch in its order, as runs of messages for the same port."""
        runs: list[tuple[Port, list[Delivery]]] = []
        for sender, messages, multicast, position in batch:
            last: Port | None = None
            for message in messages:
                port = self._ports.get(bytes(message[: 1 + message[0]])) if len(message) else None
                if port is None:
                    self.unknown += 1
                    continue
                if port is not last:
                    last, part = port, list[memoryview]()
                    if not runs or runs[-1][0] is not port:
                        runs.append((port, []))
                    runs[-1][1].append(Delivery(sender, part, multicast, position))
                part.append(message[len(port.mark) :])
        return runs

    async def _all(self, waits: Iterable[tuple[Port, Awaitable[None]]], on: str) -> None:
        for port, wait in waits:
            try:
                await wait
            except Exception:
                log.exception("port '%s' of %s failed on %s", port.name, self.local, on)

    # Views and flushes.

    def _tell(self, what: str, tell: Callable[[Receiver], object]) -> None:
        for port in list(self._ports.values()):
            try:
                tell(port.receiver)
            except Exception:
                log.exception("port '%s' of %s failed on %s", port.name, self.local, what)

    def view_accepted(self, view: View) -> None:
        if self.closing:
            return  # what a member that leaves sees of views says nothing about the group
        self.view = view
        self._tell("a view", lambda receiver: receiver.view_accepted(view))

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        self._tell("a held position", lambda receiver: receiver.held(view, position, everyone))

    def block(self) -> Awaitable[None] | None:
        waits: list[tuple[Port, Awaitable[None]]] = []

        def ask(port: Port) -> None:
            wait = port.receiver.block()
            if wait is not None:
                waits.append((port, self.runtime.spawn(_await(wait))))  # side by side: none waits for another's turn

        for port in list(self._ports.values()):
            try:
                ask(port)
            except Exception:
                log.exception("block() of port '%s' of %s failed", port.name, self.local)
        return self._all(waits, "block()") if waits else None

    def unblock(self) -> None:
        self._tell("unblock()", lambda receiver: receiver.unblock())

    # State: for each port its name, then its chunks with their sizes, then a size of 0.

    def get_state(self) -> Iterator[Buffer]:
        return self._chunks([(port, port.receiver.get_state()) for port in self._ports.values()])

    @staticmethod
    def _chunks(states: list[tuple[Port, Iterable[Buffer]]]) -> Iterator[Buffer]:
        for port, chunks in states:
            yield port.mark
            for chunk in chunks:
                if len(chunk):
                    yield _SIZE.pack(len(chunk))
                    yield chunk
            yield _SIZE.pack(0)

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        source = _Source(chunks)
        while mark := await source.take(1, may_end=True):
            mark += await source.take(mark[0])
            part = source.part()
            port = self._ports.get(mark)
            if port is not None:
                await port.receiver.set_state(part)
            async for _ in part:  # what the port did not want
                pass
        for restored in self.when_restored:
            restored()


async def _await(wait: Awaitable[None]) -> None:
    await wait


class _Source:
    """Reads a hub's state from chunks of any size."""

    def __init__(self, chunks: AsyncIterator[Buffer]) -> None:
        self._chunks = chunks
        self._bytes = bytearray()

    async def take(self, size: int, may_end: bool = False) -> bytes:
        """So many bytes; none at the end, if it may end here."""
        while len(self._bytes) < size:
            try:
                self._bytes += await anext(self._chunks)
            except StopAsyncIteration:
                if may_end and not self._bytes:
                    return b""
                raise WireError("a state that ends too early") from None
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    async def part(self) -> AsyncIterator[Buffer]:
        """The chunks of one port."""
        while True:
            (size,) = _SIZE.unpack(await self.take(_SIZE.size))
            if not size:
                return
            yield await self.take(size)
