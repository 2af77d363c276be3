"""B17 durable before it is promised: a promise rests on syncs of a majority of the voters, in the present lives of
their stores; and a store is not given up before another one is whole and synced.

A clustered broker notes up to which event of the cluster's log it has told its store everything, and how far the
store's own log is then (`logged`); that is on disk once the store has `synced` so far. Which life of the store that is
of, data.life says: a broker that was away gets another store, and another log. A `promise` that something is on disk
up to an event (data.number) names the brokers that said so, with the lives that they meant (data.rests). They are more
than half of the voters, that event's or those of now, and each has it on disk in that life: in a causal trace before
the promise, otherwise somewhere in its own trace, unless its events may be missing.

A store that takes the place of another is a `generation`: begun, filled, whole, and then the old one is dropped. It is
whole only if all that it was filled with is synced; and the one that counts is never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import BY_RUN, Found, Order, Property, Violation
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.trace import Event


@dataclass(slots=True)
class Disk:
    """Of one incarnation."""

    synced: int = 0
    """Of the store's log."""
    logged: list[tuple[int, int, int]] = field(default_factory=list)
    """Not synced yet: how far the store's log was, which life, which event of the cluster's log."""
    durable: dict[int, int] = field(default_factory=dict)
    """By life: up to which event of the cluster's log it is on disk."""
    counts: int = 0
    """The generation that a start would find."""
    filled: dict[int, int] = field(default_factory=dict)
    """By generation: how far the store's log was when all was told."""

    def log(self, place: int, life: int, number: int) -> None:
        self.logged.append((place, life, number))
        self.sync(self.synced)

    def sync(self, upto: int) -> None:
        self.synced = max(self.synced, upto)
        for place, life, number in self.logged:
            if place <= self.synced:
                self.durable[life] = max(self.durable.get(life, 0), number)
        self.logged = [entry for entry in self.logged if entry[0] > self.synced]


@dataclass(slots=True)
class State:
    disks: dict[str, Disk] = field(default_factory=dict)
    """By incarnation."""
    voters: dict[str, list[tuple[int, list[str]]]] = field(default_factory=dict)
    """By incarnation: from which event of the cluster's log on who voted. Later ones may take events back."""
    relied: dict[tuple[str, str, int], tuple[int, Event]] = field(default_factory=dict)
    """By who promised, on whom and which life it relied: the furthest event (causal: the first that is not true)."""
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("B17"))


class DurableFirst(Property[State]):
    name = "B17"
    title = "durable before it is promised"
    sentence = (
        "A confirm of a persistent message rests on syncs of a majority of voters in the present life of their stores; "
        "a store is not given up before another one that has everything is whole and synced."
    )
    split_by = BY_RUN
    kinds = ("serving", "promise", "logged", "synced", "generation", *LIFE_KINDS)

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal
        self.order = Order.CAUSAL if causal else Order.PER_NODE

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind, who = event.kind, address(event)
        if kind in LIFE_KINDS:
            state.lives.note(event)
        elif kind == "serving":
            voters, number = event.data.get("voters"), event.data.get("number")
            if isinstance(voters, list):
                said = [str(voter).partition("#")[0] for voter in voters]
                state.voters.setdefault(who, []).append((number if isinstance(number, int) else 0, said))
        elif kind == "promise":
            self._promise(state, event, who)
        else:
            disk = state.disks.setdefault(who, Disk())
            number, life = event.data.get("number"), event.data.get("life")
            if kind == "synced":
                disk.sync(event.last or 0)
            elif kind == "logged" and isinstance(number, int) and isinstance(life, int):
                disk.log(event.last or 0, life, number)
            elif kind == "generation" and isinstance(number, int):
                self._generation(state, event, who, disk, number)

    def _promise(self, state: State, event: Event, who: str) -> None:
        number, rests = event.data.get("number"), event.data.get("rests")
        if not isinstance(number, int) or not isinstance(rests, dict):
            return
        asked = _voters(state, who, number)
        if not asked:
            return
        named = {member.partition("#")[0] for member in rests}
        if not any(_is_majority(named, voters) for voters in asked):
            those = sum(voter in named for voter in asked[0])
            text = f"{who} promised that event {number} is on disk, which {those} of {len(asked[0])} voters had said"
            state.found.add(text, event)
        for member, life in rests.items():
            if not isinstance(life, int):
                continue
            key = who, member, life
            known = state.relied.get(key)
            if not self.causal:
                if known is None or known[0] < number:
                    state.relied[key] = number, event
            elif known is None and _durable(state, member, life) < number:
                state.relied[key] = number, event
                self._false(state, key, number, event)

    def _generation(self, state: State, event: Event, who: str, disk: Disk, number: int) -> None:
        match event.data.get("state"):
            case "filled":
                disk.filled[number] = event.last or 0
            case "whole":
                disk.counts = number
                if disk.synced < disk.filled.get(number, 1 << 63):
                    state.found.add(f"{who} took store {number} for whole, and had not synced all of it", event)
            case "dropped" if number == disk.counts:
                state.found.add(f"{who} gave up store {number}, and had no other one that was whole", event)
            case "opened":
                disk.counts = number

    def _false(self, state: State, key: tuple[str, str, int], number: int, event: Event) -> None:
        who, member, life = key
        if not state.lives.may_miss(member):
            text = f"{who} promised that event {number} is on disk at {member}, which has it up to "
            state.found.add(f"{text}{_durable(state, member, life)} in that life of its store", event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        if not self.causal:
            for key, (number, event) in state.relied.items():
                if _durable(state, *key[1:]) < number:
                    self._false(state, key, number, event)
        return state.found.close()


def _voters(state: State, who: str, number: int) -> list[list[str]]:
    """Those of that event, and those of now: one voter comes or goes at a time, so that a majority of either meets
    every majority of the other, and an event that was not promised in time is promised by the voters of now. Whoever
    voted only in between was not asked."""
    said = state.voters.get(who, [])
    then = next((voters for first, voters in reversed(said) if first <= number), said[0][1] if said else [])
    return [then, said[-1][1]] if then else []


def _is_majority(named: set[str], voters: list[str]) -> bool:
    return 2 * sum(voter in named for voter in voters) > len(voters)


def _durable(state: State, member: str, life: int) -> int:
    disk = state.disks.get(member)
    return 0 if disk is None else disk.durable.get(life, 0)
