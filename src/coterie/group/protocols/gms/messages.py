"""What members tell each other about views: unnumbered, repeated until answered, and harmless if doubled."""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.group.members import Address, MergeView, View, ViewId
from coterie.group.wire import Codec

COUNTER_MAX = 2**31 - 1
"""Of views: whoever speaks of a later one is wrong, and is not believed."""


@dataclass(frozen=True, slots=True)
class Part:
    """Those who come to a view together, from the view that they were in before."""

    view: ViewId
    members: tuple[Address, ...]
    """Who of it goes on."""
    cut: dict[Address, int]
    """By member of that view: the number of its last bundle in it. Who delivered more or less does not come along."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that a member needs to install a view."""

    id: ViewId
    members: tuple[Address, ...]
    parts: tuple[Part, ...]
    """More than one: it is a merge. Members of none of them join."""
    states: tuple[Address, ...] = ()
    """Joiners that want the state."""
    provider: Address | None = None
    holders: dict[Address, int] = field(default_factory=dict)
    """Whose flushes go on in it, and for what they are: those who join are blocked by them. A merge has none."""

    def sound(self) -> bool:
        """It can be a view at all, whoever sent it."""
        return self.id.counter <= COUNTER_MAX and len(set(self.members)) == len(self.members)

    def view(self) -> View:
        if len(self.parts) > 1:
            return MergeView(self.id, self.members, tuple(View(part.view, part.members) for part in self.parts))
        return View(self.id, self.members)

    def part_of(self, view: ViewId) -> Part | None:
        return next((part for part in self.parts if part.view == view), None)

    def is_new(self, member: Address) -> bool:
        """It comes from none of the views before: it joins."""
        return member in self.members and not any(member in part.members for part in self.parts)

    def starts(self) -> dict[Address, int]:
        """By member: the first number of its stream in this view."""
        starts = dict.fromkeys(self.members, 1)
        for part in self.parts:
            starts |= {member: part.cut.get(member, 0) + 1 for member in part.members if member in starts}
        return starts


@dataclass(frozen=True, slots=True)
class JoinReq:
    """Let me in."""

    state: bool
    """And give me the state."""


@dataclass(frozen=True, slots=True)
class JoinRsp:
    """You are in."""

    round: int
    install: Installation


@dataclass(frozen=True, slots=True)
class Redirect:
    """I am not the coordinator: ask this one."""

    coordinator: Address


@dataclass(frozen=True, slots=True)
class LeaveReq:
    """Let me go."""


@dataclass(frozen=True, slots=True)
class LeaveRsp:
    """You are out."""

    round: int


@dataclass(frozen=True, slots=True)
class NewView:
    """Install this view. Whoever leaves acks it and does not."""

    round: int
    install: Installation


@dataclass(frozen=True, slots=True)
class Ack:
    round: int
    ok: bool
    """False: I cannot install it."""


@dataclass(frozen=True, slots=True)
class MergeReq:
    """I lead a merge: flush your part and tell me its cut."""

    round: int


@dataclass(frozen=True, slots=True)
class MergeAccepted:
    """I am at it: wait for my answer."""

    round: int


@dataclass(frozen=True, slots=True)
class MergeRsp:
    round: int
    part: Part | None
    """None: rejected."""


@dataclass(frozen=True, slots=True)
class InstallMerge:
    """The merge succeeded: install its view in your part."""

    round: int
    merge: int
    """The round in which we asked."""
    install: Installation


@dataclass(frozen=True, slots=True)
class CancelMerge:
    """It did not."""

    merge: int


CODEC = Codec(
    {
        1: JoinReq, 2: JoinRsp, 3: Redirect, 4: LeaveReq, 5: LeaveRsp, 6: NewView, 7: Ack, 8: MergeReq, 9: MergeRsp,
        10: InstallMerge, 11: CancelMerge, 12: MergeAccepted,
    }
)  # fmt: skip
