"""Brokers publish their own traces: a consumer writes the lines to a file, and the audit finds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from three_brokers import NAMES, PERSISTENT, ThreeBrokers

EXCHANGE, QUEUE = "coterie.trace", "coterie.trace.audit"
PATIENCE = 60.0


@contextmanager
def running(*flags: str) -> Iterator[dict[str, Any]]:
    """A node; gives where it listens."""
    command = [
        sys.executable, "-m", "coterie", "node", "--json", "--amqp", "127.0.0.1:0", "--console", "127.0.0.1:0",
        "--name", "node1", *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the node did not start"
        text += line
    try:
        yield json.loads(text)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def coterie(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coterie", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def bind(connection: pika.BlockingConnection) -> BlockingChannel:
    """To the exchange, as soon as it is there."""
    until = time.monotonic() + PATIENCE
    while True:
        channel = connection.channel()
        try:
            channel.exchange_declare(EXCHANGE, passive=True)
            break
        except ChannelClosedByBroker:
            assert time.monotonic() < until, "the exchange was never declared"
            time.sleep(0.05)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, "#")
    return channel


def work(connection: pika.BlockingConnection, name: str) -> None:
    """Something of everything."""
    channel = connection.channel()
    channel.queue_declare("work", durable=True, arguments={"x-deduplicate-length": 100})
    channel.confirm_delivery()
    for number in range(60):
        same = pika.BasicProperties(delivery_mode=2, message_id=f"{name}-{number // 2}")
        channel.basic_publish("", "work", b"%d" % number, same)
    for number in range(20):
        method, _, _ = channel.basic_get("work")
        assert method is not None
        assert method.delivery_tag is not None
        if number % 3:
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_nack(method.delivery_tag, requeue=bool(number % 2))
    channel.close()


def lines_until(channel: BlockingChannel, nodes: set[str], found: Any) -> list[str]:
    """What the trace has, until every one of these nodes has told of that."""
    lines: list[str] = []
    for method, properties, body in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=PATIENCE):
        assert method is not None, f"{nodes} have not told of it"
        assert properties is not None
        assert body is not None
        assert properties.content_type == "application/x-ndjson"
        fresh = body.decode().splitlines()
        headers = properties.headers or {}
        numbers = [json.loads(line)["n"] for line in fresh]
        assert [numbers[0], numbers[-1], len(numbers)] == [
            headers["first"],
            headers["last"],
            1 + numbers[-1] - numbers[0],
        ]
        lines += fresh
        if any(found(json.loads(line)) for line in fresh):
            nodes.discard(str(headers["node"]))
        if not nodes:
            return lines
    raise AssertionError("the queue is gone")


def silent(channel: BlockingChannel) -> bool:
    """Whether a second passes without a message, soon."""
    coming = channel.consume(QUEUE, auto_ack=True, inactivity_timeout=1.0)
    return any(method is None for method, _, _ in islice(coming, 8))


def audited(lines: list[str], folder: Path) -> dict[str, Any]:
    file = folder / "trace.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    answer = coterie("check", str(file), "--json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


def test_a_node_publishes_its_trace_when_told_to_and_it_is_clean(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data"), "--trace-publish", "later") as node:
        _publishes(node, tmp_path)


def _publishes(node: dict[str, Any], folder: Path) -> None:
    url = f"http://guest:guest@{node['console']}"
    host, _, port = str(node["amqp"][0]).rpartition(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host.rpartition("/")[2], int(port))) as connection:
        work(connection, "first")
        before = json.loads(coterie("tracing", "--json", "--url", url).stdout)
        assert (before["tracing"], before["publishing"], before["published"]) == (True, False, 0)
        assert coterie("tracing", "on", "--url", url).returncode == 0
        channel = bind(connection)
        work(connection, "second")
        channel.queue_declare("the end")
        lines = lines_until(channel, {"node1"}, lambda event: str(event.get("queue", "")).startswith("the end#"))
        events = [json.loads(line) for line in lines]
        assert [event["n"] for event in events] == [*range(len(events))], "from the first event on, without a hole"
        assert {"publish", "enqueue", "duplicate", "confirm", "acquire", "dequeue"} <= {each["kind"] for each in events}
        assert not [event for event in events if str(event.get("queue", "")).startswith(EXCHANGE)]
        assert audited(lines, folder)["violations"] == 0
        assert silent(channel), "what is published makes the disk work, which is no reason to publish"
        assert coterie("tracing", "off", "--url", url).returncode == 0
        channel.cancel()


def test_a_node_that_does_not_trace_says_what_to_start_it_with() -> None:
    with running() as node:
        answer = coterie("tracing", "on", "--url", f"http://guest:guest@{node['console']}")
    assert answer.returncode != 0
    assert "start it with node.trace_publish = later, or now" in answer.stderr


def test_the_traces_of_a_cluster_are_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COTERIE_NODE_TRACE_PUBLISH", "now")
    brokers = ThreeBrokers(tmp_path / "cluster")
    try:
        connection = brokers.channel("node1").connection
        channel = bind(connection)
        work(connection, "all")
        channel.basic_publish("", "work", b"last", PERSISTENT)
        before = time.time()
        lines = lines_until(channel, {*NAMES}, lambda event: event.get("wall", 0) > before)
        assert audited(lines, tmp_path)["violations"] == 0
        channel.cancel()
    finally:
        brokers.stop()
