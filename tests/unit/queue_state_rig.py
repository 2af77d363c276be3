"""What the tests of the queue state share: events that are decided, failed, taken back, recorded and done again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from queue_state_model import Item

from coterie.broker.state import (
    Arrival,
    BrokerState,
    QueueConfig,
    QueueLimits,
    QueueState,
    Step,
    allocate_scheduled,
    decode,
    encode,
    replay,
)
from coterie.broker.state.expiring import reach
from coterie.broker.state.operations import Operation
from coterie.broker.state.positions import bytes_of
from coterie.broker.state.queue_changes import create
from coterie.broker.state.vocabulary import HolderKind, Kind

T = TypeVar("T")
NUMBER = 7
"""Of the queue that a test is about."""


class Injected(Exception):
    """Something has failed half-way."""


class Failing(Step):
    """Fails after so many operations."""

    def __init__(self, state: BrokerState, after: int) -> None:
        super().__init__(state)
        self.after = after

    def do(self, operation: Operation, queue: QueueState | None, *args: Any) -> None:
        super().do(operation, queue, *args)
        self.after -= 1
        if self.after < 0:
            raise Injected


class Brokers:
    """Two brokers: one decides, the other does the same by the effects alone."""

    def __init__(self, batch: int = 4, ownership: bool = False) -> None:
        self.state = BrokerState(batch, ownership)
        self.copy = BrokerState(batch, ownership)
        self.now = 1_000_000
        self.given: list[tuple[int, int]] = []
        self.effects = b""

    @property
    def queue(self) -> QueueState:
        return self.state.queues[NUMBER]

    def create(self, config: QueueConfig | None = None, limits: QueueLimits | None = None) -> None:
        self.event(lambda step: create(step, NUMBER, config or QueueConfig(), limits or QueueLimits()))

    def event(self, decide: Callable[[Step], T], fail_after: int | None = None) -> T:
        """`fail_after`: it is tried before, and fails after so many operations."""

        def decided(step: Step) -> T:
            reach(step, self.now, keeps_time=True)
            result = decide(step)
            allocate_scheduled(step)
            return result

        if fail_after is not None:
            before = encode(self.state)
            failing = Failing(self.state, fail_after)
            try:
                decided(failing)
            except Injected:
                pass
            failing.undo()
            assert encode(self.state) == before
            check(self.state)
        step = Step(self.state)
        result = decided(step)
        self.given = [
            (given.holder, position)
            for given in step.given() for first, stop in given.positions for position in range(first, stop)
        ]  # fmt: skip
        self.effects = step.effects()
        replay(self.copy, self.effects)
        now = encode(self.state)
        assert encode(self.copy) == now
        assert encode(decode(now)) == now
        check(self.state)
        return result


def check(state: BrokerState) -> None:
    """What is kept incrementally is what it should be."""
    for key, pool in state.pools.items():
        holders = [(q, h) for q in state.queues.values() for h in q.holders.values() if h.pool is pool]
        assert pool.held == sum(holder.used for _, holder in holders), key
        assert pool.users == len(holders) > 0
        assert pool.members == {h.number: (q.number, h.id) for q, h in holders if not h.ended}
    for queue in state.queues.values():
        check_queue(queue)


def check_queue(queue: QueueState) -> None:
    parts = [queue.ready, *queue.dying.values(), *(holder.held for holder in queue.holders.values())]
    assert sum(part.count for part in parts) == queue.live.count
    for part in parts:
        assert not part.difference(queue.live)
    assert all(queue.dying.values())
    assert queue.dying_count == sum(part.count for part in queue.dying.values())
    assert queue.ready_bytes == bytes_of(queue.lengths, queue.ready)
    assert queue.dying_bytes == sum(bytes_of(queue.lengths, part) for part in queue.dying.values())
    held = {holder.id: bytes_of(queue.lengths, holder.held) for holder in queue.holders.values()}
    assert queue.held_bytes == sum(held.values())
    leases = [holder for holder in queue.holders.values() if holder.kind is HolderKind.LEASE]
    assert queue.leased_count == sum(holder.held.count for holder in leases)
    assert queue.leased_bytes == sum(held[holder.id] for holder in leases)
    assert queue.rotation.hungry == sum(holder.hungry for holder in queue.holders.values())
    turns = [each for some in queue.rotation.turns.values() for each in some]
    assert sorted(turns) == sorted(holder.id for holder in queue.holders.values() if holder.hungry)
    assert [*queue.rotation.turns] == sorted(queue.rotation.turns, reverse=True)
    for holder in queue.holders.values():
        if not holder.no_ack:
            assert holder.used == holder.held.count + holder.owed.count
        if holder.lease is not None:
            positions = [at for piece in holder.lease.pieces for at in range(piece.first, piece.stop)]
            assert sorted(positions) == [at for first, stop in holder.held.ranges() for at in range(first, stop)]
    if queue.config.kind is Kind.PRIORITY:
        assert [*queue.lanes] == sorted(queue.lanes, reverse=True)
        assert sum(lane.count for lane in queue.lanes.values()) == queue.ready.count
        for priority, lane in queue.lanes.items():
            assert lane
            assert not lane.difference(queue.ready)
            assert {queue.priorities.get(at) for first, stop in lane.ranges() for at in range(first, stop)} == {
                priority
            }
    if queue.config.kind is Kind.RING:
        loose = queue.ready.copy()
        for holder in queue.holders.values():
            if holder.kind is not HolderKind.LEASE:
                loose.add_all(holder.held)
        assert queue.loose == loose


def arrival(items: Sequence[Item], ref: int = 1, offset: int = 0) -> Arrival:
    def column(name: str, nothing: object) -> list[Any] | None:
        values = [getattr(item, name) for item in items]
        return None if all(value == nothing for value in values) else values

    priorities, transient = column("priority", 0), column("transient", False)
    return Arrival(
        ref, offset, array("I", [item.size for item in items]), column("ttl", None),
        None if priorities is None else bytes(priorities), column("key", None), column("id", None),
        None if transient is None else bytes(transient),
    )  # fmt: skip


def positions_in(positions: Any) -> list[int]:
    ranges = positions if isinstance(positions, list) else positions.ranges()
    return [at for first, stop in ranges for at in range(first, stop)]


def shape(state: BrokerState, queue: QueueState) -> dict[str, Any]:
    """As `queue_state_model.shape`."""
    live = positions_in(queue.live)
    return {
        "next": queue.next_position,
        "ready": [at for lane in queue.in_order() for at in positions_in(lane)],
        "held": {holder.id: positions_in(holder.held) for holder in queue.holders.values() if holder.held},
        "dying": sorted((int(reason), at) for reason, dying in queue.dying.items() for at in positions_in(dying)),
        "flagged": {at: queue.deliveries.get(at) for at in live if queue.deliveries.get(at)},
        "sizes": {at: queue.lengths.get(at) for at in live},
        "expires": {at: queue.expiry(at) for at in live},
        "transient": positions_in(queue.transient),
        "holders": {h.id: (h.active, h.hungry, h.ended, h.limit) for h in queue.holders.values()},
        "used": {holder.id: holder.used for holder in queue.holders.values()},
        "turns": [each for turns in queue.rotation.turns.values() for each in turns],
        "ids": [[*window] for window in queue.windows] if queue.windows is not None else [[], []],
    }
