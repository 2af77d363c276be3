"""G11 gate: between `block` and `unblock` a member stamps no multicast of its application.

`block` stands where the member says that it takes part in a flush (START-FLUSH-OK, FLUSH_OK): what it has sent by then
is in the flush's cut, and nothing may follow. Unicasts pass, and so do multicasts of protocols.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import BY_NODE, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.views import Who
from coterie.trace import Event


@dataclass(slots=True)
class State:
    blocked: dict[Who, Event] = field(default_factory=dict)
    found: Found = field(default_factory=lambda: Found("G11"))


class Gate(Property[State]):
    name = "G11"
    title = "gate"
    sentence = "A member whose gate is shut stamps no multicast of its application."
    split_by = BY_NODE
    kinds = ("block", "unblock", "send")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        if event.kind == "send":
            if state.blocked and event.data.get("to") == "all" and event.data.get("app") is not False:
                block = state.blocked.get((event.node, event.inc))
                if block is not None:
                    text = f"{address(event)} sent number {event.first} to all although its gate was shut"
                    state.found.add(text, block, event)
        elif event.kind == "block":
            state.blocked.setdefault((event.node, event.inc), event)
        else:
            state.blocked.pop((event.node, event.inc), None)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()
