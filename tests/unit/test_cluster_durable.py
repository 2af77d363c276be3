"""What a confirm rests on: syncs of a majority of the voters, each in the present life of its store."""

from __future__ import annotations

from cluster_rig import Cluster, Host

HANGS = 1000.0
"""Seconds: a sync that does not end within a test."""


def first_of(hosts: list[Host]) -> tuple[Host, list[Host]]:
    """The one that orders everybody's events, and the others."""
    oldest = hosts[0].core.in_step[0]
    return next(host for host in hosts if host.core.us == oldest), [host for host in hosts if host.core.us != oldest]


def test_a_sync_of_a_former_life_of_a_store_is_no_report_of_the_present_one() -> None:
    cluster = Cluster(3)
    hosts = cluster.started()
    a, (b, c) = first_of(hosts)
    b.declare()
    a.node.platter.sync_latency = 16.0
    heal = cluster.part(a.name)
    for number in range(30):  # ordered by one that nobody hears any more
        a.publish(f"old {number}")
        cluster.run(0.01)
    cluster.until(lambda: len(b.core.in_step) == 2 and a.core.stranded)
    a.node.platter.sync_latency = 0.003
    heal()
    cluster.until(lambda: a.serves, 60)
    cluster.run(20)  # whatever hung has ended
    for host in (a, c):
        host.node.platter.sync_latency = HANGS
    b.publish("new")
    cluster.run(2)
    assert b.confirmed == []
