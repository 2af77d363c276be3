"""What operators see of replication, and do about it; and two clusters of real processes with a link between them."""

from __future__ import annotations

import base64
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console_rig import Running
from pika.exceptions import ChannelClosedByBroker, NackError
from three_brokers import NAMES, PERSISTENT, ThreeBrokers, eventually

QUICK = {
    "COTERIE_REPLICATION_QUEUES": "^r",
    "COTERIE_REPLICATION_RETRY_MAX": "1",
    "COTERIE_REPLICATION_LOOK_INTERVAL": "0.1",
}


def link_to(target: Running) -> dict[str, str]:
    """By a user there who may do just what a link needs."""
    ours = r"^(coterie\.replication|r.*)$"
    name, password = target.add_user("link", "replicator", ours, ours, "^r")
    return {"COTERIE_REPLICATION_TO": f"amqp://{name}:{password}@{target.amqp}"}


def told(node: Running, *arguments: str, expect: int = 0) -> Any:
    return json.loads(node.command(*arguments, "--json", expect=expect).stdout)


def count(channel: Callable[[], Any], queue: str = "r") -> int:
    """Ready ones; -1: there is no such queue."""
    opened = channel()
    try:
        found = opened.queue_declare(queue, passive=True).method.message_count
        assert isinstance(found, int)
        return found
    except ChannelClosedByBroker:
        return -1
    finally:
        opened.connection.close()


def test_operators_see_a_link_and_its_lag_and_promote_what_follows() -> None:
    with Running() as target, Running(environment=QUICK | link_to(target)) as source:
        channel = source.channel()
        channel.confirm_delivery()
        channel.queue_declare("r", durable=True)
        channel.basic_publish("", "r", b"one", PERSISTENT)
        eventually("it is there", lambda: count(target.channel) == 1)
        eventually("nothing is behind", lambda: told(source, "replication")["links"][0]["behind"] == 0)
        (link,) = told(source, "replication")["links"]
        assert (link["to"], link["state"]) == (target.amqp, "running")
        (queue,) = told(source, "replication", "queues")["queues"]
        assert (queue["queue"], queue["state"], queue["confirmed"]) == ("r", "running", 1)
        assert f'coterie_replication_running{{to="{target.amqp}"}} 1' in source.ask("GET", "/metrics").body.decode()
        (follower,) = told(target, "replication", "followers")["queues"]
        assert (follower["queue"], follower["state"], follower["mark"]) == ("r", "following", 1)
        assert "running" in source.command("replication").stdout

        publisher = target.channel()
        publisher.confirm_delivery()
        with pytest.raises(NackError):
            publisher.basic_publish("", "r", b"own", PERSISTENT)
        assert told(target, "replication", "promote", "--all")["queues"] == ["r"]
        publisher.basic_publish("", "r", b"own", PERSISTENT)
        (follower,) = told(target, "replication", "followers")["queues"]
        assert follower["state"] == "promoted"
        channel.basic_publish("", "r", b"two", PERSISTENT)
        eventually("refused", lambda: "promoted" in told(source, "replication", "queues")["queues"][0]["state"])
        assert count(target.channel) == 2

        assert "name a queue" in target.command("replication", "promote", expect=2).stderr
        assert "follows no other queue" in source.command("replication", "promote", "r", expect=1).stderr
        target.stop(signal.SIGKILL)
        eventually("it is down", lambda: link_state(source.console) == "waiting")
        eventually("it tells why", lambda: "is a broker up there" in source.get("/api/replication")[0]["why"])
        (link,) = told(source, "replication", expect=1)["links"]
        assert link["behind"] == 1
        metrics = source.ask("GET", "/metrics").body.decode()
        assert f'coterie_replication_messages_behind{{to="{link["to"]}"}} 1' in metrics


def link_state(console: str) -> str:
    request = urllib.request.Request(f"http://{console}/api/replication")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            (link,) = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        return "(it does not serve)"
    return str(link["state"])


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [("TO", "http://x", "replication.to"), ("QUEUES", "(", "regular expression"), ("TO", "amqp://h:0", "host:port")],
)
def test_settings_that_are_no_good_are_refused_in_one_line(
    variable: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "COTERIE_REPLICATION_TO", "amqp://h:5672")
    monkeypatch.setitem(os.environ, f"COTERIE_REPLICATION_{variable}", value)
    assert text in Running.refused("up", "--port", "0")


def test_two_clusters_one_follows_the_other_while_the_linking_broker_and_one_of_the_others_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ThreeBrokers(tmp_path / "target")
    hosts = ",".join(f"127.0.0.1:{port}" for port in target.amqp.values())
    for name, value in {**QUICK, "COTERIE_REPLICATION_TO": f"amqp://guest:guest@{hosts}/"}.items():
        monkeypatch.setitem(os.environ, name, value)
    source = ThreeBrokers(tmp_path / "source", consoles=True)
    try:
        survivor = "node2"
        channel = source.channel(survivor)
        channel.queue_declare("r", durable=True)
        channel.confirm_delivery()

        def linking() -> list[str]:
            up = [name for name in NAMES if name not in killed]
            return [name for name in up if link_state(source.console[name]) == "running"]

        killed: list[str] = []
        eventually("one broker runs the link", lambda: len(linking()) == 1)
        sent = [b"%d" % number for number in range(300)]
        for number, body in enumerate(sent):
            channel.basic_publish("", "r", body, PERSISTENT)
            if number == 100:
                (first,) = linking()
                if first == survivor:
                    survivor = "node3" if first != "node3" else "node1"
                    channel = source.channel(survivor)
                    channel.confirm_delivery()
                killed.append(first)
                source.kill(first)
            if number == 200:
                target.kill("node1")
        reader = source.channel(survivor)
        for _ in range(120):
            method, _, _ = reader.basic_get("r", auto_ack=True)
            assert method is not None
        eventually("180 there", lambda: count(lambda: target.channel("node3")) == 180)
        taker = target.channel("node2")
        found: list[bytes] = []
        while True:
            method, _, taken = taker.basic_get("r")
            if method is None:
                break
            assert taken is not None
            found.append(taken)
        assert found == sent[120:]
        (now,) = linking()
        assert now != first
    finally:
        source.stop()
        target.stop()
