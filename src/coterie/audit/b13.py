"""B13 no majority, no promise: a broker that does not serve with a majority of the voters lets nothing out.

It says itself when it serves, and with whom (`serving`); nothing is given to a client, and nothing promised, unless the
last it said was that it serves, with more than half of the voters in step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import BY_NODE, Found, Property, Violation
from coterie.audit.lives import address
from coterie.trace import Event


@dataclass(slots=True)
class State:
    serving: dict[str, Event] = field(default_factory=dict)
    """By incarnation: what it said last."""
    found: Found = field(default_factory=lambda: Found("B13"))


class NoMajorityNoPromise(Property[State]):
    name = "B13"
    title = "no majority, no promise"
    sentence = "Without a majority of the voters nothing is confirmed, nothing accepted and nothing newly delivered."
    split_by = BY_NODE
    kinds = ("serving", "given", "read", "promise")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        who = address(event)
        if event.kind == "serving":
            state.serving[who] = event
            return
        if "holder" in event.data:
            return  # of a broker that stands alone, which needs no majority
        said = state.serving.get(who)
        if said is None or not _may(said):
            what = "made a promise" if event.kind == "promise" else "handed messages to a client"
            state.found.add(f"{who} {what}, and serves with no majority of the voters", said, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()


def _may(said: Event) -> bool:
    voters, members = said.data.get("voters"), said.data.get("members")
    if said.data.get("state") != "serving" or not isinstance(voters, list) or not isinstance(members, list):
        return False
    return 2 * sum(voter in members for voter in voters) > len(voters)
