"""A queue so simple that it is obviously right: a list of messages, searched from the front, always.

It is told what a test does, watches what the real queue delivers, and knows what must be left. The kinds of queues
differ in two lines each: the order of what is ready, and what an arrival pushes out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

READY, HELD, GONE = "ready", "held", "gone"


@dataclass(slots=True)
class Item:
    position: int
    body: str
    priority: int = 0
    key: str | None = None
    expires: float | None = None
    state: str = READY
    holder: str = ""
    redelivered: bool = False
    deliveries: int = 0

    @property
    def size(self) -> int:
        return len(self.body)


@dataclass(slots=True)
class Model:
    """`kind` and limits as the queue is declared."""

    kind: str = "fifo"
    max_length: int | None = None
    max_priority: int = 0
    ttl: float | None = None
    delivery_limit: int | None = None
    dead: bool = False
    """Whether the queue has a dead-letter exchange."""
    refuses: bool = False
    items: list[Item] = field(default_factory=list)
    next_position: int = 1
    letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bodies that became dead letters, with the reason."""

    def live(self) -> list[Item]:
        return [item for item in self.items if item.state != GONE]

    def ready(self) -> list[Item]:
        """As consumers get them."""
        ready = [item for item in self.items if item.state == READY]
        return sorted(ready, key=lambda item: -item.priority)

    def held(self, holder: str | None = None) -> list[Item]:
        return [item for item in self.items if item.state == HELD and holder in (None, item.holder)]

    # What happens.

    def arrive(self, item: Item, now: float) -> None:
        item.position = self.next_position
        self.next_position += 1
        item.priority = min(item.priority, self.max_priority)
        if self.ttl is not None:
            item.expires = min(now + self.ttl, item.expires or float("inf"))
        self.items.append(item)

    def push_out(self) -> None:
        """What arrivals push out, after consumers have taken what they had room for."""
        if self.kind == "last-value":
            keys = {item.key: item for item in self.live() if item.key is not None}
            for item in self.live():
                if item.key is not None and keys[item.key] is not item:
                    item.state = GONE
        if self.max_length is None or self.refuses:
            return
        if self.kind == "ring":
            while len(self.live()) > self.max_length:
                self.die(self.live()[0], "maxlen")
        else:
            while len(self.ready()) > self.max_length:
                self.die(self.ready()[0], "maxlen")

    def deliver(self, position: int, holder: str, now: float) -> Item:
        """The queue gives one away: it must be the first that has not expired."""
        while True:
            head = self.ready()[0]
            if head.expires is None or head.expires > now:
                break
            self.die(head, "expired")
        assert head.position == position, f"{position} was delivered, and {head.position} stood before it"
        head.state, head.holder = HELD, holder
        head.deliveries += 1
        return head

    def accept(self, item: Item) -> None:
        if item.state == HELD:
            item.state = GONE

    def release(self, item: Item, redelivered: bool) -> None:
        if item.state != HELD:
            return
        if redelivered and self.delivery_limit is not None and item.deliveries > self.delivery_limit:
            self.die(item, "delivery_limit")
            return
        item.state = READY
        if redelivered:
            item.redelivered = True
        else:
            item.deliveries -= 1

    def reject(self, item: Item) -> None:
        if item.state == HELD:
            self.die(item, "rejected")

    def pass_time(self, now: float) -> None:
        """What has expired leaves, from the head of each priority on."""
        for priority in {item.priority for item in self.items}:
            for item in self.ready():
                if item.priority == priority:
                    if item.expires is None or item.expires > now:
                        break
                    self.die(item, "expired")

    def purge(self) -> int:
        ready = self.ready()
        for item in ready:
            item.state = GONE
        return len(ready)

    def die(self, item: Item, reason: str) -> None:
        item.state = GONE
        if self.dead:
            self.letters[item.body, reason] += 1
