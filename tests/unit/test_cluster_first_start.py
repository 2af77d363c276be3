"""Brokers that meet for the first time: what one of them has of its own is what all of them have from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_rig import Cluster, Host

from coterie.broker.policy import Policy
from coterie.broker.specs import Binding
from coterie.broker.users import USER, Users, UserSettings
from coterie.cluster.catchup.snapshot import outline

USERS = {"bob": {"algorithm": "", "password": "", "tags": [], "permissions": {}, "limits": {}, "topics": {}}}


def has_a_user(host: Host) -> None:
    host.broker.put_records([(USER, name, dict(record)) for name, record in USERS.items()])


def has_a_binding(host: Host) -> None:
    host.vhost.add_binding(Binding("amq.direct", "exchange", "amq.fanout", "key"))


def has_a_limit(host: Host) -> None:
    host.vhost.put_limit("max-queues", 5)


def has_a_policy_of_an_operator(host: Host) -> None:
    host.vhost.put_policy("short", Policy("short", ".*", {"max-length": 8}), operator=True)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("deed", [has_a_user, has_a_binding, has_a_limit, has_a_policy_of_an_operator])
def test_what_one_of_them_has_all_have(deed: Callable[[Host], None], number: int) -> None:
    cluster = Cluster(3)
    host = cluster.start(number)
    cluster.settle()
    deed(host)
    cluster.settle()
    host.kill(power=False)
    hosts = cluster.started()
    cluster.settle()
    said = [outline(each.broker, each.member.applier) for each in hosts]
    assert said[0] == said[1] == said[2]
    assert said[0] != outline(Cluster(1).started()[0].broker, hosts[0].member.applier)


def shared(host: Host, guest: bool = True) -> Users:
    """As a node starts."""
    users = Users(host.runtime, host.store, UserSettings(guest=guest))
    users.restore([(name, record) for (kind, name), record in host.broker.records.items() if kind == USER])
    users.share(host.broker)
    return users


def test_a_broker_that_has_nobody_but_the_user_of_every_new_broker_is_empty() -> None:
    cluster = Cluster(1, durable=False)
    (host,) = cluster.started()
    assert host.broker.empty
    users = shared(host)
    assert host.broker.empty
    users.put("guest", None, (), lambda _: None)
    cluster.settle()
    assert not host.broker.empty


def met(cluster: Cluster, *guest: bool) -> list[Host]:
    """Brokers that start as nodes do."""
    hosts = []
    for number, each in enumerate(guest):
        host = cluster.start(number)
        host.member.replica.beginning = {"users.guest": each}
        cluster.until(lambda here=host: "/" in here.broker.vhosts)  # type: ignore[misc]
        shared(host, each)
        hosts.append(host)
    return hosts


def test_brokers_do_not_begin_if_only_some_of_them_have_a_guest() -> None:
    cluster = Cluster(3)
    hosts = met(cluster, True, False, True)
    cluster.run(5)
    for host in hosts:
        assert not host.opened
        assert host.member.status().why == "users.guest is not the same everywhere: false, true"


def test_once_a_cluster_has_begun_the_guest_of_new_brokers_is_nobodys_business() -> None:
    cluster = Cluster(3)
    hosts = met(cluster, False, False, False)
    cluster.until(lambda: all(host.serves for host in hosts))
    for host in hosts[1:]:
        host.kill()
    hosts[1:] = [cluster.start(number) for number in (1, 2)]
    for host in hosts[1:]:
        host.member.replica.beginning = {"users.guest": True}
    cluster.until(lambda: all(host.serves for host in hosts))
    assert not any(host.broker.records for host in hosts)
