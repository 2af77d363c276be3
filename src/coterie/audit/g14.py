"""G14 retention: nothing is discarded that a member of the view still misses.

Each sender is the authority for its own stream: it says how far the stream is stable (`stable`), and the others discard
up to there. "The view" is therefore the sender's: its members are owed everything from the number at which they were
welcomed to the stream (data.welcomed of the sender's view; without it, data.start of their own). A discard follows from
digests, and each digest from the receiving before it. That is checked in two strengths:

- `Retention(causal=True)`: events come in causal order (a simulated run, as it goes or from its one file). Each discard
  is judged as it happens, against what everyone has received by then.
- `Retention(causal=False)`: traces of real nodes, merged in any way. Whoever was in the sender's view when it declared
  its stream stable has received it somewhere in its own trace, and nobody discards more than was declared; unless the
  events that are missing are those of a node whose events may be.

In agreed views (data.agreed) a bundle belongs to the view in which it was stamped, and is owed to the members of that
view for as long as they may still be in it; so the view that counts is that of whoever discards. What was stamped in an
earlier view is owed to nobody in the later one: whoever went along has it. A member that has gone on to another view is
owed nothing more of this one.

Without agreement, bundles of a sender that is gone (reason "departed") may be discarded by a member once all others of
its own view that have the stream have them too. A member that has taken the sender for gone itself may have given the
stream up without a word in its trace, and is then not asked. What is dropped because its time is over (reason "left")
is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_SENDER, Found, Order, Property, Violation
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.trace import Event


class Stream:
    """What one member has received of one sender."""

    __slots__ = ("_ahead", "given_up", "start", "upto")

    def __init__(self) -> None:
        self.start: int | None = None
        """Where it last began; None: not opened yet."""
        self.upto = 0
        """Everything from `start` to here has been received."""
        self.given_up = False
        """Since it was opened the member had a view without the sender, and may have dropped what it held."""
        self._ahead: set[int] = set()

    def open(self, start: int) -> None:
        self.start, self.given_up = start, False
        self.upto = max(self.upto, start - 1)
        self._ahead = {number for number in self._ahead if number > self.upto}
        self._absorb()

    def receive(self, first: int, last: int) -> None:
        if first <= self.upto + 1 and self.start is not None:
            self.upto = max(self.upto, last)
            if self._ahead:
                self._absorb()
        else:
            self._ahead.update(range(first, last + 1))

    def _absorb(self) -> None:
        while self.upto + 1 in self._ahead:
            self.upto += 1
            self._ahead.remove(self.upto)


@dataclass(slots=True)
class State:
    views: dict[str, Event] = field(default_factory=dict)
    """The view that each incarnation is in."""
    welcomed: dict[tuple[str, str], int] = field(default_factory=dict)
    """By sender and member: where the stream starts that the member is owed."""
    streams: dict[tuple[str, str], Stream] = field(default_factory=dict)
    """By member and sender."""
    relied: dict[tuple[str, str, str], tuple[Event, bool]] = field(default_factory=dict)
    """By member, sender and who relies on it: the furthest event that does (not if causal), and whether the member
    was welcomed by then; if not, the start of its own stream decides whether it was owed anything."""
    declared: dict[str, int] = field(default_factory=dict)
    """By sender: how far it said that its stream is stable."""
    discarded: dict[tuple[str, str], Event] = field(default_factory=dict)
    """By member and sender: the furthest discard because the sender said so (not if causal)."""
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("G14"))


class Retention(Property[State]):
    name = "G14"
    title = "retention"
    sentence = "Nothing is discarded that a member of the view still misses."
    split_by = BY_SENDER
    kinds = ("view", "receive", "stable", "discard", *LIFE_KINDS)

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal
        self.order = Order.CAUSAL if causal else Order.PER_NODE

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind, sender = event.kind, event.sender
        if kind == "receive":
            if sender is not None and event.first is not None and event.data.get("conn") is None:
                last = event.first if event.last is None else event.last
                _stream(state, address(event), sender).receive(event.first, last)
        elif kind == "view":
            _view(state, event)
        elif kind in LIFE_KINDS:
            state.lives.note(event)
        elif sender is not None and event.last is not None and event.data.get("conn") is None:
            if kind == "stable":
                self._stable(state, event, sender, event.last)
            else:
                self._discard(state, event, sender, event.last)

    def _stable(self, state: State, event: Event, sender: str, last: int) -> None:
        if address(event) == sender:
            state.declared[sender] = max(last, state.declared.get(sender, 0))
            if not self.causal:
                for member in _owed(state.views.get(sender)):
                    start = state.welcomed.get((sender, member))
                    if start is None or start <= last:
                        _rely(state, member, sender, event, start is not None)

    def _discard(self, state: State, event: Event, sender: str, last: int) -> None:
        who, reason = address(event), event.data.get("reason")
        view = state.views.get(who)
        if view is not None and views.agreed(view):
            if reason == "stable":
                self._discard_agreed(state, event, sender, last, view)
        elif reason == "stable":
            if self.causal:
                for member in _owed(state.views.get(sender)):
                    start = state.welcomed.get((sender, member))
                    if start is None or start <= last:
                        _judge(state, event, member, sender, start is not None)
            else:
                _furthest_discard(state, event, sender, last)
        elif reason == "departed":
            for member in _members(view):
                if self.causal:
                    _judge(state, event, member, sender, False)
                else:
                    _rely(state, member, sender, event, False)

    def _discard_agreed(self, state: State, event: Event, sender: str, last: int, view: Event) -> None:
        starts = view.data.get("start")
        start = starts.get(sender) if isinstance(starts, dict) else None
        if not isinstance(start, int) or last < start:
            return  # of an earlier view
        if not self.causal:
            _furthest_discard(state, event, sender, last)
            return
        for member in _members(view):
            if member != sender and not _gone_on(state, member, view):
                _judge(state, event, member, sender, True)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for (member, sender, _), (event, welcomed) in state.relied.items():
            if not state.lives.may_miss(member):
                _judge(state, event, member, sender, welcomed)
        for (who, sender), event in state.discarded.items():
            last = event.last or 0
            if last > state.declared.get(sender, 0) and not state.lives.may_miss(sender):
                text = f"{who} discarded {sender}'s bundles up to {last}, which it never called stable"
                state.found.add(text, event)
        return state.found.close()


def _view(state: State, event: Event) -> None:
    who = address(event)
    members = set(_members(event))
    for sender in _members(state.views.get(who)):
        stream = state.streams.get((who, sender))
        if stream is not None and sender not in members:
            stream.given_up = True
    state.views[who] = event
    welcomed, start = event.data.get("welcomed"), event.data.get("start")
    if isinstance(welcomed, dict):
        for member, number in welcomed.items():
            if isinstance(number, int):
                state.welcomed[who, member] = number
    if isinstance(start, dict):
        for sender, number in start.items():
            if isinstance(number, int):
                _stream(state, who, sender).open(number)


def _furthest_discard(state: State, event: Event, sender: str, last: int) -> None:
    known = state.discarded.get((address(event), sender))
    if known is None or (known.last or 0) < last:
        state.discarded[address(event), sender] = event


def _gone_on(state: State, member: str, view: Event) -> bool:
    """Whether that member has gone past an agreed view: ids rise, so it is not in it any more and never will be."""
    present = state.views.get(member)
    if present is None or present.view == view.view:
        return False
    there, here = views.rank(present.view), views.rank(view.view)
    return there is not None and here is not None and there > here


def _rely(state: State, member: str, sender: str, event: Event, welcomed: bool) -> None:
    key = (member, sender, address(event))
    furthest = state.relied.get(key)
    if furthest is None or (furthest[0].last or 0) < (event.last or 0):
        state.relied[key] = event, welcomed


def _judge(state: State, event: Event, member: str, sender: str, welcomed: bool) -> None:
    """Has the member received what the event says that everybody has?"""
    last, stream = event.last or 0, state.streams.get((member, sender))
    if member == sender or (event.data.get("reason") == "departed" and (stream is None or stream.given_up)):
        return
    if stream is None or stream.start is None:
        if not welcomed:
            return
        missing = "has not opened the stream"
    elif stream.upto < last and (welcomed or stream.start <= last):
        missing = f"misses {stream.upto + 1}"
    else:
        return
    did = "declared stable" if event.kind == "stable" else "discarded"
    text = f"{address(event)} {did} {sender}'s bundles up to {last}, but {member}, in the view, still {missing}"
    view = state.views.get(address(event))
    state.found.add(text, view if view is not None and views.agreed(view) else state.views.get(sender), event)


def _owed(view: Event | None) -> Iterator[str]:
    """Members to whom the one whose view it is owes its own stream; the others are told later where it starts."""
    waiting = None if view is None else view.data.get("waiting")
    for member in _members(view):
        if not isinstance(waiting, list) or member not in waiting:
            yield member


def _members(view: Event | None) -> Iterator[str]:
    members = None if view is None else view.data.get("members")
    if isinstance(members, list):
        yield from map(str, members)


def _stream(state: State, member: str, sender: str) -> Stream:
    stream = state.streams.get((member, sender))
    if stream is None:
        stream = state.streams[member, sender] = Stream()
    return stream
