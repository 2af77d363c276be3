"""The audit log of a real node: what operators and clients do to it, with what result, and how an attacker fares."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from console_rig import GUEST, Running
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker
from three_brokers import PATIENCE, eventually

from coterie.audit.files import parse
from coterie.trace import Event

KEYS = "COTERIE_AUDIT_"


class Audited:
    """A node, and its lines."""

    def __init__(self, node: Running, folder: Path) -> None:
        self.node = node
        self.folder = folder

    def lines(self) -> list[str]:
        return [line for file in sorted(self.folder.iterdir()) for line in file.read_text().splitlines()]

    def events(self, action: str = "") -> list[dict[str, Any]]:
        found = [json.loads(line)["data"] for line in self.lines()]
        return [each for each in found if action in ("", each["action"])]

    def last(self, action: str) -> dict[str, Any]:
        eventually(action, lambda: bool(self.events(action)))
        return self.events(action)[-1]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    data = tmp_path_factory.mktemp("audited")
    environment = {f"{KEYS}PUBLISH": "true", f"{KEYS}WINDOW": "8", f"{KEYS}LINES_PER_HOST": "5"}
    with Running("--data", str(data), environment=environment) as node:
        yield Audited(node, data / "audit")


def test_changes_are_told_with_who_where_and_what_and_without_secrets(audited: Audited) -> None:
    node = audited.node
    node.change("PUT", "/api/users/alice", {"password": "hush-hush", "tags": "monitoring"})
    node.change("PUT", "/api/users/alice", {"password_hash": "", "tags": "management"})
    node.change("PUT", "/api/users/dan", {"password_hash": "", "tags": ""})
    node.change("POST", "/api/users/bulk-delete", {"users": ["dan"]})
    node.change("PUT", "/api/vhosts/shop")
    node.change("PUT", "/api/permissions/shop/alice", {"configure": "^a", "write": ".*", "read": ""})
    node.change("PUT", "/api/policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}})
    node.change("PUT", "/api/vhost-limits/shop/max-queues", {"value": 3})
    node.change("PUT", "/api/queues/%2F/q", {"durable": True})
    node.change("DELETE", "/api/queues/%2F/q")
    said = {"users": [{"name": "bob", "password": "hush-hush", "tags": ""}], "vhosts": [{"name": "other"}]}
    node.change("POST", "/api/definitions", said)
    created = audited.events("user.created")[0]
    assert created == {
        "action": "user.created", "user": "guest", "from": "127.0.0.1", "door": "http", "result": "done",
        "of_user": "alice", "tags": "monitoring",
    }  # fmt: skip
    assert audited.last("users.deleted")["result"] == "done"
    assert [(each["of_user"], each["by"]) for each in audited.events("user.deleted")] == [("dan", "users.deleted")]
    assert audited.last("permission.set")["of_user"] == "alice"
    assert audited.last("permission.set")["configure"] == "^a"
    assert json.loads(audited.last("policy.created")["definition"]) == {"max-length": 5}
    assert audited.last("vhost_limit.set")["value"] == 3
    assert [each["of_name"] for each in audited.events("queue.deleted")] == ["q"]
    assert [(each["of_user"], each.get("by")) for each in audited.events("user.changed")] == [
        ("alice", None), ("bob", "definitions"),
    ]  # fmt: skip
    assert [each["of_vhost"] for each in audited.events("vhost.created")] == ["shop", "other"]
    assert audited.last("definitions.imported")["result"] == "done"
    node.ask("PUT", "/api/vhosts/none-such/permissions")
    assert node.ask("DELETE", "/api/users/nobody").status == 404
    assert audited.last("user.deleted")["result"] == "failed"
    assert "hush" not in "\n".join(audited.lines())


def test_an_import_is_told_object_by_object(audited: Audited) -> None:
    queue = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    exchange = {**queue, "type": "topic", "internal": False}
    user = {"name": "carl", "password": "hush-hush", "tags": "", "limits": {"max-channels": 7}, "allow": ["::1"]}
    audited.node.change("POST", "/api/definitions", {
        "users": [user],
        "topic_permissions": [{"user": "carl", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": "^b"}],
        "queues": [{"name": "imported", **queue}],
        "exchanges": [{"name": "imports", **exchange}],
        "bindings": [{
            "source": "imports", "vhost": "/", "destination": "imported", "destination_type": "queue",
            "routing_key": "a.#", "arguments": {},
        }],
        "global_parameters": [{"name": "place", "value": "amqp://ops:hush-hush@there"}],
    })  # fmt: skip
    audited.node.change("PUT", "/api/global-parameters/place", {"value": "amqp://ops:hush-hush@elsewhere"})
    told = {each["action"]: each for each in audited.events() if each.get("by") == "definitions"}
    assert (told["user_limit.set"]["of_limit"], told["user_limit.set"]["value"]) == ("max-channels", 7)
    assert (told["user_addresses.set"]["of_user"], told["user_addresses.set"]["value"]) == ("carl", '["::1/128"]')
    assert (told["topic_permission.set"]["write"], told["topic_permission.set"]["read"]) == ("^a", "^b")
    assert told["queue.created"]["of_name"] == "imported"
    assert (told["exchange.created"]["of_name"], told["exchange.created"]["type"]) == ("imports", "topic")
    bound = told["binding.created"]
    assert (bound["of_source"], bound["of_kind"], bound["of_destination"]) == ("imports", "q", "imported")
    assert audited.last("parameter.set")["of_name"] == "place"
    assert "hush" not in "\n".join(audited.lines())


def test_what_clients_make_remove_and_empty_over_amqp_is_told_and_only_what_they_changed(tmp_path: Path) -> None:
    with Running("--data", str(tmp_path)) as node:
        audited = Audited(node, tmp_path / "audit")
        channel = node.channel()
        for _ in range(2):  # as every start of an application does
            channel.exchange_declare("orders", "topic", durable=True)
            channel.queue_declare("shop", durable=True)
            channel.queue_bind("shop", "orders", "a.#")
        channel.queue_declare("shop", passive=True)
        channel.queue_declare("mine", exclusive=True)
        channel.queue_bind("mine", "orders", "b")
        channel.queue_purge("mine")
        channel.queue_delete("mine")
        channel.basic_publish("orders", "a.1", b"")
        channel.queue_purge("shop")
        for _ in range(2):
            channel.queue_unbind("shop", "orders", "a.#")
            channel.queue_delete("shop")
            channel.exchange_delete("orders")
        of_amqp = [each for each in audited.events() if each["door"] == "amqp" and each["action"] != "login.accepted"]
    names = ("action", "user", "from", "result", "of_vhost", "of_name")
    assert [tuple(each.get(name) for name in names) for each in of_amqp] == [
        ("exchange.created", "guest", "127.0.0.1", "done", "/", "orders"),
        ("queue.created", "guest", "127.0.0.1", "done", "/", "shop"),
        ("binding.created", "guest", "127.0.0.1", "done", "/", None),
        ("queue.purged", "guest", "127.0.0.1", "done", "/", "shop"),
        ("binding.deleted", "guest", "127.0.0.1", "done", "/", None),
        ("queue.deleted", "guest", "127.0.0.1", "done", "/", "shop"),
        ("exchange.deleted", "guest", "127.0.0.1", "done", "/", "orders"),
    ]
    bound = of_amqp[2]
    assert (bound["of_source"], bound["of_kind"], bound["of_destination"], bound["routing_key"]) == (
        "orders", "q", "shop", "a.#",
    )  # fmt: skip
    assert of_amqp[3]["count"] == 1


def test_files_are_for_their_owner_alone(audited: Audited) -> None:
    assert audited.folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in audited.folder.iterdir()} == {0o600}


def test_the_readers_of_traces_take_every_line(audited: Audited) -> None:
    lines = audited.lines()
    numbers = []
    for line in lines:
        event = parse(line)
        assert event.kind == "audit"
        assert event == Event.from_json(line)
        numbers.append(event.n)
    assert numbers == list(range(len(lines)))


def test_logins_and_refusals_are_told(audited: Audited) -> None:
    node = audited.node
    mallory = node.add_user("mallory", "management", "^m", "^m", "^m")
    channel = node.channel(mallory)
    accepted = audited.last("login.accepted")
    assert (accepted["user"], accepted["door"], accepted["of_vhost"]) == ("mallory", "amqp", "/")
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("other")
    refused = audited.last("access.refused")
    assert (refused["user"], refused["door"], refused["result"]) == ("mallory", "amqp", "refused")
    assert "configure access to queue 'other'" in refused["why"]
    assert node.ask("PUT", "/api/users/mallory", {"password": "x", "tags": "administrator"}, mallory).status == 403
    attempt = audited.last("user.changed")
    assert (attempt["user"], attempt["result"], attempt["of_user"]) == ("mallory", "refused", "mallory")
    with pytest.raises(AMQPError):
        node.client(mallory, "none-such")
    assert audited.last("login.refused")["of_vhost"] == "none-such"


def test_names_that_are_made_to_mislead_are_bounded_and_spelled(audited: Audited) -> None:
    evil = 'x\n{"v":1}\x1b[2J\u202e' + "é" * 300
    with pytest.raises(AMQPError):
        audited.node.client((evil, "wrong"))
    name = audited.last("login.refused")["user"]
    assert name.startswith('x\\x0a{"v":1}\\x1b[2J\\u202eé')
    assert name.isprintable()
    assert len(name) < 300


def test_a_flood_of_wrong_logins_is_counted_and_not_written_line_by_line(audited: Audited) -> None:
    """From another address than that of everybody else here, which is locked out soon."""
    before, host = len(audited.lines()), "127.0.0.2"
    connection = http.client.HTTPConnection(audited.node.console, timeout=60, source_address=(host, 0))
    for number in range(100):
        secret = base64.b64encode(f"nobody{number}:wrong".encode()).decode()
        connection.request("GET", "/api/whoami", headers={"Authorization": f"Basic {secret}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401
    connection.close()
    audited.node.change("PUT", "/api/vhosts/in-between")
    assert audited.last("vhost.created")["of_vhost"] == "in-between"

    def refusals() -> list[Event]:
        events = [Event.from_json(line) for line in audited.lines()[before:]]
        return [each for each in events if each.data["action"] == "login.refused"]

    eventually("all of them are counted", lambda: sum(each.count or 0 for each in refusals()) == 100)
    summary = next(each for each in refusals() if "hosts" in each.data)
    assert summary.data["hosts"] == {host: summary.count}
    assert len(refusals()) < 40  # five and a summary for each window, of which a busy machine needs some


def test_the_exchange_has_the_lines_and_only_for_those_who_may_see_them(audited: Audited) -> None:
    node = audited.node
    reader = node.channel()
    reader.queue_declare("audit", exclusive=True)
    reader.queue_bind("audit", "coterie.audit", "vhost.#")
    node.change("PUT", "/api/vhosts/told")
    for method, properties, body in reader.consume("audit", inactivity_timeout=PATIENCE):
        assert method is not None
        assert properties is not None
        assert body is not None
        event = Event.from_json(body.decode())
        if event.data["of_vhost"] == "told":
            assert (method.routing_key, properties.type) == ("vhost.created", "audit")
            break
    spy = node.add_user("spy", "policymaker", ".*", ".*", ".*")
    watch = node.add_user("watch", "monitoring", ".*", ".*", ".*")
    attempts: dict[str, Callable[[BlockingChannel], object]] = {
        "read": lambda channel: channel.queue_bind("own", "coterie.audit", "#"),
        "read through another": lambda channel: channel.exchange_bind("amq.topic", "coterie.audit", "#"),
        "write": lambda channel: channel.basic_publish("coterie.audit", "user.created", b"made up"),
        "write by a binding": lambda channel: channel.exchange_bind("coterie.audit", "amq.topic", "#"),
        "write by dead letters": lambda channel: channel.queue_declare(
            "dead", arguments={"x-dead-letter-exchange": "coterie.audit"}
        ),
        "write by an alternate": lambda channel: channel.exchange_declare(
            "other", arguments={"alternate-exchange": "coterie.audit"}
        ),
        "delete": lambda channel: channel.exchange_delete("coterie.audit"),
    }
    for what, attempt in attempts.items():
        channel = node.channel(spy)
        channel.confirm_delivery()
        channel.queue_declare("own")
        with pytest.raises(ChannelClosedByBroker) as refused:
            attempt(channel)
        assert refused.value.reply_code == 403, what
    letters = {"pattern": ".*", "definition": {"dead-letter-exchange": "coterie.audit"}}
    assert node.ask("PUT", "/api/policies/%2F/letters", letters, spy).status == 403
    channel = node.channel(watch)
    channel.queue_declare("seen", exclusive=True)
    channel.queue_bind("seen", "coterie.audit", "#")
    channel = node.channel(GUEST)
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker):  # it is internal: not even an administrator makes up lines
        channel.basic_publish("coterie.audit", "user.created", b"made up", pika.BasicProperties())
