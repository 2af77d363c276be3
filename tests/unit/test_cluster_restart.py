"""A restart of all: equal stores serve at once, and no store is given up before another one is whole and on disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_rig import Cluster, Host

from coterie.broker.log_store import LogStore
from coterie.cluster.states import State

BODIES = tuple(f"m{number}" for number in range(60))


def filled(cluster: Cluster, *bodies: str) -> list[Host]:
    hosts = cluster.started()
    hosts[0].declare()
    hosts[0].publish(*bodies)
    cluster.until(lambda: hosts[0].confirmed == [*bodies])
    cluster.settle()
    return hosts


def bodies(host: Host) -> list[str]:
    return [body for _, body, _, _ in host.content()]


def flags(host: Host) -> list[bool]:
    return [flag for _, _, _, flag in host.content()]


def stop(cluster: Cluster, host: Host) -> None:
    """Properly."""
    stopped: list[bool] = []
    host.runtime.spawn(host.member.close())
    cluster.settle()
    host.broker.stop(lambda: stopped.append(True))
    cluster.until(lambda: bool(stopped))
    host.kill()


def updates(cluster: Cluster) -> list[str]:
    """Who was ever given another one's state."""
    return [host.name for host in cluster.every if isinstance(host.store, LogStore) and host.store.current.number]


def while_updated(cluster: Cluster, host: Host, instant: Callable[[], bool]) -> None:
    """Go on to a moment at which the store of that broker is being replaced, and something else is so."""
    while not (host.member.replica.updating and host.store.keeps_old and instant()):
        cluster.world.run(cluster.world.time + 0.0005)


@pytest.mark.parametrize("power", [True, False])
def test_brokers_with_equal_stores_need_no_update_and_serve_at_once(power: bool) -> None:
    cluster = Cluster(3, update_batch=1)
    hosts = filled(cluster, *BODIES)
    for host in hosts:
        host.kill(power)
    a, b, c = (cluster.start(number) for number in range(3))
    cluster.until(lambda: any(host.opened for host in (a, b, c)), 5)
    cluster.run(0.02)
    assert sum(host.serves for host in (a, b, c)) >= 2
    assert len(updates(cluster)) <= 1  # it came when the others had begun
    cluster.until(lambda: all(host.serves for host in (a, b, c)), 5)
    assert bodies(a) == [*BODIES]
    cluster.check_alike()
    client = b.consume(prefetch=100)
    a.publish("after")
    cluster.until(lambda: a.confirmed == ["after"] and client.seen == [*BODIES, "after"])
    assert client.flags == dict.fromkeys(BODIES, True) | {"after": False}
    cluster.check_alike()


def test_after_a_proper_stop_of_all_what_nobody_saw_is_not_flagged() -> None:
    cluster = Cluster(3)
    hosts = filled(cluster, *BODIES[:4])
    client = hosts[1].consume(prefetch=2)
    cluster.until(lambda: len(client.seen) == 2)
    for host in hosts:
        stop(cluster, host)
    a, b, c = (cluster.start(number) for number in range(3))
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    cluster.check_alike()
    assert flags(a) == [True, True, False, False]


def given_and_forgotten(cluster: Cluster) -> None:
    """One stops properly; the others give a message to a client, and all that they know of it is lost: the disk of one
    is full, and the other one does not come back."""
    a, b, c = filled(cluster, BODIES[0])
    b.node.platter.capacity = 1
    a.publish(BODIES[1])
    cluster.until(lambda: a.confirmed == [*BODIES[:2]])
    stop(cluster, a)
    cluster.until(lambda: len(c.member.replica.in_step) == 2)
    client = c.consume(prefetch=1)
    cluster.until(lambda: client.seen == [BODIES[0]])
    for host in (b, c):
        host.kill()
    b.node.platter.capacity = None


def test_what_was_given_by_those_who_lost_it_is_flagged_although_the_store_that_is_right_ended_properly() -> None:
    cluster = Cluster(3)
    given_and_forgotten(cluster)
    a, b = (cluster.start(number) for number in range(2))
    cluster.until(lambda: a.serves and b.serves)
    cluster.check_alike()
    assert flags(b) == [True, True]
    for host in (a, b):
        stop(cluster, host)  # each store knows it, too
    a, b = (cluster.start(number) for number in range(2))
    cluster.until(lambda: a.serves and b.serves)
    assert flags(a) == [True, True]


def test_that_a_broker_crashed_is_not_forgotten_when_it_stops_properly_before_it_was_in_step() -> None:
    cluster = Cluster(3)
    given_and_forgotten(cluster)
    b = cluster.start(1)
    cluster.run(1.0)
    assert not b.opened
    stop(cluster, b)
    a, b = (cluster.start(number) for number in range(2))
    cluster.until(lambda: a.serves and b.serves)
    assert flags(a) == [True, True]


def test_a_crash_of_one_flags_nothing_if_a_majority_knows_what_was_given() -> None:
    cluster = Cluster(3)
    a, b, c = filled(cluster, *BODIES[:2])
    c.node.platter.capacity = 1
    b.publish("more")
    cluster.until(lambda: b.confirmed == ["more"])
    c.kill()
    c.node.platter.capacity = None
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    for host in (a, b):
        stop(cluster, host)
    a, b = (cluster.start(number) for number in range(2))
    cluster.until(lambda: a.serves and b.serves)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.check_alike()
    assert flags(c) == [False, False, False]


