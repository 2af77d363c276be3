"""What a confirm rests on: syncs of a majority of the voters, each in the present life of its store."""

from __future__ import annotations

from cluster_rig import Cluster, Host

from coterie.cluster.ready import BeginLife

HANGS = 1000.0
"""Seconds: a sync that does not end within a test."""


def first_of(hosts: list[Host]) -> tuple[Host, list[Host]]:
    """The one that orders everybody's events, and the others."""
    oldest = hosts[0].member.replica.in_step[0]
    return next(host for host in hosts if host.member.replica.us == oldest), [
        host for host in hosts if host.member.replica.us != oldest
    ]


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
    cluster.until(lambda: len(b.member.replica.in_step) == 2 and a.member.replica.state.live)
    a.node.platter.sync_latency = 0.003
    heal()
    cluster.until(lambda: a.serves, 60)
    cluster.run(20)  # whatever hung has ended
    for host in (a, c):
        host.node.platter.sync_latency = HANGS
    b.publish("new")
    cluster.run(2)
    assert b.confirmed == []


def test_a_sync_that_ends_in_another_life_reports_nothing() -> None:
    cluster = Cluster(3)
    a = cluster.started()[0]
    a.declare()
    cluster.settle()
    a.node.platter.sync_latency = 2.0
    a.publish("one")
    cluster.run(0.1)
    a.member.replica.commit.begin(a.member.replica.us, a.member.replica.place)
    a.member._carry_out([BeginLife()])
    cluster.run(5)
    assert a.member.replica.commit.disks.upto[a.member.replica.us] == 0
