"""Flushing, as GMS, state transfer, flow control and the channel see it: what FLUSH and FLUSH2 have in common.

A flush promises: when it holds, everybody who takes part has shut the gate through which application multicasts go,
and has delivered the same ones. It ends in any case.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from coterie.group.members import Address, View
from coterie.group.protocol import Protocol


class Kind(IntEnum):
    """What a flush is for, and so what it may run beside."""

    VIEW = 0
    """A view change: never fails because of another flush, joins whatever holds and goes before whatever begins."""
    SHARED = 1
    """State transfer: several leaders hold one flush, the last one releases it."""
    EXCLUSIVE = 2
    """The application's own: at most one holds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a flush that was asked for ended, or that it holds."""

    ok: bool
    number: int
    answered: tuple[Address, ...] = ()
    """Who takes part: their gates are shut, and what they have delivered is the cut."""
    cut: dict[Address, int] = field(default_factory=dict)
    """By member of the view: the number of its last bundle that all who take part have delivered."""
    reason: str = ""
    """Why it failed."""


Done = Callable[[Outcome], None]
Lost = Callable[[str], None]


class FlushProtocol(Protocol):
    """Base of FLUSH and FLUSH2."""

    role = "flush"
    needs_below = ("reliable multicast", "reliable unicast", "membership")

    shut: bool
    """The gate is shut: application multicasts wait."""

    @abstractmethod
    def suspend(self, kind: Kind, targets: tuple[Address, ...], done: Done, lost: Lost | None = None) -> int:
        """SUSPEND: flush these members. `done` is called once: the flush holds (SUSPEND_OK), or has failed.

        Returns the number by which to release it. `done`, which is told the number too, may be called before this
        returns. Of one member's flushes for views, a later one replaces the one before. `lost` is told why, once, if a
        flush that held does not hold any more and RESUME was not what ended it; it must not call back.
        """

    @abstractmethod
    def resume(self, number: int, made: View | None = None) -> None:
        """RESUME: release a flush, or give it up while it is under way. One that is over may be released again.

        `made` is the view that came of it, if this member is not in it.
        """

    @abstractmethod
    def holders(self) -> dict[Address, int]:
        """Leaders of flushes that hold here and go on over a view change, with the kinds of those."""

    @abstractmethod
    def inherit(self, holders: Mapping[Address, int]) -> None:
        """A joiner is told who holds a flush in the view that it joins. A ViewChange that names them does the same."""

    @abstractmethod
    def holds_back(self) -> bool:
        """`shut`, for whoever has a multicast that would go now if it were not."""
