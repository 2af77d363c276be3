"""What is at home on one of three brokers, with pika: direct replies, and queues that are not replicated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from three_brokers import NAMES, PATIENCE, PERSISTENT, ThreeBrokers, take

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(tmp_path_factory.mktemp("homes"), consoles=True)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("responder", ["node1", "node2", "node3"])
def test_a_question_is_answered_directly_by_a_client_of_any_broker(three: ThreeBrokers, responder: str) -> None:
    asker, other = three.channel("node1"), three.channel(responder)
    asker.queue_declare("questions", durable=True)
    answers: list[tuple[bytes, str]] = []
    asker.basic_consume(
        REPLY_TO,
        lambda _, __, properties, body: answers.append((body, str(properties.correlation_id))),
        auto_ack=True,
    )
    asker.basic_publish("", "questions", b"question", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="7"))
    method, properties, body = next(other.consume("questions", inactivity_timeout=PATIENCE))
    assert method is not None
    assert method.delivery_tag is not None
    assert properties is not None
    assert body == b"question"
    address = str(properties.reply_to)
    assert other.queue_declare(address, passive=True).method.consumer_count == 1
    other.confirm_delivery()
    reply = pika.BasicProperties(correlation_id=properties.correlation_id)
    other.basic_publish("", address, b"answer", reply, mandatory=True)
    other.basic_ack(method.delivery_tag)
    asker.connection.process_data_events(PATIENCE)
    assert answers == [(b"answer", "7")]
    asker.connection.close()
    with pytest.raises(ChannelClosedByBroker, match="404"):
        other.queue_declare(address, passive=True)


def ask(three: ThreeBrokers, node: str, *arguments: str, expect: int = 0) -> Any:
    """A command's JSON, of the console of that node."""
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "COTERIE_URL": f"http://guest:guest@{three.console[node]}"},
    )
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout) if not expect else done.stderr


def publish(channel: BlockingChannel, queue: str, bodies: list[bytes]) -> None:
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)


def test_a_queue_that_is_not_replicated_is_published_to_from_everywhere_and_consumed_at_home(
    three: ThreeBrokers,
) -> None:
    home = three.channel("node2")
    home.queue_declare("here", durable=True, arguments={"x-replicated": False})
    sent = {name: [b"%s %d" % (name.encode(), number) for number in range(50)] for name in NAMES}
    publishers = [threading.Thread(target=publish, args=(three.channel(name), "here", sent[name])) for name in NAMES]
    for thread in publishers:
        thread.start()
    for thread in publishers:
        thread.join(PATIENCE)
    other = three.channel("node1")
    assert other.queue_declare("here", passive=True).method.message_count == 150
    with pytest.raises(ChannelClosedByBroker, match="the node 'node2'") as refused:
        next(other.consume("here", inactivity_timeout=PATIENCE))
    assert refused.value.reply_code == 405
    got = [body for body, _, _ in take(home, "here", 150)]
    for name in NAMES:
        assert [body for body in got if body.startswith(name.encode())] == sent[name]
    home.basic_nack(0, multiple=True, requeue=True)
    home.cancel()
    third = three.channel("node3")
    assert third.queue_purge("here").method.message_count == 150
    assert third.queue_delete("here", if_empty=True).method.message_count == 0
    with pytest.raises(ChannelClosedByBroker, match="404"):
        home.queue_declare("here", passive=True)


def test_the_tools_show_where_a_queue_is_at_home_and_whether_it_is_replicated(three: ThreeBrokers) -> None:
    home = three.channel("node3")
    home.queue_declare("shown", arguments={"qpid.replicated": "false"})
    home.queue_declare("everywhere")
    home.exchange_declare("loose", arguments={"x-replicated": False})
    mine = home.queue_declare("", exclusive=True).method.queue
    publish(home, "shown", [b"one"])
    for node in NAMES:
        queues = {queue["name"]: queue for queue in ask(three, node, "queues")["queues"]}
        found = {name: (queues[name]["replicated"], queues[name]["home"]) for name in ("shown", "everywhere", mine)}
        assert found == {"shown": (False, "node3"), "everywhere": (True, None), mine: (False, "node3")}
        owners = {queue["name"]: queue for queue in ask(three, node, "cluster", "owners")["queues"]}
        assert (owners["shown"]["owner"], owners["shown"]["dispatch"]) == ("node3", "home")
        exchanges = {exchange["name"]: exchange for exchange in ask(three, node, "exchanges")["exchanges"]}
        assert not exchanges["loose"]["replicated"]
    assert "node3" in ask(three, "node1", "get", "shown", expect=1)
    assert [message["payload"] for message in ask(three, "node3", "get", "shown")["messages"]] == ["one"]


def test_a_queue_ends_with_its_home_and_the_others_go_on(tmp_path: Path) -> None:
    three = ThreeBrokers(tmp_path)
    try:
        home, other = three.channel("node1"), three.channel("node2")
        home.queue_declare("here", durable=True, arguments={"x-replicated": False})
        other.queue_declare("everywhere", durable=True)
        other.queue_bind("here", "amq.fanout")
        other.queue_bind("everywhere", "amq.fanout")
        other.confirm_delivery()
        other.basic_publish("amq.fanout", "", b"both", PERSISTENT)
        three.kill("node1")
        other.basic_publish("amq.fanout", "", b"one", PERSISTENT)  # is confirmed when the others go on
        with pytest.raises(ChannelClosedByBroker, match="404"):
            other.queue_declare("here", passive=True)
        third = three.channel("node3")
        third.queue_declare("here", durable=True, arguments={"x-replicated": False})
        assert [body for body, _, _ in take(third, "everywhere", 2)] == [b"both", b"one"]
    finally:
        three.stop()
