"""Named leases in a cluster: every broker has them, and none of them loses them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cluster_rig import Cluster, Host
from queue_view import seen

from coterie.broker.leases import ACQUIRE, END, RELEASE, RETIRE, TAKE
from coterie.broker.settings import BrokerSettings
from coterie.cluster.wire import LEASES
from coterie.errors import ProtocolError


def done(cluster: Cluster, host: Host, do: str, **more: Any) -> dict[str, Any]:
    """The answer to a step."""
    answers = host.lease(do, **more)
    cluster.until(lambda: bool(answers))
    (answer,) = answers
    assert isinstance(answer, dict), answer
    return answer


def three(*bodies: str, durable: bool = True) -> tuple[Cluster, list[Host]]:
    """With a queue that has these."""
    cluster = Cluster(3)
    hosts = cluster.started()
    hosts[0].declare(durable=durable)
    hosts[0].publish(*bodies)
    cluster.settle()
    return cluster, hosts


def test_all_brokers_have_a_lease_and_any_of_them_retires_what_it_holds() -> None:
    cluster, (a, b, c) = three("one", "two", "three")
    answer = done(cluster, a, ACQUIRE, rows=2)
    assert (answer["acquired"], answer["pieces"]) == (2, [[0, 1, 2, False]])
    assert not b.vhost.cluster.has_come_to("99.0")
    cluster.until(lambda: b.vhost.cluster.has_come_to(answer["at"]))
    client = b.consume()
    cluster.settle()
    assert client.seen == ["three"]
    cluster.check_alike()
    assert done(cluster, c, RETIRE, upto=1)["first"] == 1
    assert done(cluster, b, RELEASE)["count"] == 0
    cluster.settle()
    assert (client.seen, client.flags["two"]) == (["three", "two"], True)
    done(cluster, a, END)
    cluster.check_alike()
    assert a.leases() == []


def test_two_brokers_clients_that_want_the_same_lease_get_different_messages() -> None:
    cluster, (a, b, _) = three("one", "two", "three")
    first, second = a.lease(ACQUIRE, rows=1), b.lease(ACQUIRE, rows=1, after=0)
    cluster.settle()
    found = [*first, *second]
    assert sum(answer["acquired"] for answer in found if isinstance(answer, dict)) == 1
    cluster.check_alike()


def test_a_session_that_was_taken_over_changes_nothing_wherever_it_asks() -> None:
    cluster, (a, b, _) = three("one", "two")
    done(cluster, a, ACQUIRE)
    done(cluster, b, TAKE, session="t")
    late = a.lease(RETIRE, upto=2)
    cluster.settle()
    assert isinstance(late[0], ProtocolError)
    assert len(a.content()) == 2


@pytest.mark.parametrize("durable", [True, False])
def test_a_lease_outlives_the_broker_through_which_it_was_taken(durable: bool) -> None:
    cluster, (a, b, c) = three("one", "two", "three", durable=durable)
    lease = done(cluster, a, ACQUIRE, rows=2)
    client = a.consume(prefetch=5)
    cluster.settle()
    a.kill()
    cluster.until(lambda: len(b.member.replica.in_step) == 2)
    cluster.settle()
    assert [(body, who) for _, body, who, _ in b.content()] == [("one", "lease l"), ("two", "lease l"), ("three", "")]
    assert client.seen == ["three"]
    cluster.check_alike()
    again = done(cluster, c, ACQUIRE)
    assert again["id"] == lease["id"]
    assert again["pieces"] == [[0, 1, 2, False], [2, 3, 3, True]]


def test_a_lease_that_nobody_uses_ends_everywhere_though_whoever_kept_the_time_is_lost() -> None:
    cluster = Cluster(3)
    cluster.broker_settings = BrokerSettings(lease_expires=20)
    a, b, c = cluster.started()
    a.declare()
    a.publish("one", "two")
    cluster.settle()
    done(cluster, b, ACQUIRE)
    cluster.run(15)
    done(cluster, c, TAKE)
    cluster.run(15)
    assert all(host.vhost.queues["q"].leases for host in (a, b, c)), "wherever it is used"
    keeper = next(host for host in (a, b, c) if host.member.replica.keeps_time())
    keeper.kill()
    left = [host for host in (a, b, c) if host is not keeper]
    cluster.until(lambda: not any(host.vhost.queues["q"].leases for host in left))
    cluster.settle()
    assert [(body, who, flag) for _, body, who, flag in left[0].content()] == [("one", "", True), ("two", "", True)]
    cluster.check_alike()


def test_a_newcomer_has_the_leases_and_what_they_hold() -> None:
    cluster, (a, b, c) = three("one", "two", "three", "four")
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    done(cluster, a, ACQUIRE, rows=2)
    done(cluster, a, RELEASE, first=1)
    done(cluster, a, ACQUIRE, rows=2)
    done(cluster, b, ACQUIRE, name="idle", rows=0)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.check_alike()
    assert len(c.leases()) == 2
    assert done(cluster, c, RETIRE, upto=99)["count"] == 0
    cluster.check_alike()
    assert [body for _, body, _, _ in a.content()] == ["four"]


def test_steps_that_come_while_a_newcomer_is_updated_reach_it() -> None:
    cluster, (a, b, c) = three(*(f"m{n}" for n in range(40)))
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    done(cluster, a, ACQUIRE, rows=10)
    c = cluster.start(2)
    at = 0
    while not c.serves:
        done(cluster, b, ACQUIRE, rows=1)
        at += 1
        done(cluster, a, RETIRE, upto=at)
        assert at < 30
    assert at > 1
    cluster.check_alike()


@pytest.mark.parametrize("power", [True, False])
def test_leases_of_durable_queues_outlive_a_restart_of_all(power: bool) -> None:
    cluster, (a, b, c) = three("one", "two", "three", "four")
    done(cluster, a, ACQUIRE, rows=2)
    done(cluster, b, RELEASE, first=1)
    done(cluster, c, ACQUIRE, rows=2)
    lease = done(cluster, b, RETIRE, upto=1)
    for host in (a, b, c):
        host.kill(power)
    a, b, c = (cluster.start(number) for number in range(3))
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    cluster.check_alike()
    again = done(cluster, a, ACQUIRE, rows=0)
    assert {**again, "at": 0, "more": 0} == {**lease, "at": 0, "more": 0}
    assert again["pieces"] == [[2, 2, 2, True], [3, 3, 3, False]]
    assert [(body, who) for _, body, who, _ in c.content()] == [("two", "lease l"), ("three", "lease l"), ("four", "")]


def test_without_a_majority_no_step_is_answered_and_then_it_is_taken_once() -> None:
    cluster, (a, b, _) = three("one", "two", "three")
    heal = cluster.part("a")
    answers = a.lease(ACQUIRE, rows=1)
    cluster.run(8)
    assert answers == []
    assert a.vhost.cluster.may_serve()
    assert not b.vhost.cluster.may_serve()
    lease = done(cluster, b, ACQUIRE, rows=1)
    heal()
    cluster.until(lambda: a.serves)
    cluster.check_alike()
    assert not a.vhost.cluster.may_serve()
    assert done(cluster, a, ACQUIRE, rows=0)["pieces"] == lease["pieces"]


def test_a_cluster_with_an_old_voter_says_that_it_knows_no_leases() -> None:
    cluster = Cluster(3)
    a, b, c = (cluster.start(number) for number in range(3))
    c.member.replica.versions.newest = LEASES - 1
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    a.declare()
    (answer,) = a.lease(ACQUIRE)
    assert isinstance(answer, ProtocolError)
    assert "too old for leases" in str(answer)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_nothing_is_held_twice_and_retired_ones_never_come_back(seed: int) -> None:
    """A reader that leases, retires, crashes and takes over, at any broker, while brokers are killed and restarted, and
    others publish and consume."""
    chance = random.Random(seed)
    cluster, hosts = three()
    published = session = 0
    retired: set[int] = set()
    lease: dict[str, Any] | None = None
    for _ in range(40):
        host = chance.choice(cluster.live())
        match chance.randrange(6):
            case 0 | 1:
                host.publish(*(f"m{published + n}" for n in range(5)))
                published += 5
            case 2:
                after = None if lease is None else lease["next"]
                lease = done(cluster, host, ACQUIRE, rows=chance.randrange(1, 8), after=after, session=str(session))
            case 3 if lease is not None:
                upto = chance.randrange(lease["first"], lease["next"] + 1)
                for offset, first, last, _ in lease["pieces"]:
                    retired.update(range(first, min(last, first + upto - offset - 1) + 1))
                lease = done(cluster, host, RETIRE, upto=upto, session=str(session))
                assert lease["first"] >= upto
            case 4 if lease is not None:
                session += 1
                lease = done(cluster, host, TAKE, session=str(session))
            case 5:
                victim = chance.choice(hosts)
                if all(other.serves for other in hosts):
                    victim.kill()
                    hosts[hosts.index(victim)] = cluster.start(cluster.nodes.index(victim.node))
                    cluster.until(lambda: len(cluster.live()) >= 2)
        cluster.run(0.05)
    cluster.until(lambda: all(host.serves for host in hosts))
    cluster.check_alike()
    assert lease is not None
    end = done(cluster, hosts[0], ACQUIRE, rows=0, session=str(session))
    content = hosts[0].content()
    assert retired
    assert not retired & {position for position, _, _, _ in content}
    assert end["count"] == sum(1 for _, _, who, _ in content if who)
    assert end["count"] == sum(last - first + 1 for _, first, last, _ in end["pieces"])
    confirmed = {body for host in cluster.every for body in host.confirmed}
    assert len(confirmed) <= len(content) + len(retired) <= published


@pytest.mark.parametrize("all_restart", [False, True])
def test_a_leased_value_that_was_replaced_is_known_as_such_by_whoever_comes_later(all_restart: bool) -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare(arguments={"x-last-value-key": "k"})
    a.publish("old", headers={"k": 1})
    cluster.settle()
    done(cluster, a, ACQUIRE, rows=1)
    a.publish("new", headers={"k": 1})
    cluster.settle()
    client = b.consume()
    cluster.settle()
    client.accept("new")
    cluster.settle()
    for host in (a, b, c) if all_restart else (c,):
        host.kill()
    cluster.settle()
    hosts = [cluster.start(number) for number in range(3)] if all_restart else [a, b, cluster.start(2)]
    cluster.until(lambda: all(host.serves for host in hosts))
    assert [[entry.position for entry in seen(host.queue()).values()] for host in hosts] == [[1], [1], [1]]
    done(cluster, hosts[2], RELEASE)
    cluster.settle()
    assert [[*seen(host.queue())] for host in hosts] == [[], [], []]
