"""The commands about a running node, and its definitions, as an operator uses them: real processes all of them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_rig import Running


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running() as running:
        yield running


def told(node: Running, *arguments: str, **options: Any) -> Any:
    """The JSON that a command prints."""
    return json.loads(node.command(*arguments, "--json", **options).stdout)


def test_status_says_how_the_node_is(node: Running) -> None:
    text = node.command("status").stdout
    assert node.told["name"] in text
    for line in ("alarms    none", "clients   ", "queues    ", "rates     published", "memory    ", "disk      none"):
        assert f"\n{line}" in text
    answer = told(node, "status")
    assert (answer["status"], answer["overview"]["node"]) == ("ok", node.told["name"])


def test_queues_exchanges_and_bindings_are_declared_listed_and_deleted(node: Running) -> None:
    node.command("queues", "declare", "orders", "--argument", "x-max-length=10", "--argument", "x-overflow=drop-head")
    node.command("exchanges", "declare", "events", "--type", "topic")
    node.command("bindings", "add", "events", "orders", "--key", "order.#")
    (queue,) = told(node, "queues", "--name", "orders")["queues"]
    assert queue["arguments"] == {"x-max-length": 10, "x-overflow": "drop-head"}
    header, dashes, row = node.command("queues", "--name", "orders").stdout.splitlines()
    assert header.split()[:5] == ["vhost", "name", "kind", "durable", "ready"]
    assert set(dashes) == {"-", " "}
    assert row.split()[:5] == ["/", "orders", "fifo", "yes", "0"]
    assert "x-max-length" in node.command("queues", "show", "orders").stdout
    assert "events" in node.command("exchanges").stdout
    assert "(default)" in node.command("exchanges").stdout
    assert "order.#" in node.command("bindings").stdout
    node.command("bindings", "delete", "events", "orders", "--key", "order.#")
    assert "order.#" not in node.command("bindings").stdout
    assert "is not bound" in node.command("bindings", "delete", "events", "orders", expect=2).stderr
    node.command("exchanges", "delete", "events")
    node.command("queues", "delete", "orders", "--if-empty", "--if-unused")
    assert told(node, "queues", "--name", "orders") == {"queues": []}
    assert node.command("queues", "--name", "orders").stdout == "no queues\n"


def test_messages_are_published_looked_at_browsed_and_taken(node: Running) -> None:
    node.command("queues", "declare", "box")
    node.command("publish", "box", "one", "--property", "delivery_mode=2", "--header", "n=1")
    node.command("publish", "box", stdin="two")
    assert "it reached no queue" in node.command("publish", "nowhere", "x", expect=1).stdout
    (message,) = told(node, "get", "box")["messages"]
    assert (message["payload"], message["properties"]) == ("one", {"delivery_mode": 2, "headers": {"n": 1}})
    text = node.command("get", "box", "--first", "1").stdout
    assert "position 1, exchange '', key 'box', 3 bytes, redelivered, ready" in text
    assert "position 2" in text
    taken = told(node, "get", "box", "--count", "5", "--ack")["messages"]
    assert [message["payload"] for message in taken] == ["one", "two"]
    assert node.command("get", "box").stdout == "no messages\n"
    node.command("publish", "box", "three")
    node.command("purge", "box")
    node.command("queues", "purge", "box")
    assert told(node, "get", "box") == {"messages": []}


def test_users_vhosts_permissions_and_policies_are_kept_by_commands(node: Running) -> None:
    node.command("vhosts", "add", "shop")
    node.command("vhosts", "limit", "shop", "max-queues", "5")
    node.command("users", "add", "ann", "--password-stdin", "--tags", "management", stdin="secret\n")
    assert "already" in node.command("users", "add", "ann", "--password", "x", expect=2).stderr
    node.command("permissions", "set", "ann", "^ann", ".*", ".*", "--vhost", "shop")
    (granted,) = told(node, "permissions", "--vhost", "shop")["permissions"][1:]
    assert granted == {"user": "ann", "vhost": "shop", "configure": "^ann", "write": ".*", "read": ".*"}
    ann = ("ann", "secret")
    node.command("queues", "declare", "ann.q", "--vhost", "shop", user=ann)
    assert (
        "refused for user 'ann'" in node.command("queues", "declare", "x", "--vhost", "shop", user=ann, expect=2).stderr
    )
    assert [queue["name"] for queue in told(node, "queues", user=ann)["queues"]] == ["ann.q"]
    node.command("policies", "set", "short", "^ann", '{"max-length": 3}', "--vhost", "shop", "--priority", "2")
    node.command("policies", "set", "shorter", "^ann", '{"max-length": 2}', "--vhost", "shop", "--operator")
    assert told(node, "policies", "--vhost", "shop")["policies"][0]["definition"] == {"max-length": 3}
    assert told(node, "policies", "--operator")["policies"][0]["name"] == "shorter"
    assert told(node, "queues", "show", "ann.q", "--vhost", "shop")["effective_limits"]["max-length"] == 2
    node.command("policies", "delete", "short", "--vhost", "shop")
    node.command("users", "change", "ann", "--password", "new")
    assert "Login failed" in node.command("queues", user=ann, expect=2).stderr
    node.command("queues", user=("ann", "new"))
    node.command("users", "limit", "ann", "max-connections", "3")
    assert told(node, "users")["users"][0]["limits"] == {"max-connections": 3}
    node.command("permissions", "clear", "ann", "--vhost", "shop")
    node.command("users", "delete", "ann")
    assert [user["name"] for user in told(node, "users")["users"]] == ["guest"]
    node.command("vhosts", "delete", "shop")
    assert [vhost["name"] for vhost in told(node, "vhosts")["vhosts"]] == ["/"]


def test_connections_are_listed_and_closed(node: Running) -> None:
    client = node.client(name="reader")
    channel = client.channel()
    channel.queue_declare("read")
    channel.basic_consume("read", lambda *_: None)
    (connection,) = told(node, "connections")["connections"]
    assert "reader" in node.command("connections").stdout
    assert f"{connection['name']} (1)" in node.command("channels").stdout
    assert "read" in node.command("consumers").stdout
    node.command("connections", "close", connection["name"], "--reason", "über")
    node.eventually(lambda: node.get("/api/connections") == [])


def test_errors_are_one_line_and_the_exit_code_tells_whose_they_are(node: Running) -> None:
    def error(*arguments: str, expect: int, **options: Any) -> str:
        done = node.command(*arguments, expect=expect, **options)
        (line,) = done.stderr.splitlines()
        assert done.stdout == ""
        assert line.startswith("coterie: ")
        return str(line)

    assert "no queue 'nothing' in vhost '/'" in error("queues", "show", "nothing", expect=2)
    assert "no vhost 'nothing'" in error("queues", "--vhost", "nothing", expect=2)
    said = error("status", expect=2, user=("guest", "wrong"))
    assert "Login failed as 'guest'" in said
    assert "--url http://USER@" in said
    assert "name=value" in error("queues", "declare", "q", "--argument", "novalue", expect=2)
    assert "not JSON" in error("policies", "set", "p", "x", "{", expect=2)
    assert "no node answers at http://127.0.0.1:1:" in error("status", "--url", "127.0.0.1:1", expect=1)
    assert "http://user@host" in error("status", "--url", "ftp://x", expect=2)
    assert "no password for 'ops'" in error("status", "--url", "http://ops@127.0.0.1:1", expect=2)
    assert "no node answers" in error("status", "--url", f"http://{node.amqp}", expect=1)


def test_help_teaches_with_examples(node: Running) -> None:
    for command in ("status", "queues", "users", "definitions", "publish", "get"):
        text = node.command(command, "--help").stdout
        assert f"  coterie {command} " in text
        assert "COTERIE_URL" in text
        assert "exit codes: 0 fine" in text


# Definitions.


def build(node: Running) -> None:
    """Something of everything."""
    node.change("PUT", "/api/vhosts/shop")
    node.change("PUT", "/api/vhost-limits/shop/max-queues", {"value": 50})
    node.add_user("ann", "policymaker", "^ann", "", ".*", vhost="shop")
    node.change("PUT", "/api/user-limits/ann/max-channels", {"value": 9})
    node.command("permissions", "set-topic", "ann", "events", "^ann", ".*", "--vhost", "shop")
    node.command("permissions", "set-topic", "ann", "other", "", "", "--vhost", "shop")
    node.command("permissions", "clear-topic", "ann", "other", "--vhost", "shop")
    node.change("PUT", "/api/policies/shop/p", {"pattern": "^o", "definition": {"max-length": 5}, "priority": 3})
    node.change("PUT", "/api/operator-policies/shop/o", {"pattern": "", "definition": {"max-length": 9}})
    node.change("PUT", "/api/exchanges/shop/events", {"type": "topic", "arguments": {"alternate-exchange": "lost"}})
    node.change("PUT", "/api/exchanges/shop/lost", {"type": "fanout", "internal": True})
    node.change("PUT", "/api/queues/shop/orders", {"arguments": {"x-max-priority": 5, "own": [1, {"a": None}]}})
    node.change("PUT", "/api/queues/shop/passing", {"durable": False})
    node.change("POST", "/api/bindings/shop/e/events/q/orders", {"routing_key": "order.#"})
    node.change("POST", "/api/bindings/shop/e/events/e/lost", {"routing_key": "x", "arguments": {"k": "v"}})
    node.change("POST", "/api/bindings/shop/e/amq.direct/q/orders", {"routing_key": "y"})
    node.change("POST", "/api/bindings/shop/e/events/q/passing", {"routing_key": "z"})


def test_what_is_exported_makes_the_same_node_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    with Running() as first, Running() as second:
        build(first)
        first.command("definitions", "export", str(file))
        assert file.stat().st_mode & 0o077 == 0
        exported = json.loads(file.read_text())
        assert [queue["name"] for queue in exported["queues"]] == ["orders"]  # what is not durable is not exported
        assert len(exported["bindings"]) == 3
        text = second.command("definitions", "import", str(file)).stdout
        assert "1 vhosts" in text
        assert "3 bindings" in text
        assert second.get("/api/definitions") == first.get("/api/definitions") == exported
        second.client(("ann", "ann-secret"), "shop")  # the password came along
        again = told(second, "definitions", "import", str(file))
        assert set(again["done"]) == {"unchanged"}
        one = first.get("/api/definitions/shop")
        assert "users" not in one
        assert all("vhost" not in queue for queue in one["queues"])
        second.change("PUT", "/api/vhosts/copy")
        second.change("POST", "/api/definitions/copy", one)
        copied = second.get("/api/definitions/copy")
        assert copied["queues"] == one["queues"]
        assert copied["bindings"] == one["bindings"]
        assert copied["parameters"] == one["parameters"]


RABBITMQ = {
    "rabbit_version": "3.12.1",
    "rabbitmq_version": "3.12.1",
    "product_name": "RabbitMQ",
    "product_version": "3.12.1",
    "users": [
        {
            "name": "old",
            "password_hash": base64.b64encode(b"salt" + hashlib.sha256(b"saltopen sesame").digest()).decode(),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management"],
            "limits": {},
        },
        {
            "name": "older",
            "password_hash": base64.b64encode(b"pepp" + hashlib.sha512(b"pepperror").digest()).decode(),
            "hashing_algorithm": "rabbit_password_hashing_sha512",
            "tags": "administrator",
        },
    ],
    "vhosts": [{"name": "/"}, {"name": "rabbit", "metadata": {"description": ""}}],
    "permissions": [{"user": "old", "vhost": "rabbit", "configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "old", "vhost": "rabbit", "exchange": "e", "write": ".*", "read": ".*"}],
    "parameters": [
        {"vhost": "rabbit", "component": "vhost-limits", "name": "limits", "value": {"max-connections": 7}},
        {"vhost": "rabbit", "component": "shovel", "name": "s", "value": {}},
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
    "policies": [
        {
            "vhost": "rabbit",
            "name": "ha",
            "pattern": ".*",
            "apply-to": "queues",
            "definition": {"ha-mode": "all", "message-ttl": 1000},
            "priority": 0,
        }
    ],
    "queues": [
        {
            "name": "q",
            "vhost": "rabbit",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "classic"},
            "node": "rabbit@host",
        }
    ],
    "exchanges": [
        {
            "name": "e",
            "vhost": "rabbit",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ],
    "bindings": [
        {
            "source": "e",
            "vhost": "rabbit",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {},
        }
    ],
    "surprise": [1],
}


def kept(node: Running) -> dict[str, dict[str, object]]:
    return {user["name"]: user for user in node.get("/api/definitions")["users"]}


def test_definitions_of_rabbitmq_are_taken_with_passwords_and_what_is_ignored_is_told(
    node: Running, tmp_path: Path
) -> None:
    file = tmp_path / "rabbit.json"
    file.write_text(json.dumps(RABBITMQ))
    text = node.command("definitions", "import", str(file)).stdout
    for note in ("1 global parameters", "'surprise'", "'shovel'", "queues: keys", "node"):
        assert note in text
    assert kept(node)["old"] == RABBITMQ["users"][0]
    channel = node.channel(("old", "open sesame"), "rabbit")
    assert kept(node)["old"]["hashing_algorithm"] == "coterie.scrypt"  # as soon as the password was at hand
    assert told(node, "permissions", "topics")["topic_permissions"] == RABBITMQ["topic_permissions"]
    channel.basic_publish("e", "any.key", b"x")
    node.eventually(lambda: node.get("/api/queues/rabbit/q", ("old", "open sesame"))["counters"]["enqueued"] == 1)
    assert node.get("/api/whoami", ("older", "error"))["tags"] == ["administrator"]


def test_an_import_with_one_problem_does_nothing_and_names_every_problem(node: Running, tmp_path: Path) -> None:
    node.change("PUT", "/api/queues/%2F/there", {"arguments": {"x-max-length": 1}})
    before = node.get("/api/definitions")
    file = tmp_path / "wrong.json"
    file.write_text(
        json.dumps(
            {
                "vhosts": [{"name": "fine"}],
                "users": [{"name": "u", "password_hash": "eA==", "hashing_algorithm": "md5", "tags": []}],
                "permissions": [{"user": "no one", "vhost": "/", "configure": "", "write": "", "read": "("}],
                "policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {"max-length": 1}}],
                "parameters": [{"vhost": "/", "component": "vhost-limits", "name": "l", "value": {"max-x": 1}}],
                "queues": [
                    {"name": "there", "vhost": "/", "durable": True, "arguments": {"x-max-length": 2}},
                    {"name": "q", "vhost": "elsewhere", "durable": True},
                    {"name": "bad", "vhost": "/", "durable": True, "arguments": {"x-message-ttl": "soon"}},
                    "odd",
                ],
                "exchanges": [{"name": "e", "vhost": "/", "type": "x-delayed", "durable": True}],
                "bindings": [{"source": "amq.direct", "vhost": "/", "destination": "gone"}],
            }
        )
    )
    error = node.command("definitions", "import", str(file), expect=2).stderr
    assert error.startswith("coterie: nothing was imported: ")
    for word in (
        "md5", "no one", "'('", "max-x", "inequivalent arg 'x-max-length'", "no vhost 'elsewhere'", "x-message-ttl",
        "queues[3]", "x-delayed", "'gone'",
    ):  # fmt: skip
        assert word in error, word
    assert node.get("/api/definitions") == before
    file.write_text("[")
    assert "not JSON" in node.command("definitions", "import", str(file), expect=2).stderr
    assert "No such file" in node.command("definitions", "import", str(tmp_path / "none"), expect=2).stderr


def test_many_definitions_are_imported_at_once_and_survive(tmp_path: Path) -> None:
    queues = [{"name": f"q{number}", "vhost": "/", "durable": True} for number in range(2000)]
    with Running("--data", str(tmp_path)) as node:
        assert node.change("POST", "/api/definitions", {"queues": queues}).json["done"]["queues"] == 2000
        node.stop(9)
    with Running("--data", str(tmp_path)) as node:
        assert len(node.get("/api/queues?columns=name")) == 2000
