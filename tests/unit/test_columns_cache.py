"""The events in memory: bounded in bytes, whatever is used, held, forgotten and released in whatever order."""

from __future__ import annotations

from columns_rig import Sent, a_block, a_route, build, encoded, read
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.broker.columns import PublishEvent
from coterie.broker.columns.cache import EventCache, Hold


def an_event(size: int = 1000) -> PublishEvent:
    return read(encoded(build([Sent(a_route(), a_block(), b"." * size)])))


ONE = an_event().memory


def test_what_was_used_last_stays() -> None:
    cache = EventCache(3 * ONE)
    for ref in (1, 2, 3):
        cache.put(ref, an_event())
    assert cache.get(1) is not None
    cache.put(4, an_event())
    assert [ref for ref in range(6) if ref in cache] == [1, 3, 4]
    assert cache.bytes == 3 * ONE


def test_an_event_larger_than_the_cache_is_not_kept_but_can_be_used() -> None:
    cache = EventCache(ONE)
    event = an_event(10_000)
    assert cache.put(1, event) is event
    assert (cache.get(1), cache.bytes) == (None, 0)


def test_what_is_nowhere_else_stays_until_it_is_forgotten() -> None:
    cache = EventCache(2 * ONE)
    for ref in range(5):
        cache.put(ref, an_event(), volatile=True)
    cache.put(9, an_event())
    assert [ref for ref in range(10) if ref in cache] == [0, 1, 2, 3, 4]
    assert cache.fixed_bytes == cache.bytes == 5 * ONE
    for ref in range(5):
        cache.forget(ref)
    assert (cache.bytes, cache.fixed_bytes) == (0, 0)


def test_what_a_slow_socket_has_counts_until_it_is_released() -> None:
    cache = EventCache(2 * ONE)
    holds = [cache.hold(ref, cache.put(ref, an_event())) for ref in range(2)]
    cache.put(2, an_event())
    assert 2 not in cache
    cache.forget(0)
    assert (0 in cache, cache.bytes) == (False, 2 * ONE)
    for hold in holds:
        hold.release()
        hold.release()
    assert (cache.bytes, cache.fixed_bytes) == (ONE, 0)


def test_what_left_the_cache_counts_while_somebody_has_it() -> None:
    cache = EventCache(ONE)
    event = an_event()
    cache.put(1, event)
    cache.put(2, an_event())
    assert 1 not in cache
    hold = cache.hold(1, event)
    assert (cache.bytes, 2 in cache) == (ONE, False)
    hold.release()
    assert cache.bytes == 0


def test_a_small_part_of_a_large_buffer_does_not_keep_the_buffer() -> None:
    data = encoded(build([Sent(a_route(), a_block(), b"body")]))
    cache = EventCache(1 << 20)
    for ref in range(10):
        cache.put(ref, read(memoryview(bytes(100_000) + data)[100_000:]))
    assert cache.bytes < 20_000
    event = cache.get(5)
    assert event is not None
    assert bytes(event.body(0)) == b"body"


refs = st.integers(0, 5)


class Machine(RuleBasedStateMachine):
    """Against a plain model of what may be there."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EventCache(4_000)
        self.live: dict[int, PublishEvent] = {}
        """Put, and not forgotten."""
        self.volatile: set[int] = set()
        self.holds: list[tuple[int, PublishEvent, Hold]] = []

    @rule(ref=refs, size=st.sampled_from([0, 100, 1000, 5000]), volatile=st.booleans())
    def put(self, ref: int, size: int, volatile: bool) -> None:
        here = self.cache.get(ref)
        event = an_event(size)
        used = self.cache.put(ref, event, volatile)
        assert used is (here or event)
        self.live[ref] = used
        if volatile:
            self.volatile.add(ref)

    @rule(ref=refs)
    def get(self, ref: int) -> None:
        found = self.cache.get(ref)
        assert found is None or found is self.live[ref]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.live)))
        self.holds.append((ref, self.live[ref], self.cache.hold(ref, self.live[ref])))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        _, _, hold = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        hold.release()

    @rule(ref=refs)
    def forget(self, ref: int) -> None:
        self.cache.forget(ref)
        self.live.pop(ref, None)
        self.volatile.discard(ref)
        assert ref not in self.cache

    @invariant()
    def what_must_be_there_is(self) -> None:
        for ref in self.volatile:
            assert self.cache.get(ref) is self.live[ref]

    @invariant()
    def what_is_in_memory_is_counted_and_bounded(self) -> None:
        cached = {id(event): event for ref in self.live if (event := self.cache.get(ref)) is not None}
        held = {id(event): event for _, event, _ in self.holds}
        assert self.cache.bytes >= sum(event.memory for event in {**cached, **held}.values())
        fixed = {**held, **{id(self.live[ref]): self.live[ref] for ref in self.volatile}}
        assert self.cache.fixed_bytes >= sum(event.memory for event in fixed.values())
        assert self.cache.bytes <= max(self.cache.limit, self.cache.fixed_bytes)

    def teardown(self) -> None:
        for _, _, hold in self.holds:
            hold.release()
        self.cache.clear()
        assert (self.cache.bytes, self.cache.fixed_bytes, len(self.cache)) == (0, 0, 0)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
