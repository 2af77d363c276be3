"""CUT: a partition on purpose, begun and ended while the group runs.

It stands right above the transport, for tests and demonstrations, and changes nothing until `cut` is called. Then
nothing passes between this process and the named members, in either direction, until `heal`: no packet, and no news of
their bytes or new connections. That connections closed does pass, as it would in a network that fell apart. Both sides
have to be cut, for multicasts are lost where they arrive. What is sent again may come from anybody: while a cut holds,
it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.group.events import Event, PeerClosed, PeerConnected, PeerHeard
from coterie.group.members import Address
from coterie.group.packet import AGAIN, Packet
from coterie.group.protocol import Protocol


class Cut(Protocol):
    """Cuts this process off from members that it is told by name, until it is told to heal."""

    name = "CUT"
    id = 36
    needs_below = ("transport",)

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self._names: frozenset[str] = frozenset()
        self._came: dict[Address, None] = {}
        """Who connected during the cut: told when it ends."""

    def cut(self, names: Iterable[str]) -> None:
        """Nothing passes any more between us and these."""
        self._names |= frozenset(names)

    def heal(self) -> None:
        """Everything passes again."""
        self._names = frozenset()
        came, self._came = self._came, {}
        for peer in came:
            self.stack.above(self).up_event(PeerConnected(peer))

    def down(self, packet: Packet) -> None:
        if self._names and packet.dest is not None and packet.dest.name in self._names:
            self.count("dropped")
        else:
            self.pass_down(packet)

    def up(self, batch: list[Packet]) -> None:
        if self._names:
            kept = [packet for packet in batch if packet.sender.name not in self._names and not packet.flags & AGAIN]
            self.count("dropped", len(batch) - len(kept))
            batch = kept
        if batch:
            self.pass_up(batch)

    def up_event(self, event: Event) -> None:
        match event:
            case PeerHeard(peer) if peer.name in self._names:
                return
            case PeerConnected(peer) if peer.name in self._names:
                self._came[peer] = None
                return
            case PeerClosed(peer, proof):
                known = peer not in self._came
                self._came.pop(peer, None)
                if not known and not proof:  # of this connection nobody was told
                    return
        super().up_event(event)
