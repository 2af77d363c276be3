"""Void events: what cannot be carried out has happened nowhere, is answered with an error, and stops nobody (B15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cluster_rig import Cluster, Host

from coterie.amqp.wire.codes import INTERNAL_ERROR, PRECONDITION_FAILED
from coterie.broker import dead_letter, graveyard
from coterie.broker.delivery import HeldRanges
from coterie.broker.entry import Entry
from coterie.broker.graveyard import Cascade
from coterie.broker.observer import QueueObserver, Reason
from coterie.broker.policy import Policy
from coterie.broker.queue import Queue
from coterie.broker.specs import Binding, ExchangeSpec
from coterie.broker.users import Users
from coterie.broker.vhost import Got
from coterie.cluster import wire
from coterie.cluster.outbox import Asked
from coterie.cluster.wire import Kind
from coterie.errors import ProtocolError


def letters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a mistake were left in the making of dead letters: also where everything that comes in is checked."""

    def make_letter(*args: object) -> Any:
        raise AssertionError("a mistake")

    monkeypatch.setattr(graveyard, "make_letter", make_letter)


def dying(a: Host, **more: Any) -> None:
    a.declare("letters")
    a.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters", **more})


def goes_on(cluster: Cluster, *hosts: Host) -> None:
    """All serve, are alike, confirm and deliver."""
    cluster.settle()
    assert all(host.serves for host in hosts)
    for host in hosts:
        name = f"after {host.name}"
        host.declare(name)
        host.publish(f"to {name}", key=name)
        client = hosts[0].consume(name)
        cluster.settle()
        assert client.seen == [f"to {name}"]
        assert f"to {name}" in host.confirmed
        client.accept()
        client.cancel()
        cluster.check_alike(name)
        assert hosts[0].content(name) == []
    assert len({(host.member.voids.count, host.member.voids.sum) for host in hosts}) == 1


def test_messages_that_cannot_die_stay_and_nobody_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    hosts = a, b, c = cluster.started()
    letters_fail(monkeypatch)
    dying(a, **{"x-message-ttl": 50})
    b.publish("one", "two")
    cluster.run(1.0)
    assert b.confirmed == ["one", "two"]
    assert [body for _, body, _, _ in c.content("q")] == ["one", "two"]
    assert a.member.voids.count >= 3  # both together, and each alone
    goes_on(cluster, *hosts)


def test_what_cannot_expire_is_told_of_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    a, *_ = cluster.started()
    letters_fail(monkeypatch)
    dying(a, **{"x-message-ttl": 50})
    a.publish("one")
    cluster.run(120.0)
    assert 5 <= a.member.voids.count <= 10


def test_one_that_cannot_expire_does_not_keep_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    a, b, _ = cluster.started()
    dying(a, **{"x-message-ttl": 50})
    right = dead_letter.make_letter

    def make_letter(message: Any, *args: Any) -> Any:
        if message.body == b"bad":
            raise AssertionError("a mistake")
        return right(message, *args)

    monkeypatch.setattr(graveyard, "make_letter", make_letter)
    a.publish("one", "two", "bad", "three", "four")
    cluster.run(1.0)
    assert sorted(body for _, body, _, _ in b.content("letters")) == ["four", "one", "three", "two"]
    assert [body for _, body, _, _ in b.content("q")] == ["bad"]


def test_a_cluster_that_was_stopped_by_what_it_has_stored_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    a, *_ = cluster.started()
    dying(a, **{"x-message-ttl": 1000})
    a.declare("other")
    a.publish("one")
    a.publish("two", key="other")
    cluster.settle()
    letters_fail(monkeypatch)
    for host in list(cluster.hosts):
        host.kill()
    cluster.run(2.0)
    hosts = cluster.started()
    cluster.run(2.0)
    assert hosts[0].member.voids.count
    goes_on(cluster, *hosts)
    assert [body for _, body, _, _ in hosts[1].content("other")] == ["two"]


