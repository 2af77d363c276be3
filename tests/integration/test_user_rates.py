"""Rates of users on a real node: a pika client publishes as fast as it can, and is slowed down."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pika
import pytest
from console_rig import GUEST, Running


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running("--console-sample-interval", "0.2", command="node") as node:
        yield node


def test_a_publisher_is_slowed_down_to_its_users_rate_and_it_is_shown(node: Running) -> None:
    shop = node.add_user("shop", "", ".*", ".*", ".*")
    node.command("users", "limit", "shop", "max-publish-rate", "100")
    channel = node.channel(shop)
    channel.queue_declare("paced")
    channel.confirm_delivery()
    began = time.monotonic()
    for _ in range(250):
        channel.basic_publish("", "paced", b"x")
    assert time.monotonic() - began >= 1.4
    loose = node.channel(shop)
    for _ in range(400):
        loose.basic_publish("", "paced", b"x")
    loose.connection.process_data_events(0)
    node.eventually(lambda: node.get("/api/overview")["held_back"] == {"publishing": 1, "opening": 0})
    shown = node.command("status").stdout.splitlines()
    assert any(line.startswith("held back") and "rates of their users" in line for line in shown)
    assert any("rate" in each["held_back_by"] for each in node.get("/api/connections"))
    node.command("users", "limit", "shop", "max-publish-rate", "-1")
    node.eventually(lambda: node.get("/api/queues/%2F/paced")["messages"] == 650)
    assert loose.is_open


def test_connections_are_delayed_and_not_refused(node: Running) -> None:
    late = node.add_user("late", "", ".*", ".*", ".*")
    node.change("PUT", "/api/user-limits/late/max-connection-rate", {"value": 2})
    began = time.monotonic()
    for _ in range(5):
        node.client(late)
    assert time.monotonic() - began >= 1.3


def test_rates_make_sense_or_are_refused_and_are_in_definitions(node: Running) -> None:
    path = "/api/user-limits/guest/max-publish-bytes-rate"
    for value in (0, 2**53 + 1, "x", None, 1.5):
        assert node.ask("PUT", path, {"value": value}).status == 400
    node.change("PUT", path, {"value": 10**9})
    exported = node.get("/api/definitions")
    (guest,) = [user for user in exported["users"] if user["name"] == "guest"]
    assert guest["limits"] == {"max-publish-bytes-rate": 10**9}
    node.change("POST", "/api/definitions", exported)
    guest["limits"]["max-publish-bytes-rate"] = 0
    assert node.ask("POST", "/api/definitions", exported).status == 400
    node.change("DELETE", path)
    pika.BlockingConnection(pika.URLParameters(f"amqp://{GUEST[0]}:{GUEST[1]}@{node.amqp}/")).close()
