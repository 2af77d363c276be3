"""The policies of the queue state do what queues do: the same random events, and the same afterwards.

Compared are who holds what, flags, counts of deliveries, the order of deliveries, rooms, turns, dead letters with their
reasons, offsets of leases, times of expiry, and all counters.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from queue_state_model import Item
from queue_state_old import UNCOUNTED, OldQueue
from queue_state_rig import Brokers, arrival, positions_in
from queue_view import seen

from coterie.broker.limits import Limits
from coterie.broker.ranges import PositionSet
from coterie.broker.state import (
    QueueConfig,
    QueueLimits,
    allocate_scheduled,
    consuming,
    dying,
    expiring,
    leasing,
    ownership,
    publish,
    queue_changes,
    settling,
)
from coterie.broker.state.consuming import Prefetch
from coterie.broker.state.holders import Holder
from coterie.broker.state.holding import NewHolder, NewLease
from coterie.broker.state.leasing import Wanted
from coterie.broker.state.rooms import room_of
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Count, HolderKind, Kind, Reason

BATCH = 3
DEDUP_TTLS = (1, 20)
EVENTS = 150
OVERFLOWS = ("drop-head", "drop-head", "reject-publish", "reject-publish-dlx")
ARGUMENTS: dict[Kind, dict[str, object]] = {
    Kind.FIFO: {},
    Kind.RING: {"x-overflow": "ring", "x-max-length": 5},
    Kind.LAST_VALUE: {"x-last-value-key": "k"},
    Kind.PRIORITY: {"x-max-priority": 3},
}
DEATHS = {
    Reason.REJECTED: "rejected",
    Reason.EXPIRED: "expired",
    Reason.EVICTED: "maxlen",
    Reason.EXHAUSTED: "delivery_limit",
}


class Pair:
    """Both, in the same events."""

    def __init__(self, kind: Kind, seed: int, owned: bool) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        single = self.random.random() < 0.2
        arguments = dict(ARGUMENTS[kind])
        if single:
            arguments["x-single-active-consumer"] = True
        self.old = OldQueue(arguments, BATCH, owned)
        self.new = Brokers(BATCH, owned)
        self.new.create(QueueConfig(kind, single, 3 if kind is Kind.PRIORITY else 0))
        self.limits = Limits()
        self.bodies: dict[tuple[int, int], str] = {}
        self.events = self.numbers = self.pools = 0
        self.letters: list[tuple[str, str]] = []
        self.places: dict[int, int] = {}
        self.both(self._limits)

    def body(self, position: int) -> str:
        run = self.new.queue.runs.find(position)
        assert run is not None
        return self.bodies[run.ref, run.offset + position - run.first]

    def bodies_of(self, positions: Any) -> list[str]:
        return [self.body(position) for position in positions_in(positions)]

    # An event.

    def both(self, make: Any) -> None:
        self.events += 1
        self._pass(self.random.choice([10, 10, 10, 500, 5000]))
        old, new = make()
        there = self.old.event(self.new.now, old)
        flags: list[tuple[int, str, bool]] = []

        def decide(step: Step) -> Any:
            flags.clear()  # it may be a second try
            result = new(step)
            queue = self.new.queue
            allocate_scheduled(step)
            for given in step.given():
                again = {*positions_in(given.redelivered)}
                number = queue.holders[given.holder].number
                flags.extend((number, self.body(at), at in again) for at in positions_in(given.positions))
            return result

        here = self.new.event(decide, self.random.choice([None, self.random.randrange(12)]))
        assert here == there
        assert flags == self.old.given
        self._bury()
        assert self.letters == self.old.letters
        assert self.shape() == self.old.shape()

    def _pass(self, by: int) -> None:
        """Time passes, but nothing is over within the same microsecond: the old queue counts in fractions."""
        queue = self.new.queue
        self.new.now += by
        times = {queue.expiry(position) for position in positions_in(queue.live)}
        ids = [span.time for window in queue.windows or () for span in window.spans]
        times.update(time + ttl * 1000 for time in ids for ttl in DEDUP_TTLS)
        while any(time is not None and abs(time - self.new.now) < 5 for time in times):
            self.new.now += 3

    def _bury(self) -> None:
        found: list[tuple[str, str]] = []

        def decide(step: Step) -> None:
            due = dying.letters_due(self.new.queue, 1000)
            for dead in due:
                found.extend((DEATHS[dead.reason], body) for body in self.bodies_of(dead.positions))
                dying.bury(step, self.new.queue, [*dead.positions])  # type: ignore[misc]

        self.new.now += 2
        self.new.event(decide)
        self.letters = sorted(found)

    # Kinds of events.

    def _limits(self) -> Any:
        rand = self.random
        ring = self.kind is Kind.RING
        self.limits = limits = Limits(
            ttl=rand.choice([None, None, None, 0, 1, 5]),
            max_length=rand.choice([5, 2, 0] if ring else [None, None, 0, 1, 3, 6]),
            max_bytes=rand.choice([None, None, 30, 100]),
            delivery_limit=rand.choice([None, 0, 1, 2]),
            deduplicate_length=rand.choice([None, None, 1, 3]),
            deduplicate_ttl=rand.choice([None, None, *DEDUP_TTLS]),
            dead_exchange=rand.choice([None, ""]),
            dead_key="dead",
            overflow="ring" if ring else rand.choice(OVERFLOWS),
        )
        return (
            lambda: self.old.limits(limits),
            lambda step: queue_changes.set_limits(step, self.new.queue, QueueLimits.of(limits)),
        )

    def publish(self) -> Any:
        rand = self.random
        # A full queue refuses the rest of an event, though consumers would make room: one at a time.
        count = 1 if self.limits.refuses else rand.randint(1, 7)
        items = [
            Item(
                rand.choice([12, 12, 15]),
                rand.choice([None, None, None, 0, 1, 5]),
                rand.randrange(5),
                rand.choice([None, *(bytes([k]) * 16 for k in range(4))]),
                rand.choice([None, None, *(bytes([k]) * 16 for k in range(6))]),
                rand.random() < 0.4,
            )
            for _ in range(count)
        ]
        if self.kind is not Kind.LAST_VALUE:
            for item in items:
                item.key = None
        bodies = [f"{self.events}.{at}".ljust(item.size, "-") for at, item in enumerate(items)]
        self.bodies.update({(self.events, at): body for at, body in enumerate(bodies)})
        columns = arrival(items, ref=self.events)

        def new(step: Step) -> list[str]:
            outcome = publish(step, self.new.queue, columns)
            return [bodies[at] for at in positions_in(outcome.refused)]

        return lambda: self.old.publish(items, bodies), new

    def subscribe(self) -> Any:
        rand = self.random
        self.numbers += 1
        peer, number, limit = rand.randint(1, 3), self.numbers, rand.randint(1, 9)
        no_ack, exclusive, priority = rand.random() < 0.2, rand.random() < 0.1, rand.choice([0, 0, 1])
        pool = self._pool(peer)
        new = NewHolder(HolderKind.CONSUMER, peer, number, no_ack, exclusive, priority)
        return (
            lambda: self.old.subscribe(peer, number, no_ack, exclusive, priority, limit, pool),
            lambda step: consuming.subscribe(step, self.new.queue, new, _prefetch(peer, limit, pool)) is not None,
        )

    def _pool(self, peer: int) -> tuple[int, int] | None:
        """One that a consumer has now, or a new one: a queue forgets what cancelled ones hold of it."""
        if self.random.random() < 0.6:
            return None
        known = [key[1] for key, pool in self.new.state.pools.items() if key[0] == peer and pool.members]
        if not known or self.random.random() < 0.3:
            self.pools += 1
            known = [self.pools]
        return self.random.choice(known), self.random.choice([0, 2, 4, 6])

    def _holder(self, kind: HolderKind) -> Holder | None:
        found = [each for each in self.new.queue.holders.values() if each.kind is kind]
        return self.random.choice(found) if found else None

    def cancel(self) -> Any:
        holder = self._holder(HolderKind.CONSUMER)
        if holder is None:
            return self.publish()
        return (
            lambda: self.old.cancel(holder.peer, holder.number),
            lambda step: consuming.cancel(step, self.new.queue, holder.id),
        )

    def credit(self) -> Any:
        holder = self._holder(HolderKind.CONSUMER)
        if holder is None:
            return self.publish()
        if holder.no_ack and self.random.random() < 0.7:
            count = self.random.randint(1, 4)
            return (
                lambda: self.old.sent(holder.peer, holder.number, count),
                lambda step: consuming.credit(step, self.new.queue, holder.id, None, count),
            )
        limit, pool = self.random.randint(1, 9), self._pool(holder.peer)
        return (
            lambda: self.old.credit(holder.peer, holder.number, limit, pool),
            lambda step: consuming.credit(step, self.new.queue, holder.id, _prefetch(holder.peer, limit, pool)),
        )

    def settle(self) -> Any:
        found = [each for each in self.new.queue.holders.values() if (each.held or each.owed) and each.lease is None]
        if not found:
            return self.publish()
        holder = self.random.choice(found)
        positions = positions_in(holder.held.union(holder.owed))
        if self.random.random() < 0.5:
            positions = self.random.sample(positions, self.random.randint(1, len(positions)))
        what = self.random.choice(["accept", "accept", "reject", "release", "unseen"])
        ranges = [(position, position + 1) for position in positions]

        def new(step: Step) -> None:
            if what in ("release", "unseen"):
                settling.release(step, self.new.queue, holder.id, ranges, what == "release")
            else:
                (settling.accept if what == "accept" else settling.reject)(step, self.new.queue, holder.id, ranges)

        # Refused ones that became letters have positions in the new state alone.
        # A ring refuses nothing, and may evict what it has given away in the same event.
        there = [position if self.kind is Kind.RING else self.places[position] for position in positions]
        return lambda: self.old.settle(holder.peer, there, what), new

    def _note_positions(self) -> None:
        """Where what is held now is in the old queue, also if it leaves while it is held."""
        by_body = {entry.message.body.decode(): at for at, entry in seen(self.old.queue).items() if entry.message}
        for holder in self.new.queue.holders.values():
            for position in positions_in(holder.held):
                self.places[position] = by_body[self.body(position)]

    def get(self) -> Any:
        peer, number, no_ack = self.random.randint(1, 3), 1000 + self.random.randint(1, 2), self.random.random() < 0.4
        number += 10 * peer

        def new(step: Step) -> str | None:
            got = consuming.get(step, self.new.queue, peer, number, no_ack)
            return None if got is None else self.body(got.position)

        return lambda: self.old.get(peer, number, no_ack), new

    def lose(self) -> Any:
        peer = self.random.randint(1, 3)
        return lambda: self.old.lose(peer), lambda step: consuming.lose(step, peer)

    def unready(self) -> Any:
        peer = self.random.randint(1, 3)
        number, there = self.new.queue.number, self.old.peers[peer]
        if there.unready:
            return (
                lambda: there.ready({self.old.queue.incarnation}),
                lambda step: consuming.set_ready(step, peer, [number]),
            )
        return (
            lambda: there.unready.add(self.old.queue.incarnation),
            lambda step: consuming.set_unready(step, peer, [number]),
        )

    def expire(self) -> Any:
        self._pass(2000)
        due = expiring.due(self.new.queue, self.new.now, 100)
        bodies = {*self.bodies_of(due)}
        self.old.cluster.time = self.new.now / 1e6
        assert {entry.message.body.decode() for entry in self.old.due() if entry.message} == bodies
        return lambda: self.old.expire(bodies), lambda step: expiring.expire(step, self.new.queue, due)

    def purge(self) -> Any:
        return lambda: self.old.queue.purge(), lambda step: queue_changes.purge(step, self.new.queue)

    def move(self) -> Any:
        count = self.random.randint(1, 4)

        def new(step: Step) -> list[str]:
            runs = queue_changes.take_out(step, self.new.queue, count)
            return [self.bodies[run.ref, run.offset + at] for run in runs for at in range(run.stop - run.first)]

        def old() -> list[str]:
            return [message.body.decode() for message in self.old.queue.take_out(count)]

        return old, new

    def lease(self) -> Any:
        rand = self.random
        queue = self.new.queue
        holder = leasing.find(queue, "l")
        what = rand.choice(["acquire", "acquire", "retire", "release", "end"]) if holder is not None else "acquire"
        if what == "acquire":
            wanted = Wanted(
                rand.choice([None, 1, 3]), rand.choice([None, 12, 30]), after=rand.choice([None, None, None, 0])
            )

            def acquire(step: Step) -> tuple[int, bool]:
                found = holder or leasing.begin(step, queue, NewLease("l", 1, "u", "s", 0))
                return leasing.acquire(step, queue, found, wanted, 5)

            return (
                lambda: self.old.lease(do="acquire", rows=wanted.rows, bytes=wanted.bytes, after=wanted.after),
                acquire,
            )
        assert holder is not None
        assert holder.lease is not None
        offset = rand.randint(0, holder.lease.next)
        if what == "retire":
            return (
                lambda: self.old.lease(do="retire", upto=offset),
                lambda step: (0, leasing.retire(step, queue, holder, offset, 5)),
            )
        if what == "release":
            return (
                lambda: self.old.lease(do="release", first=offset),
                lambda step: (0, leasing.release(step, queue, holder, offset, 5)),
            )
        return lambda: self.old.lease(do="end"), lambda step: (0, leasing.end(step, queue, holder, 5))

    def share(self) -> Any:
        queue = self.new.queue
        owner, tenure = queue.owner, queue.tenure
        if self.old.owners is None or not owner:
            return self.publish()
        owners = self.old.owners
        there = owners.of(self.old.queue).tenure
        return (
            lambda: owners.shared(self.old.peers[owner], self.old.queue, there),
            lambda step: ownership.share(step, queue, owner, tenure),
        )

    # What is compared.

    def shape(self) -> dict[str, Any]:
        queue = self.new.queue
        held: dict[str, PositionSet] = {}
        offsets: dict[int, str] = {}
        for holder in queue.holders.values():
            kind = holder.kind.name.lower()
            if holder.held:
                number = "" if holder.lease is not None else holder.number
                if holder.kind is HolderKind.GETTER:  # entries know one for each peer
                    number = f"of {holder.peer}"
                held.setdefault(f"{kind} {number}", PositionSet()).add_all(holder.held)
            if holder.lease is not None:
                for piece in holder.lease.pieces:
                    for at in range(piece.stop - piece.first):
                        offsets[piece.offset + at] = self.body(piece.first + at)
        live = positions_in(queue.live)
        consumers = [*queue.consumers()]
        counters = {count.name.lower(): queue.counts[count] for count in Count}
        return {
            "ready": [body for lane in queue.in_order() for body in self.bodies_of(lane)],
            "held": {name: sorted(self.bodies_of(positions)) for name, positions in held.items()},
            "flagged": sorted(self.body(at) for at in live if queue.deliveries.get(at)),
            "deliveries": {self.body(at): queue.deliveries.get(at) + (at not in queue.ready) for at in live},
            "bytes": (queue.ready.count, queue.ready_bytes, queue.bytes),
            "accounts": {each.number: each.used for each in consumers},
            "rooms": {each.number: room_of(self.new.state, queue, each) for each in consumers},
            "turns": [queue.holders[each].number for turns in queue.rotation.turns.values() for each in turns],
            "active": sorted(each.number for each in consumers if each.active),
            "offsets": offsets,
            "owner": queue.owner,
            "counters": {name: value for name, value in counters.items() if name not in UNCOUNTED},
            "expires": {self.body(at): queue.expiry(at) for at in live},
        }

    def run(self, events: int) -> None:
        kinds = [
            *[self.publish] * 4, self.subscribe, self.cancel, self.credit, *[self.settle] * 4, self.get, self.get,
            self.expire, self.lease, self.lease, self.share,
        ]  # fmt: skip
        rare = [self._limits, self.lose, self.purge, self.move, self.unready]
        for _ in range(events):
            self._note_positions()
            self.both(self.random.choice(rare if self.random.random() < 0.1 else kinds))


def _prefetch(peer: int, limit: int, pool: tuple[int, int] | None) -> Prefetch:
    return Prefetch(limit) if pool is None else Prefetch(limit, (peer, pool[0]), pool[1])


@pytest.mark.parametrize("owned", [False, True], ids=["credit", "ownership"])
@pytest.mark.parametrize("kind", Kind, ids=[kind.name.lower() for kind in Kind])
def test_the_policies_do_what_queues_do(kind: Kind, owned: bool) -> None:
    for seed in range(6):
        Pair(kind, seed, owned).run(EVENTS)