def test_a_reject_that_is_void_is_told_and_the_message_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    hosts = a, b, _ = cluster.started()
    dying(a)
    a.publish("one")
    client = b.consume("q", prefetch=1)
    cluster.settle()
    letters_fail(monkeypatch)
    client.reject("one")
    cluster.settle()
    assert [error.reply_code for error in client.failures] == [INTERNAL_ERROR]
    assert client.seen == ["one", "one"]
    client.accept("one")
    cluster.settle()
    assert a.content("q") == []
    goes_on(cluster, *hosts)


def test_a_publish_that_is_void_is_nacked_and_an_innocent_one_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second publish makes the queue too long, its oldest dies, and that fails: half of an event."""
    cluster = Cluster()
    hosts = a, b, c = cluster.started()
    dying(a, **{"x-max-length": 1})
    a.publish("innocent")
    cluster.settle()
    letters_fail(monkeypatch)
    b.publish("guilty")
    cluster.settle()
    assert a.confirmed == ["innocent"]
    assert b.refused == ["guilty"]
    assert c.content("q") == [(1, "innocent", "", False)]
    goes_on(cluster, *hosts)
    for host in list(cluster.hosts):
        host.kill()
    monkeypatch.undo()
    a, b, c = cluster.started()
    assert [body for _, body, _, _ in a.content("q")] == ["innocent"]
    assert a.content("letters") == []


def test_whoever_shared_a_void_event_with_others_publishes_apart_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several publish at once through one broker, one of them what cannot be carried out."""
    cluster = Cluster()
    hosts = a, b, _ = cluster.started()
    dying(a, **{"x-max-length": 0})
    a.declare("wide")
    cluster.settle()
    letters_fail(monkeypatch)

    def publish_at_once(turn: int) -> None:
        for number in range(4):
            b.publish(f"innocent {turn}.{number}", key="wide")
        b.publish(f"guilty {turn}")
        b.publish(f"innocent {turn}.4", key="wide")
        cluster.settle()

    publish_at_once(1)
    assert "guilty 1" in b.refused
    assert "innocent 1.4" in b.refused  # it was in the same event
    b.confirmed.clear()
    b.refused.clear()
    publish_at_once(2)
    assert b.confirmed == [f"innocent 2.{number}" for number in range(5)]
    assert b.refused == ["guilty 2"]
    goes_on(cluster, *hosts)


def test_a_transaction_that_is_void_settles_and_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    hosts = a, b, _ = cluster.started()
    dying(a)
    a.declare("other")
    a.publish("one", "two")
    client = b.consume("q")
    cluster.settle()
    letters_fail(monkeypatch)
    done: list[ProtocolError | None] = []
    publish = b.made("three", "other")
    b.vhost.transaction([publish], [client.take("one")], [client.take("two")], [], done.append)
    cluster.settle()
    assert [error and error.reply_code for error in done] == [INTERNAL_ERROR]
    assert publish.refused
    assert a.content("other") == []
    assert sorted(client.held) == ["one", "two"]  # again
    goes_on(cluster, *hosts)


