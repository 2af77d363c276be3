"""A broker that is low on memory or disk: publishers wait everywhere, and its own memory has a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_rig import Cluster, Host
from queue_view import seen

from coterie.broker.log_store import LogStore, StoreSettings
from coterie.cluster.states import State

SMALL = StoreSettings(reserve_bytes=20_000, retry_interval=0.05, pending_max=4000, segment_bytes=6000)
BOUND = 20_000
SIZE = 500


def three() -> tuple[Cluster, Host, Host, Host]:
    cluster = Cluster(3, unsynced_max=BOUND)
    cluster.make_store = lambda runtime: LogStore(runtime, SMALL)
    a, b, c = cluster.started()
    a.declare()
    cluster.settle()
    return cluster, a, b, c


def fill_disk(host: Host, room: int = 0) -> None:
    host.node.platter.capacity = host.node.platter.used() + room


def free_disk(host: Host) -> None:
    host.node.platter.capacity = None


def limit_memory(host: Host, high: int) -> None:
    """The broker looks every half a second."""
    host.broker.settings = replace(host.broker.settings, memory_high=high)
    host.cluster.run(0.6)


def publish(host: Host, first: int, count: int) -> list[str]:
    bodies = [f"{number}".ljust(SIZE, ".") for number in range(first, first + count)]
    host.publish(*bodies)
    return bodies


def test_an_alarm_of_one_broker_stops_publishers_at_all_of_them_until_it_is_over() -> None:
    cluster, a, b, c = three()
    a.publish("body")
    limit_memory(b, 1)
    assert [host.broker.blocked for host in (a, b, c)] == ["low on memory at b"] * 3
    a.broker.set_alarm("disk", True)
    cluster.run(0.05)
    assert c.broker.blocked == "low on disk at a, low on memory at b"
    assert c.broker.shown_alarms == ["disk at a", "memory at b"]
    members = {member.name: member.alarms for member in c.member.status().members}
    assert members == {"a": ("disk",), "b": ("memory",), "c": ()}
    a.broker.set_alarm("disk", False)
    limit_memory(b, 1 << 30)
    assert [host.broker.blocked for host in (a, b, c)] == [""] * 3


def test_it_is_over_when_its_broker_is_lost() -> None:
    cluster, a, b, c = three()
    a.publish("body")
    limit_memory(b, 1)
    assert a.broker.blocked
    b.kill()
    cluster.until(lambda: not a.broker.blocked and not c.broker.blocked)


def test_one_that_joins_hears_of_it_and_one_that_missed_the_word_hears_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, a, b, c = three()
    a.publish("body")
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    with monkeypatch.context() as silent:
        silent.setattr("coterie.cluster.peer_messages.PeerMessages.alarms", lambda messages, bits, to: None)
        limit_memory(a, 1)
        assert (bool(a.broker.blocked), bool(b.broker.blocked)) == (True, False)
    cluster.run(a.member.settings.lease)
    assert b.broker.blocked == "low on memory at a"
    c = cluster.start(2)
    cluster.until(lambda: c.opened)
    cluster.run(0.1)
    assert c.broker.blocked == "low on memory at a"


def test_an_alarm_about_the_cluster_is_nobody_elses() -> None:
    cluster, a, b, c = three()
    a.broker.set_alarm("cluster", True)
    cluster.run(1)
    assert (b.broker.blocked, c.broker.blocked) == ("", "")


def test_while_one_disk_is_full_consumers_go_on_and_that_ends_it() -> None:
    cluster, a, b, c = three()
    publish(a, 0, 60)
    cluster.settle()
    fill_disk(b)
    a.publish("one more")
    cluster.until(lambda: all(host.broker.blocked == "low on disk at b" for host in (a, b, c)))
    cluster.until(lambda: a.confirmed[-1] == "one more")  # two of three disks are a majority
    client = c.consume(prefetch=5)
    for _ in range(200):
        client.accept()
        cluster.run(0.05)
        if not seen(b.queue()):
            break
    cluster.until(lambda: not any(host.broker.blocked for host in (a, b, c)))
    assert b.serves, "it never stepped back"
    cluster.check_alike()


def test_what_waits_for_a_full_disk_is_bounded_its_broker_steps_back_and_others_go_on() -> None:
    cluster, a, b, _ = three()
    client = b.consume(prefetch=1)
    cluster.settle()
    fill_disk(b)
    most = 0
    sent: list[str] = []
    for number in range(0, 400, 4):  # whatever it is: events that no alarm stops
        sent += publish(a, number, 4)
        cluster.run(0.02)
        most = max(most, b.store.unsynced())
    assert b.member.replica.state is State.STEPPED_BACK
    assert "its disk has not taken" in b.member.replica.why
    assert most < BOUND + 100_000, "what comes until it was looked at twice: of 100 kB in a second"
    assert b.was_cut_off
    assert not client.held
    assert a.confirmed == sent, "the others are a majority"
    assert [member.name for member in a.member.replica.in_step] == ["a", "c"]
    assert not a.broker.blocked
    kept = b.store.unsynced()
    publish(a, 400, 100)
    cluster.run(3)
    assert b.store.unsynced() == kept, "it applies nothing any more"
    assert b.member.catchup._update is None or not b.member.catchup._update._kept
    free_disk(b)
    cluster.until(lambda: b.serves)
    cluster.check_alike()
    again = b.consume(prefetch=1)
    cluster.settle()
    assert again.held


def test_it_waits_for_its_disk_also_when_the_view_changes() -> None:
    cluster, a, b, c = three()
    fill_disk(b)
    for number in range(0, 200, 4):
        publish(a, number, 4)
        cluster.run(0.02)
    assert not b.opened
    c.kill()
    cluster.run(5)
    before = len(a.confirmed)
    publish(a, 200, 4)
    cluster.run(2)
    assert len(a.confirmed) == before, "one of three is no majority"
    c = cluster.start(2)
    cluster.until(lambda: a.serves and c.serves)
    cluster.run(2)
    assert not b.opened
    free_disk(b)
    cluster.until(lambda: b.serves)
    cluster.check_alike()


def test_nobody_steps_back_if_there_would_be_no_majority() -> None:
    cluster, a, b, c = three()
    fill_disk(b)
    fill_disk(c)
    for number in range(0, 200, 4):
        publish(a, number, 4)
        cluster.run(0.02)
    cluster.run(2)
    assert sum(host.member.replica.serves for host in (a, b, c)) >= 2
    free_disk(b)
    free_disk(c)
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    cluster.until(lambda: len(a.confirmed) == 200)
    cluster.check_alike()


def test_one_that_starts_with_a_full_disk_is_updated_when_it_is_well() -> None:
    cluster, a, _, c = three()
    c.kill()
    publish(a, 0, 50)
    cluster.settle()
    c.node.platter.capacity = 1
    c = cluster.start(2)
    cluster.run(5)
    assert not c.opened
    assert c.store.unsynced() < SMALL.pending_max
    free_disk(c)
    cluster.until(lambda: c.serves)
    cluster.check_alike()
