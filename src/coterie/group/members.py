"""Who is in the group: addresses, view ids, views."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple


class Address(NamedTuple):
    """A member: its name, and the incarnation that tells it from what had that name before a restart."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Address:
        name, _, incarnation = text.rpartition("#")
        return cls(name, int(incarnation))


class ViewId(NamedTuple):
    """Ordered by counter, then by creator: at each member, ids only rise."""

    counter: int
    creator: Address

    def __str__(self) -> str:
        return f"{self.counter}@{self.creator}"

    @property
    def tag(self) -> int:
        """The id as the packet header carries it: counter in the upper half, a checksum of the creator in the lower."""
        return (self.counter & 0xFFFFFFFF) << 32 | zlib.crc32(str(self.creator).encode())


@dataclass(frozen=True, slots=True)
class View:
    """Members oldest first; the first is the coordinator."""

    id: ViewId
    members: tuple[Address, ...]
    tag: int = field(init=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", self.id.tag)

    @property
    def coordinator(self) -> Address:
        return self.members[0]

    def replaces(self, member: Address) -> bool:
        """A newer incarnation of the member is in it: the old one says nothing more."""
        return any(m.name == member.name and m.incarnation > member.incarnation for m in self.members)

    def __contains__(self, member: object) -> bool:
        return member in self.members

    def __str__(self) -> str:
        return f"{self.id} [{', '.join(map(str, self.members))}]"


@dataclass(frozen=True, slots=True)
class MergeView(View):
    """A view that several views were merged into."""

    subgroups: tuple[View, ...] = ()
    """The views that its members come from, each with those of its members that came."""
