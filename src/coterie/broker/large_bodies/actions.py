"""What the two halves ask for. Those with `to` are messages between brokers, by name; the rest is for this one."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

DIGEST_SIZE: Final = 32


def digest_of(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_SIZE).digest()


def file_name(digest: bytes) -> str:
    return f"{digest.hex()}.body"


class Origin(NamedTuple):
    """A publisher's broker, in one of its lives: a restarted one has offered nothing yet."""

    name: str
    life: int


# Of the origin.


class Offer(NamedTuple):
    """Tell that broker of a body, and send it the bytes."""

    to: str
    origin: Origin
    number: int
    """Of the offer, in this life of its origin."""
    digest: bytes
    size: int
    persistent: bool


class Propose(NamedTuple):
    """Give this to the order now."""

    item: object
    """The caller's own: an event, or what it is made of."""
    number: int | None = None
    """Of the offer, if it has a large body."""
    holders: tuple[str, ...] = ()
    """Who has the body."""


# Of a holder.


class Held(NamedTuple):
    """The body is here, and synced if it is persistent."""

    to: Origin
    """In that life: a later one has offers of the same numbers."""
    number: int


class Refused(NamedTuple):
    """There is no room for what this origin offers, or the offer makes no sense."""

    to: Origin
    number: int


class Fetch(NamedTuple):
    """Send me that body, from its beginning."""

    to: str
    digest: bytes


class Lacking(NamedTuple):
    """I have not got what you asked for."""

    to: str
    digest: bytes


class Send(NamedTuple):
    """Send that broker the body, from its file."""

    to: str
    digest: bytes


class Write(NamedTuple):
    """The bytes that came just now belong there in the file. At offset 0 the file is begun anew."""

    digest: bytes
    offset: int
    size: int


class Check(NamedTuple):
    """The file is whole: see whether it is what its name says."""

    digest: bytes
    serial: int
    """Of the file, in this life: comes back with the answer, as there may be another file of that name by then."""


class Sync(NamedTuple):
    digest: bytes
    serial: int


class Remove(NamedTuple):
    digest: bytes


class Arrived(NamedTuple):
    """Messages with that body can be delivered from now on."""

    digest: bytes


class Missing(NamedTuple):
    """An event names it, and nobody in the view who is known to have it could give it."""

    digest: bytes


Action = (
    Offer | Propose | Held | Refused | Fetch | Lacking | Send | Write | Check | Sync | Remove | Arrived | Missing
)  # fmt: skip
