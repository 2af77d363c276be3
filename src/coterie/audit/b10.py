"""B10 updated replicas: one that got its state from another broker equals the others at the same point of the log.

It is judged by all that it says after its update, messages, holders, wiring and voters, against those that needed no
update; what only updated brokers speak of cannot be judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.replicas import Place, Strays, difference, place_of
from coterie.trace import Event, Json

_PARTS = ("queues", "holders", "wiring", "voters")


@dataclass(slots=True)
class State:
    right: dict[Place, Event] = field(default_factory=dict)
    """As somebody says who needed no update."""
    updated: list[tuple[Place, Event]] = field(default_factory=list)
    strays: Strays = field(default_factory=Strays)
    found: Found = field(default_factory=lambda: Found("B10"))


class UpdatedReplicas(Property[State]):
    name = "B10"
    title = "updated replicas"
    sentence = (
        "An updated joiner's replica equals the others' at the same point: nothing comes back, nothing is missing."
    )
    split_by = BY_RUN
    kinds = ("replica", "strays")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        place = place_of(event)
        if state.strays.excuse(event) or place is None:
            return
        if event.data.get("updated"):
            state.updated.append((place, event))
        else:
            state.right.setdefault(place, event)

    def finish(self, state: State) -> list[Violation]:
        for place, event in state.updated:
            right = state.right.get(place)
            if right is not None and said(event) != said(right):
                text = (
                    f"{address(event)} was updated, and after event {place[3]} of epoch {place[1]} it has not what "
                    f"{address(right)} has: {difference(said(event), said(right))}"
                )
                state.found.add(text, right, event)
        return state.found.close()


def said(event: Event) -> dict[str, Json]:
    """All that an account tells of what there is, in one table."""
    told: dict[str, Json] = {}
    for part in _PARTS:
        value = event.data.get(part)
        told |= {f"{part} {name}": each for name, each in value.items()} if isinstance(value, dict) else {part: value}
    return told