def test_a_transaction_of_answers_alone_that_is_void_is_not_answered_as_if_it_had_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was published that could be refused, and whoever used basic.get has no consumer that could be told."""
    cluster = Cluster()
    hosts = a, b, c = cluster.started()
    dying(a)
    a.publish("one", "two")
    cluster.settle()
    got: list[Got | ProtocolError | None] = []
    for _ in range(2):
        b.vhost.get("q", object(), False, got.append)
    cluster.settle()
    given = [found.delivery for found in got if isinstance(found, Got)]
    first, second = (HeldRanges(each.queue, each.holder, each.ranges) for each in given)
    letters_fail(monkeypatch)
    done: list[ProtocolError | None] = []
    b.vhost.transaction([], [first], [second], [], done.append)
    cluster.settle()
    assert [error and error.reply_code for error in done] == [INTERNAL_ERROR]
    assert [body for _, body, _, _ in c.content("q")] == ["one", "two"]
    client = c.consume("q")
    cluster.settle()
    assert client.seen == ["one", "two"]
    goes_on(cluster, *hosts)


def test_a_void_answer_to_a_message_that_was_replaced_meanwhile_makes_room_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot go back to its queue; but its consumer holds it no more, and has room for the next one."""
    cluster = Cluster()
    hosts = a, b, _ = cluster.started()
    dying(a)
    a.declare("last", {"x-last-value-key": "k"})
    a.publish("old", key="last", headers={"k": 1})
    a.publish("one")
    client, other = b.consume("last", prefetch=1), b.consume("q")
    cluster.settle()
    a.publish("new", key="last", headers={"k": 1})
    cluster.settle()
    assert client.seen == ["old"]
    letters_fail(monkeypatch)
    b.vhost.transaction([], [client.take("old")], [other.take("one")], [], lambda _: None)
    cluster.settle()
    assert client.seen == ["old", "new"]
    client.accept("new")
    other.accept("one")
    goes_on(cluster, *hosts)


def test_a_broker_that_is_lost_gives_back_what_cannot_die(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    a, b, c = cluster.started()
    dying(a, **{"x-delivery-limit": 0})
    a.publish("one")
    b.consume("q")
    cluster.settle()
    letters_fail(monkeypatch)
    b.kill()
    cluster.run(5.0)
    assert a.serves
    assert c.serves
    assert a.content("q") == c.content("q") == [(1, "one", "", True)]


def test_a_policy_that_cannot_be_carried_out_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    hosts = a, b, _ = cluster.started()
    dying(a)
    a.publish("one", "two")
    cluster.settle()
    letters_fail(monkeypatch)
    answers: list[ProtocolError | None] = []
    b.vhost.set_policy(Policy("p", "q", {"max-length": 1}), answers.append)
    cluster.settle()
    assert isinstance(answers[0], ProtocolError)
    assert answers[0].reply_code == INTERNAL_ERROR
    for host in hosts:
        assert not host.vhost.policies
        assert host.queue("q").limits.max_length is None
        assert len(host.queue("q").entries) == 2
    goes_on(cluster, *hosts)


def test_a_user_that_makes_no_sense_is_refused_as_a_whole() -> None:
    cluster = Cluster()
    hosts = a, *_ = cluster.started()
    for host in hosts:
        Users(host.runtime, host.store).share(host.broker)
    answers: list[object] = []
    a.broker.cluster.administer(
        a.broker,
        {
            "do": "record",
            "kind": "user",
            "key": "u",
            "record": {"tags": [], "permissions": {"/": [".*"] * 4}, "limits": {}},
        },
        answers.append,
    )
    cluster.settle()
    assert isinstance(answers[0], ProtocolError)
    assert all(("user", "u") not in host.broker.records for host in hosts)
    goes_on(cluster, *hosts)


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OSError])
def test_what_says_nothing_about_the_event_stops_one_broker_only(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    cluster = Cluster()
    a, b, c = cluster.started()
    a.declare("q")
    a.publish("before")
    cluster.settle()
    right = Queue.enqueue

    def enqueue(self: Queue, messages: Any) -> Any:
        found = right(self, messages)
        if self is c.queue("q"):
            raise error
        return found

    monkeypatch.setattr(Queue, "enqueue", enqueue)
    a.publish("one")
    cluster.run(5.0)
    monkeypatch.undo()
    assert a.confirmed == ["before", "one"]
    assert a.serves
    assert b.serves
    assert not c.serves
    c.kill()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    assert [body for _, body, _, _ in c.content("q")] == ["before", "one"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.PUBLISH, b"\0"),
        (Kind.WIRING, b"[" * 5000),
        (Kind.WIRING, b'{"vhost":"/","do":"DeclareQueue","name":{}}'),
        (Kind.CONSUME, b'{"queue":1}'),
        (Kind.REPLICATE, b"\0\0\0\1/" + b"\0\0\x27\x10" + b"[" * 10_000),
        (Kind.STATUS, b"{}"),
        (Kind.LEASE, b'{"queue":[],"step":{}}'),
        (Kind.TRANSACTION, b"\0\0\0\2{}"),
    ],
)
def test_nonsense_of_a_peer_is_void(kind: Kind, data: bytes) -> None:
    cluster = Cluster()
    hosts = a, *_ = cluster.started()
    a.member.outbox.send(kind, (data,), Asked(b""))
    cluster.settle()
    assert a.member.voids.count == (kind is not Kind.REPLICATE)  # a link is told what is wrong with its step
    goes_on(cluster, *hosts)


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, 255])
def test_an_event_of_a_version_that_the_cluster_does_not_speak_stops_nobody(version: int) -> None:
    cluster = Cluster()
    hosts = a, *_ = cluster.started()
    a.channel.send_nowait(wire.head(Kind.ACCEPT, 1.0, 1, version=version))
    a.channel.send_nowait(wire.head(Kind.ACCEPT, float("nan"), 1))
    cluster.settle()
    goes_on(cluster, *hosts)


