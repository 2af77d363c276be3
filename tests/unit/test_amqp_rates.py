"""Rates of users, in virtual time: who publishes or connects too fast is slowed down, and never disconnected."""

from __future__ import annotations

import pytest
from amqp_rig import LOGIN, Client, Rig, publish_frames

from coterie.amqp import rates
from coterie.amqp.rates import BYTES, CONNECTIONS, MESSAGES
from coterie.amqp.settings import AmqpSettings


def limited(rig: Rig, limit: str, value: int | None, user: str = "guest") -> None:
    rig.users.limit(user, limit, value, lambda _: None)
    rig.run()


def published(rig: Rig) -> int:
    return rig.server.traffic.published


@pytest.mark.parametrize(("limit", "value"), [(MESSAGES, 10), (BYTES, 1000)])
def test_a_user_publishes_at_its_rate_over_all_of_its_connections_and_loses_nothing(limit: str, value: int) -> None:
    rig = Rig()
    limited(rig, limit, value)
    clients = [rig.client() for _ in range(3)]
    before = rig.world.time
    for _ in range(20):
        for client in clients:
            client.publish(1, "", "nowhere", b"x" * 100)
    assert published(rig) < 20  # a second's worth, and what began before the debt
    while any(client.connection.throttle.reasons for client in clients):
        assert rig.world.time < before + 20
        assert all(client.connection.state == "running" for client in clients)
        rig.run(0.25)
    assert published(rig) == 60
    assert 4.9 <= rig.world.time - before <= 5.6  # 60 messages, 10 a second, the first 10 at once


def test_who_is_held_back_is_shown_and_others_are_not_held() -> None:
    rig = Rig()
    limited(rig, MESSAGES, 1)
    slow, other = rig.client(), Client(rig).open(user="alice")
    for _ in range(5):
        slow.publish(1, "", "nowhere", b"")
        other.publish(1, "", "nowhere", b"")
    assert list(slow.connection.throttle.reasons) == ["rate"]
    assert slow.connection.shown_state == "flow"
    assert rig.server.held_back() == (1, 0)
    assert not other.connection.throttle.reasons
    slow.gone()
    assert rig.server.held_back() == (0, 0)
    rig.run(10)


def test_a_limit_that_goes_lets_go() -> None:
    rig = Rig()
    limited(rig, BYTES, 1)
    client = rig.client()
    client.publish(1, "", "nowhere", b"x" * 100_000)  # a day of debt
    client.publish(1, "", "nowhere", b"")
    rig.run(60)
    assert published(rig) == 1
    limited(rig, BYTES, None)
    rig.run(1)
    assert published(rig) == 2


def test_heartbeats_go_on_while_a_client_is_held_back() -> None:
    rig = Rig()
    limited(rig, BYTES, 1)
    client = rig.client(heartbeat=10)
    client.publish(1, "", "nowhere", b"x" * 1000)
    rig.run(300)
    assert client.connection.state == "running"


def opening(rig: Rig) -> Client:
    """One that has asked for its connection to be opened."""
    client = Client(rig)
    client.raw(b"AMQP\x00\x00\x09\x01")
    response = b"\0guest\0guest"
    client.send(
        0, "connection.start-ok", client_properties={}, mechanism="PLAIN", response=response, locale="en_US"
    )  # fmt: skip
    rig.run(LOGIN)
    client.send(0, "connection.tune-ok", channel_max=2047, frame_max=131_072, heartbeat=0)
    client.heard()
    client.send(0, "connection.open", virtual_host="/")
    return client


def test_connections_are_opened_one_after_the_other_however_long_that_takes() -> None:
    rig = Rig(AmqpSettings(handshake_timeout=1.0, handshakes_max=2))
    limited(rig, CONNECTIONS, 1)
    rig.client()
    before = rig.world.time
    clients = [opening(rig) for _ in range(20)]
    opened = [client for client in clients if client.connection.state == "running"]
    assert len(opened) <= 2 + rig.world.time - before
    assert rig.server.held_back()[1] == 20 - len(opened)
    rig.run(5)
    assert 4 <= sum(client.connection.state == "running" for client in clients) <= 9
    clients[-1].gone()
    rig.run(25)
    assert [client.connection.state for client in clients] == ["running"] * 19 + ["closed"]
    assert rig.server.held_back() == (0, 0)


def test_of_a_user_that_is_deleted_while_it_waits_nothing_is_opened() -> None:
    rig = Rig()
    limited(rig, CONNECTIONS, 1)
    clients = [opening(rig) for _ in range(4)]
    rig.users.delete("guest", lambda _: None)
    rig.run(10)
    assert not any(client.connection.state == "running" for client in clients)


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "WAITING_MAX", 3)
    rig = Rig()
    limited(rig, CONNECTIONS, 1)
    clients = [opening(rig) for _ in range(8)]
    assert len(rig.server.rates.waiting) <= 3
    assert any("connection.close" in client.names() for client in clients)


def test_a_batch_in_one_read_counts_whole() -> None:
    rig = Rig()
    limited(rig, MESSAGES, 100)
    client = rig.client()
    client.raw(publish_frames(1, "", "nowhere", b"x") * 300)
    assert published(rig) == 300
    rig.run(1)
    assert client.connection.throttle.reasons
    rig.run(1.5)
    assert not client.connection.throttle.reasons
