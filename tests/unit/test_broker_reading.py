"""Bulk reads: slices of a lease or of a queue, from memory or from disk, from a broker that may serve."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from broker_rig import Rig, Shelf
from cluster_rig import Cluster, Host
from queue_view import seen

from coterie.broker.leases import ACQUIRE, END, RELEASE, RETIRE, Gone, Lease, LeaseStep
from coterie.broker.queue import Queue
from coterie.broker.reading import LeaseRead, NotHere, RangeRead, Read, Slice
from coterie.broker.settings import BrokerSettings
from coterie.cluster.bodiless import is_bodiless


def step(queue: Queue, do: str, **more: object) -> Lease | None:
    queue.cluster.lease(queue, LeaseStep(do, "l", "me", session="s", **more), lambda _: None)  # type: ignore[arg-type]
    return queue.leases.get("l")


def leased(queue: Queue, rows: int | None = None) -> Lease:
    lease = step(queue, ACQUIRE, rows=rows)
    assert lease is not None
    return lease


def slices(read: Read, run: Callable[[], object] = lambda: None) -> list[list[str]]:
    """All of them: bodies."""
    found: list[list[str]] = []
    while True:
        part = once(read, run)
        found.append([row.message.body.decode() for row in part.rows])
        if part.offsets is not None:
            assert len(part.offsets) == len(part.rows)
        if part.last:
            return found


def once(read: Read, run: Callable[[], object] = lambda: None) -> Slice:
    results: list[Slice | Exception] = []
    read.next(results.append)
    run()
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def test_a_lease_is_read_in_slices_by_its_offsets() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("aa", "bb", "cc", "d" * 9, "e", "f")
    client = rig.consume(queue, prefetch=1)
    lease = leased(queue)
    client.close()
    leased(queue)
    assert slices(LeaseRead(lease, 0, 6, 4)) == [["bb", "cc"], ["d" * 9], ["e", "f", "aa"]]
    assert slices(LeaseRead(lease, 1, 3, 100)) == [["cc", "d" * 9]]
    assert once(LeaseRead(lease, 4, 6, 100)).offsets == [4, 5]
    assert slices(LeaseRead(lease, 6, 6, 100)) == [[]]


def test_the_same_offsets_give_the_same_rows_until_they_are_retired() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    lease = leased(queue)
    for _ in range(2):
        part = once(LeaseRead(lease, 0, 3, 100))
        assert [(row.position, row.message.body, row.redelivered) for row in part.rows] == [
            (1, b"a", False), (2, b"b", False), (3, b"c", False)
        ]  # fmt: skip
    step(queue, RETIRE, upto=1)
    with pytest.raises(Gone, match="holds offset 0 no more"):
        LeaseRead(lease, 0, 3, 100)
    assert slices(LeaseRead(lease, 1, 3, 100)) == [["b", "c"]]
    assert slices(LeaseRead(lease, 0, 3, 100, skip=True)) == [["b", "c"]]


def test_what_is_released_or_ended_in_the_middle_of_a_read_is_said() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    lease = leased(queue)
    read = LeaseRead(lease, 0, 3, 1)
    assert not once(read).last
    step(queue, RELEASE, first=2)
    with pytest.raises(Gone, match="holds offset 2 no more"):
        once(read)
    read = LeaseRead(lease, 0, 2, 1)
    once(read)
    step(queue, END)
    with pytest.raises(Gone, match="has ended"):
        once(read)
    browse = RangeRead(queue, 1, 3, 1)
    once(browse)
    rig.delete("q")
    with pytest.raises(Gone):
        once(browse)


def test_a_browse_gives_what_is_there_and_takes_nothing() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    leased(queue, rows=1)
    client = rig.consume(queue, prefetch=2)
    client.accept("b")
    rig.run()
    assert slices(RangeRead(queue, 1, 99, 2)) == [["a", "c"], ["d"]]
    assert slices(RangeRead(queue, 2, 3, 100)) == [["c"]]
    assert slices(RangeRead(queue, 3, 2, 100)) == [[]]
    assert queue.unacked == 3


def test_a_queue_with_few_messages_at_far_positions_is_browsed_too() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    queue.table.leap(10**12)
    rig.publish("b", "c", "d")
    assert slices(RangeRead(queue, 1, 10**12 + 1, 2)) == [["a", "b"], ["c"]]


def test_messages_on_disk_are_read_and_stay_there() -> None:
    shelf = Shelf()
    shelf.at_once = True
    rig = Rig(BrokerSettings(memory_high=0, queue_resident_max=10), shelf)
    queue = rig.declare(durable=True)
    rig.publish(*(str(n) * 10 for n in range(6)), delivery_mode=2)
    lease = leased(queue)
    rig.run(1)
    assert queue.pager.paged == 6
    everything = [str(n) * 10 for n in range(6)]
    assert [*chain(*slices(LeaseRead(lease, 0, 6, 20), shelf.serve))] == everything
    assert [*chain(*slices(RangeRead(queue, 1, 6, 20), shelf.serve))] == everything
    assert queue.pager.paged == 6

    def retired_meanwhile() -> None:
        step(queue, RETIRE, upto=1)
        shelf.serve()

    with pytest.raises(Gone):
        once(LeaseRead(lease, 0, 6, 20), retired_meanwhile)
    shelf.broken = True
    with pytest.raises(NotHere, match="disk"):
        once(LeaseRead(lease, 1, 6, 20), shelf.serve)


def started() -> tuple[Cluster, list[Host]]:
    cluster = Cluster(3)
    hosts = cluster.started()
    hosts[0].declare()
    hosts[0].publish("a", "b", "c")
    cluster.settle()
    hosts[0].lease(ACQUIRE, rows=2)
    cluster.settle()
    return cluster, hosts


def of(host: Host) -> Read:
    lease = host.queue().leases.get("l")
    assert lease is not None
    return LeaseRead(lease, 0, 2, 1)


def test_every_broker_in_step_gives_the_same_and_one_without_a_majority_nothing() -> None:
    cluster, hosts = started()
    assert [slices(of(host)) for host in hosts] == [[["a"], ["b"]]] * 3
    assert [slices(RangeRead(host.queue(), 1, 3, 99)) for host in hosts] == [[["a", "b", "c"]]] * 3
    reads = [of(host) for host in hosts]
    for read in reads:
        once(read)
    heal = cluster.part("a")
    cluster.run(8)
    with pytest.raises(NotHere, match="does not serve"):
        once(reads[0])
    assert [row.message.body for row in once(reads[1]).rows] == [b"b"]
    heal()


def test_one_that_catches_up_says_that_it_lacks_bodies() -> None:
    cluster, (a, b, c) = started()
    a.publish(*(f"{n:1000}" for n in range(3000)))
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    c = cluster.start(2)
    cluster.until(lambda: c.opened)
    assert any(is_bodiless(entry.message) for entry in seen(c.queue()).values())
    with pytest.raises(NotHere, match="catches up"):
        once(of(c))
    assert slices(of(b)) == [["a"], ["b"]]
    cluster.until(lambda: c.serves)
    assert slices(of(c)) == [["a"], ["b"]]
