"""The queue state against a list of messages: all kinds of queues, all operations, and every one of them taken back.

After every event a second broker, which knows the effects alone, has the same bytes; so has the decoded snapshot.
Before every event it is tried, fails after some operation, and leaves the bytes as they were.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from queue_state_model import Item, Model, Who
from queue_state_model import shape as model_shape
from queue_state_rig import NUMBER, Brokers, arrival, positions_in, shape

from coterie.broker.ranges import Range
from coterie.broker.state import (
    QueueConfig,
    QueueLimits,
    Step,
    consuming,
    dying,
    expiring,
    leasing,
    publish,
    queue_changes,
    settling,
)
from coterie.broker.state.consuming import Prefetch
from coterie.broker.state.holding import NewHolder, NewLease
from coterie.broker.state.leasing import Wanted
from coterie.broker.state.positions import ranges_of
from coterie.broker.state.vocabulary import Count, HolderKind, Kind, Overflow, Reason

BATCH = 3
digests = st.integers(0, 4).map(lambda number: bytes([number]) * 16)
times = st.one_of(st.none(), st.sampled_from([0, 1, 5, 1000]))
some = st.one_of(st.none(), st.integers(0, 6))
items = st.builds(
    Item,
    size=st.one_of(st.just(3), st.integers(0, 9)),
    ttl=st.one_of(st.none(), st.none(), times),
    priority=st.integers(0, 4),
    key=st.one_of(st.none(), digests),
    id=st.one_of(st.none(), digests),
    transient=st.booleans(),
)
limits = st.builds(
    QueueLimits,
    ttl=st.one_of(st.none(), times),
    max_length=st.one_of(st.none(), st.integers(0, 8)),
    max_bytes=st.one_of(st.none(), st.integers(0, 40)),
    delivery_limit=st.one_of(st.none(), st.integers(0, 2)),
    dedup_length=st.one_of(st.none(), st.none(), st.integers(1, 4)),
    dedup_ttl=st.one_of(st.none(), st.none(), st.sampled_from([1, 10])),
    dead=st.booleans(),
    overflow=st.sampled_from([Overflow.DROP_HEAD, Overflow.DROP_HEAD, Overflow.REJECT, Overflow.REJECT_DEAD]),
)
fails = st.one_of(st.none(), st.integers(0, 12))


class Machine(RuleBasedStateMachine):
    kind = Kind.FIFO

    @initialize(limits=limits, single=st.sampled_from([False, False, False, True]))
    def begin(self, limits: QueueLimits, single: bool) -> None:
        limits = self.of_kind(limits)
        config = QueueConfig(self.kind, single, 3 if self.kind is Kind.PRIORITY else 0)
        self.brokers = Brokers(BATCH)
        self.brokers.create(config, limits)
        self.model = Model(config, limits, BATCH)
        self.events = self.numbers = 0

    def of_kind(self, limits: QueueLimits) -> QueueLimits:
        if self.kind is not Kind.RING:
            return limits
        if limits.max_length is None and limits.max_bytes is None:
            limits = limits._replace(max_length=5)
        return limits._replace(overflow=Overflow.RING)

    def event(self, decide: Any, fail_after: int | None) -> Any:
        self.brokers.now += 10
        self.model.time = self.brokers.now
        self.model.given = []
        return self.brokers.event(decide, fail_after)

    def compare(self) -> None:
        self.model.end_event()
        assert shape(self.brokers.state, self.brokers.queue) == model_shape(self.model)
        assert self.brokers.given == self.model.given

    @invariant()
    def counters_agree(self) -> None:
        if hasattr(self, "model"):
            counts = self.brokers.queue.counts
            for reason in Reason:
                if reason is not Reason.GOT:
                    assert counts[Count[reason.name]] == self.model.left.get(reason, 0), reason

    # Messages.

    @rule(arrived=st.lists(items, min_size=1, max_size=7), fail=fails)
    def publish(self, arrived: list[Item], fail: int | None) -> None:
        self.events += 1
        columns = arrival(arrived, ref=self.events)
        outcome = self.event(lambda step: publish(step, self.brokers.queue, columns), fail)
        self.model.publish(arrived)
        self.compare()
        assert positions_in(outcome.refused) == self.model.refused
        assert outcome.duplicates == self.model.duplicates
        for item in self.model.items:
            if item.state != "gone" and item in arrived:
                run = self.brokers.queue.runs.find(item.position)
                assert run is not None
                assert (run.ref, run.offset + item.position - run.first) == (self.events, item.place)

    @rule(peer=st.integers(1, 2), number=st.integers(1, 2), no_ack=st.booleans(), fail=fails)
    def get(self, peer: int, number: int, no_ack: bool, fail: int | None) -> None:
        got = self.event(lambda step: consuming.get(step, self.brokers.queue, peer, number, no_ack), fail)
        position = self.model.get(peer, number, no_ack)
        assert (got.position if got else None) == position
        self.compare()

    @rule(data=st.data(), what=st.sampled_from(["accept", "accept", "reject", "release", "unseen"]), fail=fails)
    def settle(self, data: st.DataObject, what: str, fail: int | None) -> None:
        known = [*self.model.holders] or [1]
        holder = data.draw(st.sampled_from([*known, 99]))
        ranges = data.draw(self.ranges())
        queue = self.brokers.queue

        def decide(step: Step) -> None:
            if what in ("release", "unseen"):
                settling.release(step, queue, holder, ranges, what == "release")
            else:
                (settling.accept if what == "accept" else settling.reject)(step, queue, holder, ranges)

        self.event(decide, fail)
        reason = {"accept": Reason.ACCEPTED, "reject": Reason.REJECTED}.get(what)
        self.model.settle(holder, {*positions_in(ranges)}, reason, what == "release")
        self.compare()

    def ranges(self) -> st.SearchStrategy[list[Range]]:
        """Of positions that there are, were, or will be; in any order."""
        most = self.model.next_position + 1
        one = st.integers(1, most).map(lambda at: (at, at + 1))
        wide = st.tuples(st.integers(1, most), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
        return st.lists(st.one_of(one, wide), min_size=1, max_size=3)

    # Consumers.

    @rule(
        limit=st.integers(0, 9), no_ack=st.sampled_from([False, False, True]),
        exclusive=st.sampled_from([False, False, False, True]), priority=st.integers(-1, 1), peer=st.integers(1, 2),
        pool=st.one_of(st.none(), st.integers(1, 2)), pool_limit=st.integers(0, 6), fail=fails,
    )  # fmt: skip
    def subscribe(
        self, limit: int, no_ack: bool, exclusive: bool, priority: int, peer: int, pool: int | None, pool_limit: int,
        fail: int | None,
    ) -> None:  # fmt: skip
        self.numbers += 1
        new = NewHolder(HolderKind.CONSUMER, peer, self.numbers, no_ack, exclusive, priority)
        prefetch = Prefetch(limit, None if pool is None else (9, pool), pool_limit)
        found = self.event(lambda step: consuming.subscribe(step, self.brokers.queue, new, prefetch), fail)
        who = Who(0, "consumer", peer, self.numbers, limit, no_ack, exclusive, priority, pool)
        assert self.model.subscribe(who, pool_limit) == (found is not None)
        self.compare()

    def a_consumer(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([who.id for who in self.model.holders.values() if who.kind == "consumer"]))

    has_consumer = precondition(lambda self: any(who.kind == "consumer" for who in self.model.holders.values()))

    @has_consumer
    @rule(data=st.data(), fail=fails)
    def cancel(self, data: st.DataObject, fail: int | None) -> None:
        holder = self.a_consumer(data)
        self.event(lambda step: consuming.cancel(step, self.brokers.queue, holder), fail)
        self.model.cancel(holder)
        self.compare()

    @has_consumer
    @rule(
        data=st.data(), limit=st.integers(0, 9), pool=st.one_of(st.none(), st.integers(1, 2)),
        pool_limit=st.integers(0, 6), fail=fails,
    )  # fmt: skip
    def credit(self, data: st.DataObject, limit: int, pool: int | None, pool_limit: int, fail: int | None) -> None:
        holder = self.a_consumer(data)
        prefetch = Prefetch(limit, None if pool is None else (9, pool), pool_limit)
        self.event(lambda step: consuming.credit(step, self.brokers.queue, holder, prefetch), fail)
        self.model.credit(holder, limit, pool, pool_limit)
        self.compare()

    @has_consumer
    @rule(data=st.data(), count=st.integers(1, 5), fail=fails)
    def sent(self, data: st.DataObject, count: int, fail: int | None) -> None:
        holder = self.a_consumer(data)
        self.event(lambda step: consuming.credit(step, self.brokers.queue, holder, None, count), fail)
        self.model.sent(holder, count)
        self.compare()

    @rule(peer=st.integers(1, 2), fail=fails)
    def lose(self, peer: int, fail: int | None) -> None:
        self.event(lambda step: consuming.lose(step, peer), fail)
        self.model.lose(peer)
        self.compare()

    @rule(peer=st.integers(1, 2), fail=fails)
    def unready(self, peer: int, fail: int | None) -> None:
        self.event(lambda step: consuming.set_unready(step, peer, [NUMBER]), fail)
        self.model.unready.add(peer)
        self.compare()

    @rule(peer=st.integers(1, 2), fail=fails)
    def ready(self, peer: int, fail: int | None) -> None:
        self.event(lambda step: consuming.set_ready(step, peer, [NUMBER]), fail)
        self.model.unready.discard(peer)
        for who in sorted(self.model.consumers(), key=lambda who: who.number):
            if who.peer == peer:
                self.model.wake(who)
        self.compare()

    # Time and death.

    @rule(passed=st.sampled_from([1, 1000, 5000, 2_000_000]), most=st.integers(1, 5), fail=fails)
    def expire(self, passed: int, most: int, fail: int | None) -> None:
        self.brokers.now += passed
        self.model.time = self.brokers.now
        due = expiring.due(self.brokers.queue, self.brokers.now, 100)
        assert {*positions_in(due)} == self.model.due()
        few = expiring.due(self.brokers.queue, self.brokers.now, most)
        assert {*positions_in(few)} <= self.model.due()
        assert len(positions_in(few)) == min(most, len(self.model.due()))
        if few:
            self.event(lambda step: expiring.expire(step, self.brokers.queue, few), fail)
            self.model.expire({*positions_in(few)})
            self.compare()

    @rule(data=st.data(), fail=fails)
    def expire_whatever(self, data: st.DataObject, fail: int | None) -> None:
        ranges = data.draw(self.ranges())
        self.event(lambda step: expiring.expire(step, self.brokers.queue, ranges), fail)
        self.model.expire({*positions_in(ranges)})
        self.compare()

    @rule(data=st.data(), most=st.integers(1, 4), fail=fails)
    def bury(self, data: st.DataObject, most: int, fail: int | None) -> None:
        letters = dying.letters_due(self.brokers.queue, most)
        found = [position for dead in letters for position in positions_in(dead.positions)]
        assert len(found) == min(most, len(self.model.dying()))
        assert {*found} <= {item.position for item in self.model.dying()}
        ranges = [span for dead in letters for span in ranges_of(dead.positions)] + data.draw(self.ranges())
        buried = self.event(lambda step: dying.bury(step, self.brokers.queue, ranges), fail)
        expected = self.model.bury({*positions_in(ranges)})
        assert [(dead.reason, at) for dead in buried for at in positions_in(dead.positions)] == expected
        self.compare()

    # The queue.

    @rule(limits=limits, fail=fails)
    def set_limits(self, limits: QueueLimits, fail: int | None) -> None:
        limits = self.of_kind(limits)
        self.event(lambda step: queue_changes.set_limits(step, self.brokers.queue, limits), fail)
        self.model.set_limits(limits)
        self.compare()

    @rule(fail=fails)
    def purge(self, fail: int | None) -> None:
        self.event(lambda step: queue_changes.purge(step, self.brokers.queue), fail)
        self.model.purge()
        self.compare()

    @rule(count=st.integers(1, 4), fail=fails)
    def take_out(self, count: int, fail: int | None) -> None:
        runs = self.event(lambda step: queue_changes.take_out(step, self.brokers.queue, count), fail)
        assert [at for run in runs for at in range(run.first, run.stop)] == self.model.take_out(count)
        self.compare()

    @rule(by=st.integers(0, 10_000), fail=fails)
    def leap(self, by: int, fail: int | None) -> None:
        position = self.model.next_position + by
        self.event(lambda step: queue_changes.leap(step, self.brokers.queue, position), fail)
        self.model.next_position = position
        self.compare()

    @rule(fail=fails)
    def drop_transients(self, fail: int | None) -> None:
        self.event(lambda step: queue_changes.drop_transients(step, self.brokers.queue), fail)
        self.model.drop_transients()
        self.compare()

    # Leases.

    @rule(
        data=st.data(), name=st.sampled_from("ab"), rows=some, size=st.one_of(st.none(), st.integers(0, 20)),
        upto=st.integers(0, 12), most=st.integers(1, 6), fail=fails,
    )  # fmt: skip
    def lease(
        self, data: st.DataObject, name: str, rows: int | None, size: int | None, upto: int, most: int, fail: int | None
    ) -> None:
        """Retires and acquires in one event."""
        first = data.draw(st.integers(0, self.model.next_position))
        last = data.draw(st.one_of(st.none(), st.integers(0, self.model.next_position)))
        queue = self.brokers.queue

        def decide(step: Step) -> tuple[bool, tuple[int, bool], int]:
            holder = leasing.find(queue, name) or leasing.begin(step, queue, NewLease(name, 1, "u", "s", 5))
            more = leasing.retire(step, queue, holder, upto, most)
            return more, leasing.acquire(step, queue, holder, Wanted(rows, size, first, last), most), holder.id

        known = leasing.find(queue, name)
        who = self.model.begin() if known is None else self.model.holders[known.id]
        found = self.event(decide, fail)
        assert found == (
            self.model.retire(who, upto, most), self.model.lease(who, rows, size, first, last, most), who.id
        )  # fmt: skip
        holder = queue.holders[who.id]
        assert holder.lease is not None
        offsets = {
            piece.first + at: (piece.offset + at, piece.redelivered)
            for piece in holder.lease.pieces for at in range(piece.stop - piece.first)
        }  # fmt: skip
        assert offsets == {item.position: (item.offset, item.releases > 0) for item in self.model.held(who.id)}
        self.compare()

    @precondition(lambda self: any(who.kind == "lease" for who in self.model.holders.values()))
    @rule(data=st.data(), what=st.sampled_from(["release", "end", "take"]), first=st.integers(0, 9), fail=fails)
    def end_lease(self, data: st.DataObject, what: str, first: int, fail: int | None) -> None:
        queue = self.brokers.queue
        number = data.draw(st.sampled_from([who.id for who in self.model.holders.values() if who.kind == "lease"]))
        holder, who = queue.holders[number], self.model.holders[number]
        most = data.draw(st.integers(1, 4))
        if what == "take":
            self.event(lambda step: leasing.take(step, queue, holder, "t"), fail)
            assert holder.lease is not None
            assert holder.lease.session == "t"
        elif what == "release":
            more = self.event(lambda step: leasing.release(step, queue, holder, first, most), fail)
            assert more == self.model.release_lease(who, first, most)
        else:
            more = self.event(lambda step: leasing.end(step, queue, holder, most), fail)
            assert more == self.model.end(who, most)
        self.compare()


@pytest.mark.parametrize("kind", Kind)
def test_a_queue_is_what_a_list_of_messages_is(kind: Kind) -> None:
    machine = type(f"{kind.name.title()}Machine", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[*HealthCheck]),
    )
