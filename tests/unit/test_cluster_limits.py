"""Limits of connections and channels count over all brokers of a cluster."""

from __future__ import annotations

import pytest
from amqp_rig import Client, quick_user
from cluster_rig import Cluster, Host
from test_cluster_replies import Door

from coterie.amqp.server import SHED_WITHIN
from coterie.cluster import head_counts
from coterie.group.channel import BufferFull


class Limited(Door):
    """A broker's front door, with a user who may have 2 connections and 3 channels."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        name, record = quick_user("alice")
        self.users.restore([(name, {**record, "limits": {"max-connections": 2, "max-channels": 3}})])
        self.host = host
        host.member.head_counts.attach(self.server)

    def comes(self, channels: int = 1) -> Client:
        """Somebody; whether it is let in is to be asked."""
        client = Client(self)
        client.raw(b"AMQP\x00\x00\x09\x01")
        client.send(0, "connection.start-ok", mechanism="PLAIN", response=b"\0alice\0alice", locale="en_US")
        client.send(0, "connection.tune-ok", channel_max=10, frame_max=131_072, heartbeat=0)
        client.send(0, "connection.open", virtual_host="/")
        for number in range(1, channels + 1):
            client.send(number, "channel.open")
        return client


def full(*arguments: object) -> None:
    raise BufferFull("no word comes through")


def let_in(client: Client) -> bool:
    return client.connection.state == "running"


def doors(count: int = 3) -> tuple[Cluster, list[Limited]]:
    cluster = Cluster(count)
    return cluster, [Limited(host) for host in cluster.started()]


def test_connections_of_a_user_count_wherever_they_are() -> None:
    _, (a, b, c) = doors()
    first, second = a.comes(), b.comes()
    assert let_in(first)
    assert let_in(second)
    refused = c.comes()
    assert not let_in(refused)
    (*_, last) = refused.heard()
    assert last.arguments["reply_code"] == 530
    assert "user connection limit (2)" in str(last.arguments["reply_text"])
    first.gone()
    assert let_in(c.comes())


def test_channels_of_a_user_count_wherever_they_are() -> None:
    _, (a, b, _) = doors()
    assert let_in(a.comes(channels=2))
    other = b.comes(channels=1)
    assert let_in(other)
    other.send(2, "channel.open")
    assert not let_in(other)


def test_connections_of_a_vhost_count_wherever_they_are() -> None:
    cluster, (a, b, c) = doors()
    a.broker.vhosts["/"].set_limit("max-connections", 1, lambda _: None)
    cluster.settle()
    assert let_in(a.comes())
    assert not let_in(c.comes())
    assert not let_in(b.comes())


def test_those_of_a_broker_that_is_lost_count_no_more() -> None:
    cluster, (a, b, _) = doors()
    for _ in range(2):
        assert let_in(a.comes())
    assert not let_in(b.comes())
    a.host.kill()
    cluster.until(lambda: b.server.elsewhere.count("users", "alice") == 0)
    assert let_in(b.comes())


def test_of_those_who_came_at_the_same_moment_the_surplus_is_closed_and_only_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, (a, b, c) = doors()
    assert let_in(a.comes())

    with monkeypatch.context() as cut:
        for door in (a, b, c):
            cut.setattr(door.host.member.channel, "send_nowait", full)
        mine, other, late = a.comes(), b.comes(), c.comes()
        assert all(map(let_in, (mine, other, late)))
    cluster.run(2.0)
    assert let_in(mine)
    assert not let_in(other)
    assert not let_in(late)
    (*_, last) = late.heard()
    assert last.arguments["reply_code"] == 530


def test_those_who_came_at_the_same_moment_are_counted_with_what_is_old_at_any_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stays open at the last broker takes places too, though the others' new ones come before its own new ones."""
    cluster, (a, b, c) = doors()
    old = c.comes()
    cluster.run(SHED_WITHIN * 2)
    with monkeypatch.context() as cut:
        for door in (a, b):
            cut.setattr(door.host.member.channel, "send_nowait", full)
        first, second = a.comes(), b.comes()
        assert let_in(first)
        assert let_in(second)
    cluster.run(2.0)
    assert let_in(old)
    assert let_in(first)
    assert not let_in(second)


def test_a_word_that_was_lost_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, (a, b, _) = doors()
    with monkeypatch.context() as cut:
        cut.setattr(a.host.member.channel, "send_nowait", lambda data, member: None)
        for _ in range(2):
            assert let_in(a.comes())
        cluster.run(1.0)
    assert b.server.elsewhere.count("users", "alice") == 0
    cluster.run(head_counts.AGAIN * 2)
    assert not let_in(b.comes())


def test_also_that_nobody_is_there_any_more_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, (a, b, _) = doors()
    gone = [a.comes(), a.comes()]
    cluster.run(1.0)
    with monkeypatch.context() as cut:
        cut.setattr(a.host.member.channel, "send_nowait", lambda data, member: None)
        for each in gone:
            each.gone()
        cluster.run(1.0)
    assert not let_in(b.comes())
    cluster.run(head_counts.AGAIN * 2)
    assert let_in(b.comes())


def test_a_broker_of_an_older_version_says_nothing_of_what_stays_open() -> None:
    cluster, (a, b, _) = doors()
    word = b'{"vhosts":{},"users":{"alice":1},"channels":{}}'
    a.host.member.channel.send_nowait(bytes((head_counts.COUNTS,)) + word, b.host.member.replica.us)
    cluster.run(0.05)
    assert b.server.elsewhere.count("users", "alice") == 1


def test_what_has_been_open_for_long_stays_when_a_limit_is_lowered() -> None:
    cluster, (a, b, _) = doors()
    first, second = a.comes(), b.comes()
    cluster.run(10.0)
    b.broker.vhosts["/"].set_limit("max-connections", 1, lambda _: None)
    cluster.run(2.0)
    assert let_in(first)
    assert let_in(second)


@pytest.mark.parametrize(
    "word", [b"", b"5", b"[]", b'{"users":5}', b'{"users":{"a":-1}}', b'{"users":{"a":true}}', b'{"users":{"a":1e9}}']
)
def test_a_word_that_makes_no_sense_changes_nothing(word: bytes) -> None:
    cluster, (a, b, _) = doors()
    a.host.member.channel.send_nowait(bytes((head_counts.COUNTS,)) + word, b.host.member.replica.us)
    cluster.run(0.5)
    assert b.server.elsewhere.count("users", "a") == 0
    assert let_in(b.comes())
