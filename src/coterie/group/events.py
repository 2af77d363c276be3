"""What layers tell each other besides packets. Events travel up or down until a layer keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.group.members import Address, View
from coterie.runtime.base import Endpoint


class Event:
    """Base of all events."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PeerFound(Event):
    """Up, from discovery, and down again to the transport: a process of this group may be reached there."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class PeerConnected(Event):
    """Up, from the transport: `peer` can be sent to."""

    peer: Address


@dataclass(frozen=True, slots=True)
class PeerClosed(Event):
    """Up, from the transport: the connection to `peer` is gone."""

    peer: Address
    proof: bool
    """Its host said that the process is gone (refused or reset): it need not be looked at a second time."""


@dataclass(frozen=True, slots=True)
class PeerHeard(Event):
    """Up, from the transport to failure detection: bytes of `peer` arrived, if only the beginning of a packet."""

    peer: Address


@dataclass(frozen=True, slots=True)
class Suspect(Event):
    """Up, from failure detection: these do not answer."""

    members: tuple[Address, ...]
    proof: bool
    """True if their death is proven."""


@dataclass(frozen=True, slots=True)
class Unsuspect(Event):
    """Up, from failure detection: these answer again."""

    members: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class ViewChange(Event):
    """Down and up from membership: a view is installed."""

    view: View
    waiting: tuple[Address, ...] = ()
    """Members to whom our own multicasts are not owed yet."""


@dataclass(frozen=True, slots=True)
class StreamOpened(Event):
    """Up, from membership: the multicasts of `sender` start, or go on after a break, at this number."""

    sender: Address
    start: int


@dataclass(frozen=True, slots=True)
class StreamEnded(Event):
    """Up, from a reliable layer: nothing more of this stream will ever come up."""

    sender: Address
    carrier: int
    conn: int
    """0 for multicasts."""


@dataclass(frozen=True, slots=True)
class Writable(Event):
    """Up, from a layer that had no room: what waits may be sent. Whoever gets it looks whether there is room for it."""
