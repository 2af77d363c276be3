"""B7 same allocation: every replica computes from the same log who holds which message, and what consumers may hold."""

from __future__ import annotations

from coterie.audit.replicas import SameAccounts
from coterie.trace import Event, Json


class SameAllocation(SameAccounts):
    name = "B7"
    title = "same allocation"
    sentence = "Every replica computes the same allocation of messages to consumers from the same log."

    def picks(self, event: Event) -> Json:
        return event.data.get("holders")