def ring(host: Host) -> None:
    """More queues that keep nothing than a letter can tell deaths, each of which sends its dead on to the next."""
    for number in range(103):
        key = f"ring{(number + 1) % 103}"
        host.declare(
            f"ring{number}",
            {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key},
        )


def test_letters_that_would_go_round_for_ever_stop_nobody() -> None:
    cluster = Cluster()
    hosts = a, b, c = cluster.started()
    ring(a)
    b.publish("round", key="ring0")
    cluster.settle()
    assert b.refused == ["round"]
    a.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring0"})
    a.publish("one")
    client = c.consume("q")
    cluster.settle()
    client.reject()
    cluster.settle()
    assert [error.reply_code for error in client.failures] == [PRECONDITION_FAILED]
    assert client.seen == ["one", "one"]
    client.accept("one")
    cluster.settle()
    assert a.member.voids.count == 2
    goes_on(cluster, *hosts)


def test_messages_that_expire_together_do_so_some_at_a_time_if_many_queues_get_the_letters() -> None:
    cluster = Cluster()
    hosts = a, b, c = cluster.started()
    a.vhost.declare_exchange(ExchangeSpec("wide", "fanout"), False, lambda _: None)
    for number in range(100):
        a.declare(f"wide{number}", {"x-max-length": 1})
    cluster.settle()
    for number in range(100):
        a.vhost.bind(Binding("wide", "queue", f"wide{number}", ""), lambda _: None)
    a.declare("q", {"x-message-ttl": 1000, "x-dead-letter-exchange": "wide"})
    cluster.settle()
    b.publish(*(str(number) for number in range(500)))
    cluster.settle()
    steps: list[int] = []

    class Steps(QueueObserver):
        def dequeued(self, queue: Queue, entries: Sequence[Entry], reason: Reason) -> None:
            steps.append(len(entries))

    c.queue("q").observers.append(Steps())
    cluster.run(5.0)
    assert steps == [200, 200, 100]
    assert a.member.voids.count == 0
    assert [host.queue("wide99").counters.enqueued for host in hosts] == [500] * 3
    goes_on(cluster, *hosts)


def test_a_policy_whose_letters_would_go_round_for_ever_is_refused_as_a_whole() -> None:
    cluster = Cluster()
    hosts = a, b, c = cluster.started()
    ring(a)
    a.declare("other")
    a.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring0"})
    a.publish("one", "two")
    cluster.settle()
    answers: list[object] = []
    b.vhost.set_policy(Policy("p", "^(other|q)$", {"max-length": 1}), answers.append)
    cluster.settle()
    assert [type(answer) for answer in answers] == [Cascade]
    assert c.vhost.policies == {}
    assert all(host.queue(name).limits.max_length is None for host in hosts for name in ("other", "q"))
    assert [body for _, body, _, _ in c.content("q")] == ["one", "two"]
    cluster.check_alike("q")
    goes_on(cluster, *hosts)
