"""B16 the same state of the same log: replicas that made different states of it are noticed before a confirm rests on
them, and the one that is wrong stops serving.

A `promise` names the brokers whose disks it rests on, with the place of the log that each of them had named, and the
chain that the promiser had there (data.chains). What such a broker noted itself of that place (`logged`) must have the
same chain. Chains may be equal and states not: so what brokers say of all that they have (`replica`) is compared, too;
from the first place on at which two differ, no promise of one rests on the other, in these lives of them.

Who was found to be wrong (`astray`) says so itself, and then that it does not serve (`serving`): in between nothing
goes to its clients.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from zlib import crc32

from coterie.audit.b10 import said
from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.replicas import Place, place_of
from coterie.trace import Event

Reliance = tuple[str, int, str, int]
"""Who promised, in which life, and on whom, in which life."""


@dataclass(slots=True)
class State:
    noted: dict[tuple[str, int, int, int], str] = field(default_factory=dict)
    """By broker, life, epoch and event: the chain."""
    named: dict[tuple[str, str, int, int, int], tuple[str, Event]] = field(default_factory=dict)
    """By who promised, on whom, and its life, epoch and event: the chain that the promiser had."""
    relied: dict[Reliance, tuple[int, Event]] = field(default_factory=dict)
    """Up to which event."""
    accounts: dict[Place, dict[tuple[str, int], tuple[int, Event]]] = field(default_factory=dict)
    """By place, broker and life: a sum of what it has."""
    wrong: dict[str, Event] = field(default_factory=dict)
    """Who was found to be wrong, and has not said yet that it does not serve."""
    found: Found = field(default_factory=lambda: Found("B16"))


class SameStates(Property[State]):
    name = "B16"
    title = "the same state of the same log"
    sentence = (
        "Replicas that made different states of the same log are noticed before a confirm rests on them; "
        "the one that is wrong stops serving."
    )
    split_by = BY_RUN
    kinds = ("logged", "promise", "replica", "astray", "serving", "given", "read")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        who, data = address(event), event.data
        life, number, epoch = data.get("life"), data.get("number"), data.get("epoch")
        match event.kind:
            case "logged":
                chain = data.get("chain")
                if isinstance(life, int) and isinstance(number, int) and isinstance(epoch, int) and chain:
                    state.noted[who, life, epoch, number] = str(chain)
            case "replica":
                place = place_of(event)
                if place is not None and isinstance(life, int):
                    total = crc32(json.dumps(said(event), sort_keys=True).encode())
                    state.accounts.setdefault(place, {})[who, life] = total, event
            case "astray":
                members = data.get("members")
                if isinstance(members, list) and who in members:
                    state.wrong[who] = event
            case "serving" if data.get("state") != "serving":
                state.wrong.pop(who, None)
            case "serving" | "given" | "read" | "promise":
                if who in state.wrong:
                    text = f"{who} was found to have made another state of the log, and goes on serving"
                    state.found.add(text, state.wrong.pop(who), event)
                if event.kind == "promise":
                    self._promise(state, event, who)

    def _promise(self, state: State, event: Event, who: str) -> None:
        life, rests, chains = (event.data.get(name) for name in ("life", "rests", "chains"))
        if not isinstance(rests, dict) or not isinstance(chains, dict) or not isinstance(life, int):
            return
        for member, theirs in rests.items():
            epoch, _, more = str(chains.get(member)).partition(".")
            index, _, chain = more.partition(".")
            if member == who or not isinstance(theirs, int) or not (epoch.isdecimal() and index.isdecimal()):
                continue
            number = int(index)
            state.named.setdefault((who, member, theirs, int(epoch), number), (chain, event))
            key = who, life, member, theirs
            if key not in state.relied or state.relied[key][0] < number:
                state.relied[key] = number, event

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for (who, member, life, epoch, number), (chain, event) in state.named.items():
            noted = state.noted.get((member, life, epoch, number))
            if noted is not None and noted != chain:
                text = f"{who} promised something that rests on {member}, which has made another state of the log "
                state.found.add(f"{text}at event {number}", event)
        differ = _differences(state)
        for key, (number, event) in state.relied.items():
            first = differ.get(key)
            if first is not None and first[0] <= number:
                text = f"{key[0]} promised something that rests on {key[2]} at event {number}, and what they have "
                state.found.add(f"{text}differs from event {first[0]} on", first[1], event)
        return state.found.close()


def _differences(state: State) -> dict[Reliance, tuple[int, Event]]:
    """The first event at which two have different accounts."""
    found: dict[Reliance, tuple[int, Event]] = {}
    for place, accounts in sorted(state.accounts.items()):
        if len({total for total, _ in accounts.values()}) < 2:
            continue
        for (who, life), (total, _) in sorted(accounts.items()):
            for (member, theirs), (other, event) in sorted(accounts.items()):
                if other != total:
                    found.setdefault((who, life, member, theirs), (place[3], event))
    return found
