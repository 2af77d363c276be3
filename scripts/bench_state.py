"""What the policies of the queue state cost, beside queues, whose own code decides; prints JSON. No part of any test.

Microseconds of processor time: the median of many slices of the work, and the fastest one, which is the better one to
compare on a machine that does other things as well. Both implementations are measured in turns, in one run.

    python scripts/bench_state.py [events | memory | accepts | limits | sides | snapshots]...
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from coterie.amqp.wire.properties import Properties
from coterie.broker.broker import Broker
from coterie.broker.cluster import NullCluster
from coterie.broker.delivery import ranges_of
from coterie.broker.limits import Limits
from coterie.broker.message import make_message
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import QueueSpec
from coterie.broker.state import (
    Arrival,
    BrokerState,
    QueueConfig,
    QueueLimits,
    QueueState,
    Step,
    allocate_scheduled,
    consuming,
    decode,
    encode,
    publish,
    queue_changes,
    settling,
)
from coterie.broker.state.consuming import Prefetch
from coterie.broker.state.expiring import reach
from coterie.broker.state.holding import NewHolder
from coterie.broker.state.vocabulary import HolderKind, Kind
from coterie.cluster.consumers import Peer, Subscriber
from coterie.group.members import Address
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node

MILLION = 10**6
SLICE = 50
UNLIMITED = 1 << 30
COLUMNS = {"even": array("I", [1024] * 50), "uneven": array("I", range(1000, 1050))}
"""Lengths of the messages of one event."""


class New:
    """One queue of the new state, as an applier drives it."""

    def __init__(self, config: QueueConfig | None = None, limits: QueueLimits | None = None) -> None:
        self.state = BrokerState()
        self.time = 0
        self.ref = 0
        self.event(lambda step: queue_changes.create(step, 1, config or QueueConfig(), limits or QueueLimits()))
        self.queue: QueueState = self.state.queues[1]

    def event(self, decide: Callable[[Step], object]) -> bytes:
        self.time += 1000
        step = Step(self.state)
        reach(step, self.time, keeps_time=True)
        decide(step)
        allocate_scheduled(step)
        return step.effects()

    def consume(self) -> None:
        new = NewHolder(HolderKind.CONSUMER, 1, 1)
        self.event(lambda step: consuming.subscribe(step, self.queue, new, Prefetch(UNLIMITED)))

    def publish(self, lengths: array[int], **columns: Any) -> None:
        self.ref += 1
        arrival = Arrival(self.ref, 0, lengths, **columns)
        self.event(lambda step: publish(step, self.queue, arrival))

    def accept(self, first: int, stop: int) -> None:
        self.event(lambda step: settling.accept(step, self.queue, 1, [(first, stop)]))


class Ordered(NullCluster):
    """What follows from an event follows at its end."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def end_event(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Old:
    """One queue of a broker, as the log drives it: the messages are made already."""

    def __init__(self) -> None:
        world = World(1, "bench", None)
        runtime = Node(world, Fabric(world), "a").boot()
        self.cluster = Ordered()
        self.broker = Broker(runtime, BrokerSettings(memory_high=0), None, self.cluster)
        self.broker.start(lambda error: None)
        world.run(0.0)
        self.queue = self.broker.vhosts["/"].make_queue("q", 1, QueueSpec(), None)
        self.journal = self.broker.journal
        self.peer = Peer(Address("a", 1), self.journal)

    def consume(self) -> None:
        new = Subscriber("c", self.queue, self.peer, False, False, 0, {}, self.peer, 1, UNLIMITED, None, {})
        self.peer.add(new)
        self.queue.subscribe(new)
        self.cluster.end_event()

    def event(self, decide: Callable[[], object]) -> None:
        def step() -> None:
            decide()
            self.cluster.end_event()

        self.journal.run(step)

    def publish(self, messages: list[Any]) -> None:
        self.event(lambda: self.queue.enqueue(messages))

    def accept(self, positions: list[int]) -> None:
        def accept() -> None:
            for holder, ranges in self.peer.settled(1, ranges_of(positions)):
                self.queue.apply_accept(holder, ranges)

        self.event(accept)


