"""G16 state transfer: the requester's state is the provider's at the cut, and both then deliver the same.

A transfer has an id. Of each id:

- what the requester was given (`state_set`) has the size and checksum of what the provider sent (`state_sent`);
- both cut (`state_cut`) in the same view, at the same digest, as far as members of the view are concerned: a sender of
  which one of them knows nothing counts as 0;
- if both go together from that view to the next, they deliver the same multicasts between the cut and the next view:
  the same set; in total order the same sequence.

A transfer that failed (`state_failed`) promises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from coterie.audit import views
from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.audit.views import Who
from coterie.trace import Event, Json

Bundle = tuple[str, int]
"""Sender and number."""


class Cut:
    """Where one of the two cut, and what it delivered from there to the end of the view."""

    __slots__ = ("delivered", "event", "following", "listed", "ordered")

    def __init__(self, event: Event, listed: tuple[str, ...]) -> None:
        self.event = event
        self.listed = listed
        """The members of its view."""
        self.delivered: dict[Bundle, Event] = {}
        self.ordered = False
        """Some of it had a position."""
        self.following: Event | None = None
        """The view that it went to from there."""


@dataclass(slots=True)
class Transfer:
    providers: dict[str, Cut] = field(default_factory=dict)
    requesters: dict[str, Cut] = field(default_factory=dict)
    sent: list[Event] = field(default_factory=list)
    set: list[Event] = field(default_factory=list)
    failed: bool = False


@dataclass(slots=True)
class State:
    transfers: dict[Json, Transfer] = field(default_factory=dict)
    views: dict[Who, Event] = field(default_factory=dict)
    open: dict[Who, list[Cut]] = field(default_factory=dict)
    """Cuts in the view that the member is in."""
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("G16"))


class StateTransfer(Property[State]):
    name = "G16"
    title = "state transfer"
    sentence = "A requester's state is the provider's at the cut, and both then deliver the same."
    split_by = BY_RUN
    kinds = ("view", "deliver", "state_cut", "state_sent", "state_set", "state_failed", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind == "deliver":
            if state.open:
                _deliver(state, event)
        elif kind == "view":
            _view(state, event)
        elif kind in LIFE_KINDS:
            state.lives.note(event)
        else:
            _transfer(state, event)

    def finish(self, state: State) -> list[Violation]:
        for number, transfer in state.transfers.items():
            if not transfer.failed:
                _same_state(state, number, transfer)
                for _, requester in sorted(transfer.requesters.items()):
                    for _, provider in sorted(transfer.providers.items()):
                        _same_cut(state, number, provider, requester)
                        _same_after(state, number, provider, requester)
        return state.found.close()


def _deliver(state: State, event: Event) -> None:
    if event.sender is None or event.first is None:
        return
    if event.data.get("conn") is not None or event.data.get("app") is False:
        return
    for cut in state.open.get((event.node, event.inc), ()):
        if cut.event.view == event.view:
            cut.delivered[event.sender, event.first] = event
            cut.ordered = cut.ordered or event.pos is not None


def _view(state: State, event: Event) -> None:
    who = (event.node, event.inc)
    for cut in state.open.pop(who, ()):
        if views.before(event) == cut.event.view:
            cut.following = event
    state.views[who] = event


def _transfer(state: State, event: Event) -> None:
    number = event.data.get("id")
    if not isinstance(number, str | int):
        return
    transfer = state.transfers.get(number)
    if transfer is None:
        transfer = state.transfers[number] = Transfer()
    if event.kind == "state_cut":
        who = (event.node, event.inc)
        cut = Cut(event, views.members(state.views.get(who)))
        state.open.setdefault(who, []).append(cut)
        side = transfer.providers if event.data.get("role") == "provider" else transfer.requesters
        side[address(event)] = cut
    elif event.kind == "state_sent":
        transfer.sent.append(event)
    elif event.kind == "state_set":
        transfer.set.append(event)
    else:
        transfer.failed = True


def _same_state(state: State, number: Json, transfer: Transfer) -> None:
    for event in transfer.set:
        who = address(event)
        if not transfer.sent:
            if not any(map(state.lives.may_miss, transfer.providers)) and (
                transfer.providers or not state.lives.incomplete
            ):
                state.found.add(f"{who} has the state {number}, which nobody has sent", event)
        elif all((event.count, event.sum) != (sent.count, sent.sum) for sent in transfer.sent):
            sent = min(transfer.sent, key=address)
            text = f"{who} has another state {number} than {address(sent)} sent"
            state.found.add(text, sent, event)


def _same_cut(state: State, number: Json, provider: Cut, requester: Cut) -> None:
    one, other = provider.event, requester.event
    text = f"{address(one)} and {address(other)} did not cut the state {number} at the same place:"
    if one.view != other.view:
        state.found.add(f"{text} the views are {one.view} and {other.view}", one, other)
        return
    ours, theirs = views.numbers(one, "digest"), views.numbers(other, "digest")
    for sender in sorted({*provider.listed, *requester.listed}):
        if ours.get(sender, 0) != theirs.get(sender, 0):
            what = f"{sender}'s multicasts are cut at {ours.get(sender, 0)} and {theirs.get(sender, 0)}"
            state.found.add(f"{text} {what}", one, other)
            return


def _same_after(state: State, number: Json, provider: Cut, requester: Cut) -> None:
    one, other = provider.following, requester.following
    if one is None or other is None or one.view != other.view or provider.event.view != requester.event.view:
        return
    text = f"after the cut of the state {number}, {address(one)} and {address(other)} did not deliver the same:"
    for bundle in sorted(provider.delivered.keys() ^ requester.delivered.keys()):
        who = address(one if bundle in provider.delivered else other)
        event = provider.delivered.get(bundle) or requester.delivered.get(bundle)
        state.found.add(f"{text} only {who} has {bundle[0]}'s number {bundle[1]}", event, one, other)
        return
    if provider.ordered or requester.ordered:
        for here, there in zip_longest(provider.delivered, requester.delivered):
            if here != there:
                what = f"where one has {here[0]}'s number {here[1]}, the other has {there[0]}'s number {there[1]}"
                proof = (provider.delivered[here], requester.delivered[there])
                state.found.add(f"{text} {what}", *proof, one, other)
                return
