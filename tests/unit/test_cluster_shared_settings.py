"""Settings that decide something inside an event are the same on all brokers of a cluster, or a broker is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_rig import Cluster, Host

from coterie.broker.settings import BrokerSettings
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.shared_settings import DISPATCH
from coterie.settings import describe, shared_values

SHARED = shared_values(broker=BrokerSettings(), cluster=ClusterSettings())
OTHER = {name: "ownership" if isinstance(value, str) else value + 1 for name, value in SHARED.items()}


def restarted(cluster: Cluster, number: int, **given: object) -> Host:
    """With other settings, by their names; the cluster's stay what they are."""
    usual = cluster.settings, cluster.broker_settings
    names = [(*name.split("."), value) for name, value in given.items()]
    of = {section: {name: value for each, name, value in names if each == section} for section in ("broker", "cluster")}
    cluster.settings = replace(cluster.settings, **of["cluster"])  # type: ignore[arg-type]
    cluster.broker_settings = replace(cluster.broker_settings or BrokerSettings(), **of["broker"])  # type: ignore[arg-type]
    host = cluster.start(number)
    cluster.settings, cluster.broker_settings = usual
    return host


def stopped(cluster: Cluster, host: Host, others: int = 2) -> None:
    host.kill(power=False)
    rest = [each for each in cluster.hosts if each is not host]
    cluster.until(lambda: all(len(each.member.replica.in_step) == others for each in rest))


@pytest.mark.parametrize("name", SHARED)
def test_a_broker_with_another_value_is_refused_on_both_sides_and_let_in_with_the_same(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    stopped(cluster, c)
    c = restarted(cluster, 2, **{name: OTHER[name]})
    cluster.until(lambda: "refuses" in c.member.status().why)
    a.publish("while it is away")
    cluster.until(lambda: a.confirmed == ["while it is away"])
    cluster.run(5)
    words = f"its {name} is {OTHER[name]}, and that of the cluster is {SHARED[name]}: change it there"
    assert not c.opened
    assert words in c.member.status().why
    told = {record.getMessage(): str(vars(record)) for record in caplog.records}
    assert words in told["a broker is refused"]
    assert words in told["the cluster refuses this broker"]
    c.kill()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.check_alike()
    assert b.serves


def test_all_that_differs_is_named() -> None:
    cluster = Cluster(3)
    _, _, c = cluster.started()
    stopped(cluster, c)
    given = {"broker.queues_max": 5, "broker.death_records_max": 3}
    c = restarted(cluster, 2, **given)
    cluster.until(lambda: "refuses" in c.member.status().why)
    why = c.member.status().why
    assert "its broker.death_records_max is 3, and that of the cluster is 100; its broker.queues_max is 5, and" in why


def test_a_setting_is_changed_by_stopping_a_majority_and_starting_it_with_the_new_value() -> None:
    """One broker after the other, too: but nobody serves until a majority has the new value."""
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish("before")
    cluster.until(lambda: a.confirmed == ["before"])
    new = {"broker.queues_max": 1}
    stopped(cluster, c)
    a.publish("meanwhile")
    cluster.until(lambda: a.confirmed == ["before", "meanwhile"])
    c = restarted(cluster, 2, **new)
    cluster.until(lambda: "refuses" in c.member.status().why)
    b.kill()
    b = restarted(cluster, 1, **new)
    cluster.until(lambda: b.serves and c.serves)
    assert [body for _, body, _, _ in c.content()] == ["before", "meanwhile"]
    cluster.until(lambda: "its broker.queues_max is 100000, and that of the cluster is 1" in a.member.status().why)
    assert not a.opened
    a.kill()
    a = restarted(cluster, 0, **new)
    cluster.until(lambda: a.serves)
    a.declare("one too many")
    assert "the limit of 1 queues is reached" in str(a.errors)
    cluster.check_alike()


def test_brokers_of_which_nobody_knows_who_is_right_say_what_differs() -> None:
    cluster = Cluster(2)
    a = cluster.start(0)
    b = restarted(cluster, 1, **{"broker.lease_rows_max": 7})
    cluster.run(5)
    for host in (a, b):
        assert not host.opened
        assert "broker.lease_rows_max is not the same everywhere: 100000, 7" in host.member.status().why


# A version that tells less.


def old(host: Host) -> Host:
    """Of a version that knows of `cluster.dispatch` alone."""
    host.member.replica.shared = {DISPATCH: "credit"}
    return host


def test_what_a_broker_does_not_tell_keeps_it_out_of_no_cluster() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    stopped(cluster, c)
    c = old(restarted(cluster, 2, **{"broker.queues_max": 5}))
    cluster.until(lambda: c.serves)
    for host in (a, b):
        stopped(cluster, host)
        upgraded = cluster.start(int(host is b))
        cluster.until(lambda each=upgraded: each.serves)  # type: ignore[misc]
    cluster.check_alike()


def test_another_dispatch_is_refused_whatever_else_is_not_told() -> None:
    cluster = Cluster(3)
    _, _, c = cluster.started()
    stopped(cluster, c)
    c = restarted(cluster, 2, **{DISPATCH: "ownership"})
    c.member.replica.shared = {DISPATCH: "ownership"}
    cluster.until(lambda: "its cluster.dispatch is ownership, and that of the" in c.member.status().why)


def test_the_reference_says_which_settings_are_shared() -> None:
    for kind in (BrokerSettings, ClusterSettings):
        for item in describe(kind):
            assert item.help.endswith("; the same on every broker of a cluster") == item.shared
