"""What layers tell each other besides packets. Events travel up or down until a layer keeps them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coterie.group.members import Address, View, ViewId
from coterie.runtime.base import Buffer, Endpoint


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
class Replaced(Event):
    """Up, from the transport: a newer incarnation of this very member lives. It said HELLO to us itself."""

    by: Address
    endpoint: Endpoint


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
    states: tuple[Address, ...] = ()
    """Joiners that want the state as it is at the beginning of this view."""
    provider: Address | None = None
    """Who gives it to them."""
    holders: Mapping[Address, int] = field(default_factory=dict)
    """Members whose flushes hold over the view change, with the kinds of those: the gates of all who come are shut for
    them, too."""


@dataclass(frozen=True, slots=True)
class ViewEnding(Event):
    """Up, from agreed membership, just before the next view is installed: all of `view` has been passed up."""

    view: View


@dataclass(frozen=True, slots=True)
class OtherView(Event):
    """Up from the merge probe, and down from a flush: `peer` is in another view than we are."""

    peer: Address
    view: ViewId
    coordinator: Address
    """Of that view; the peer itself if it is not known."""
    ours: bool
    """We are a member of it."""


@dataclass(frozen=True, slots=True)
class MergeFound(Event):
    """Up, from the merge probe at a coordinator: these coordinators have views of their own."""

    coordinators: tuple[Address, ...]
    """All of them, our own address included, sorted."""


@dataclass(frozen=True, slots=True)
class Announce(Event):
    """Down, to the merge probe: tell everybody now which view we are in."""


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


@dataclass(frozen=True, slots=True)
class Block(Event):
    """Up, from a flush: the application is to send what it must send before, and then nothing more."""

    done: Callable[[], None]
    """Called once it has."""


@dataclass(frozen=True, slots=True)
class Unblock(Event):
    """Up, from a flush: the application may send again."""


@dataclass(frozen=True, slots=True)
class SnapshotWanted(Event):
    """Up, from state transfer: give the application's state as it is after everything that came up before this."""

    needed: Callable[[], bool]
    """Whether anybody still waits for it."""
    answer: Callable[[Iterable[Buffer] | Exception], None]


@dataclass(frozen=True, slots=True)
class StateComes(Event):
    """Up, from state transfer: here is the cut. What comes up from now on waits until `StateOver`.

    If another state is awaited already, this one replaces it: it contains what was multicast up to here.
    """

    chunks: AsyncIterator[Buffer]
    buffer_max: int
    """Bytes that may wait and be credited to their senders all the same."""
    ended: Callable[[Exception | None], None]
    """Called when the application's `set_state` ended, and how."""


@dataclass(frozen=True, slots=True)
class StateOver(Event):
    """Up, from state transfer: the state is set, or given up. What waited for it goes on."""


@dataclass(frozen=True, slots=True)
class Held(Event):
    """Up, from total order: the order of `view` is held, content and records, up to `position`, which was delivered."""

    view: ViewId
    position: int
    everyone: bool
    """By every member of the view; otherwise by a majority of them."""


@dataclass(frozen=True, slots=True)
class OrderEnds(Event):
    """Up, from total order: what comes until the next view was not ordered by the sequencer, but by those who go on."""
