"""G9 order: who goes together delivered the same sequence; and up to what is held by a majority all agree for ever.

Positions count from 1 in each view. A bundle's place is known from its `ordered` event or its delivery (pos). Of each
view in which something has a place:

- a member has a bundle at every position up to the last that it delivered (parts of a message whose sender died before
  it was complete have their place, and are never delivered);
- members that go together from V to V' delivered the same bundles in the same sequence in V;
- two members that were both told (`held`) that V's order is held by a majority up to some position have, up to there,
  no different bundles at one position;
- a member that goes from V to a view to which a majority of V goes with it has everything up to the last position of
  which anyone was told, and the same. In a merge, those who "go with it" are its subgroup.

Beyond what was told, a member that crashed or was cut off may have delivered a tail that others ordered differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from coterie.audit import views
from coterie.audit.fold import BY_VIEW, Found, Property, Violation
from coterie.audit.numbers import Numbers
from coterie.audit.views import Who
from coterie.trace import Event


class Places:
    """The order of one view as one member knows it."""

    __slots__ = ("last", "others", "positions", "runs", "told")

    def __init__(self) -> None:
        self.positions = Numbers()
        """Where it knows a bundle."""
        self.others: dict[int, Event] = {}
        """Positions at which it has another bundle than the first member that was seen to have one."""
        self.runs = [1, 0]
        """Positions in the sequence of their delivery, as first and last of unbroken runs."""
        self.last: Event | None = None
        """The delivery at the highest position."""
        self.told: Event | None = None
        """The furthest `held`."""

    def deliver(self, position: int, event: Event) -> None:
        if position == self.runs[-1] + 1:
            self.runs[-1] = position
        else:
            self.runs += (position, position)
        if self.last is None or (self.last.pos or 0) < position:
            self.last = event

    @property
    def held(self) -> int:
        return 0 if self.told is None else self.told.pos or 0


class ViewOrder:
    """The order of one view."""

    __slots__ = ("first", "members")

    def __init__(self) -> None:
        self.first: dict[int, Event] = {}
        """By position: the first event that puts a bundle there."""
        self.members: dict[Who, Places] = {}

    def at(self, places: Places, position: int) -> Event | None:
        """An event that shows which bundle that member has there."""
        if position not in places.positions:
            return None
        return places.others.get(position) or self.first[position]

    def sequence(self, places: Places) -> Iterator[Event]:
        """What it delivered, one after the other."""
        for first, last in zip(places.runs[::2], places.runs[1::2], strict=True):
            for position in range(first, last + 1):
                yield places.others.get(position) or self.first[position]


@dataclass(slots=True)
class State:
    orders: dict[str, ViewOrder] = field(default_factory=dict)
    """By view id."""
    lists: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    """By view id: its members. There is one list for each, or G2 is violated."""
    following: dict[str, dict[Who, Event]] = field(default_factory=dict)
    """By view id and member: the view that it went to from there."""
    found: Found = field(default_factory=lambda: Found("G9"))


class TotalOrder(Property[State]):
    name = "G9"
    title = "order"
    sentence = (
        "Members that go together from one view to the next delivered the same sequence in the first, "
        "and up to a position that is held by a majority all agree."
    )
    split_by = BY_VIEW
    kinds = ("view", "ordered", "deliver", "held")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        if event.kind == "view":
            _view(state, event)
            return
        position, view = event.pos, event.view
        if position is None or view is None:
            return
        order = state.orders.get(view)
        if order is None:
            order = state.orders[view] = ViewOrder()
        who = (event.node, event.inc)
        places = order.members.get(who)
        if places is None:
            places = order.members[who] = Places()
        if event.kind == "held":
            if position > places.held:
                places.told = event
            return
        first = order.first.get(position)
        if first is None:
            first = order.first[position] = event
        if not places.others and first.sender == event.sender and first.first == event.first:
            places.positions.add(position)
        else:
            _place(state, order, places, position, event)
        if event.kind == "deliver":
            places.deliver(position, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for view, order in state.orders.items():
            _no_holes(state, view, order)
            _same_sequence(state, view, order)
            _uniform(state, view, order)
        return state.found.close()


def _view(state: State, event: Event) -> None:
    if views.agreed(event) and event.view is not None:
        state.lists.setdefault(event.view, set()).add(views.members(event))
        origin = views.before(event)
        if origin is not None:
            state.following.setdefault(origin, {})[event.node, event.inc] = event


def _place(state: State, order: ViewOrder, places: Places, position: int, event: Event) -> None:
    """As the fast way in `step`, for a member that has something where another has something else."""
    had = order.at(places, position)
    if had is None:
        places.positions.add(position)
        if not _same(order.first[position], event):
            places.others[position] = event
    elif not _same(had, event):
        who = views.name((event.node, event.inc))
        text = f"{who} has both {_bundle(had)} and {_bundle(event)} at position {position} of {event.view}"
        state.found.add(text, had, event)


def _no_holes(state: State, view: str, order: ViewOrder) -> None:
    for who, places in sorted(order.members.items()):
        last = places.last
        if last is not None and last.pos is not None:
            hole = places.positions.missing(1, last.pos)
            if hole is not None:
                text = f"{views.name(who)} delivered position {last.pos} of {view}, but has nothing at position {hole}"
                state.found.add(text, last)


def _same_sequence(state: State, view: str, order: ViewOrder) -> None:
    groups: dict[str, list[Who]] = {}
    for who, event in sorted(state.following.get(view, {}).items()):
        groups.setdefault(event.view or "", []).append(who)
    for one, *others in groups.values():
        for other in others:
            _compare(state, view, order, one, other)


def _compare(state: State, view: str, order: ViewOrder, one: Who, other: Who) -> None:
    ours, theirs = order.members.get(one, Places()), order.members.get(other, Places())
    if ours.runs == theirs.runs and not ours.others and not theirs.others:
        return
    for index, (here, there) in enumerate(zip_longest(order.sequence(ours), order.sequence(theirs)), 1):
        if here is None or there is None or here.pos != there.pos or not _same(here, there):
            went = state.following[view]
            text = (
                f"{views.name(one)} and {views.name(other)} went together from {view} to {went[one].view}, but the "
                f"bundle that they delivered as number {index} is {_bundle(here)} at {views.name(one)} and "
                f"{_bundle(there)} at {views.name(other)}"
            )
            state.found.add(text, here, there, went[one], went[other])
            return


def _uniform(state: State, view: str, order: ViewOrder) -> None:
    """What a member was told is held, it shares with all who were told as much, or went on with a majority."""
    told = [who for who, places in sorted(order.members.items()) if places.told is not None]
    if not told:
        return
    furthest = max(told, key=lambda who: order.members[who].held)  # the first of them, if several were told as much
    top = order.members[furthest].held
    went = _with_majority(state, view)
    for who in went:
        missing = order.members.get(who, Places()).positions.missing(1, top)
        if missing is not None:
            following = state.following[view][who]
            text = (
                f"{views.name(who)} went from {view} to {following.view} without position {missing}, "
                f"but {views.name(furthest)} was told that {top} is held"
            )
            state.found.add(text, order.members[furthest].told, following)
    reach = {who: top if who in went else order.members[who].held for who in sorted({*told, *went})}
    everybody = [who for who in reach if who in order.members]
    for index, one in enumerate(everybody):
        for other in everybody[index + 1 :]:
            _agree(state, view, order, one, other, min(reach[one], reach[other]))


def _agree(state: State, view: str, order: ViewOrder, one: Who, other: Who, upto: int) -> None:
    ours, theirs = order.members[one], order.members[other]
    for position in sorted({*ours.others, *theirs.others}):
        here, there = order.at(ours, position), order.at(theirs, position)
        if position <= upto and here is not None and there is not None and not _same(here, there):
            text = (
                f"the order of {view} is held up to {upto}, but at position {position} {views.name(one)} has "
                f"{_bundle(here)} and {views.name(other)} has {_bundle(there)}"
            )
            state.found.add(text, here, there, ours.told, theirs.told)
            return


def _with_majority(state: State, view: str) -> list[Who]:
    """Those who went to a view to which, from the same view, a majority went."""
    listed = min(state.lists.get(view, {()}))
    went = []
    for who, event in sorted(state.following.get(view, {}).items()):
        groups = views.subgroups(event)
        if groups is None:
            together = set(views.members(event))
        else:
            together = {member for origin, group in groups for member in group if origin == view}
        if 2 * len(together.intersection(listed)) > len(listed):
            went.append(who)
    return went


def _same(one: Event, other: Event) -> bool:
    return one.sender == other.sender and one.first == other.first


def _bundle(event: Event | None) -> str:
    return "nothing" if event is None else f"{event.sender}'s number {event.first}"
