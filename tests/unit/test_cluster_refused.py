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
    assert "cluster.dispatch is ownership, and that of the cluster is credit" in c.core.status().why
    assert {"a broker is refused", "the cluster refuses this broker"} <= {*refusals(caplog)}
    c.kill()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)


def strangers() -> tuple[Cluster, list[Host], Host]:
    """Three that were a cluster, and one that was another; all are dead."""
    cluster = Cluster(4)
    cluster.settings = replace(cluster.settings, size=3)
    heal = cluster.part("d")
    members = [cluster.start(number) for number in range(3)]
    stranger = restarted_otherwise(cluster, 3, size=1)
    cluster.until(lambda: all(host.serves for host in (*members, stranger)))
    for host in (members[0], stranger):
        host.declare()
        host.publish(f"of {host.name}")
    cluster.settle()
    for host in (*members, stranger):
        host.kill()
    heal()
    return cluster, members, stranger


def test_one_of_another_cluster_does_not_keep_a_restart_waiting() -> None:
    cluster, _, _ = strangers()
    a, b = cluster.start(0), cluster.start(1)
    cluster.until(lambda: a.serves)
    d = cluster.start(3)
    cluster.until(lambda: "another cluster" in d.core.status().why)
    c = cluster.start(2)
    cluster.until(lambda: b.serves and c.serves)
    assert [body for _, body, _, _ in c.content()] == ["of a"]
    assert "another cluster" in d.core.status().why
    for host in (a, b, c):
        host.kill()
    d.kill()
    heal = cluster.part("d")
    d = cluster.start(3)
    cluster.until(lambda: d.serves)  # nothing of it was lost
    assert [body for _, body, _, _ in d.content()] == ["of d"]
    heal()


def test_it_is_refused_too_if_all_come_at_once() -> None:
    cluster, _, _ = strangers()
    hosts = [cluster.start(number) for number in range(3)]
    d = restarted_otherwise(cluster, 3, size=1)
    cluster.until(lambda: all(host.serves for host in hosts) or d.serves)
    cluster.settle()
    one_cluster = {host.core.cluster for host in cluster.live()}
    assert len(one_cluster) == 1
    refused = [host for host in (*hosts, d) if not host.opened]
    assert refused
    assert all("another cluster" in host.core.status().why for host in refused)


def test_a_refused_broker_keeps_nothing_of_what_the_others_say() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    c.kill()
    cluster.until(lambda: len(a.core.in_step) == 2)
    c = restarted_otherwise(cluster, 2, dispatch="ownership")
    cluster.until(lambda: "refuses" in c.core.status().why)
    a.publish(*(f"m{number}" for number in range(50)))
    cluster.until(lambda: len(a.confirmed) == 50)
    assert c.core.update is None
    assert len(b.content()) == 50
