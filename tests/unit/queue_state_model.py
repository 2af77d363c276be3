"""A queue so simple that it is obviously right: a list of messages, searched from the front, always.

It follows the table in the docstring of `coterie.broker.queue`, message by message; a message that dies in a queue with
an exchange for dead letters is dying until it is buried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coterie.broker.state.limits import DEDUP_LENGTH, QueueLimits
from coterie.broker.state.queue_state import QueueConfig
from coterie.broker.state.vocabulary import DEADLY, Kind, Overflow, Reason

READY, HELD, DYING, GONE = "ready", "held", "dying", "gone"


@dataclass(slots=True)
class Item:
    """One message, as it is published and as it is in the queue."""

    size: int
    ttl: int | None = None
    priority: int = 0
    key: bytes | None = None
    id: bytes | None = None
    transient: bool = False
    position: int = 0
    place: int = 0
    """In its event."""
    expires: int | None = None
    state: str = READY
    holder: int = 0
    reason: Reason | None = None
    releases: int = 0
    replaced: bool = False
    offset: int = 0


@dataclass(slots=True)
class Who:
    """A holder."""

    id: int
    kind: str
    peer: int = 0
    number: int = 0
    limit: int = 0
    no_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    pool: int | None = None
    active: bool = False
    hungry: bool = False
    ended: bool = False
    owed: set[int] = field(default_factory=set)
    in_flight: int = 0
    next: int = 0
    """Offset of a lease."""


class Model:
    def __init__(self, config: QueueConfig, limits: QueueLimits, batch: int) -> None:
        self.config, self.limits, self.batch = config, limits, batch
        self.time = 0
        self.next_position = 1
        self.items: list[Item] = []
        self.holders: dict[int, Who] = {}
        self.next_holder = 1
        self.turns: list[int] = []
        self.pools: dict[int, int] = {}
        """Limits of channels."""
        self.unready: set[int] = set()
        """Brokers that have not got its messages yet."""
        self.ids: tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]] = [], []
        self.scheduled = False
        self.given: list[tuple[int, int]] = []
        """Holder and position, in the order of deliveries."""
        self.left: dict[Reason, int] = {}
        self.refused: list[int] = []
        self.duplicates: list[int] = []

    # Questions.

    def ready(self) -> list[Item]:
        """As consumers get them."""
        return sorted([item for item in self.items if item.state == READY], key=lambda item: -item.priority)

    def held(self, holder: int | None = None) -> list[Item]:
        return [item for item in self.items if item.state == HELD and holder in (None, item.holder)]

    def dying(self) -> list[Item]:
        return [item for item in self.items if item.state == DYING]

    def used(self, who: Who) -> int:
        return len(self.held(who.id)) + len(who.owed) + who.in_flight

    def room(self, who: Who) -> int:
        if who.peer in self.unready:
            return 0
        room = who.limit - self.used(who)
        limit = self.pools.get(who.pool, 0) if who.pool is not None else 0
        if limit:
            room = min(room, limit - sum(self.used(each) for each in self.holders.values() if each.pool == who.pool))
        return room

    def consumers(self) -> list[Who]:
        return [who for who in self.holders.values() if who.kind == "consumer" and not who.ended]

    def is_over(self, item: Item) -> bool:
        return item.expires is not None and item.expires <= self.time

    # Leaving.

    def leave(self, items: list[Item], reason: Reason, owed: bool = False) -> None:
        for item in items:
            if item.state == HELD and owed:
                self.holders[item.holder].owed.add(item.position)
            dies = reason in DEADLY and self.limits.dead
            item.state, item.holder, item.reason = (DYING if dies else GONE), 0, reason
            self.left[reason] = self.left.get(reason, 0) + 1

    # Messages come.

    def publish(self, items: list[Item]) -> None:
        self.refused, self.duplicates = [], []
        self.forget()
        for place, item in enumerate(items):
            item.place = place
        if not self.limits.refuses:
            self.take(items)
            return
        waiting: list[Item] = []
        for item in items:
            if self.full(item, waiting) and self.hungry():
                self.take(waiting)
                waiting = []
                self.allocate()
            if self.full(item, waiting):
                self.refused.append(item.place)
            else:
                waiting.append(item)
        self.take(waiting)
        if self.limits.overflow is Overflow.REJECT_DEAD and self.limits.dead:
            for place in self.refused:
                item = items[place]
                self.arrive(item)
                item.state, item.reason, item.key = DYING, Reason.EVICTED, None

    def full(self, item: Item, waiting: list[Item]) -> bool:
        """With those that are taken already, whether the queue knows their ids or not."""
        limits, ready = self.limits, self.ready() + waiting
        if limits.max_length is not None and len(ready) >= limits.max_length:
            return True
        return limits.max_bytes is not None and sum(each.size for each in ready) + item.size > limits.max_bytes

    def arrive(self, item: Item) -> None:
        item.position = self.next_position
        self.next_position += 1
        self.items.append(item)

    def take(self, items: list[Item]) -> None:
        if items and self.limits.deduplicates:
            items = self.sift(items)
        for item in items:
            self.arrive(item)
            item.priority = min(item.priority, self.config.max_priority)
            ttls = [ttl for ttl in (item.ttl, self.limits.ttl) if ttl is not None]
            if ttls:
                item.expires = self.time + (min(ttls) * 1000 or 1)
        if self.config.kind is Kind.LAST_VALUE:
            for item in items:
                self.replace(item)
        if items:
            self.scheduled = self.scheduled or self.hungry()
            self.fit(True)

    def replace(self, newer: Item) -> None:
        if newer.key is None:
            return
        for item in self.items:
            if item.key == newer.key and item.position < newer.position and item.state in (READY, HELD):
                if item.state == HELD and self.holders[item.holder].kind == "lease":
                    item.replaced = True
                else:
                    self.leave([item], Reason.REPLACED, owed=True)

    def sift(self, items: list[Item]) -> list[Item]:
        fresh = []
        for item in items:
            if item.id is not None:
                if any(item.id == known for window in self.ids for _, known in window):
                    self.duplicates.append(item.place)
                    continue
                self.ids[item.transient].append((self.time, item.id))
            fresh.append(item)
        self.forget()
        return fresh

    def forget(self) -> None:
        limits = self.limits
        for window in self.ids:
            most = (limits.dedup_length or DEDUP_LENGTH) if limits.deduplicates else 0
            before = 0 if limits.dedup_ttl is None else self.time - limits.dedup_ttl * 1000
            while window and (window[0][0] < before or len(window) > most):
                del window[0]

    def fit(self, arrived: bool) -> None:
        limits = self.limits
        if limits.refuses or not limits.bounded or not self.too_much():
            return
        if arrived and self.hungry():
            self.allocate()
        while self.too_much():
            self.leave([self.too_much()[0]], Reason.EVICTED, owed=True)

    def too_much(self) -> list[Item]:
        """If there is: what may be evicted, in that order."""
        limits = self.limits
        if self.config.kind is Kind.RING:
            found = [
                item for item in self.items
                if item.state == READY or (item.state == HELD and self.holders[item.holder].kind != "lease")
            ]  # fmt: skip
        else:
            found = self.ready()
        long = limits.max_length is not None and len(found) > limits.max_length
        large = limits.max_bytes is not None and sum(item.size for item in found) > limits.max_bytes
        return found if long or large else []

    # Consumers.

    def hungry(self) -> bool:
        return bool(self.turns)

    def wake(self, who: Who) -> None:
        if who.active and not who.hungry:
            who.hungry = True
            self.turns.append(who.id)
            self.scheduled = True

    def allocate(self) -> None:
        while self.ready() and self.turns:
            best = max(self.holders[each].priority for each in self.turns)
            number = next(each for each in self.turns if self.holders[each].priority == best)
            who = self.holders[number]
            room = self.room(who)
            self.turns.remove(number)
            if room <= 0:
                who.hungry = False
                continue
            self.turns.append(number)
            share = max(1, len(self.ready()) // len(self.turns))
            items = self.head(min(room, self.batch, share))
            for item in items:
                item.state, item.holder = HELD, number
                self.given.append((number, item.position))
                if who.no_ack:
                    item.state, item.holder = GONE, 0
                    who.in_flight += 1
            if not items:
                break

    def head(self, count: int) -> list[Item]:
        good: list[Item] = []
        for item in self.ready():
            if len(good) == count:
                break
            if self.is_over(item):
                self.leave([item], Reason.EXPIRED)
            else:
                good.append(item)
        return good

    def end_event(self) -> None:
        if self.scheduled:
            self.scheduled = False
            self.allocate()

    def subscribe(self, who: Who, pool_limit: int) -> bool:
        others = self.consumers()
        single = self.config.single_active
        if any(each.exclusive for each in others) or (who.exclusive and (others or single)):
            return False
        who.id, self.next_holder = self.next_holder, self.next_holder + 1
        self.holders[who.id] = who
        if who.pool is not None:
            self.pools[who.pool] = pool_limit
        if not single:
            who.active = True
            self.wake(who)
        elif not any(each.active for each in others):
            self.activate()
        self.scheduled = True
        return True

    def activate(self) -> None:
        if self.consumers():
            best = max(each.priority for each in self.consumers())
            chosen = next(each for each in self.consumers() if each.priority == best)
            chosen.active = True
            self.wake(chosen)

    def cancel(self, number: int) -> None:
        who = self.holders[number]
        if who.ended:
            return
        was_active = who.active
        who.active, who.ended = False, True
        if who.hungry:
            who.hungry = False
            self.turns.remove(number)
        if self.config.single_active and was_active:
            self.activate()
        self.scheduled = True
        self.forget_idle(who)

    def credit(self, number: int, limit: int, pool: int | None, pool_limit: int) -> None:
        who = self.holders[number]
        if who.ended:
            return
        who.limit, who.pool = limit, pool
        if pool is not None:
            self.pools[pool] = pool_limit
        self.freed(who)

    def sent(self, number: int, count: int) -> None:
        who = self.holders[number]
        if who.no_ack and who.in_flight and not who.ended:
            who.in_flight -= min(count, who.in_flight)
            self.freed(who)

    def freed(self, who: Who) -> None:
        if who.pool is None:
            if who.kind == "consumer":
                self.wake(who)
        else:
            for each in sorted(self.consumers(), key=lambda each: each.number):
                if each.pool == who.pool:
                    self.wake(each)
        self.forget_idle(who)

    def forget_idle(self, who: Who) -> None:
        if who.kind == "lease" or (who.kind == "consumer" and not who.ended) or self.held(who.id) or who.owed:
            return
        del self.holders[who.id]

    # Settling.

    def settle(self, number: int, positions: set[int], reason: Reason | None, counted: bool = True) -> None:
        """None: give them back."""
        who = self.holders.get(number)
        if who is None or who.kind == "lease":
            return
        owed = who.owed & positions
        who.owed -= owed
        items = [item for item in self.held(number) if item.position in positions]
        if items:
            if reason is None:
                self.give_back(items, counted)
                self.fit(False)
                self.scheduled = True
            else:
                self.leave(items, reason)
        if items or owed:
            self.freed(who)

    def give_back(self, items: list[Item], counted: bool) -> None:
        limit = self.limits.delivery_limit
        for item in items:
            newer = [each for each in self.items if each.key == item.key and each.position > item.position]
            if self.config.kind is Kind.LAST_VALUE and item.key is not None and (item.replaced or newer):
                self.leave([item], Reason.REPLACED)
            elif counted and limit is not None and item.releases + 1 > limit:
                self.leave([item], Reason.EXHAUSTED)
            else:
                item.state, item.holder = READY, 0
                item.releases += counted

    def get(self, peer: int, number: int, no_ack: bool) -> int | None:
        items = self.head(1)
        if not items:
            return None
        (item,) = items
        if no_ack:
            item.state = GONE
        else:
            who = next(
                (w for w in self.holders.values() if (w.kind, w.peer, w.number) == ("getter", peer, number)), None
            )
            if who is None:
                who = self.holders[self.next_holder] = Who(self.next_holder, "getter", peer, number)
                self.next_holder += 1
            item.state, item.holder = HELD, who.id
        return item.position

    def lose(self, peer: int) -> None:
        for who in sorted(self.consumers(), key=lambda each: each.number):
            if who.peer == peer:
                self.cancel(who.id)
        lost = [who for who in self.holders.values() if who.peer == peer and who.kind != "lease"]
        for who in lost:
            who.owed.clear()
            who.in_flight = 0
            self.give_back(self.held(who.id), True)
        if lost:
            self.fit(False)
            self.scheduled = True
        for who in lost:
            self.freed(who)
        self.unready.discard(peer)

    # Time, letters, the queue.

    def due(self) -> set[int]:
        found: set[int] = set()
        for priority in {item.priority for item in self.ready()}:
            for item in self.ready():
                if item.priority == priority:
                    if not self.is_over(item):
                        break
                    found.add(item.position)
        return found

    def expire(self, positions: set[int]) -> None:
        self.leave([item for item in self.ready() if item.position in positions and self.is_over(item)], Reason.EXPIRED)

    def bury(self, positions: set[int]) -> list[tuple[Reason, int]]:
        found = [item for item in self.dying() if item.position in positions]
        for item in found:
            item.state = GONE
        return sorted((item.reason, item.position) for item in found if item.reason is not None)

    def set_limits(self, limits: QueueLimits) -> None:
        if limits == self.limits:
            return
        before, self.limits = self.limits, limits
        if not limits.deduplicates:
            self.forget()
        if limits.ttl is not None and limits.ttl != before.ttl:
            for item in self.items:
                last = self.time + limits.ttl * 1000
                item.expires = last if item.expires is None else min(item.expires, last)
        self.fit(False)

    def purge(self) -> None:
        self.leave(self.ready(), Reason.PURGED)

    def take_out(self, count: int) -> list[int]:
        items = self.head(count)
        self.leave(items, Reason.MOVED)
        return [item.position for item in items]

    # Leases.

    def begin(self) -> Who:
        who = self.holders[self.next_holder] = Who(self.next_holder, "lease")
        self.next_holder += 1
        return who

    def lease(
        self, who: Who, rows: int | None, size: int | None, first: int, last: int | None, most: int
    ) -> tuple[int, bool]:
        most = most if rows is None else min(most, rows)
        taken: list[Item] = []
        more = False
        for item in self.ready():
            if item.position < first or (last is not None and item.position > last) or self.is_over(item):
                continue
            if len(taken) >= most or (size is not None and taken and sum(i.size for i in taken) + item.size > size):
                more = True
                break
            taken.append(item)
        for item in taken:
            item.state, item.holder, item.offset = HELD, who.id, who.next
            who.next += 1
        return len(taken), more

    def retire(self, who: Who, upto: int, most: int) -> bool:
        items = sorted([item for item in self.held(who.id) if item.offset < upto], key=lambda item: item.offset)
        self.leave(items[:most], Reason.ACCEPTED)
        return len(items) > most

    def release_lease(self, who: Who, first: int, most: int) -> bool:
        items = sorted([item for item in self.held(who.id) if item.offset >= first], key=lambda item: -item.offset)
        if items:
            self.give_back(items[:most], True)
            self.fit(False)
            self.scheduled = True
        return len(items) > most

    def end(self, who: Who, most: int) -> bool:
        more = self.release_lease(who, 0, most)
        if not more:
            del self.holders[who.id]
        return more

    def drop_transients(self) -> None:
        for item in self.items:
            if item.transient and item.state == DYING:
                item.state = GONE
        gone = [item for item in self.items if item.transient and item.state in (READY, HELD)]
        self.leave([item for item in gone if item.state == READY or self.lease_held(item)], Reason.LOST)
        self.leave([item for item in gone if item.state == HELD], Reason.LOST, owed=True)
        self.ids[1].clear()

    def lease_held(self, item: Item) -> bool:
        return item.state == HELD and self.holders[item.holder].kind == "lease"


def shape(model: Model) -> dict[str, Any]:
    """What is compared."""
    live = [item for item in model.items if item.state != GONE]
    return {
        "next": model.next_position,
        "ready": [item.position for item in model.ready()],
        "held": {who: sorted(i.position for i in model.held(who)) for who in model.holders if model.held(who)},
        "dying": sorted((int(i.reason), i.position) for i in model.dying() if i.reason is not None),
        "flagged": {item.position: item.releases for item in live if item.releases},
        "sizes": {item.position: item.size for item in live},
        "expires": {item.position: item.expires for item in live},
        "transient": sorted(item.position for item in live if item.transient),
        "holders": {who.id: (who.active, who.hungry, who.ended, who.limit) for who in model.holders.values()},
        "used": {who.id: model.used(who) for who in model.holders.values()},
        "turns": sorted(model.turns, key=lambda each: -model.holders[each].priority),
        "ids": [[found for _, found in window] for window in model.ids],
    }
