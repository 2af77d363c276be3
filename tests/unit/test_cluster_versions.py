"""A cluster is upgraded one broker after the other: it speaks what all of its voters understand."""

from __future__ import annotations

import pytest
from cluster_rig import Cluster, Host

from coterie.cluster import wire
from coterie.cluster.wire import Kind, TooNew


@pytest.fixture(autouse=True)
def a_second_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one already that old brokers do not understand."""
    monkeypatch.setattr(wire, "VERSION", 2)


def old(host: Host) -> Host:
    host.member.replica.versions.newest = 1
    return host


def spoken(*hosts: Host) -> set[int]:
    return {host.member.replica.versions.spoken for host in hosts}


def test_brokers_that_all_understand_the_new_version_speak_it_from_the_beginning() -> None:
    cluster = Cluster(3)
    assert spoken(*cluster.started()) == {2}


def test_as_long_as_one_voter_is_old_the_old_version_is_spoken_and_then_the_new_one() -> None:
    cluster = Cluster(3)
    a, b, c = (cluster.start(number) for number in range(3))
    old(c)
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    a.declare()
    a.publish("one")
    cluster.settle()
    assert spoken(a, b, c) == {1}
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    a.publish("two")
    cluster.settle()
    assert spoken(a, b) == {1}  # it votes, and may come back as it was
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.settle()
    assert spoken(a, b, c) == {2}
    c.publish("three")
    cluster.settle()
    assert [body for _, body, _, _ in a.content()] == ["one", "two", "three"]
    cluster.check_alike()


def test_one_that_is_too_old_is_not_let_in() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    c = old(cluster.start(2))
    cluster.run(5)
    assert not c.serves
    assert a.serves
    assert b.serves


def test_a_restart_of_all_does_not_go_back() -> None:
    cluster = Cluster(3)
    hosts = cluster.started()
    hosts[0].declare()
    cluster.settle()
    for host in hosts:
        host.kill()
    hosts = [cluster.start(number) for number in range(3)]
    cluster.until(lambda: all(host.serves for host in hosts))
    assert spoken(*hosts) == {2}


def test_an_event_that_is_too_new_says_so() -> None:
    with pytest.raises(TooNew, match="an event of version 3: this broker understands 1 to 2: upgrade it"):
        wire.read_head(memoryview(wire.head(Kind.ACCEPT, 0.0, 1, version=3)))
