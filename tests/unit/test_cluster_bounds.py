"""What a clustered broker keeps in memory for a while, each with a bound (docs/operations.md has the table)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_rig import Cluster, Host

from coterie.cluster.catchup.update import Update
from coterie.cluster.proposer import GATHERED_MAX
from coterie.cluster.wire import Kind
from coterie.group.channel import BufferFull, ChannelClosed
from coterie.runtime.base import Future


def two_and_a_newcomer(**settings: object) -> tuple[Cluster, Host, Host]:
    cluster = Cluster(3, True, **settings)
    a, _, c = cluster.started()
    a.declare()
    a.publish(*(f"{number}" for number in range(30)))
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    return cluster, a, cluster.start(2)


def test_what_a_newcomer_keeps_is_bounded_and_the_update_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index takes long, and meanwhile others go on."""
    cluster, a, c = two_and_a_newcomer(kept_max=5_000)
    slow: list[Callable[[], None]] = []
    real = Update.part
    monkeypatch.setattr(
        Update, "part", lambda update, sender, data: slow.append(lambda: real(update, sender, memoryview(bytes(data))))
    )
    most = 0
    for number in range(100):
        a.publish(f"{number}".ljust(500))
        cluster.run(0.02)
        most = max(most, 0 if c.member.catchup._update is None else c.member.catchup._update._kept_bytes)
    assert 4_000 < most < 8_000
    assert c.member.catchup._update is not None
    assert not c.member.catchup._update._kept
    monkeypatch.setattr(Update, "part", real)
    for part in slow:  # they come after all
        part()
    cluster.until(lambda: c.serves)
    cluster.check_alike()


def test_an_update_that_is_given_up_again_and_again_is_asked_for_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, a, c = two_and_a_newcomer(kept_max=1)
    asked = 0
    multicast = c.member.outbox.multicast

    def counted(kind: Kind, data: bytes) -> None:
        nonlocal asked
        asked += kind is Kind.STATUS
        multicast(kind, data)

    monkeypatch.setattr(c.member.outbox, "multicast", counted)
    for _ in range(1_100):
        a.publish("more")
        cluster.run(0.003)
    assert 2 <= asked <= 4, "after 1, 2 and 4 seconds"
    assert not c.opened
    cluster.until(lambda: c.serves, 60)
    cluster.check_alike()


def test_a_consumer_that_waits_for_a_body_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, c = two_and_a_newcomer(update_batch=1)
    with monkeypatch.context() as deaf:
        deaf.setattr("coterie.cluster.catchup.backfill.Backfill.bodies", lambda backfill, data: None)
        cluster.until(lambda: c.opened)
        c.member.applier.peer(c.member.replica.us).unready.clear()  # as if the queue were ready here
        for host in cluster.live():
            host.member.applier.peer(c.member.replica.us).unready.clear()
        client = c.consume(prefetch=5)
        cluster.settle()
        for _ in range(50):
            c.queue().wake(client.consumer)
        assert c.member.catchup.backfill is not None
        assert len(c.member.catchup.backfill._waiting) == 1


def test_too_much_that_waits_to_be_sent_stops_publishers() -> None:
    cluster = Cluster(3, backlog_max=2_000)
    a, _, _ = cluster.started()
    a.declare()
    heal = cluster.part("a")
    for number in range(40):
        a.publish(f"{number}".ljust(500))
    cluster.run(0.05)
    assert a.member.outbox.local.waiting_bytes < 2_000 or "cluster" in a.broker.blocked
    cluster.run(5)
    assert a.broker.blocked.startswith("low on cluster")
    heal()
    cluster.until(lambda: not a.broker.blocked)


def test_a_consumer_that_changes_its_mind_again_and_again_costs_one_event() -> None:
    cluster = Cluster(3, backlog_max=2_000)
    a, _, _ = cluster.started()
    a.declare()
    client = a.consume(prefetch=1)
    cluster.settle()
    heal = cluster.part("a")
    cluster.until(lambda: a.member.replica.state.live)
    for number in range(500):
        client.prefetch = 1 + number % 7
        a.queue().wake(client.consumer)
    assert a.member.outbox.local.waiting_bytes < 2_100
    client.prefetch = 5
    a.queue().wake(client.consumer)
    heal()
    cluster.until(lambda: a.opened and not len(a.member.outbox.local), 60)
    if not client.gone:
        assert [subscriber.limit for subscriber in a.member.applier.peer(a.member.replica.us).subscribers.values()] == [
            5
        ]


def test_publishes_that_wait_for_events_of_ours_are_sent_when_they_are_many() -> None:
    cluster = Cluster(3)
    a, _, _ = cluster.started()
    a.declare()
    most = 0
    for _ in range(200):
        a.publish("x" * 10_000)
        waiting = a.member.proposer._publishing
        most = max(most, 0 if waiting is None else waiting.size)
    assert 100_000 < most <= GATHERED_MAX + 10_000
    cluster.until(lambda: len(a.confirmed) == 200)


def test_replies_that_there_is_no_room_for_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3, backlog_max=2_000)
    a, b, _ = cluster.started()

    def full(*_: object) -> None:
        raise BufferFull

    room: Future[None] = a.runtime.future()

    async def wait(*_: object) -> None:
        await room

    monkeypatch.setattr(a.member.channel, "send_nowait", full)
    monkeypatch.setattr(a.member.channel, "send", wait)
    for _ in range(100):
        a.member.replies.hand_over(b.member.replica.us, "/", [a.made("x" * 100).message])
    assert a.member.replies._waiting_bytes < 2_300
    assert a.member.replies.dropped > 70
    room.set_exception(ChannelClosed("it is over"))
    cluster.run(0.1)
