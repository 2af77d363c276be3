"""G13 view-handler exclusion: a view handler works on one thing at a time, and never waits for ever.

While it works on joins and leaves, on a merge that it leads (merge) or on one that another leads (merge_req) it is
suspended. It is never suspended twice: so no two of them overlap. It is resumed within data.timeout of `suspend`, by
the Resumer if by nobody else (deadline.py says what that means for a node that may be paused), and at the end of the
run (`end`) no live member's handler is suspended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.deadline import LIFE_SIGNS, ONLY_SIGNS, Clocks, Deadline
from coterie.audit.fold import BY_NODE, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.views import Who
from coterie.trace import Event


@dataclass(slots=True)
class State:
    suspended: dict[Who, Deadline] = field(default_factory=dict)
    suspicious: list[Deadline] = field(default_factory=list)
    """Those that are over and may have lasted too long."""
    clocks: Clocks = field(default_factory=Clocks)
    end: Event | None = None
    found: Found = field(default_factory=lambda: Found("G13"))


class HandlerExclusion(Property[State]):
    name = "G13"
    title = "view-handler exclusion"
    sentence = (
        "A coordinator works on joins and leaves, or on one merge, never on two of them at a time, "
        "and is free again in time."
    )
    split_by = BY_NODE
    kinds = ("suspend", "resume", "fault", "end", *LIFE_SIGNS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if not state.suspended and kind in ONLY_SIGNS:
            return
        deadline = state.suspended.get((event.node, event.inc))
        if deadline is not None:
            deadline.sign(event)
        if kind == "suspend":
            _suspend(state, deadline, event)
        elif kind == "resume":
            _resume(state, deadline, event)
        elif kind == "fault":
            state.clocks.note(event)
        elif kind == "end":
            state.end = event

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for deadline in (*state.suspicious, *state.suspended.values()):
            began = deadline.began
            seconds = deadline.late(state.clocks.rate(began.node))
            if seconds is not None:
                limit = began.data.get("timeout")
                text = f"{address(began)} was suspended for at least {seconds:g} s, but {limit} s is the limit"
                state.found.add(text, began, deadline.latest)
        live = None if state.end is None else state.end.data.get("live")
        for who, deadline in state.suspended.items():
            if isinstance(live, list) and views.name(who) in live:
                text = f"{views.name(who)} is suspended at the end of the run"
                state.found.add(text, deadline.began, state.end)
        return state.found.close()


def _suspend(state: State, deadline: Deadline | None, event: Event) -> None:
    if deadline is not None:
        text = (
            f"{address(event)} was suspended for {event.data.get('reason')} "
            f"while it was suspended for {deadline.began.data.get('reason')}"
        )
        state.found.add(text, deadline.began, event)
        _close(state, deadline)
    state.suspended[event.node, event.inc] = Deadline(event, event.data.get("timeout"))


def _resume(state: State, deadline: Deadline | None, event: Event) -> None:
    if deadline is None:
        text = f"{address(event)} was resumed ({event.data.get('reason')}), but it was not suspended"
        state.found.add(text, event)
    else:
        _close(state, deadline)
        del state.suspended[event.node, event.inc]


def _close(state: State, deadline: Deadline) -> None:
    if deadline.suspicious:
        state.suspicious.append(deadline)
