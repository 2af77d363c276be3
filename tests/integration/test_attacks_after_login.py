"""Clients that have a user and mean ill, against real nodes: memory, names, hashes."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import time
from collections import deque
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pika
import psutil
import pytest
from console_rig import Running
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

import coterie.testing
from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS
from coterie.broker.memory import FEW
from coterie.testing.broker import EmbeddedBroker

HIGH = 100 << 20
ALARM = "/api/health/checks/alarms"


@pytest.fixture
def node() -> Iterator[Running]:
    limits = {"COTERIE_BROKER_MEMORY_HIGH": str(HIGH), "COTERIE_BROKER_ALARM_INTERVAL": "0.05"}
    with Running(command="node", environment=limits) as running:
        yield running


def memory(node: Running) -> int:
    return int(psutil.Process(node._process.pid).memory_info().rss)


def test_messages_without_bodies_and_with_large_headers_are_memory_too(node: Running) -> None:
    client = node.client()
    blocked: list[object] = []
    client.add_on_connection_blocked_callback(lambda *_: blocked.append(1))
    channel = client.channel()
    channel.queue_declare("q")
    properties = pika.BasicProperties(headers={"h": "x" * 100_000})
    for _ in range(4 * HIGH // 100_000):
        channel.basic_publish("", "q", b"", properties)
        client.process_data_events(0)
        if blocked:
            break
    assert blocked
    assert memory(node) < 2 * HIGH
    assert node.get("/api/nodes")[0]["mem_alarm"] is True
    node.change("DELETE", "/api/queues/%2F/q/contents")
    node.eventually(lambda: node.ask("GET", ALARM).status == 200)


def test_bindings_and_unsettled_deliveries_are_memory_too(node: Running) -> None:
    channel = node.channel()
    channel.queue_declare("q")
    for number in range(100):  # channels with consumers that settle nothing
        other = channel.connection.channel()
        other.basic_consume("q", lambda *_: None, consumer_tag=f"c{number}")
    argument = "x" * 60_000
    for number in range(4 * HIGH // 60_000):
        channel.queue_bind("q", "amq.headers", arguments={"x-match": "all", "n": number, "a": argument})
        if number % 50 == 0 and node.ask("GET", ALARM).status == 503:
            break
    assert node.ask("GET", ALARM).status == 503
    assert memory(node) < 2 * HIGH
    channel.queue_delete("q")
    node.eventually(lambda: node.ask("GET", ALARM).status == 200)


def test_who_does_not_publish_cannot_fill_memory_either(node: Running) -> None:
    """Publishers wait for an alarm, and nobody else does: so what is left to make for the others ends, too."""
    channel = node.channel()
    channel.queue_declare("q")
    argument = "x" * 60_000

    def bind() -> None:
        for number in range(10 * HIGH // 60_000):
            channel.queue_bind("q", "amq.headers", arguments={"x-match": "all", "n": number, "a": argument})

    with pytest.raises(ChannelClosedByBroker, match="too much in memory for anything new"):
        bind()
    assert memory(node) < 4 * HIGH
    usual = node.channel()
    usual.queue_declare("q")  # what is there is used as ever
    usual.queue_bind("q", "amq.headers", arguments={"x-match": "all", "n": 0, "a": argument})
    for make in (
        lambda: node.channel().queue_declare("new"),
        lambda: node.channel().queue_declare(""),
        lambda: node.channel().exchange_declare("new"),
        lambda: node.channel().basic_consume("q", lambda *_: None, arguments={"a": argument}),
        lambda: [usual.basic_consume("q", lambda *_: None) for _ in range(FEW + 1)],
    ):
        with pytest.raises(ChannelClosedByBroker, match="memory"):
            make()
    crowded = node.client()
    with pytest.raises(ConnectionClosedByBroker, match="16 channels while memory runs out"):
        deque((crowded.channel() for _ in range(FEW + 1)), maxlen=FEW)
    assert node.ask("PUT", "/api/queues/%2F/new", {}).status == 400
    node.change("DELETE", "/api/queues/%2F/q")
    node.eventually(lambda: node.ask("PUT", "/api/queues/%2F/new", {}).status == 201)


def test_a_policy_whose_pattern_is_slow_is_refused_and_nobody_waits(node: Running) -> None:
    """Within the limits of RE2, and linear: yet some thousand names take seconds, in one step."""
    policymaker = node.add_user("policymaker", "policymaker", ".*", ".*", ".*")
    channel = node.channel(policymaker)
    slow = ["(a|b)*a(a|b){100}c", "([xy]*x[xy]{40}){3}!", "(u|v)*u" + "[uv]" * 200 + "!", ".*q.{20}!"]
    for number in range(2):  # before there are queues, and with such as it would be slow for
        for pattern in slow:
            body = {"pattern": pattern, "definition": {"max-length": 5}}
            answer = node.ask("PUT", "/api/policies/%2F/slow", body, policymaker)
            assert (answer.status, "takes too long" in answer.reason) == (400, True)
        for each in range(50):
            channel.queue_declare(f"{each}{'abbabaaab' * 27}"[:250], exclusive=True)
        assert number or len(node.get("/api/queues")) == 50
    usual = [r"^(orders|invoices)\.", ".*", r"^\w{1,30}\.(eu|us)-[0-9]{4}$", "(a|b|ab)*c", "^app.*dead$"]
    for pattern in usual:
        body = {"pattern": pattern, "definition": {"max-length": 5}}
        assert node.ask("PUT", "/api/policies/%2F/usual", body, policymaker).status in (201, 204)


def fanned_out(channel: BlockingChannel, queues: int) -> None:
    channel.exchange_declare("app.all", "fanout")
    for number in range(queues):
        channel.queue_declare(f"app.{number}", arguments={"x-max-length": 1})
        channel.queue_bind(f"app.{number}", "app.all")


def halfway(node: Running, messages: int) -> bool:
    """Whether others are answered while some of them have come, and not all."""
    came = 0
    while not came:
        came = node.get("/api/queues/%2F/app.0")["counters"]["enqueued"]
    return int(came) < messages


def test_others_have_their_turns_while_a_burst_goes_to_many_queues(node: Running) -> None:
    """Some thousand messages without a body, sent in a moment, are more than a million copies."""
    user = node.add_user("limited", "", r"^app\.", r"^(app\.|amq\.default$)", r"^app\.")
    channel = node.channel(user)
    fanned_out(channel, 300)
    publish = METHODS["basic.publish"].frame(1, exchange="app.all", routing_key="")
    empty = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c" + bytes(12) + b"\xce"
    with greeted(node, user) as attacker:
        attacker.sendall((publish + empty) * 4000)
        assert halfway(node, 4000)
        node.eventually(lambda: not halfway(node, 4000))


def greeted(node: Running, user: tuple[str, str]) -> socket.socket:
    """A connection with a channel, which says what it is told and listens no more."""
    host, _, port = node.amqp.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    response = b"\0" + "\0".join(user).encode()
    start = METHODS["connection.start-ok"].frame(
        0, client_properties={}, mechanism="PLAIN", response=response, locale="en_US"
    )
    tune = METHODS["connection.tune-ok"].frame(0, channel_max=1, frame_max=131_072, heartbeat=0)
    opening = METHODS["connection.open"].frame(0, virtual_host="/") + METHODS["channel.open"].frame(1)
    connection.sendall(PROTOCOL_HEADER + start + tune + opening)
    heard = b""
    while METHODS["channel.open-ok"].prefix not in heard:
        heard += connection.recv(65_536)
    return connection


def test_others_have_their_turns_while_very_many_letters_go_to_many_queues(node: Running) -> None:
    user = node.add_user("limited", "", r"^app\.", r"^(app\.|amq\.default$)", r"^app\.")
    channel = node.channel(user)
    fanned_out(channel, 300)
    channel.queue_declare("app.dying", arguments={"x-message-ttl": 3000, "x-dead-letter-exchange": "app.all"})
    for _ in range(3000):
        channel.basic_publish("", "app.dying", b"")
    assert halfway(node, 3000)
    node.eventually(lambda: not halfway(node, 3000))


def test_a_key_that_takes_very_many_steps_through_patterns_is_refused(node: Running) -> None:
    channel = node.channel()
    channel.exchange_declare("t", "topic")
    channel.queue_declare("q")
    for number in range(100):
        words = ("a" if number >> bit & 1 else "*" for bit in range(100))
        channel.queue_bind("q", "t", "#." + ".".join(words))
    channel.basic_publish("t", "a.b.c", b"")
    assert channel.queue_declare("q", passive=True).method.message_count == 0
    channel.basic_publish("t", ".".join("a" * 127), b"")
    with pytest.raises(ChannelClosedByBroker, match="topic_steps_max"):
        channel.queue_declare("q", passive=True)


def test_names_that_would_move_a_terminal_are_spelled(node: Running) -> None:
    name = "q\x1b[2J\x9b5n\u202e"
    channel = node.channel()
    channel.queue_declare(name)
    node.eventually(lambda: "[2J" in node.command("top", "--once").stdout)  # it shows what was sampled last
    for command in (("queues",), ("top", "--once"), ("queues", "show", name), ("bindings", "--json")):
        shown = node.command(*command).stdout
        assert "q\\x1b[2J\\x9b5n" in shown or (command[-1] == "--json" and "\\u009b5n\\u202e" in shown)
        assert shown.replace("\n", "").isprintable()
    refused = node.command("queues", "show", f"no{name}", expect=2).stderr
    assert "\\x1b[2J" in refused
    assert refused.replace("\n", "").isprintable()
    _, logged = node.stop()
    assert logged.replace("\n", "").isprintable()


def test_an_imported_hash_is_replaced_on_all_brokers_of_a_cluster_at_the_first_good_login() -> None:
    salt = b"salt"
    kept = base64.b64encode(salt + hashlib.sha256(salt + b"secret").digest()).decode()
    imported = {
        "password_hash": kept, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management",
    }  # fmt: skip

    def ask(broker: EmbeddedBroker, user: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        login = base64.b64encode(user.encode()).decode()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Basic {login}"}
        request = Request(f"{broker.console}{path}", data, headers, method="GET" if data is None else "PUT")
        try:
            with urlopen(request) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except HTTPError as error:
            return error.code, {}

    def algorithms(cluster: coterie.testing.EmbeddedCluster) -> set[object]:
        found = [ask(broker, "guest:guest", "/api/definitions")[1]["users"] for broker in cluster]
        assert all(isinstance(users, list) for users in found)
        return {user["hashing_algorithm"] for users in found for user in users if user["name"] == "ann"}  # type: ignore[attr-defined]

    with coterie.testing.cluster(2, console=True) as cluster:
        assert ask(cluster[0], "guest:guest", "/api/users/ann", imported)[0] == 201
        assert ask(cluster[0], "ann:wrong", "/api/whoami")[0] == 401
        assert algorithms(cluster) == {"rabbit_password_hashing_sha256"}
        assert ask(cluster[0], "ann:secret", "/api/whoami")[0] == 200
        deadline = time.monotonic() + 30
        while algorithms(cluster) != {"coterie.scrypt"}:
            assert time.monotonic() < deadline
        assert [ask(broker, "ann:secret", "/api/whoami")[0] for broker in cluster] == [200, 200]
