"""Effects and snapshots as bytes that somebody may have altered, and steps that fail at every single operation."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_state_model import Item
from queue_state_rig import NUMBER, Brokers, Failing, Injected, arrival, check, positions_in
from ranges_rig import altered

from coterie.broker.ranges import END
from coterie.broker.state import (
    Arrival,
    BrokerState,
    MalformedEffects,
    MalformedState,
    QueueConfig,
    QueueLimits,
    Step,
    allocate_scheduled,
    consuming,
    decode,
    dying,
    encode,
    expiring,
    leasing,
    publish,
    queue_changes,
    replay,
    settling,
)
from coterie.broker.state.consuming import Prefetch
from coterie.broker.state.expiring import reach
from coterie.broker.state.holding import NewHolder, NewLease
from coterie.broker.state.leasing import Wanted
from coterie.broker.state.marks import DELIVERIES
from coterie.broker.state.operations import OPERATIONS
from coterie.broker.state.step import decode_effects
from coterie.broker.state.vocabulary import HolderKind, Kind, Overflow

Decide = Callable[[Step], Any]


def script(brokers: Brokers, kind: Kind) -> list[Decide]:
    """Events that do everything once, by every operation."""
    items = [
        Item(5 + n, n * 7 if n % 3 else None, n, bytes([n % 3]) * 16, bytes([99 - n]) * 16, n % 2 == 0)
        for n in range(6)
    ]  # fmt: skip
    config = QueueConfig(kind, False, 4 if kind is Kind.PRIORITY else 0)
    overflow = Overflow.RING if kind is Kind.RING else Overflow.DROP_HEAD
    limits = QueueLimits(None, 8, None, 1, 10, 50, overflow, True)
    shorter = limits._replace(ttl=1, max_length=2, dedup_length=None, dedup_ttl=None)

    def queue() -> Any:
        return brokers.state.queues[NUMBER]

    def consumer(number: int, limit: int, pool: tuple[int, int] | None, no_ack: bool = False) -> Decide:
        new = NewHolder(HolderKind.CONSUMER, number, number, no_ack)
        return lambda step: consuming.subscribe(step, queue(), new, Prefetch(limit, pool, 3))

    def lease(step: Step) -> None:
        holder = leasing.find(queue(), "l") or leasing.begin(step, queue(), NewLease("l", 4, "u", "s", 5))
        leasing.retire(step, queue(), holder, 1, 10)
        leasing.acquire(step, queue(), holder, Wanted(rows=2), 10)
        leasing.take(step, queue(), holder, "t")

    def found(step: Step) -> Any:
        holder = leasing.find(queue(), "l")
        assert holder is not None
        return holder

    return [
        lambda step: queue_changes.create(step, NUMBER, config, limits),
        lambda step: queue_changes.create(step, 8, QueueConfig(), QueueLimits()),
        lambda step: publish(step, queue(), arrival(items[:4])),
        lease,
        consumer(1, 2, (1, 1)),
        consumer(2, 5, (1, 1)),
        consumer(3, 4, None, True),
        lambda step: consuming.set_unready(step, 2, [NUMBER, 8]),
        lambda step: publish(step, queue(), arrival(items, 2)),
        lambda step: settling.release(step, queue(), 2, [(1, 99)], True),
        lambda step: settling.accept(step, queue(), 2, [(1, 99)]),
        lambda step: settling.reject(step, queue(), 3, [(1, 99)]),
        lambda step: consuming.credit(step, queue(), 4, None, 2),
        lambda step: consuming.set_ready(step, 2, [NUMBER]),
        lambda step: publish(step, queue(), arrival([Item(3), Item(4), Item(4), *items[:1]], 3)),
        lambda step: consuming.get(step, queue(), 1, 5, False),
        lambda step: dying.bury(step, queue(), [(1, 99)]),
        lambda step: leasing.release(step, queue(), found(step), 0, 1),
        lambda step: queue_changes.set_limits(step, queue(), shorter),
        lambda step: expiring.expire(step, queue(), [(1, 99)]),
        lambda step: queue_changes.leap(step, queue(), 50),
        lambda step: step.do(DELIVERIES, queue(), 3, [(queue().live.first(), queue().live.first() + 1)]),
        lambda step: publish(step, queue(), arrival(items, 4)),
        lambda step: consuming.credit(step, queue(), 2, Prefetch(9, (1, 2), 0)),
        lambda step: consuming.cancel(step, queue(), 3),
        lambda step: consuming.lose(step, 1),
        lambda step: leasing.end(step, queue(), found(step), 100),
        lambda step: queue_changes.drop_transients(step, queue()),
        lambda step: queue_changes.purge(step, queue()),
        lambda step: queue_changes.delete(step, queue()),
    ]  # fmt: skip


@pytest.mark.parametrize("ownership", [False, True], ids=["credit", "ownership"])
@pytest.mark.parametrize("kind", Kind, ids=[kind.name.lower() for kind in Kind])
def test_a_step_that_fails_after_any_operation_leaves_every_byte_as_it_was(kind: Kind, ownership: bool) -> None:
    brokers = Brokers(3, ownership)
    seen = set()
    for decide in script(brokers, kind):
        brokers.now += 1000
        before = encode(brokers.state)
        after, failed = 0, True
        while failed:
            step = Failing(brokers.state, after)
            try:
                reach(step, brokers.now, keeps_time=True)
                decide(step)
                allocate_scheduled(step)
                failed = False
            except Injected:
                after += 1
            step.undo()
            assert encode(brokers.state) == before
            check(brokers.state)
        brokers.event(decide)
        seen |= {operation.name for _, operation, _ in decode_effects(brokers.effects)}
    if kind is Kind.FIFO and not ownership:
        of_kinds = {"key", "prioritise", "own", "settle owed"}
        assert {operation.name for operation in OPERATIONS.values()} - seen <= of_kinds, "the script does everything"


def recorded(kind: Kind) -> list[tuple[bytes, bytes]]:
    """Encoded states, and the effects that come next."""
    brokers = Brokers(3)
    found = []
    for decide in script(brokers, kind):
        before = encode(brokers.state)
        brokers.now += 1000
        brokers.event(decide)
        found.append((before, brokers.effects))
    return found


RECORDED = [pair for kind in Kind for pair in recorded(kind)]


@pytest.mark.fuzz
@given(st.sampled_from(RECORDED), st.data())
def test_altered_effects_are_refused_and_change_nothing_or_fit(pair: tuple[bytes, bytes], data: st.DataObject) -> None:
    before, effects = pair
    state = decode(before)
    wrong = data.draw(altered(effects))
    try:
        replay(state, wrong)
    except MalformedEffects:
        assert encode(state) == before
    else:
        after = encode(state)
        assert encode(decode(after)) == after
    check(state)


@pytest.mark.fuzz
@given(st.sampled_from([state for state, _ in RECORDED]), st.data())
def test_an_altered_snapshot_is_refused_or_is_another_one(encoded: bytes, data: st.DataObject) -> None:
    wrong = data.draw(altered(encoded))
    try:
        state = decode(wrong)
    except MalformedState:
        return
    assert encode(state) == wrong
    check(state)


def test_effects_of_one_place_do_not_fit_another_one() -> None:
    pairs = recorded(Kind.FIFO)
    for at, (before, _) in enumerate(pairs):
        for other, (_, effects) in enumerate(pairs):
            state = decode(before)
            if other == at:
                replay(state, effects)
            elif other < at:
                with pytest.raises(MalformedEffects):
                    replay(state, effects)
                assert encode(state) == before


@pytest.mark.parametrize(
    ("effects", "why"),
    [
        (b"\x05", "of no queue"),
        (b"\xfe\x01", "no operation has the code 254"),
        (b"\x00\x07", "without need"),
        (b"\x00\x07\x00\x08\x11\x05", "without need"),
        (b"\x00\x63\x11\x05", "no queue 99"),
        (b"\x00\x07\x04\x00\x00\x00\x01\x05\x01", "not ready"),
        (b"\x00\x07\x04\x00\x00\x01\x01\x01\x01", "nothing dies"),
        (b"\x00\x07\x02\x09\x01\x01\x01", "no holder 9"),
        (b"\x00\x07\x11\x01", "never given twice"),
        (b"\x00\x07\x01\x02\x01\x01\x00\x00\x00\x00", "a run of no messages"),
        (b"\x21" + bytes(8), "falls"),
        (b"\x21" + b"\xff" * 8, "beyond"),
        (b"\x21\x00", "too early"),
    ],
)  # fmt: skip
def test_effects_that_do_not_fit_say_why(effects: bytes, why: str) -> None:
    brokers = Brokers()
    brokers.create()
    before = encode(brokers.state)
    with pytest.raises(MalformedEffects, match=why):
        replay(brokers.state, effects)
    assert encode(brokers.state) == before


def test_effects_and_snapshots_that_are_too_large_are_refused_unread() -> None:
    with pytest.raises(MalformedEffects, match="at most"):
        replay(BrokerState(), bytes(101), limit=100)
    with pytest.raises(MalformedState, match="at most"):
        decode(bytes(101), limit=100)


def test_the_last_positions_of_a_queue_can_be_used_and_no_others() -> None:
    brokers = Brokers()
    brokers.create()
    brokers.event(lambda step: queue_changes.leap(step, brokers.queue, END - 2))
    brokers.event(lambda step: publish(step, brokers.queue, arrival([Item(1), Item(1)])))
    assert brokers.queue.next_position == END
    before = encode(brokers.state)
    step = Step(brokers.state)
    with pytest.raises(ValueError, match="range of positions"):
        publish(step, brokers.queue, arrival([Item(1)]))
    step.undo()
    assert encode(brokers.state) == before


def _publish(some: Arrival, step: Step) -> None:
    publish(step, step.state.queues[NUMBER], some)


def _accept(positions: list[int], step: Step) -> None:
    settling.accept(step, step.state.queues[NUMBER], 1, [(position, position + 1) for position in positions])


def test_many_random_messages_are_kept_in_few_bytes_and_what_has_left_is_forgotten() -> None:
    rand = random.Random(5)
    brokers = Brokers(64)
    brokers.create()
    state, queue = brokers.state, brokers.queue

    def event(decide: Decide) -> None:
        step = Step(state)
        decide(step)
        allocate_scheduled(step)
        replay(brokers.copy, step.effects())

    new = NewHolder(HolderKind.CONSUMER, 1, 1)
    event(lambda step: consuming.subscribe(step, queue, new, Prefetch(10**6)))
    for ref in range(600):
        event(partial(_publish, arrival([Item(rand.randrange(99)) for _ in range(20)], ref)))
    held = [*range(1, 12_001)]
    rand.shuffle(held)
    for at in range(0, 11_800, 10):
        event(partial(_accept, held[at : at + 10]))
    check(state)
    assert queue.live.count == 200
    assert queue.runs.runs < 2 * 200
    assert queue.lengths.pieces < 2 * 200
    assert encode(state) == encode(brokers.copy)
    event(lambda step: settling.accept(step, queue, 1, [(1, 12_001)]))
    assert (queue.runs.runs, queue.lengths.pieces) == (0, 0)


@pytest.mark.parametrize("what", ["lease", "move", "purge", "limit", "lose", "expire"])
def test_thousands_of_single_messages_at_a_time_are_recorded_too(what: str) -> None:
    """Every second one of 12,000 is ready: more ranges than effects list one by one."""
    brokers = Brokers(64)
    brokers.create(QueueConfig(), QueueLimits(ttl=60_000, dead=True))
    new = NewHolder(HolderKind.CONSUMER, 1, 1)
    brokers.event(lambda step: consuming.subscribe(step, brokers.queue, new, Prefetch(10**6)))
    columns = arrival([Item(n % 7, transient=n % 2 == 0) for n in range(12_000)])
    brokers.event(lambda step: publish(step, brokers.queue, columns))
    brokers.event(lambda step: consuming.cancel(step, brokers.queue, 1))
    half = [(position, position + 1) for position in range(1, 12_000, 2)]
    brokers.event(lambda step: settling.release(step, brokers.queue, 1, half, True))
    assert brokers.queue.ready.count == 6000
    queue = brokers.queue

    def lease(step: Step) -> None:
        holder = leasing.begin(step, queue, NewLease("l", 1, "u", "s", 1))
        assert leasing.acquire(step, queue, holder, Wanted(), 100_000) == (6000, False)

    brokers.now += 100_000_000
    decide: dict[str, Decide] = {
        "lease": lease,
        "move": lambda step: queue_changes.take_out(step, queue, 10_000),
        "purge": lambda step: queue_changes.purge(step, queue),
        "limit": lambda step: queue_changes.set_limits(step, queue, QueueLimits(max_length=1, dead=True)),
        "lose": lambda step: queue_changes.drop_transients(step, queue),
        "expire": lambda step: expiring.expire(step, queue, expiring.due(queue, brokers.now, 10_000)),
    }
    if what in ("lease", "move"):
        brokers.now -= 100_000_000
    brokers.event(decide[what], fail_after=3)
    assert queue.ready.count == (1 if what == "limit" else 0)
    if what in ("limit", "expire"):
        assert sum(len(positions_in(dead.positions)) for dead in dying.letters_due(queue, 10_000)) >= 5999
        brokers.event(lambda step: dying.bury(step, queue, [(1, END)]), fail_after=2)
        assert queue.live.count == queue.ready.count + 6000
