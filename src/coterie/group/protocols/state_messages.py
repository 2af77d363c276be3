"""What state transfer says on the wire, all of it unnumbered (RAW): whoever gets no answer says it again.

A transfer is known by its requester and an id: the tag of the view that a joiner joins in, or the requester's count.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.group.members import Address
from coterie.group.wire import Codec

FIRST_VIEW_TAG = 1 << 32
"""Ids from here on are tags of views."""


@dataclass(frozen=True, slots=True)
class Point:
    """How much a member has delivered. Two members that are at the same point have the same state."""

    view: int
    """The view's tag."""
    digest: dict[Address, int]
    """By member of the view: the number of its last bundle that was delivered."""
    position: int
    """The last position of the total order that was delivered; 0 without total order."""


@dataclass(frozen=True, slots=True)
class Request:
    """The flush holds, and I am here. If you are, too: cut, and give me the state."""

    id: int
    at: Point


@dataclass(frozen=True, slots=True)
class Cut:
    """I have cut: the state is what I had delivered here, and nothing more."""

    id: int
    at: Point


@dataclass(frozen=True, slots=True)
class Ack:
    """Go on. Also the first word of a requester that is ready, and a sign of life."""

    id: int
    taken: int
    """So many chunks has my application consumed."""
    limit: int
    """Up to this one there is room for more."""
    received: int
    """Chunks up to this one are here."""
    ahead: tuple[int, ...]
    """And these beyond."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the state; they are numbered from 1."""

    id: int
    number: int
    total: int | None
    """Bytes of the whole state, if the provider knows."""
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """That was all of it. It has a number as if it were a chunk."""

    id: int
    number: int
    size: int
    sum: int
    """CRC-32 of all bytes."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a provider: you do not get it, or nothing more of it, from me."""

    id: int
    reason: str
    lacks: bool
    """I have no state myself, or not yet."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """From a requester: I do not want it, or no longer."""

    id: int


CODEC = Codec({1: Request, 2: Cut, 3: Ack, 4: Chunk, 5: End, 6: Failed, 7: Cancel})
