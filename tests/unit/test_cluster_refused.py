"""Brokers that cannot be part of a cluster are refused, know why, and keep nobody waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_rig import Cluster, Host


def restarted_otherwise(cluster: Cluster, number: int, **settings: object) -> Host:
    usual = cluster.settings
    cluster.settings = replace(usual, **settings)  # type: ignore[arg-type]
    host = cluster.start(number)
    cluster.settings = usual
    return host


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "refuse" in record.getMessage()]


@pytest.mark.parametrize("first", [True, False])
def test_one_with_another_dispatch_does_not_keep_a_restart_waiting(
    first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish("kept")
    cluster.until(lambda: a.confirmed == ["kept"])
    for host in (a, b, c):
        host.kill()
    if first:
        c = restarted_otherwise(cluster, 2, dispatch="ownership")
        cluster.run(1)
    a, b = cluster.start(0), cluster.start(1)
    if not first:
        c = restarted_otherwise(cluster, 2, dispatch="ownership")
    cluster.until(lambda: a.serves and b.serves)
    cluster.settle()
    assert [body for _, body, _, _ in a.content()] == ["kept"]
    assert not c.opened
    assert "cluster.dispatch is ownership, and that of the cluster is credit" in c.member.status().why
    assert {"a broker is refused", "the cluster refuses this broker"} <= {*refusals(caplog)}
    c.kill()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)


def strangers() -> Cluster:
    """Three that were a cluster, and two that were another; all are dead."""
    cluster = Cluster(5)
    cluster.settings = replace(cluster.settings, size=3)
    heal = cluster.part("d", "e")
    members = [cluster.start(number) for number in range(3)]
    others = [restarted_otherwise(cluster, number, size=2) for number in (3, 4)]
    cluster.until(lambda: all(host.serves for host in (*members, *others)))
    for host in (members[0], others[0]):
        host.declare()
        host.publish(f"of {host.name}")
    cluster.settle()
    for host in (*members, *others):
        host.kill()
    heal()
    return cluster


def bodies(host: Host) -> list[str]:
    return [body for _, body, _, _ in host.content()]


def test_one_of_another_cluster_does_not_keep_a_restart_waiting() -> None:
    cluster = strangers()
    d, a = cluster.start(3), cluster.start(0)
    cluster.run(1)
    assert not a.opened
    b = cluster.start(1)
    cluster.until(lambda: a.serves and b.serves)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    assert bodies(c) == ["of a"]
    assert not d.opened
    assert "it is of another cluster, d-1, and this is a-1" in d.member.status().why
    for host in (a, b, c):
        host.kill()
    e = cluster.start(4)
    cluster.until(lambda: d.serves and e.serves)  # nothing of it was lost
    assert bodies(e) == ["of d"]


def test_another_cluster_that_serves_already_does_not_keep_a_restart_waiting() -> None:
    """Its brokers reach the others, as somebody has given them their addresses; they go on by themselves."""
    cluster = strangers()
    d, e = cluster.start(3), cluster.start(4)
    cluster.until(lambda: d.serves and e.serves)
    a, b, c = (cluster.start(number) for number in range(3))
    cluster.until(lambda: a.serves and b.serves and c.serves)
    a.publish("after")
    d.publish("apart")
    cluster.until(lambda: a.confirmed == ["after"] and d.confirmed == ["apart"])
    assert bodies(b) == ["of a", "after"]
    assert bodies(e) == ["of d", "apart"]
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 2)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    assert bodies(c) == ["of a", "after"]
    assert d.serves
    assert e.serves


def test_a_refused_broker_keeps_nothing_of_what_the_others_say() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    c = restarted_otherwise(cluster, 2, dispatch="ownership")
    cluster.until(lambda: "refuses" in c.member.status().why)
    a.publish(*(f"m{number}" for number in range(50)))
    cluster.until(lambda: len(a.confirmed) == 50)
    assert c.member.catchup._update is None
    assert len(b.content()) == 50
