"""The store on a simulated disk that loses power: at every disk operation, and whenever chance wants it.

What is checked is what the broker's promises rest on (B1, B3, B9, B11): what was reported as synced is there, once, at
its place and in order; what was dequeued and synced does not come back; and what survives is always a beginning of what
the store was told, with no transaction cut in two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from store_rig import SMALL, Host, Line, PowerCut, body, page_out, persistent, transient

from coterie.broker.observer import Reason
from coterie.broker.ranges import END
from coterie.broker.storage import Recovered

NAMES = st.sampled_from(("a", "b", "c"))
State = tuple[dict[str, dict[int, bytes]], dict[tuple[str, str], dict[str, object]]]


class Model:
    """What the store was told, and what it must still know whenever it may have forgotten the rest."""

    def __init__(self, host: Host, names: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.host = host
        self.lines = {name: Line(host.store, name) for name in names}
        self.queues: dict[str, dict[int, bytes]] = {name: {} for name in names}
        self.saved: dict[tuple[str, str], dict[str, object]] = {}
        self.given = dict.fromkeys(names, 0)
        """The highest position of each queue that a message has got."""
        self.states: list[tuple[int, State, dict[str, int]]] = []
        self.whole = True
        """Not in the middle of a transaction."""
        self.note(place=0)

    def note(self, place: int | None = None) -> None:
        """The store may be cut off here."""
        if not self.whole:
            return
        queues = {name: dict(found) for name, found in self.queues.items()}
        written = self.host.store.written() if place is None else place
        self.states.append((written, (queues, dict(self.saved)), dict(self.given)))

    # What the store is told.

    def put(self, name: str, count: int, size: int = 30) -> None:
        line = self.lines[name]
        start = line.next_position
        for entry in line.fill(start, count, size):
            assert entry.message is not None
            self.queues[name][entry.position] = entry.message.body
        self.given[name] = line.next_position - 1
        self.note()

    def fan_out(self, number: int) -> None:
        """One message into every queue."""
        message = persistent(body("all", number, 70))
        for name, line in self.lines.items():
            (entry,) = line.put(message)
            self.queues[name][entry.position] = message.body
            self.given[name] = entry.position
            self.note()

    def put_transient(self, name: str) -> None:
        line = self.lines[name]
        (entry,) = line.put(transient(b"gone after a restart"))
        del line.entries[entry.position]
        self.given[name] = entry.position
        self.note()

    def take(self, name: str, picked: Callable[[int], bool], reason: Reason = Reason.ACCEPTED) -> None:
        line = self.lines[name]
        entries = [entry for position, entry in line.entries.items() if picked(position)]
        if entries:
            line.deliver(entries)
            line.take(entries, reason)
            for entry in entries:
                del self.queues[name][entry.position]
            self.note()

    def save(self, kind: str, key: str, value: dict[str, object] | None) -> None:
        self.host.store.save(kind, key, value)
        if value is None:
            self.saved.pop((kind, key), None)
        else:
            self.saved[kind, key] = value
        self.note()

    def bury(self, source: str, target: str, picked: Callable[[int], bool], count: int) -> None:
        """Dead letters: they leave one queue and come into another, or nothing of it happens."""
        self.host.store.begin()
        self.whole = False
        self.put(target, count)
        self.take(source, picked, Reason.REJECTED)
        self.host.store.end()
        self.whole = True
        self.note()

    # What it must say after a crash.

    def crash(self) -> Recovered:
        safe = self.host.store.synced() if hasattr(self.host.store, "current") else 0
        found = self.host.crash(*self.lines.values())
        self.check(found, safe)
        return found

    def check(self, found: Recovered, safe: int) -> None:
        assert found.damage == []
        queues = {name: self.host.bodies(line) for name, line in self.lines.items()}
        for bodies in queues.values():
            assert list(bodies) == sorted(bodies)
        state = queues, found.records
        sure = [known for known in self.states if known[0] <= safe][-1]
        possible = [sure, *(known for known in self.states if known[0] > safe)]
        assert state in [known for _, known, _ in possible], "not a beginning of what it was told"
        for name, line in self.lines.items():
            assert line.next_position > sure[2][name], "a position would be given twice"
        self.check_index()
        self.queues, self.saved = queues, found.records
        # A start on a full disk leaps ahead, and the next start need not know: nobody got those positions.
        self.given = {name: max([sure[2][name], *bodies]) for name, bodies in queues.items()}
        self.states = []
        self.note(place=0)  # what was recovered is safe; life goes on from here

    def check_index(self) -> None:
        """At rest the store keeps what is needed, and nothing else."""
        index = self.host.store.index
        assert index.needed.messages == sum(queue.live.count for queue in index.state.queues.values())
        for name, line in self.lines.items():
            known = index.lines.get(("/", name, line.incarnation))
            there = [] if known is None else [*index.places(known, [(0, END)])]
            assert [position for _, _, position in there] == [*line.entries]


def script(model: Model) -> Iterator[None]:
    """A bit of everything; each step is a turn of the loop, or a wait for the disk."""
    host = model.host
    model.save("queue", "a", {"durable": True})
    model.save("queue", "b", {"durable": True})
    yield
    for turn in range(4):
        model.put("a", 6)
        model.put("b", 3, size=90)
        model.put_transient("a")
        yield
        model.fan_out(turn)
        yield
        model.take("a", lambda position: position % 3 == 0)
        yield
    host.sync()
    model.bury("b", "c", lambda position: position <= 3, 2)
    model.save("queue", "b", {"durable": True, "changed": 1})
    yield
    model.take("a", lambda position: position < 20)
    yield
    host.sync()
    host.run(0.2)  # compaction
    model.save("queue", "b", None)
    model.put("c", 5)
    yield
    model.take("b", lambda position: True, Reason.PURGED)
    host.sync()
    host.run(0.2)
    model.put("a", 4)
    model.take("c", lambda position: position % 2 == 0)
    yield
    model.take("a", lambda position: True)
    host.sync()
    host.run(0.3)
    for turn in range(4):
        model.put("a", 2)
        yield
        model.fan_out(4 + turn)
        host.sync()
        yield


def make_host(seed: int) -> Host:
    """Marks of queues are saved often, or hardly ever: they keep segments from being dropped."""
    return Host(seed, replace(SMALL, positions_ahead=8 if seed % 2 else 1000, sync_interval=0.004))


def play(model: Model) -> None:
    for _ in script(model):
        model.host.run(0.0015)


def count_operations(seed: int, moment: str) -> tuple[int, int]:
    host = make_host(seed)
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1

    setattr(host.disk, moment, count)
    model = Model(host)
    play(model)
    host.run(1)
    return seen, host.store.current.log.merger.merged


def play_until(host: Host, moment: str, cut: int) -> Model:
    """Until that disk operation, which happens or not but of which nobody hears."""
    left = cut

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerCut

    setattr(host.disk, moment, count)
    model = Model(host)
    try:
        play(model)
        host.run(1)
    except PowerCut:
        return model
    raise AssertionError("there are not so many operations")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_power_lost_at_any_disk_operation_loses_nothing_that_was_synced_and_brings_nothing_back(
    seed: int, moment: str
) -> None:
    operations, rewritten = count_operations(seed, moment)
    assert operations > 60
    assert rewritten >= 2, "compaction is part of the script"
    for cut in range(1, operations + 1):
        model = play_until(make_host(seed), moment, cut)
        model.crash()
        # The store that recovered is as good as any.
        model.put("a", 3)
        model.take("b", lambda position: position % 2 == 1)
        model.host.sync()
        model.host.run(0.3)
        model.crash()


class StoreMachine(RuleBasedStateMachine):
    """Anything in any order, on a disk that may be full and loses power now and then."""

    @initialize(seed=st.integers(0, 2**32), ahead=st.sampled_from((8, 1000)), sync=st.sampled_from((0.002, 0.05)))
    def start(self, seed: int, ahead: int, sync: float) -> None:
        self.host = Host(seed, replace(SMALL, positions_ahead=ahead, sync_interval=sync))
        self.model = Model(self.host)
        self.full = False
        self.failures: list[bool] = []

    @rule(name=NAMES, count=st.integers(1, 8), size=st.integers(0, 150))
    def publishes(self, name: str, count: int, size: int) -> None:
        self.model.put(name, count, size)

    @rule(number=st.integers(0, 99))
    def publishes_to_all(self, number: int) -> None:
        self.model.fan_out(number)

    @rule(name=NAMES)
    def publishes_transient(self, name: str) -> None:
        self.model.put_transient(name)

    @rule(name=NAMES, step=st.integers(1, 3), rest=st.integers(0, 2))
    def accepts(self, name: str, step: int, rest: int) -> None:
        self.model.take(name, lambda position: position % step == rest % step)

    @rule(source=NAMES, grave=NAMES, upto=st.integers(1, 60))
    def buries(self, source: str, grave: str, upto: int) -> None:
        self.model.bury(source, grave, lambda position: position <= upto, 2)

    @rule(key=st.sampled_from("xyz"), value=st.one_of(st.none(), st.integers(0, 3)))
    def saves(self, key: str, value: int | None) -> None:
        self.model.save("policy", key, None if value is None else {"value": value, "text": "x" * 50})

    @rule(name=NAMES)
    def pages_out(self, name: str) -> None:
        page_out(self.host.store, list(self.model.lines[name].entries.values()))

    @rule(name=NAMES)
    def reads_everything_of_a_queue(self, name: str) -> None:
        assert self.host.bodies(self.model.lines[name]) == self.model.queues[name]

    @rule(seconds=st.sampled_from((0.0, 0.001, 0.01, 0.1, 3.0)))
    def time_passes(self, seconds: float) -> None:
        self.host.run(seconds)

    @precondition(lambda self: not self.full)
    @rule()
    def waits_for_the_disk(self) -> None:
        self.host.sync()
        self.host.run(0.5)
        assert self.host.store.synced() == self.host.store.written()
        self.model.check_index()

    @rule(room=st.integers(0, 300))
    def disk_is_full(self, room: int) -> None:
        platter = self.host.node.platter
        platter.capacity = platter.used() + room
        self.full = True

    @precondition(lambda self: self.full)
    @rule()
    def disk_has_room_again(self) -> None:
        self.host.node.platter.capacity = None
        self.full = False
        self.failures.clear()
        self.host.run(5)
        assert not self.host.store.blocked

    @rule()
    def next_sync_fails(self) -> None:
        self.failures.append(True)
        self.host.disk.sync_fails = lambda name: bool(self.failures and self.failures.pop())

    @rule()
    def power_is_lost(self) -> None:
        self.failures.clear()
        self.model.crash()

    @precondition(lambda self: not self.full)
    @rule()
    def restarts(self) -> None:
        self.failures.clear()
        self.host.run(5)  # until nothing is refused any more
        safe = self.host.store.written()
        given = {name: line.next_position for name, line in self.model.lines.items()}
        found = self.host.close(*self.model.lines.values())
        assert found.clean
        for name, line in self.model.lines.items():
            assert line.next_position == given[name]
        self.model.check(found, safe)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.host.node.platter.capacity = None
            self.failures.clear()
            self.host.run(5)
            self.host.sync()
            self.model.crash()


TestStoreMachine = pytest.mark.fuzz(StoreMachine.TestCase)
TestStoreMachine.settings = settings(max_examples=max(60, settings().max_examples // 10), stateful_step_count=40)
