"""G20 liveness: after the last fault everyone is together, and nothing is stuck.

Judged only if the run says how it ended (`end`, written by whoever watches the run from outside, after the last fault
and time to settle):

- each live member's view holds exactly the live members, and if views are agreed, it is the same view;
- of each live sender every live member has delivered all multicasts since it was welcomed to the stream (data.welcomed
  of the sender's view; without it, since the sender's last view), and the sender itself all of them. In an agreed view
  that is what was sent in it: what was sent in earlier ones is a matter of G4 and G6;
- every unicast to a live member is delivered that was sent since the receiver last entered the sender's view;
- nobody's gate is shut, nobody's view handler is suspended, nobody holds anything back (data.held).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.numbers import Numbers
from coterie.trace import Event, Json


@dataclass(slots=True)
class Sent:
    """Numbers that are owed: they follow each other, so the first and the last say it all."""

    first: Event
    last: Event


@dataclass(slots=True)
class Member:
    """What one incarnation did, as far as the end of the run depends on it."""

    view: Event | None = None
    members: frozenset[str] = frozenset()
    welcomed: dict[str, int] = field(default_factory=dict)
    """By other member: where the stream starts that it is owed."""
    multicasts: Sent | None = None
    since_view: Event | None = None
    """The first multicast since the last view."""
    unicasts: dict[tuple[str, Json], Sent] = field(default_factory=dict)
    """By receiver and connection."""
    delivered: dict[tuple[str, Json], Numbers] = field(default_factory=dict)
    """By sender and connection."""
    blocked: Event | None = None
    suspended: Event | None = None


@dataclass(slots=True)
class State:
    members: dict[str, Member] = field(default_factory=dict)
    end: Event | None = None
    found: Found = field(default_factory=lambda: Found("G20"))


class Settles(Property[State]):
    name = "G20"
    title = "the group settles"
    sentence = (
        "After the last fault the view of each live member is exactly the live members, nobody is blocked, "
        "all that was sent in it is delivered, and the buffers drain."
    )
    split_by = BY_RUN
    kinds = ("view", "send", "deliver", "block", "unblock", "suspend", "resume", "end")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind == "end":
            state.end = event
            return
        who = f"{event.node}#{event.inc}"
        member = state.members.get(who)
        if member is None:
            member = state.members[who] = Member()
        if kind == "deliver":
            if event.sender is not None and event.first is not None:
                stream = (event.sender, event.data.get("conn"))
                numbers = member.delivered.get(stream)
                if numbers is None:
                    numbers = member.delivered[stream] = Numbers()
                numbers.add(event.first)
        elif kind == "send":
            _send(member, event)
        elif kind == "view":
            _view(member, event)
        elif kind in ("block", "unblock"):
            member.blocked = event if kind == "block" else None
        else:
            member.suspended = event if kind == "suspend" else None

    def finish(self, state: State) -> list[Violation]:
        end = state.end
        live = None if end is None else end.data.get("live")
        if end is None or not isinstance(live, list):
            return []
        names = [str(who) for who in live]
        for who in names:
            member = state.members.get(who, Member())
            _together(state, end, who, member, names)
            _free(state, end, who, member)
            for receiver, conn, first, sent in _owed(who, member, names):
                _delivered(state, end, who, receiver, conn, first, sent)
        _one_view(state, end, names)
        _drained(state, end, names)
        return state.found.close()


def _send(member: Member, event: Event) -> None:
    to = event.data.get("to")
    if to == "all":
        if member.multicasts is None:
            member.multicasts = Sent(event, event)
        else:
            member.multicasts.last = event
        if member.since_view is None:
            member.since_view = event
    elif isinstance(to, str) and to in member.members:
        key = (to, event.data.get("conn"))
        sent = member.unicasts.get(key)
        if sent is None:
            member.unicasts[key] = Sent(event, event)
        else:
            sent.last = event


def _view(member: Member, event: Event) -> None:
    member.view, member.since_view = event, None
    members, welcomed = event.data.get("members"), event.data.get("welcomed")
    if isinstance(members, list):
        member.members = frozenset(map(str, members))
        for key in [key for key in member.unicasts if key[0] not in member.members]:
            del member.unicasts[key]  # what was sent to someone who left is owed to nobody
        for other in [other for other in member.welcomed if other not in member.members]:
            del member.welcomed[other]
    if isinstance(welcomed, dict):
        member.welcomed.update((other, number) for other, number in welcomed.items() if isinstance(number, int))


def _owed(who: str, member: Member, live: list[str]) -> Iterator[tuple[str, Json, int, Sent]]:
    """Receiver, connection, first number, and what was sent."""
    sent = member.multicasts
    if member.view is not None and views.agreed(member.view):
        since = member.since_view
        if sent is not None and since is not None and since.first is not None:
            for receiver in live:
                yield receiver, None, since.first, sent
    elif sent is not None:
        for receiver in live:
            if receiver == who:
                first = sent.first.first
            else:
                first = member.welcomed.get(receiver)
                if first is None and member.since_view is not None:
                    first = member.since_view.first
            if first is not None:
                yield receiver, None, first, sent
    for (receiver, conn), sent in member.unicasts.items():
        if receiver in live and sent.first.first is not None:
            yield receiver, conn, sent.first.first, sent


def _delivered(state: State, end: Event, sender: str, receiver: str, conn: Json, first: int, sent: Sent) -> None:
    numbers = state.members.get(receiver, Member()).delivered.get((sender, conn)) or Numbers()
    last = sent.last.first
    missing = None if last is None else numbers.missing(first, last)
    if missing is not None:
        what = "multicasts" if conn is None else f"connection {conn}"
        text = (
            f"{receiver} never delivered number {missing} of {sender}'s {what}, of which it is owed {first} to {last}"
        )
        state.found.add(text, sent.last, end)


def _together(state: State, end: Event, who: str, member: Member, live: list[str]) -> None:
    view = member.view
    if view is None:
        state.found.add(f"{who} lives at the end and has no view", end)
        return
    missing, extra = [m for m in live if m not in member.members], sorted(member.members - set(live))
    if missing:
        state.found.add(f"{who} ends in {view.view} without {', '.join(missing)}", view, end)
    if extra:
        state.found.add(f"{who} ends in {view.view} with {', '.join(extra)}, which does not live", view, end)


def _one_view(state: State, end: Event, live: list[str]) -> None:
    """Agreed views have one id for all."""
    seen = [(who, member.view) for who in live if (member := state.members.get(who)) and member.view is not None]
    if any(views.agreed(view) for _, view in seen):
        (one, first), *others = seen
        for who, view in others:
            if view.view != first.view:
                state.found.add(f"{one} ends in {first.view}, but {who} in {view.view}", first, view, end)


def _free(state: State, end: Event, who: str, member: Member) -> None:
    if member.blocked is not None:
        state.found.add(f"{who} is still blocked at the end", member.blocked, end)
    if member.suspended is not None:
        state.found.add(f"{who} is still suspended at the end", member.suspended, end)


def _drained(state: State, end: Event, live: list[str]) -> None:
    held = end.data.get("held")
    if not isinstance(held, dict):
        return
    for who in live:
        buffers = held.get(who)
        if isinstance(buffers, dict):
            left = [f"{what} {amount}" for what, amount in buffers.items() if amount]
            if left:
                state.found.add(f"{who} still holds back at the end: {', '.join(left)}", end)
