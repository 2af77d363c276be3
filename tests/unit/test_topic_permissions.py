"""Topic permissions: which routing keys a user may use with a topic exchange."""

from __future__ import annotations

import pytest
from amqp_rig import Client, Rig

from coterie.broker.topic_permissions import TopicPermissions
from coterie.broker.users import User, from_record
from coterie.errors import UserError


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def alice(rig: Rig) -> Client:
    client = Client(rig).open(user="alice")
    client.call(1, "queue.declare", queue="q")
    return client


def restrict(rig: Rig, exchange: str, write: str, read: str, vhost: str = "/") -> None:
    answers: list[bool] = []
    rig.users.permit_topic("alice", vhost, exchange, TopicPermissions(write, read), answers.append)
    assert answers == [True]


def why(client: Client) -> tuple[object, str]:
    (heard,) = client.heard()
    assert heard.name == "channel.close"
    client.send(1, "channel.close-ok")
    client.call(1, "channel.open")
    return heard["reply_code"], str(heard["reply_text"])


def test_keys_that_the_write_pattern_does_not_fit_cannot_be_published(rig: Rig, alice: Client) -> None:
    alice.call(1, "queue.bind", queue="q", exchange="amq.topic", routing_key="#")
    restrict(rig, "amq.topic", "^own[.]", ".*")
    alice.publish(1, "amq.topic", "own.news", b"yes")
    alice.publish(1, "amq.topic", "others.news", b"no")
    code, text = why(alice)
    assert code == 403
    assert text.endswith(
        "write access to topic 'others.news' in exchange 'amq.topic' in vhost '/' refused for user 'alice'"
    )
    assert alice.call(1, "basic.get", queue="q").body == b"yes"
    assert alice.call(1, "basic.get", queue="q").name == "basic.get-empty"


def test_keys_that_the_read_pattern_does_not_fit_cannot_be_bound_or_unbound(rig: Rig, alice: Client) -> None:
    alice.call(1, "exchange.declare", exchange="mine", type="topic")
    restrict(rig, "mine", ".*", "^public[.]")
    alice.call(1, "queue.bind", queue="q", exchange="mine", routing_key="public.#")
    for method, arguments in {
        "queue.bind": {"queue": "q", "exchange": "mine"},
        "queue.unbind": {"queue": "q", "exchange": "mine"},
        "exchange.bind": {"destination": "amq.fanout", "source": "mine"},
    }.items():
        alice.send(1, method, routing_key="#", **arguments)
        code, text = why(alice)
        assert code == 403
        assert "read access to topic '#' in exchange 'mine'" in text


def test_only_that_topic_exchange_in_that_vhost_is_restricted(rig: Rig, alice: Client) -> None:
    restrict(rig, "amq.topic", "never", "never")
    restrict(rig, "amq.direct", "never", "never")
    restrict(rig, "other", "never", "never", vhost="elsewhere")
    alice.call(1, "exchange.declare", exchange="other", type="topic")
    for exchange in ("amq.direct", "other", "amq.fanout"):
        alice.call(1, "queue.bind", queue="q", exchange=exchange, routing_key="k")
        alice.publish(1, exchange, "k", exchange.encode())
        assert alice.call(1, "basic.get", queue="q", no_ack=True).body == exchange.encode()
    guest = rig.client()
    guest.publish(1, "amq.topic", "k", b"others are free")
    assert guest.names() == []


def test_a_change_counts_from_the_next_publish_on(rig: Rig, alice: Client) -> None:
    alice.publish(1, "amq.topic", "k", b"x")
    restrict(rig, "amq.topic", "^z", "")
    alice.publish(1, "amq.topic", "k", b"x")
    assert why(alice)[0] == 403
    rig.users.permit_topic("alice", "/", "amq.topic", None, lambda _: None)
    alice.publish(1, "amq.topic", "k", b"x")
    assert alice.names() == []
    user = rig.users.get("alice")
    assert user is not None
    assert user.topics == {}


@pytest.mark.parametrize(
    ("pattern", "key", "allowed"),
    [
        ("", "", True),
        ("", "a", False),
        ("^a[.]b$", "a.b", True),
        ("^{username}[.]", "al+ce.x", True),
        ("^{username}[.]", "alllce.x", False),
        ("^{vhost}-", "/-x", True),
    ],
)
def test_patterns_are_searched_for_with_the_names_of_user_and_vhost_as_plain_text(
    pattern: str, key: str, allowed: bool
) -> None:
    assert TopicPermissions(write=pattern).allows("write", key, "al+ce", "/") is allowed


def test_they_survive_a_restart_and_end_with_their_vhost(rig: Rig) -> None:
    restrict(rig, "amq.topic", "^w", "^r")
    restrict(rig, "x", "^w", "^r", vhost="v")
    user = rig.users.get("alice")
    assert isinstance(user, User)
    restored = from_record("alice", user.to_record())
    assert restored.topics == user.topics
    rig.users.forget_vhost("v")
    assert user.topics == {"/": {"amq.topic": TopicPermissions("^w", "^r")}}
    assert from_record("old", {"tags": [], "permissions": {}, "limits": {}}).topics == {}


@pytest.mark.parametrize("record", [[], {"/": []}, {"/": {"x": ["one"]}}, {"/": {"x": None}}])
def test_records_that_make_no_sense_are_refused(record: object) -> None:
    with pytest.raises(UserError):
        from_record("alice", {"tags": [], "permissions": {}, "limits": {}, "topics": record})


def test_a_pattern_that_is_none_is_refused_and_so_is_a_user_who_is_not_there(rig: Rig) -> None:
    with pytest.raises(UserError):
        TopicPermissions(write="(").check()
    answers: list[bool] = []
    rig.users.permit_topic("nobody", "/", "amq.topic", TopicPermissions(), answers.append)
    assert answers == [False]
