"""A cluster of three real processes under an operator's hands: status, a death, forget, drain. One story, told once."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_rig import Running
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from three_brokers import PATIENCE, PERSISTENT, ThreeBrokers, eventually, take

GUEST = "Basic " + base64.b64encode(b"guest:guest").decode()


class Operated(ThreeBrokers):
    """With consoles, and the commands that go there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, consoles=True)

    def command(self, node: str, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "coterie", "cluster", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "COTERIE_URL": f"http://guest:guest@{self.console[node]}"},
        )
        assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def told(self, node: str, *arguments: str, expect: int = 0) -> Any:
        return json.loads(self.command(node, *arguments, "--json", expect=expect).stdout)

    def ask(self, node: str, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.console[node], timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": GUEST})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def states(self, node: str) -> dict[str, tuple[str, bool]]:
        """By name: state, and whether it votes; without a command, as it is asked again and again."""
        _, found = self.ask(node, "/api/cluster")
        return {member["name"]: (member["state"], member["voter"]) for member in found["members"]}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    cluster = Operated(tmp_path_factory.mktemp("operated"))
    yield cluster
    cluster.stop()


def told_to_go(channel: BlockingChannel) -> tuple[int, str]:
    """With which code and text the broker closes its connection."""
    until = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            channel.connection.process_data_events(PATIENCE)
    except ConnectionClosedByBroker as closed:
        return closed.reply_code, closed.reply_text
    raise AssertionError("it was not closed")


class Writer:
    """Publishes to the queue `written`, one confirm after the other, until it is told to go."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.confirmed: list[bytes] = []
        self._code = 0
        self._channel = channel
        channel.queue_declare("written", durable=True)
        channel.confirm_delivery()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            for number in itertools.count():
                body = b"%d" % number
                self._channel.basic_publish("", "written", body, PERSISTENT)
                self.confirmed.append(body)
        except ConnectionClosedByBroker as closed:
            self._code = closed.reply_code

    @property
    def code(self) -> int:
        """With which it was told; waits for that."""
        self._thread.join(PATIENCE)
        return self._code


ALL_IN_STEP = {f"node{n}": ("in step", True) for n in (1, 2, 3)}


def test_an_operator_sees_a_death_forgets_it_and_drains_a_node_and_nothing_is_lost(three: Operated) -> None:
    # Three members in step.
    for node in three.console:
        eventually(f"{node} has all in step", lambda node=node: three.states(node) == ALL_IN_STEP)  # type: ignore[misc]
    status = three.told("node1", "status")
    assert (status["clustered"], status["node"], status["state"], status["why"]) == (True, "node1", "serving", "")
    assert (status["voters"], status["majority"]) == (["node1", "node2", "node3"], 2)
    assert {three.told(node, "status")["cluster"] for node in ("node2", "node3")} == {status["cluster"]}
    assert sum(member["oldest"] for member in status["members"]) == 1
    text = three.command("node2", "status").stdout
    assert "node2, serving" in text
    assert "node1, node2, node3; 2 of them are a majority" in text
    assert "node3  " in three.command("node1", "members").stdout

    # What is refused, and how.
    assert "'node2' is in step" in three.command("node1", "forget", "node2", expect=1).stderr
    assert "'node9' is no voter" in three.command("node1", "forget", "node9", expect=2).stderr

    # Any one of them may go.
    checks = [f"/api/health/checks/node-is-{what}-critical" for what in ("quorum", "mirror-sync")]
    assert [three.ask("node1", check) for check in checks] == [(200, {"status": "ok"})] * 2

    # A death.
    three.kill("node3")
    left = {"node1": ("in step", True), "node2": ("in step", True)}
    eventually("node3 is lost", lambda: three.states("node1") == {**left, "node3": ("lost", True)})
    assert "node3 is lost: bring it back, or forget it first" in three.command("node1", "drain", expect=1).stderr
    status, answer = three.ask("node1", checks[0])
    assert (status, answer["status"], answer["others"]) == (503, "failed", ["node2"])
    assert three.ask("node1", checks[1])[0] == 200
    assert three.ask("node1", "/api/healthchecks/node/node2") == (200, {"status": "ok"})
    assert three.ask("node1", "/api/healthchecks/node/node3")[0] == 503
    (lost,) = [row for row in three.told("node2", "voters")["voters"] if row["state"] == "lost"]
    assert (lost["name"], lost["incarnation"]) == ("node3", None)

    # It is forgotten.
    assert three.told("node2", "forget", "node3")["voters"] == ["node1", "node2"]
    eventually("node1 has forgotten it too", lambda: three.states("node1") == left)
    assert "'node3' is no voter" in three.command("node2", "forget", "node3", expect=2).stderr

    # One of the two that are left is drained.
    publisher = three.channel("node2")
    publisher.queue_declare("jobs", durable=True)
    publisher.confirm_delivery()
    sent = [b"%d" % number for number in range(40)]
    for body in sent:
        publisher.basic_publish("", "jobs", body, PERSISTENT)
    consumer = three.channel("node1")
    consumer.basic_qos(prefetch_count=10)
    first = take(consumer, "jobs", 10)
    for _, _, tag in first[:4]:
        consumer.basic_ack(tag)
    eventually("four more are held", lambda: three.told("node2", "owners")["queues"][0]["messages_ready"] == 26)
    (queue,) = three.told("node2", "owners")["queues"]
    assert (queue["name"], queue["dispatch"], queue["owner"]) == ("jobs", "credit", None)
    assert queue["members"] == [{"name": "node1", "consumers": 1, "held": 10}]
    # Every node knows whose a consumer is, its own or another's.
    for node in ("node1", "node2"):
        for path, key in (("/api/queues/%2F/jobs", "consumer_details"), ("/api/consumers", None)):
            found = three.ask(node, path)[1]
            (shown,) = found if key is None else found[key]
            details = shown["channel_details"]
            assert (details["node"], details["number"], details["user"]) == ("node1", 1, "guest")
            assert details["name"] == f"{details['connection_name']} (1)"
            assert details["connection_name"] in [row["name"] for row in three.ask("node1", "/api/connections")[1]]
    table = three.command("node2", "owners").stdout
    assert "dispatch" in table
    assert "credit" in table

    writer = Writer(three.channel("node1"))
    eventually("the writer writes", lambda: len(writer.confirmed) >= 5)
    draining = subprocess.Popen(
        [sys.executable, "-m", "coterie", "cluster", "drain", "--url", f"http://guest:guest@{three.console['node1']}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    code, text = told_to_go(consumer)
    assert code == 320
    assert "node1 is being drained: connect to another node" in text
    assert writer.code == 320
    again = three.channel("node2")
    found = take(again, "jobs", 36)
    assert sorted(int(body) for body, _, _ in found) == list(range(4, 40))
    flagged = {int(body) for body, redelivered, _ in found if redelivered}
    assert set(range(4, 10)) <= flagged <= set(range(4, 14))  # those that it saw, and those that were on their way
    again.basic_ack(0, multiple=True)
    out, _ = draining.communicate(timeout=PATIENCE)
    assert (draining.returncode, out) == (0, "node1 is drained: stop it, or restart it to have it join again\n")

    written = publisher.queue_declare("written", durable=True, passive=True).method.message_count
    kept = [again.basic_get("written", auto_ack=True)[2] for _ in range(written)]
    assert set(writer.confirmed) <= set(kept)
    assert len(kept) == len(set(kept)) <= len(writer.confirmed) + 1  # one may have been under way

    # It stays, and says what it is; the other one serves.
    assert three.told("node1", "status", expect=1)["state"] == "drained"
    assert three.states("node1")["node1"] == ("drained", False)
    assert three.states("node2") == {"node2": ("in step", True)}
    with pytest.raises(AMQPConnectionError):
        three.connect("node1")
    assert "is drained" in three.command("node1", "drain").stdout
    publisher.basic_publish("", "jobs", b"after", PERSISTENT)
    ((body, _, tag),) = take(again, "jobs", 1)
    assert body == b"after"
    again.basic_ack(tag)
    assert "'node2' is the only voter" in three.command("node2", "drain", expect=1).stderr


def test_a_broker_that_stands_alone_says_so_and_cannot_be_drained() -> None:
    with Running() as node:
        found = json.loads(node.command("cluster", "status", "--json").stdout)
        assert (found["clustered"], found["cluster"], found["voters"]) == (False, None, [])
        (member,) = found["members"]
        assert (member["name"], member["this"]) == (node.told["name"], True)
        assert "it is no cluster" in node.command("cluster").stdout
        node.command("queues", "declare", "lonely")
        (queue,) = json.loads(node.command("cluster", "owners", "--json").stdout)["queues"]
        assert (queue["name"], queue["dispatch"], queue["members"]) == ("lonely", "local", [])
        for action in (("drain",), ("forget", "x")):
            assert "stands alone: it is no cluster" in node.command("cluster", *action, expect=2).stderr
