"""G7 transitional sets: members that came to a merge from the same view report the same subgroup.

A merge (data.subgroups of an agreed view) says which views its members come from. All who install it give the same
list; nobody is in two subgroups; each member is in the subgroup of the view that it comes from (data.before), and a
member that comes from no view, a joiner, is in none. So whoever came from V is in V's subgroup, at everybody.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import Found, Property, Split, Violation
from coterie.audit.lives import address
from coterie.trace import Event


@dataclass(slots=True)
class State:
    views: dict[str, list[Event]] = field(default_factory=dict)
    """By view id: those who installed it."""
    found: Found = field(default_factory=lambda: Found("G7"))


def by_view(event: Event) -> Hashable | None:
    return event.view


class TransitionalSets(Property[State]):
    name = "G7"
    title = "transitional sets"
    sentence = "Members that came to a merge from the same view report the same subgroup."
    split_by = Split("run and view", by_view)
    kinds = ("view",)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        if views.agreed(event) and event.view is not None:
            state.views.setdefault(event.view, []).append(event)

    def finish(self, state: State) -> list[Violation]:
        for installed in state.views.values():
            if any(views.subgroups(event) is not None for event in installed):
                first, *others = sorted(installed, key=lambda event: (event.node, event.inc))
                for event in others:
                    if views.subgroups(event) != views.subgroups(first):
                        text = f"{address(first)} and {address(event)} give {event.view} different subgroups"
                        state.found.add(text, first, event)
                for event in (first, *others):
                    _own_subgroup(state, event)
        return state.found.close()


def _own_subgroup(state: State, event: Event) -> None:
    who, origin, groups = address(event), views.before(event), views.subgroups(event)
    if groups is None:
        return  # others have some: that it has none is reported
    named = [view for view, listed in groups if who in listed]
    if len(named) > 1:
        state.found.add(f"{who} installed {event.view}, in which it is in two subgroups: {', '.join(named)}", event)
    elif named != ([] if origin is None else [origin]):
        where = f"in the subgroup of {named[0]}" if named else "in no subgroup"
        text = f"{who} installed {event.view}, in which it is {where}, but it came from {origin or 'no view'}"
        state.found.add(text, event)