def messages(count: int) -> list[Any]:
    return [make_message("", "q", bytes(1024), Properties(delivery_mode=2)) for _ in range(count)]


def timed(work: Callable[[], object], rounds: int, per: int) -> list[float]:
    """Microseconds for each of `per` things that one call does, by slices."""
    found: list[float] = []
    for _ in range(rounds):
        begin = time.process_time()
        for _ in range(SLICE):
            work()
        found.append((time.process_time() - begin) / SLICE / per * 1e6)
    return found


def figures(new: list[float], old: list[float] | None = None) -> dict[str, float]:
    found = {"median_us": round(statistics.median(new), 3), "best_us": round(min(new), 3)}
    if old is not None:
        found |= {"old_median_us": round(statistics.median(old), 3), "old_best_us": round(min(old), 3)}
        found["old_to_new"] = round(min(old) / min(new), 1)
    return found


def events() -> dict[str, Any]:
    """Publish, allocate and accept: two events, with their effects and journals."""
    found: dict[str, Any] = {}
    for size in (1, 50):
        for name, lengths in (("even", [1024] * size), ("uneven", [1000 + n for n in range(size)])):
            if size == 1 and name == "uneven":
                continue
            found[f"of {size}, {name}"] = _events(size, array("I", lengths))
    return found


def _events(size: int, lengths: array[int]) -> dict[str, float]:
    new, old = New(), Old()
    new.consume()
    old.consume()
    some = messages(size)

    def of_new() -> None:
        new.publish(lengths)
        stop = new.queue.next_position
        new.accept(stop - size, stop)

    def of_old() -> None:
        old.publish(some)
        stop = old.queue.next_position
        old.accept([*range(stop - size, stop)])

    times: tuple[list[float], list[float]] = [], []
    for _ in range(30):
        times[0].extend(timed(of_new, 1, size))
        times[1].extend(timed(of_old, 1, size))
    return figures(*times)


