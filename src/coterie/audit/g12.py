"""G12 flush exclusion: an exclusive flush holds alone, or its holder is told, and no flush blocks anyone for long.

- While a member takes part in an exclusive flush of one leader it takes part in no shared or exclusive one of another;
  flushes for view changes go with anything, and shared flushes with each other.
- When a flush holds at its leader (`flush_held`), each of its targets has joined it (by leader and number), unless its
  events may be missing; and if it is exclusive and of the whole view, each member of the view that does not die.
- While an exclusive flush holds, no member of the holder's view multicasts, or the holder is told: see holds.py.
- A gate that shut opens within data.limit of `block`, counted again from each flush that is joined meanwhile. What
  "within" means for a node that may be paused is in deadline.py.
- At the end of the run (`end`) no live member is blocked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.deadline import LIFE_SIGNS, ONLY_SIGNS, Clocks, Deadline
from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.holds import KINDS, Holds
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.audit.views import Who
from coterie.trace import Event, Json

Flush = tuple[str, int]
"""Its leader, and its number there."""

READ_BY_HOLDS = frozenset(KINDS)


@dataclass(slots=True)
class State:
    joined: dict[Who, dict[tuple[str, str], Event]] = field(default_factory=dict)
    """By member, leader and mode: the latest flush that it takes part in."""
    ever_joined: dict[Flush, set[str]] = field(default_factory=dict)
    held: list[tuple[Event, tuple[str, ...]]] = field(default_factory=list)
    """With the members of the view in which it holds."""
    views: dict[Who, Event] = field(default_factory=dict)
    holds: Holds = field(default_factory=Holds)
    blocked: dict[Who, Deadline] = field(default_factory=dict)
    suspicious: list[Deadline] = field(default_factory=list)
    """Deadlines that are over and may have been missed."""
    clocks: Clocks = field(default_factory=Clocks)
    lives: Lives = field(default_factory=Lives)
    end: Event | None = None
    found: Found = field(default_factory=lambda: Found("G12"))


class FlushExclusion(Property[State]):
    name = "G12"
    title = "flush exclusion"
    sentence = (
        "Exclusive flushes that overlap never both hold, nobody multicasts inside one unless its holder is told that "
        "it is lost, and no flush leaves a member blocked for too long."
    )
    split_by = BY_RUN
    kinds = tuple(dict.fromkeys(("block", "unblock", "fault", "end", *KINDS, *LIFE_SIGNS, *LIFE_KINDS)))

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind in READ_BY_HOLDS:
            state.holds.step(event)
            if kind == "view":
                state.views[event.node, event.inc] = event
            elif kind in ("send", "deliver"):
                return
        if not state.blocked and kind in ONLY_SIGNS:
            return
        if kind in LIFE_KINDS:
            state.lives.note(event)
            return
        deadline = state.blocked.get((event.node, event.inc))
        if deadline is not None:
            deadline.sign(event)
        if kind == "flush_joined":
            _joined(state, event)
        elif kind == "flush_left":
            _left(state, event)
        elif kind == "flush_held":
            state.held.append((event, views.members(state.views.get((event.node, event.inc)))))
        elif kind == "block":
            _block(state, event, event.data.get("limit"))
        elif kind == "unblock":
            _unblock(state, event)
        elif kind == "fault":
            state.clocks.note(event)
        elif kind == "end":
            state.end = event

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for event, members in state.held:
            _all_joined(state, event, members)
        for text, proof in state.holds.finish(state.lives):
            state.found.add(text, *proof)
        for deadline in (*state.suspicious, *state.blocked.values()):
            began = deadline.began
            seconds = deadline.late(state.clocks.rate(began.node))
            if seconds is not None:
                limit = began.data.get("limit")
                text = f"{address(began)} was blocked for at least {seconds:g} s, but {limit} s is the limit"
                state.found.add(text, began, deadline.latest)
        live = None if state.end is None else state.end.data.get("live")
        for who, deadline in state.blocked.items():
            if isinstance(live, list) and views.name(who) in live:
                state.found.add(f"{views.name(who)} is blocked at the end of the run", deadline.began, state.end)
        return state.found.close()


def _joined(state: State, event: Event) -> None:
    leader, number, mode = event.data.get("leader"), event.data.get("number"), event.data.get("mode")
    if not (isinstance(leader, str) and isinstance(number, int) and isinstance(mode, str)):
        return
    who = (event.node, event.inc)
    state.ever_joined.setdefault((leader, number), set()).add(address(event))
    joined = state.joined.setdefault(who, {})
    for (other, kind), earlier in joined.items():
        if other != leader and "exclusive" in (mode, kind) and "view" not in (mode, kind):
            text = (
                f"{address(event)} joined the {mode} flush {number} of {leader} "
                f"while it takes part in the {kind} flush {earlier.data.get('number')} of {other}"
            )
            state.found.add(text, earlier, event)
    joined[leader, mode] = event  # another round of the same flush has a number of its own
    deadline = state.blocked.get(who)
    if deadline is not None:
        _close(state, deadline)
        state.blocked[who] = deadline.again(event)


def _left(state: State, event: Event) -> None:
    joined = state.joined.get((event.node, event.inc), {})
    leader, number = event.data.get("leader"), event.data.get("number")
    for key in [key for key, earlier in joined.items() if key[0] == leader and earlier.data.get("number") == number]:
        del joined[key]


def _block(state: State, event: Event, limit: Json) -> None:
    who = (event.node, event.inc)
    deadline = state.blocked.get(who)
    if deadline is not None:
        _close(state, deadline)
    state.blocked[who] = Deadline(event, limit)


def _unblock(state: State, event: Event) -> None:
    deadline = state.blocked.pop((event.node, event.inc), None)
    if deadline is not None:
        _close(state, deadline)


def _close(state: State, deadline: Deadline) -> None:
    if deadline.suspicious:
        state.suspicious.append(deadline)


def _all_joined(state: State, event: Event, members: tuple[str, ...]) -> None:
    leader, number, targets = address(event), event.data.get("number"), event.data.get("targets")
    if not isinstance(targets, list) or not isinstance(number, int):
        return
    joined = state.ever_joined.get((leader, number), set())
    missing = [who for who in map(str, targets) if who not in joined and not state.lives.may_miss(who)]
    if event.data.get("mode") == "exclusive" and event.data.get("total") is True:
        missing += [m for m in members if m not in joined and m not in missing and not state.lives.ended(m)]
    if missing:
        text = f"{leader} holds the flush {number}, which {', '.join(missing)} never joined"
        state.found.add(text, event)