def test_what_an_updated_broker_was_told_to_be_flagged_is_so_after_a_proper_stop() -> None:
    cluster = Cluster(3)
    a, b, c = filled(cluster, *BODIES[:2])
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    client = a.consume(prefetch=1)
    cluster.until(lambda: client.seen == [BODIES[0]])
    client.release()
    client.cancel()
    cluster.settle()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    assert flags(c) == [True, False]
    for host in (a, b, c):
        stop(cluster, host)
    c = cluster.start(2)
    cluster.run(1.0)
    assert flags(c) == [True, False]


def test_the_source_of_an_update_may_die_and_the_others_go_back_to_what_they_had() -> None:
    """One had come further than the others, by events that nobody was told of; in the midst of their updates it dies
    for good."""
    cluster = Cluster(3, update_batch=1)
    a, b, c = filled(cluster, *BODIES)
    for host in (b, c):
        host.node.platter.sync_latency = 1000.0
        host.node.platter.latency = 1000.0
    b.publish("of one disk")
    cluster.run(0.2)
    assert b.confirmed == []
    for host in (a, b, c):
        host.kill()
        host.node.platter.sync_latency, host.node.platter.latency = 0.003, 0.0005
    a, b, c = (cluster.start(number) for number in range(3))
    while_updated(cluster, b, lambda: c.member.replica.updating)
    a.kill()
    cluster.until(lambda: b.serves and c.serves)
    assert bodies(b) == [*BODIES]
    cluster.check_alike()
    assert not any(host.store.keeps_old for host in (b, c))
    b.publish("after")
    cluster.until(lambda: b.confirmed == ["after"])
    a = cluster.start(0)
    cluster.until(lambda: a.serves)
    cluster.check_alike()
    assert bodies(a) == [*BODIES, "after"]


def test_if_all_die_in_the_midst_of_an_update_nothing_is_lost() -> None:
    cluster = Cluster(3, update_batch=1)
    a, b, c = filled(cluster, *BODIES)
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 2)
    b.publish("without c")
    cluster.until(lambda: b.confirmed == ["without c"])
    c = cluster.start(2)
    while_updated(cluster, c, lambda: c.opened)
    for host in (a, b, c):
        host.kill()
    a, c = cluster.start(0), cluster.start(2)
    assert isinstance(c.store, LogStore)
    cluster.until(lambda: a.serves and c.serves)
    assert bodies(c) == [*BODIES, "without c"]


def files(host: Host) -> list[str]:
    return sorted({name.partition("/")[0] for name in host.node.platter.files})


@pytest.mark.parametrize("steps", range(0, 120, 7))
def test_a_crash_at_any_point_of_an_update_leaves_a_whole_store(steps: int) -> None:
    """It votes with what it has on disk, old or new; and leftovers are removed at the next start."""
    cluster = Cluster(3, update_batch=1)
    a, b, c = filled(cluster, *BODIES[:20])
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 2)
    a.publish("without c")
    cluster.until(lambda: a.confirmed[-1:] == ["without c"])
    c = cluster.start(2)
    while_updated(cluster, c, lambda: True)
    cluster.world.run(cluster.world.time + 0.001 * steps)
    c.kill()
    a.kill()
    cluster.until(lambda: b.member.replica.state.live)
    c = cluster.start(2)
    cluster.until(lambda: b.serves and c.serves)
    assert bodies(c) == [*BODIES[:20], "without c"]
    cluster.check_alike()
    cluster.settle()
    assert len([name for name in files(c) if name.startswith("store")]) <= 2  # the reserve is in the first one's folder
    assert len([name for name in c.node.platter.files if name.endswith(".tmp")]) == 0


def test_an_older_store_is_updated_while_the_others_serve_at_once() -> None:
    cluster = Cluster(3)
    a, b, c = filled(cluster, *BODIES)
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 2)
    b.publish("without c")
    cluster.until(lambda: b.confirmed == ["without c"])
    cluster.settle()
    for host in (a, b):
        host.kill()
    a, b = (cluster.start(number) for number in range(2))
    cluster.until(lambda: a.channel.view.members == b.channel.view.members != (a.channel.local,))
    c = cluster.start(2)
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    assert updates(cluster) == ["c"]
    assert bodies(c) == [*BODIES, "without c"]
    cluster.check_alike()


def test_two_that_have_different_events_at_the_same_place_are_not_equal() -> None:
    """A sequencer that was cut off has written one of its own where the others have another one."""
    cluster = Cluster(3)
    hosts = filled(cluster, "first")
    a = next(host for host in hosts if host.member.replica.us == hosts[0].member.replica.in_step[0])
    b, c = (host for host in hosts if host is not a)
    heal = cluster.part(a.name)
    a.publish("nobody heard")
    b.publish("too late")
    cluster.run(0.2)
    assert bodies(a) == ["first", "nobody heard"]
    a.kill()
    cluster.until(lambda: b.confirmed == ["too late"])
    for host in (b, c):
        host.kill()
    heal()
    a, b, c = (cluster.start(cluster.nodes.index(host.node)) for host in (a, b, c))
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    assert bodies(a) == bodies(b) == bodies(c) == ["first", "too late"]
    cluster.check_alike()


def test_a_broker_that_is_closed_takes_no_notice_of_views_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.member.closed("another process has its name")
    said: list[object] = []
    monkeypatch.setattr(a.member.outbox, "multicast", lambda kind, data: said.append(kind))
    a.member.view_accepted(a.member.channel.view)
    progress = a.member.replica.progress
    b.declare()
    assert (said, a.member.replica.progress, a.member.replica.state) == ([], progress, State.CLOSED)
