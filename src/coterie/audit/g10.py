"""G10 held: what is reported held is received, with its place in the order, by those who are said to hold it.

A member that is told that the order of a view is held up to a position (`held`) is told by whom (data.members): each of
them has an `ordered` event for every position up to there. They are more than half of the view (data.by majority), or
all of it (all); where the application has said who counts, they are data.need of the members data.of. In a causal trace
they have it before the member is told; otherwise somewhere in their own traces, unless their events may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_VIEW, Found, Order, Property, Violation
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.audit.numbers import Numbers
from coterie.trace import Event

Place = tuple[str, str]
"""View and member."""


@dataclass(slots=True)
class State:
    ordered: dict[Place, Numbers] = field(default_factory=dict)
    lists: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    """The members of a view as the one who is told knows them."""
    relied: dict[tuple[Place, str], Event] = field(default_factory=dict)
    """By view and holder, and who was told: the furthest `held` (causal: the first that is not true)."""
    missing: dict[tuple[Place, str], int] = field(default_factory=dict)
    """Causal: what was missing when it was told."""
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("G10"))


class Held(Property[State]):
    name = "G10"
    title = "held"
    sentence = "What is reported held by a majority, or by all, is received with its order by those members."
    split_by = BY_VIEW
    kinds = ("view", "ordered", "held", *LIFE_KINDS)

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal
        self.order = Order.CAUSAL if causal else Order.PER_NODE

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind, view = event.kind, event.view
        if kind in LIFE_KINDS:
            state.lives.note(event)
        elif view is None:
            return
        elif kind == "ordered":
            if event.pos is not None:
                place = (view, f"{event.node}#{event.inc}")
                numbers = state.ordered.get(place)
                if numbers is None:
                    numbers = state.ordered[place] = Numbers()
                numbers.add(event.pos)
        elif kind == "view":
            state.lists[view, address(event)] = views.members(event)
        elif event.pos is not None:
            self._held(state, event, view, event.pos)

    def _held(self, state: State, event: Event, view: str, position: int) -> None:
        who, named = address(event), views.members(event)
        listed = state.lists.get((view, who), ())
        by, counted, need = event.data.get("by"), event.data.get("of"), event.data.get("need")
        if by == "majority" and isinstance(counted, list) and isinstance(need, int):
            counting, wanted = set(map(str, counted)).intersection(listed), need
        else:
            counting = set(listed)
            wanted = len(listed) // 2 + 1 if by == "majority" else len(listed) if by == "all" else 0
        holders = len(counting.intersection(named))
        if listed and holders < wanted:
            text = f"{who} was told that {by} hold {view} up to {position}, but {holders} of {len(counting)} are named"
            state.found.add(text, event)
        for member in named:
            key = ((view, member), who)
            if not self.causal:
                known = state.relied.get(key)
                if known is None or (known.pos or 0) < position:
                    state.relied[key] = event
            elif key not in state.relied:
                missing = _missing(state, view, member, position)
                if missing is not None:
                    state.relied[key], state.missing[key] = event, missing

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for key, event in state.relied.items():
            (view, member), who = key
            position = event.pos or 0
            missing = state.missing[key] if self.causal else _missing(state, view, member, position)
            if missing is not None and not state.lives.may_miss(member):
                text = f"{who} was told that {member} holds {view} up to {position}, but it has nothing at {missing}"
                state.found.add(text, event)
        return state.found.close()


def _missing(state: State, view: str, member: str, position: int) -> int | None:
    return state.ordered.get((view, member), Numbers()).missing(1, position)
