"""Accounts of clustered brokers (`replica`): what several of them say of one place of the log must be the same.

A place is the number of events that were applied, in one epoch of one cluster; an account is given only when a
majority holds that place, so there is one truth about it. Where a majority has lost what its disks did not have yet,
an epoch may begin a second time: so it is named together with the view in which it began.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.lives import address
from coterie.trace import Event, Json

Place = tuple[str, int, str, int]
"""Cluster, epoch, the view in which that began, number."""


@dataclass(slots=True)
class Strays:
    """Brokers that a simulation has told to make another state of the log, in which life: what they say of what they
    have is no matter of whoever compares accounts, as long as nobody relies on it (B16)."""

    told: set[tuple[str, Json]] = field(default_factory=set)

    def excuse(self, event: Event) -> bool:
        """Whether the event is nothing to be compared."""
        who = address(event), event.data.get("life")
        if event.kind == "strays":
            self.told.add(who)
        return event.kind == "strays" or who in self.told


@dataclass(slots=True)
class State:
    accounts: dict[Place, dict[str, Event]] = field(default_factory=dict)
    """By place and incarnation."""
    strays: Strays = field(default_factory=Strays)
    left: list[Event] = field(default_factory=list)
    """Of brokers that left because of an event."""


def place_of(event: Event) -> Place | None:
    cluster, epoch, number = (event.data.get(name) for name in ("cluster", "epoch", "number"))
    if isinstance(cluster, str) and isinstance(epoch, int) and isinstance(number, int):
        return cluster, epoch, str(event.data.get("era", "")), number
    return None


class SameAccounts(Property[State]):
    """What a subclass picks of each account is the same wherever it is given."""

    split_by = BY_RUN
    kinds: ClassVar[tuple[str, ...]] = ("replica", "strays")

    @abstractmethod
    def picks(self, event: Event) -> Json:
        """What it compares."""

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        place = place_of(event)
        if not state.strays.excuse(event) and place is not None:
            state.accounts.setdefault(place, {}).setdefault(address(event), event)

    def finish(self, state: State) -> list[Violation]:
        found = Found(self.name)
        reported: set[str] = set()
        """Incarnations: once one differs, it goes on differing."""
        for place, accounts in sorted(state.accounts.items()):
            first, *others = sorted(accounts)
            right = self.picks(accounts[first])
            for who in others:
                mine = self.picks(accounts[who])
                if mine != right and who not in reported:
                    reported.add(who)
                    where = f"after event {place[3]} of epoch {place[1]}"
                    text = f"{where} {who} and {first} differ: {difference(mine, right)}"
                    found.add(text, accounts[first], accounts[who])
        return found.close()


def difference(one: Json, other: Json) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        return "; ".join(f"{name}: {one.get(name)} and {other.get(name)}" for name in names[:3])
    return f"{one} and {other}"
