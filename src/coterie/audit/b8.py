"""B8 same wiring: queues, exchanges, bindings, policies, users and voters are the same at the same point of the log."""

from __future__ import annotations

from coterie.audit.replicas import SameAccounts
from coterie.trace import Event, Json


class SameWiring(SameAccounts):
    name = "B8"
    title = "same wiring"
    sentence = "Wiring, policies, users and voters are the same on all replicas at the same point of the log."

    def picks(self, event: Event) -> Json:
        return {"wiring": event.data.get("wiring"), "voters": event.data.get("voters")}