def measured(make: Callable[[], object]) -> tuple[object, int]:
    """What it makes, and its bytes."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = make()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return kept, size


def filled(count: int, lengths: array[int], hold: bool = False, **limits: Any) -> New:
    new = New(limits=QueueLimits(**limits))
    if hold:
        new.consume()
    for _ in range(count // len(lengths)):
        new.publish(lengths)
    return new


def old_filled(count: int) -> Old:
    old, some = Old(), messages(50)  # the bodies are the same ones: its table is what is measured
    for _ in range(count // 50):
        old.publish(some)
    return old


def memory() -> dict[str, Any]:
    """Bytes for each queued message, published in events of 50; without bodies."""
    found: dict[str, Any] = {}
    for count in (10**5, MILLION):
        for name, lengths in COLUMNS.items():
            found[f"{count} {name}"] = round(measured(partial(filled, count, lengths))[1] / count, 2)
    found["held, even"] = round(measured(lambda: filled(MILLION, COLUMNS["even"], hold=True))[1] / MILLION, 2)
    found["in events of 1"] = round(measured(lambda: filled(10**5, array("I", [1024])))[1] / 10**5, 2)
    found["old, without messages"] = round(measured(lambda: old_filled(10**5))[1] / 10**5, 2)
    return found


def accepts() -> dict[str, Any]:
    """Single ones at random, over a million that one consumer holds."""
    new = filled(MILLION, array("I", [1000 + n for n in range(50)]), hold=True)
    order = [*range(1, MILLION + 1)]
    random.Random(1).shuffle(order)
    left = iter(order)

    def one() -> None:
        position = next(left)
        new.accept(position, position + 1)

    def many() -> None:
        some = [(position, position + 1) for position in islice(left, 50)]
        new.event(lambda step: settling.accept(step, new.queue, 1, some))

    found = {"events of 1, over 10^6": figures(timed(one, 200, 1)), "events of 50": figures(timed(many, 150, 50))}
    while new.queue.live.count > MILLION // 2:
        many()
    where = f"over {new.queue.live.count}, with as many holes"
    found |= {
        f"events of 1, {where}": figures(timed(one, 200, 1)),
        f"events of 50, {where}": figures(timed(many, 40, 50)),
    }
    return found


def limits() -> dict[str, Any]:
    """Milliseconds of `max-length` = 1 over a long queue."""
    found: dict[str, Any] = {}
    for name, lengths in COLUMNS.items():
        found[f"10^6 {name}"] = _shorten(filled(MILLION, lengths), False)
        found[f"10^6 {name}, dying"] = _shorten(filled(MILLION, lengths, dead=True), True)
        found[f"10^6 {name}, every second one held"] = _shorten(_half_held(lengths), False)
    old = old_filled(10**5)
    took = _milliseconds(lambda: old.event(lambda: old.queue.set_limits(Limits(max_length=1))))
    found["old, of 10^5, times 10"] = took * 10
    return found


def _shorten(new: New, dead: bool) -> float:
    short = QueueLimits(max_length=1, dead=dead)
    return _milliseconds(lambda: new.event(lambda step: queue_changes.set_limits(step, new.queue, short)))


def _half_held(lengths: array[int]) -> New:
    new = filled(MILLION, lengths, hold=True)
    half = [(position, position + 1) for position in range(1, MILLION, 2)]
    new.event(lambda step: consuming.cancel(step, new.queue, 1))
    new.event(lambda step: settling.release(step, new.queue, 1, half, True))
    return new


def _milliseconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return round((time.process_time() - begin) * 1e3, 2)


def sides() -> dict[str, Any]:
    """Bytes for each message of 10^5 where the side index is worst, with what a queue has anyway (even lengths)."""
    rand = random.Random(3)
    even = array("I", [1024] * 50)

    def index(config: QueueConfig, some: QueueLimits, columns: Callable[[int], dict[str, Any]]) -> float:
        def make() -> New:
            new = New(config, some)
            for at in range(2000):
                new.publish(even, **columns(at))
            return new

        return round(measured(make)[1] / 10**5, 1)

    def digest(number: int) -> bytes:
        return number.to_bytes(16, "little")

    plain, none = QueueConfig(), QueueLimits()
    found = {
        "none": index(plain, none, lambda at: {}),
        "TTL of the queue": index(plain, QueueLimits(ttl=60_000), lambda at: {}),
        "TTL of each message, all different": index(plain, none, lambda at: {"ttls": [*range(at, at + 50)]}),
        "10 priorities, at random": index(
            QueueConfig(Kind.PRIORITY, False, 9), none, lambda at: {"priorities": bytes(rand.choices(range(10), k=50))}
        ),
        "last-value keys": index(
            QueueConfig(Kind.LAST_VALUE), none, lambda at: {"keys": [digest(at * 50 + n) for n in range(50)]}
        ),
        "message ids": index(
            plain, QueueLimits(dedup_length=MILLION), lambda at: {"ids": [digest(at * 50 + n) for n in range(50)]}
        ),
        "transient at random": index(plain, none, lambda at: {"transient": bytes(rand.choices((0, 1), k=50))}),
    }

    def released() -> New:
        new = filled(10**5, even, hold=True)
        new.event(lambda step: consuming.cancel(step, new.queue, 1))
        some = sorted(rand.sample(range(1, 10**5), 5 * 10**4))
        new.event(lambda step: settling.release(step, new.queue, 1, [(p, p + 1) for p in some], True))
        return new

    found["redelivered at random, the rest held"] = round(measured(released)[1] / 10**5, 1)
    return found


def snapshots() -> dict[str, Any]:
    """Encode and decode a queue of a million messages, in events of 50."""
    return {name: _snapshot(filled(MILLION, lengths)) for name, lengths in COLUMNS.items()}


def _snapshot(new: New) -> dict[str, float]:
    encoded = encode(new.state)
    return {
        "bytes a message": round(len(encoded) / MILLION, 2),
        "encode_ms": _milliseconds(lambda: encode(new.state)),
        "decode_ms": _milliseconds(lambda: decode(encoded)),
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "events": events, "memory": memory, "accepts": accepts, "limits": limits, "sides": sides, "snapshots": snapshots,
}  # fmt: skip


def main() -> None:
    chosen = sys.argv[1:] or [*PARTS]
    print(json.dumps({name: PARTS[name]() for name in chosen}, indent=2))


if __name__ == "__main__":
    main()
