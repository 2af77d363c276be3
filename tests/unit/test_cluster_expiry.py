"""Time in a cluster: what has expired by the time of the log is given to nobody, wherever it stands."""

from __future__ import annotations

import pytest
from cluster_rig import Cluster, Host
from queue_view import seen

from coterie.broker.vhost import Got
from coterie.cluster import wire
from coterie.cluster.log_time import LogTime
from coterie.sim.runtime import SimRuntime


def held(answers: list[object]) -> str | None:
    (answer,) = answers
    assert answer is None or isinstance(answer, Got)
    return None if answer is None else answer.delivery.messages[0].body.decode()


def three(dispatch: str = "credit") -> tuple[Cluster, Host, Host, Host]:
    cluster = Cluster(3, dispatch=dispatch)
    a, b, c = cluster.started()
    a.declare("dead")
    a.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    return cluster, a, b, c


def bodies(host: Host, queue: str) -> list[str]:
    return [body for _, body, _, _ in host.content(queue)]


@pytest.mark.parametrize("dispatch", ["credit", "ownership"])
def test_what_expired_behind_a_live_head_is_not_delivered(dispatch: str) -> None:
    cluster, a, b, _ = three(dispatch=dispatch)
    a.publish("head")
    a.publish("brief", expiration="200")
    a.publish("tail")
    cluster.run(1)
    assert bodies(b, "q") == ["head", "brief", "tail"], "it leaves when it comes to the head"
    client = b.consume()
    cluster.settle()
    assert client.seen == ["head", "tail"]
    assert bodies(a, "dead") == ["brief"]
    cluster.check_alike()
    cluster.check_alike("dead")


def test_nor_is_it_got() -> None:
    cluster, a, b, _ = three()
    a.publish("head")
    a.publish("brief", expiration="200")
    a.publish("tail")
    cluster.run(1)
    got = []
    for _ in range(3):
        answers = b.get(no_ack=True)
        cluster.settle()
        got.append(held(list(answers)))
    assert got == ["head", "tail", None]
    cluster.check_alike()
    assert bodies(a, "dead") == ["brief"]


def test_nor_leased() -> None:
    cluster, a, b, _ = three()
    a.publish("head")
    a.publish("brief", expiration="200")
    a.publish("tail")
    cluster.run(1)
    b.lease("acquire")
    cluster.settle()
    assert [(body, who) for _, body, who, _ in b.content()] == [("head", "lease l"), ("tail", "lease l")]
    assert bodies(a, "dead") == ["brief"]
    cluster.check_alike()


def test_what_waits_for_a_slow_consumer_until_its_time_is_over_is_not_delivered() -> None:
    cluster, a, b, _ = three()
    client = b.consume()
    cluster.settle()
    room = client.room
    client.room = lambda consumer: 0  # type: ignore[method-assign]
    a.publish("brief", expiration="200")
    a.publish("lasting")
    cluster.run(1)
    client.room = room  # type: ignore[method-assign]
    b.queue().wake(client.consumer)
    cluster.settle()
    assert client.seen == ["lasting"]
    assert bodies(a, "dead") == ["brief"]
    cluster.check_alike()


def test_clocks_that_do_not_agree_change_nothing() -> None:
    cluster = Cluster(3)
    for node, skew in zip(cluster.nodes, (0.0, 3600.0, -3600.0), strict=True):
        node.skew = skew
    a, b, c = cluster.started()
    a.declare()
    for host in (a, b, c):
        host.publish(f"brief of {host.name}", expiration="5000")
    cluster.settle()
    cluster.run(2)
    for host in (c, a, b):
        host.publish(f"later of {host.name}")
    cluster.settle()
    client = c.consume()
    cluster.settle()
    assert len(client.seen) == 6, "nothing has expired"
    client.release()
    client.cancel()
    cluster.run(5)
    client = a.consume()
    cluster.settle()
    assert sorted(client.seen) == ["later of a", "later of b", "later of c"]
    cluster.check_alike()


def test_one_that_was_updated_decides_as_the_others() -> None:
    cluster, a, b, c = three()
    c.kill()
    a.publish("head")
    a.publish("brief", expiration="1500")
    a.publish("long", expiration="60000")
    cluster.settle()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    expires = [[entry.expires for entry in seen(host.queue()).values()] for host in (a, b, c)]
    assert expires[0] == expires[1] == expires[2]
    cluster.run(2)
    client = c.consume()
    cluster.settle()
    assert client.seen == ["head", "long"]
    cluster.check_alike()


def test_after_a_restart_of_all_the_time_that_passed_counts() -> None:
    cluster, a, b, c = three()
    a.publish("head")
    a.publish("brief", expiration="2000")
    a.publish("long", expiration="60000")
    cluster.settle()
    for host in (a, b, c):
        host.kill()
    cluster.run(3)
    hosts = [cluster.start(number) for number in range(3)]
    cluster.until(lambda: all(host.serves for host in hosts))
    client = hosts[1].consume()
    cluster.settle()
    assert client.seen == ["head", "long"]
    cluster.check_alike()


def test_a_message_without_time_is_given_at_once_or_to_nobody() -> None:
    cluster, a, b, _ = three()
    client = b.consume(prefetch=1)
    cluster.settle()
    a.publish("now", expiration="0")
    a.publish("never", expiration="0")
    a.publish("lasting")
    cluster.settle()
    client.accept()
    cluster.settle()
    assert client.seen == ["now", "lasting"]
    cluster.check_alike()


def test_a_cluster_that_is_upgraded_begins_its_time_with_the_first_event_of_the_new_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(3)
    with monkeypatch.context() as old:
        old.setattr("coterie.cluster.wire.VERSION", wire.LOG_TIME - 1)
        a, b, c = cluster.started()
        a.declare()
        a.publish("head")
        a.publish("brief", expiration="1000")
        cluster.settle()
        assert not any(host.member.turn.time.begun for host in (a, b, c))
    for host in (a, b, c):
        host.member.replica.versions.newest = wire.VERSION
        host.member.replica.versions._speaks = dict.fromkeys("abc", wire.VERSION)
        host.member.replica.versions.settle("abc", "abc")
    a.publish("other")
    cluster.settle()
    expires = [[entry.expires for entry in seen(host.queue()).values()] for host in (a, b, c)]
    assert expires[0] == expires[1] == expires[2]
    cluster.run(1.5)
    client = c.consume()
    cluster.settle()
    assert client.seen == ["head", "other"]
    cluster.check_alike()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf"), -1e300])
def test_a_time_that_is_none_moves_nothing(odd: float) -> None:
    cluster = Cluster(1)
    (a,) = cluster.started()
    assert isinstance(a.runtime, SimRuntime)
    time = LogTime(a.runtime)
    time.begin(100.0)
    assert 100.0 < time.reach(odd) < 100.1
    before = time.now()
    assert time.reach(50.0) <= time.now()
    assert time.now() >= before
