"""A protocol is one layer of a stack.

Packets go down one at a time and up in batches; what a layer does not care about it passes on, and a layer that does
not override `down` or `up` is not called at all. Nothing here is concurrent: a layer is called from one loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from coterie.errors import WireError
from coterie.group.events import Event
from coterie.group.packet import RAW, Packet
from coterie.group.wire import Codec

if TYPE_CHECKING:
    from coterie.group.members import Address
    from coterie.group.stack import Stack
    from coterie.runtime.base import Runtime


@dataclass(frozen=True, slots=True)
class NoSettings:
    """For protocols that have none."""


class Protocol:
    """Base of all layers. The docstring's first line and `Settings` are what a user reads about a protocol."""

    name: ClassVar[str]
    """As stacks spell it."""
    id: ClassVar[int]
    """Its number in the packet header."""
    Settings: ClassVar[type] = NoSettings
    needs_below: ClassVar[tuple[str, ...]] = ()
    """Roles that must be filled further down for this layer to work."""
    role: ClassVar[str] = ""
    """What it is in a stack (transport, discovery, ...); at most one layer fills a role. Empty: stands anywhere."""
    only_own: bool = False
    """Of packets that come up it takes its own messages, and cares about no others: batches without any pass it by."""
    codec: ClassVar[Codec] = Codec({})
    rules: ClassVar[dict[str, str]] = {}
    """The rules of its design document, name to sentence; `self.rule(name)` counts that one was exercised."""

    runtime: Runtime
    stack: Stack
    pass_down: Callable[[Packet], None]
    pass_up: Callable[[list[Packet]], None]
    listener: Protocol
    """The next layer above that overrides `up_event`."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.stats: dict[str, int] = {}
        """Counters that a user can read: `Channel.stats()`."""

    def attach(self, stack: Stack) -> None:
        """The stack is complete, and this layer linked; nothing has started."""
        self.stack = stack
        self.runtime = stack.runtime

    def start(self) -> None:
        """Called bottom up. Timers and sockets begin here."""

    def stop(self) -> None:
        """Called top down. Timers and sockets end here."""

    def held(self) -> dict[str, int]:
        """What this layer keeps back at the moment, by kind; all zero when a group is at rest."""
        return {}

    def down(self, packet: Packet) -> None:
        self.pass_down(packet)

    def up(self, batch: list[Packet]) -> None:
        self.pass_up(batch)

    def down_event(self, event: Event) -> None:
        """An event from above. An override passes on what others may want to know: `super().down_event(event)`."""
        self.stack.below(self).down_event(event)

    def up_event(self, event: Event) -> None:
        """An event from below. An override passes on what others may want to know: `super().up_event(event)`."""
        self.listener.up_event(event)

    # What most layers need.

    def send(self, message: object, dest: Address | None, carrier: int = RAW) -> None:
        """Send one of this protocol's own messages: to one member, or to all of the view."""
        self.pass_down(Packet(self.codec.encode(message), dest, self.id, carrier))

    def decode(self, packet: Packet) -> Any:
        """One of this protocol's own messages, or None if it is malformed: then it is counted and forgotten."""
        try:
            return self.codec.decode(packet.body)
        except WireError:
            self.count("malformed")
            return None

    def pass_up_others(self, batch: list[Packet]) -> list[Packet]:
        """Pass up what is not this protocol's, and give what is.

        In this order, because what came in the same batch was delivered below already: it comes before whatever a
        message of ours changes. Most batches hold none, and are passed on as they are.
        """
        own = self.id
        for packet in batch:
            if packet.proto == own:
                break
        else:
            if batch:
                self.pass_up(batch)
            return []
        others = [packet for packet in batch if packet.proto != own]
        if others:
            self.pass_up(others)
        return [packet for packet in batch if packet.proto == own]

    def count(self, name: str, by: int = 1) -> None:
        self.stats[name] = self.stats.get(name, 0) + by

    def rule(self, name: str) -> None:
        """A rule of the design document was exercised."""
        counts = self.stack.rules
        counts[name] = counts.get(name, 0) + 1
