"""Who holds messages of a queue: consumers, getters (basic.get) and leases; and the limits that consumers share."""

from __future__ import annotations

from collections import deque

from coterie.broker.ranges import PositionSet
from coterie.broker.state.leases import Lease
from coterie.broker.state.vocabulary import HolderKind

PoolKey = tuple[int, int]
"""A broker, and the number that it gives to the limit: mostly its channel's."""


class Pool:
    """What the consumers of one channel may hold together, whichever queues they consume."""

    __slots__ = ("held", "key", "limit", "members", "users")

    def __init__(self, key: PoolKey, limit: int) -> None:
        self.key = key
        self.limit = limit
        """0: as much as they like."""
        self.held = 0
        self.users = 0
        """Holders that have it, also cancelled ones. It goes with the last."""
        self.members: dict[int, tuple[int, int]] = {}
        """By the number that their broker gives them: queue and holder."""


class Holder:
    """One of them, in one queue. It stays while it holds something, also when its consumer is cancelled."""

    __slots__ = (
        "active", "ended", "exclusive", "held", "hungry", "id", "kind", "lease", "limit", "no_ack", "number", "owed",
        "peer", "pool", "priority", "used",
    )  # fmt: skip

    def __init__(self, id: int, kind: HolderKind, peer: int = 0, number: int = 0) -> None:
        self.id = id
        """In its queue; they rise, in the order in which holders come."""
        self.kind = kind
        self.peer = peer
        """The broker whose client it is; 0: nobody's, as a lease is."""
        self.number = number
        """Which of that broker's."""
        self.held = PositionSet()
        self.owed = PositionSet()
        """What it believes to hold, and has left the queue."""
        self.used = 0
        """How much of its limits is taken up: held, owed, or in flight if it acknowledges nothing."""
        # Of a consumer.
        self.priority = 0
        self.limit = 0
        self.pool: Pool | None = None
        self.no_ack = False
        self.exclusive = False
        self.active = False
        """It may be given messages: always, unless another one is the single active consumer."""
        self.hungry = False
        """It is in the rotation: it had room when it was last looked at, or was woken since."""
        self.ended = False
        """Cancelled."""
        # Of a lease.
        self.lease: Lease | None = None

    def __repr__(self) -> str:
        return f"<{self.kind.name.lower()} {self.id} holds {self.held.count}>"


class Rotation:
    """Whose turn it is, among consumers that may have room: those of the highest priority take turns."""

    __slots__ = ("hungry", "turns")

    def __init__(self) -> None:
        self.turns: dict[int, deque[int]] = {}
        """Holders by priority, the highest first."""
        self.hungry = 0

    def next(self) -> int | None:
        for turns in self.turns.values():
            return turns[0]
        return None

    def push(self, holder: Holder) -> None:
        """Behind the others of its priority."""
        self.insert(holder, -1)

    def insert(self, holder: Holder, place: int) -> None:
        turns = self.turns.get(holder.priority)
        if turns is None:
            turns = self.turns[holder.priority] = deque()
            self.turns = dict(sorted(self.turns.items(), reverse=True))
        if place < 0:
            turns.append(holder.id)
        else:
            turns.insert(place, holder.id)
        holder.hungry = True
        self.hungry += 1

    def remove(self, holder: Holder) -> int:
        """Gives the place that it had."""
        turns = self.turns[holder.priority]
        place = turns.index(holder.id)
        del turns[place]
        if not turns:
            del self.turns[holder.priority]
        holder.hungry = False
        self.hungry -= 1
        return place

    def turn(self, priority: int, by: int = -1) -> None:
        """The first of this priority has had its turn."""
        self.turns[priority].rotate(by)
