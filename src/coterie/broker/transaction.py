"""A transaction: publishes and answers to deliveries that take effect together, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.publish import Routed
    from coterie.broker.queue import Queue

ByQueue = dict["Queue", list["Entry"]]


@dataclass(slots=True)
class Transaction:
    """What one commit does. Publishes are routed already; entries are sorted by their queues."""

    routed: Routed = field(default_factory=dict)
    accepts: ByQueue = field(default_factory=dict)
    rejects: ByQueue = field(default_factory=dict)
    requeues: ByQueue = field(default_factory=dict)


def by_queue(entries: Iterable[Entry]) -> ByQueue:
    found: ByQueue = {}
    for entry in entries:
        found.setdefault(entry.queue, []).append(entry)
    return found
