"""Which copy of a replicated state counts: the *reference*, and who holds it.

Promises: at the same place of the total order all who know it agree on it. When nobody knows, after a merge or because
all who held it are gone, each member says what it has, and once all have spoken the best copy is the reference: the
one that most have (of equal ones that of the lowest coordinator), or whatever the coordinator has, if nobody has any. A
group always goes on. Who has restored the reference says so, and holds it from then on.

With `majority_of`, updates are taken only while the view is *open*: every member has said that it is there, and more
than half of so many members hold the reference. Each copy remembers the last open view in which it was the reference
(its *era*), and the best copy is the one of the latest era: it has everything that was answered before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from coterie.group.members import Address, MergeView, View, ViewId

NEVER = ViewId(0, Address("", 0))


class Own(Enum):
    """What our copy is."""

    NOTHING = auto()
    """We have just come, and have none."""
    OLD = auto()
    """What was the reference, as far as we knew, in an earlier view. It stands still."""
    FOLLOWS = auto()
    """The reference; but we have not said yet that we have it."""
    REFERENCE = auto()


@dataclass(frozen=True, slots=True)
class Copy:
    """Tells copies apart: who went together from one view to the next has the same one."""

    era: ViewId
    stood: ViewId
    """The last view in which it was the reference."""
    next: ViewId
    coordinator: Address
    """The first of those who went together."""


@dataclass(frozen=True, slots=True)
class There:
    """I am in this view."""

    view: ViewId
    copy: Copy | None
    """What I have, if that is not the reference."""
    holders: tuple[Address, ...]
    """Who holds the reference, as far as I know."""


@dataclass(frozen=True, slots=True)
class Here:
    """I hold the reference from now on."""

    view: ViewId


class Copies:
    """What one member knows of the copies."""

    def __init__(self, local: Address, majority_of: int = 0) -> None:
        self.local = local
        self._majority_of = majority_of
        self.view: View | None = None
        self.own = Own.NOTHING
        self.holders: tuple[Address, ...] | None = None
        """Who holds the reference; None: not known."""
        self.open = False
        """Updates are taken."""
        self.era = NEVER
        self.heard: dict[Address, Copy | None] = {}
        """Who is in the view, and has said so."""
        self._kept: Copy | None = None
        """Ours, if it is an old one."""
        self._came = True
        """We have come to a group of which we know nothing."""
        self._says: list[There | Here] = []

    @property
    def settled(self) -> bool:
        """Our copy is the reference, and updates are taken."""
        return self.own is Own.REFERENCE and self.open

    @property
    def follows(self) -> bool:
        """Our copy is the reference: what is delivered goes into it."""
        return self.own in (Own.REFERENCE, Own.FOLLOWS)

    @property
    def lost(self) -> bool:
        """Our copy is not the reference; as long as it is being found out, it may be."""
        return not self.follows and self.holders is not None

    def says(self) -> list[There | Here]:
        """What is to be said to all now, once, and in this order."""
        says, self._says = self._says, []
        return says

    def providers(self) -> list[Address]:
        """Whom to ask for the reference; nobody as long as it is being found out."""
        if self.view is None or (self.holders is None and not self._came):
            return []
        return [m for m in self.holders or self.view.members if m != self.local and m in self.view]

    def majority(self, view: View) -> bool:
        """Whether that many would do."""
        return 2 * len(view.members) > self._majority_of

    def forget(self) -> None:
        """What was said did not reach us, nor the state that was to contain it: we know what a newcomer knows."""
        self._came = True

    # In the order in which it happens everywhere.

    def view_changed(self, view: View) -> None:
        before, self.view = self.view, view
        self.heard.clear()
        if isinstance(view, MergeView):
            part = next((part for part in view.subgroups if self.local in part), view)
            self._stand_still(before, view, part.coordinator)
            self._came = False
        elif self.holders is not None:
            self.holders = tuple(member for member in self.holders if member in view)
            if not self.holders:
                self._stand_still(before, view, view.coordinator)
        self._says.clear()
        if self.holders is None or self._majority_of:
            self._says.append(There(view.id, self._kept if self.own is Own.OLD else None, self.holders or ()))
        if self.own is Own.FOLLOWS:
            self._says.append(Here(view.id))
        self._look()

    def _stand_still(self, before: View | None, view: View, coordinator: Address) -> None:
        """Nobody knows any more which copy is the reference."""
        self.holders = None
        if self.follows:
            self.own = Own.NOTHING if before is None else Own.OLD
            self._kept = None if before is None else Copy(self.era, before.id, view.id, coordinator)

    def there(self, member: Address, said: There) -> None:
        if self.view is None or said.view != self.view.id:
            return
        self.heard[member] = said.copy
        if self.holders is None:
            if said.holders:
                self._found(said.holders)
            elif all(m in self.heard for m in self.view.members):
                self._choose(self.view)
        self._look()

    def _choose(self, view: View) -> None:
        copies: dict[Copy, list[Address]] = {}
        for member in view.members:
            copy = self.heard[member]
            if copy is not None:
                copies.setdefault(copy, []).append(member)
        if copies:
            era = max(copy.era for copy in copies)
            best = min(
                (copy for copy in copies if copy.era == era),
                key=lambda copy: (-len(copies[copy]), copy.coordinator, copy.stood, copy.next),
            )
            self._found(tuple(copies[best]))
        else:
            self._found((view.coordinator,))
        assert self.holders is not None
        if self.local in self.holders:
            self.own = Own.REFERENCE

    def _found(self, holders: tuple[Address, ...]) -> None:
        self.holders = holders
        self._came = False

    def here(self, member: Address, said: Here) -> None:
        if self.view is None or said.view != self.view.id or self.holders is None:
            return  # what it holds is not the reference any more; or whoever tells us of the holders has heard it
        if member not in self.holders:
            self.holders = (*self.holders, member)
        if member == self.local and self.own is Own.FOLLOWS:
            self.own = Own.REFERENCE
        self._look()

    def _look(self) -> None:
        """Is the view open?"""
        view, holders = self.view, self.holders
        self.open = holders is not None and (
            not self._majority_of
            or (
                2 * len(holders) > self._majority_of
                and view is not None
                and all(member in self.heard for member in view.members)
            )
        )
        if self.open and self._majority_of and view is not None and self.follows:
            self.era = view.id

    # State transfer.

    def restored(self, holders: tuple[Address, ...], era: ViewId, heard: tuple[Address, ...], view: ViewId) -> None:
        """We have the reference now, as it was in that view."""
        self._found(holders)
        self.own, self.era, self._kept = Own.FOLLOWS, era, None
        if self.view is not None and self.view.id == view:
            self.heard |= dict.fromkeys(heard)
            self._says.append(Here(view))
        self._look()

    def told(self, holders: tuple[Address, ...]) -> None:
        """Somebody who does not hold the reference knows who does."""
        if self.holders is None and self._came and holders:
            self._found(holders)
            self._look()
