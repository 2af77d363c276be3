"""G6 virtual synchrony: two members that go together from V to V' delivered the same set of multicasts in V.

Members go together if both installed V' and both came from V (data.before). Who crashed in V, left it, or went to
another view is compared with nobody. Deliveries count for the view that they name; those of the application only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_VIEW, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.numbers import Numbers
from coterie.audit.views import Who
from coterie.trace import Event


class Heard:
    """What one member delivered of one sender in one view."""

    __slots__ = ("last", "numbers")

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.last: Event | None = None


NOTHING = Heard()


class InView:
    """What one member delivered in one view."""

    __slots__ = ("senders", "view")

    def __init__(self, view: str) -> None:
        self.view = view
        self.senders: dict[str, Heard] = {}


@dataclass(slots=True)
class State:
    now: dict[Who, InView] = field(default_factory=dict)
    """By incarnation, if its view is an agreed one."""
    together: dict[tuple[str, str], list[tuple[Event, InView]]] = field(default_factory=dict)
    """By V and V': who went from one to the other, and what it had delivered."""
    found: Found = field(default_factory=lambda: Found("G6"))


class VirtualSynchrony(Property[State]):
    name = "G6"
    title = "virtual synchrony"
    sentence = "Two members that go together from one view to the next delivered the same multicasts in the first."
    split_by = BY_VIEW
    kinds = ("view", "deliver")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        who = (event.node, event.inc)
        here = state.now.get(who)
        if event.kind == "view":
            _view(state, who, here, event)
            return
        sender, number = event.sender, event.first
        if here is None or here.view != event.view or sender is None or number is None:
            return
        if event.data.get("conn") is not None or event.data.get("app") is False:
            return
        heard = here.senders.get(sender)
        if heard is None:
            heard = here.senders[sender] = Heard()
        heard.numbers.add(number)
        heard.last = event

    def finish(self, state: State) -> list[Violation]:
        for (view, following), group in state.together.items():
            (first, one), *others = sorted(group, key=lambda entry: (entry[0].node, entry[0].inc))
            for event, other in others:
                _compare(state, view, following, (first, one), (event, other))
        return state.found.close()


def _view(state: State, who: Who, here: InView | None, event: Event) -> None:
    if not views.agreed(event) or event.view is None:
        state.now.pop(who, None)
        return
    if here is not None and here.view == views.before(event):
        state.together.setdefault((here.view, event.view), []).append((event, here))
    state.now[who] = InView(event.view)


def _compare(state: State, view: str, following: str, one: tuple[Event, InView], other: tuple[Event, InView]) -> None:
    """One violation for each sender, with the lowest number that only one of the two has."""
    for sender in sorted({**one[1].senders, **other[1].senders}):
        ours, theirs = one[1].senders.get(sender, NOTHING), other[1].senders.get(sender, NOTHING)
        number = ours.numbers.difference(theirs.numbers)
        if number is not None:
            has = number in ours.numbers
            text = (
                f"{address(one[0])} and {address(other[0])} went together from {view} to {following}, but only "
                f"{address(one[0] if has else other[0])} delivered number {number} of {sender}'s multicasts"
            )
            state.found.add(text, (ours if has else theirs).last, one[0], other[0])
