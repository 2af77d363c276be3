"""B15 no event stops a majority: what cannot be carried out is void at every broker alike, and nobody leaves for it.

Each account of a clustered broker (`replica`) says how many events were void until there, and sums up their places: at
one place of the log that is the same everywhere. A broker that cannot follow the log says so (`leaves`): its memory or
its disk may be the reason, an event never is.
"""

from __future__ import annotations

from coterie.audit.fold import Found, Violation
from coterie.audit.lives import address
from coterie.audit.replicas import SameAccounts, State
from coterie.trace import Event, Json


class NoEventStopsAMajority(SameAccounts):
    name = "B15"
    title = "no event stops a majority"
    sentence = "An event that cannot be carried out is void at every broker alike, and no broker leaves because of one."
    kinds = ("replica", "strays", "leaves")

    def picks(self, event: Event) -> Json:
        return event.data.get("voids")

    def step(self, state: State, event: Event) -> None:
        if event.kind != "leaves":
            super().step(state, event)
        elif not event.data.get("excused"):
            state.left.append(event)

    def finish(self, state: State) -> list[Violation]:
        found = Found(self.name)
        for event in sorted(state.left, key=address):
            found.add(f"{address(event)} left the cluster because of an event: {event.data.get('error')}", event)
        return [*super().finish(state), *found.close()]
