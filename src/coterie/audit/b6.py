"""B6 same replicas: brokers of a cluster hold the same messages at the same positions at the same point of the log."""

from __future__ import annotations

from coterie.audit.replicas import SameAccounts
from coterie.trace import Event, Json


class SameMessages(SameAccounts):
    name = "B6"
    title = "same replicas"
    sentence = "Replicas hold the same messages at the same positions at the same point of the log."

    def picks(self, event: Event) -> Json:
        return event.data.get("queues")
