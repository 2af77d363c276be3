"""What every transport has: an endpoint of its own, the peers it can reach, and the way a packet gets its header.

A transport is the lowest layer of a stack. It promises little: a packet may be lost, doubled or reordered, but what it
hands up is whole, unaltered as far as the checksum tells, and of this group. What a peer does wrong is counted.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from coterie.errors import ForeignError, UnprovenError, UserError, WireError
from coterie.group.events import Event, PeerFound
from coterie.group.members import Address
from coterie.group.packet import NOBODY, Packet, encode_header
from coterie.group.protocol import Protocol
from coterie.group.stack import Stack
from coterie.logs import Log
from coterie.runtime.base import Endpoint

log = Log(__name__)

COMPLAINTS_MAX = 256
"""Complaints that were logged: more than these start a new list."""

WILDCARDS = ("", "0.0.0.0", "::")
"""Hosts to bind to that nobody can be reached at."""


def parse_endpoint(text: str, where: str) -> Endpoint:
    """`host:port`, `[ipv6]:port`. Raises UserError, which names `where` a user would have to correct it."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{where}: '{text}' is not an address of the form host:port, for example 10.0.0.7:7800")
    return Endpoint(host.strip("[]"), int(port))


def is_reachable(endpoint: Endpoint) -> bool:
    """Whether an endpoint that a peer told us can be one at all."""
    return 0 < endpoint.port < 65536 and 0 < len(endpoint.host) < 256 and endpoint.host not in WILDCARDS


def counter_of(problem: WireError) -> str:
    """Under which name it is counted that a peer caused this."""
    if isinstance(problem, ForeignError):
        return "foreign"
    return "unproven" if isinstance(problem, UnprovenError) else "malformed"


class Transport(Protocol):
    """Base of TCP and UDP."""

    role = "transport"
    COUNTERS: tuple[str, ...] = (
        "packets_out", "bytes_out", "packets_in", "bytes_in", "unreachable", "oversized", "malformed", "foreign",
        "unproven",
    )  # fmt: skip
    secret = ""
    """The cluster's, for whoever has a socket of its own; empty if it has none."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.stats = dict.fromkeys(self.COUNTERS, 0)
        self._check_body = True
        self._name = b""
        self._complained: dict[tuple[str, str], None] = {}

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._name = stack.local.name.encode()

    @property
    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Where others reach this process; known once it has started."""

    @abstractmethod
    def peers(self) -> list[Address]:
        """Who can be sent to now, sorted."""

    @abstractmethod
    def endpoint_of(self, peer: Address) -> Endpoint | None:
        """Where a connected peer is reached, as it told us itself."""

    @abstractmethod
    def found(self, endpoint: Endpoint) -> None:
        """Discovery says that a process of this group may be reached there."""

    def cork(self) -> None:
        """Several packets follow at once: what is saved by writing them together may be saved."""

    def uncork(self) -> None:
        """They are here: write."""

    def down_event(self, event: Event) -> None:
        if isinstance(event, PeerFound):
            self.found(event.endpoint)

    def refuse(self, counter: str, who: str, why: str) -> None:
        """A peer did something wrong: counted each time, logged once per peer and kind."""
        self.count(counter)
        if (who, counter) not in self._complained:
            if len(self._complained) >= COMPLAINTS_MAX:
                self._complained.clear()
            self._complained[who, counter] = None
            log.warning("peer refused", local=self.stack.local, transport=self.name, peer=who, why=why)

    def complained_of(self, who: str, counter: str) -> bool:
        """Whether such a line about this peer is in the log already."""
        return (who, counter) in self._complained

    def header(self, packet: Packet) -> bytes | None:
        """Stamp the packet with its sender and encode its header; None, and counted, if it is too large to send."""
        sender = packet.sender
        local = self.stack.local
        if sender == NOBODY:
            packet.sender = local
            name = self._name
        else:  # a retransmission on behalf of another member keeps its origin
            name = self._name if sender == local else sender.name.encode()
        header = encode_header(packet, self.stack.group_tag, name, self._check_body)
        if len(header) + len(packet.body) > self.settings.max_packet:
            self.count("oversized")
            return None
        return header

    def loop_back(self, packet: Packet) -> None:
        """A packet to oneself comes up again, though never from within the call that sent it."""
        if packet.sender == NOBODY:
            packet.sender = self.stack.local
        self.runtime.call_soon(self._loop_up, packet)

    def _loop_up(self, packet: Packet) -> None:
        if self.stack.running:
            self.pass_up([packet])
