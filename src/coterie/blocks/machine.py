"""What a replicated block is, and what members send each other about it: the parts of replicated.py that do nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.blocks.copies import Here, There
from coterie.errors import CoterieError
from coterie.group.members import Address, View, ViewId
from coterie.group.wire import Codec


class NoMajority(CoterieError):
    """The view is no majority of the members that there should be. The text says whether the update may be in force."""


class Place(NamedTuple):
    """Where in the total order something happened. Places only rise."""

    view: int
    """Counter of the view's id."""
    position: int
    """Of the bundle in that view; 0 is the beginning of the view."""
    nth: int
    """Of the update among those of the bundle, from 0."""


@dataclass(frozen=True, slots=True)
class Update:
    block: str
    id: int
    """Of the sender's updates; they rise."""
    told: int
    """The sender was told the results of its updates up to this one: nobody needs to keep them."""
    body: bytes


@dataclass(slots=True)
class Results:
    """Of one member's updates: what it may not have been told yet."""

    told: int = 0
    by_id: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a member gives who is asked for its state."""

    view: ViewId
    holders: tuple[Address, ...]
    """Who holds the reference, if that is known."""
    reference: bool
    """This is it. Otherwise what follows means nothing."""
    era: ViewId
    heard: tuple[Address, ...]
    results: dict[Address, Results]
    blocks: dict[str, bytes]


CODEC = Codec({1: Update, 2: There, 3: Here, 4: Snapshot})


class Machine(ABC):
    """A block's part of the state. The same calls in the same order leave the same state, at every member."""

    @abstractmethod
    def apply(self, sender: Address, body: bytes, at: Place) -> bytes:
        """Change the state; the result is for the sender. May raise WireError: then nothing was changed."""

    def members_changed(self, view: View, at: Place, majority: bool) -> None:
        """A view is in force."""

    @abstractmethod
    def save(self) -> bytes: ...

    @abstractmethod
    def load(self, state: bytes) -> None: ...

    def look(self) -> None:
        """Something may have changed, also whether our copy counts: tell whoever waits here."""

    def close(self) -> None:
        """The channel was closed: tell whoever waits here."""
