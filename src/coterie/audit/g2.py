"""G2 views: ids rise at each member; one id, one list of members everywhere; nothing is sent before a view.

Ids are compared by counter, then by creator. "Everywhere" is said of agreed views (data.agreed) only: the others are
each member's own. Before the first view of an incarnation there are no multicasts at all, and nothing of the
application; protocols may talk to each other by unicasts, or there would never be a view.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.views import Who
from coterie.trace import Event


@dataclass(slots=True)
class State:
    latest: dict[Who, Event] = field(default_factory=dict)
    """The view that each incarnation is in."""
    lists: dict[str, dict[tuple[str, ...], Event]] = field(default_factory=dict)
    """By view id: the lists of members that there are for it, each with the view of the first of those who have it."""
    early: set[Who] = field(default_factory=set)
    """Those who sent or delivered before they had a view, and are reported."""
    found: Found = field(default_factory=lambda: Found("G2"))


class Views(Property[State]):
    name = "G2"
    title = "views"
    sentence = (
        "View ids rise at each member, one id means one list of members everywhere, "
        "and nothing is sent or delivered before a view."
    )
    split_by = BY_RUN
    kinds = ("view", "send", "deliver")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        who = (event.node, event.inc)
        if event.kind == "view":
            _view(state, who, event)
        elif who not in state.latest and who not in state.early:
            _before_a_view(state, who, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for view_id, lists in state.lists.items():
            if len(lists) > 1:
                (one, first), (other, second), *_ = sorted(lists.items())
                text = (
                    f"{view_id} has the members {', '.join(one)} at {address(first)}, "
                    f"but {', '.join(other)} at {address(second)}"
                )
                state.found.add(text, first, second)
        return state.found.close()


def _before_a_view(state: State, who: Who, event: Event) -> None:
    if event.data.get("conn") is None or event.data.get("app") is not False:
        state.early.add(who)
        did = "sent" if event.kind == "send" else f"delivered {event.sender}'s"
        state.found.add(f"{address(event)} {did} number {event.first} before it had a view", event)


def _view(state: State, who: Who, event: Event) -> None:
    latest = state.latest.get(who)
    if latest is not None:
        old, new = views.rank(latest.view), views.rank(event.view)
        if old is not None and new is not None and new <= old:
            state.found.add(f"{address(event)} installed {event.view} after {latest.view}", latest, event)
    state.latest[who] = event
    if views.agreed(event) and event.view is not None:
        lists = state.lists.setdefault(event.view, {})
        known = lists.get(views.members(event))
        if known is None or (event.node, event.inc) < (known.node, known.inc):
            lists[views.members(event)] = event
