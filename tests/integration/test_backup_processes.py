"""A cluster of real brokers is backed up while clients publish; what is restored has all that was confirmed before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pika.exceptions import AMQPError
from three_brokers import PATIENCE, PERSISTENT, eventually, take
from three_nodes import Nodes

BATCH = 3
"""Messages of a transaction."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    three = Nodes(tmp_path / "nodes")
    three.start(0, 1, 2)
    yield three
    three.stop()


def command(*arguments: object, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done


def told(*arguments: object, expect: int = 0, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(*arguments, "--json", expect=expect, **environment).stdout)
    return found


class Publishing:
    """Confirmed publishes by one client and transactions by another, until it is told to stop."""

    def __init__(self, nodes: Nodes) -> None:
        self.confirmed = self.committed = 0
        self._stop = threading.Event()
        self._channels = nodes.channel(0), nodes.channel(1)
        self._threads = [threading.Thread(target=each) for each in (self._confirmed, self._committed)]
        self._channels[0].queue_declare("confirmed", durable=True)
        self._channels[0].queue_declare("committed", durable=True)
        for thread in self._threads:
            thread.start()

    def _confirmed(self) -> None:
        channel, _ = self._channels
        channel.confirm_delivery()
        while not self._stop.is_set():
            channel.basic_publish("", "confirmed", b"%d" % self.confirmed, PERSISTENT)
            self.confirmed += 1

    def _committed(self) -> None:
        _, channel = self._channels
        channel.tx_select()
        while not self._stop.is_set():
            for _ in range(BATCH):
                channel.basic_publish("", "committed", b"%d" % self.committed, PERSISTENT)
            channel.tx_commit()
            self.committed += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        for channel in self._channels:
            try:
                channel.connection.close()
            except AMQPError:
                pass


def test_a_backup_under_load_has_all_that_was_confirmed_before_and_no_half_batch_and_begins_a_new_cluster(
    nodes: Nodes, tmp_path: Path
) -> None:
    publishing = Publishing(nodes)
    target, restored = tmp_path / "backups", tmp_path / "restored"
    console = f"http://{nodes.console(2)}"
    try:
        eventually("something is confirmed", lambda: publishing.confirmed > 50 and publishing.committed > 5)
        first = told("backup", target, COTERIE_URL=console)
        confirmed, committed = publishing.confirmed, publishing.committed
        second = told("backup", target, COTERIE_URL=console)
    finally:
        publishing.stop()
    old = nodes.status(2)["cluster"]
    assert first["cluster"] == second["cluster"] == old
    assert first["copied"] == first["bytes"]
    assert second["reused"] > 0
    assert second["copied"] < second["bytes"]
    assert "password on a command line" in command(
        "backup", target, "--url", console.replace("://", "://guest:guest@"), expect=2
    ).stderr  # fmt: skip

    assert told("restore", target, "--verify")["verified"]
    found = told("restore", target, restored)
    counts = {queue["name"]: queue["messages"] for queue in found["queues"]}
    assert confirmed <= counts["confirmed"] <= publishing.confirmed + 1
    assert counts["committed"] % BATCH == 0
    assert committed * BATCH <= counts["committed"]
    assert found["cluster"] != old

    nodes.kill(0, 1, 2)
    for number in range(3):
        nodes.data(number).rename(tmp_path / f"old{number}")
    restored.rename(nodes.data(2))
    nodes.start(2)
    eventually("it serves", lambda: nodes.state(2) == "serving")
    assert nodes.status(2)["cluster"] == found["cluster"]
    nodes.start(0, 1)
    eventually("all vote", lambda: len(nodes.status(2)["voters"]) == 3)
    channel = nodes.channel(0)
    bodies = [body for body, redelivered, _ in take(channel, "confirmed", counts["confirmed"]) if redelivered]
    assert bodies == [b"%d" % number for number in range(counts["confirmed"])]
    channel.connection.close()


def test_only_an_administrator_gets_a_backup_and_the_audit_log_says_who_did(nodes: Nodes, tmp_path: Path) -> None:
    console = f"http://guest:guest@{nodes.console(0)}"
    eventually("it serves", lambda: nodes.state(0) == "serving")
    command("users", "add", "watcher", "--password", "secret", "--tags", "monitoring", COTERIE_URL=console)
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    refused = command(
        "backup", tmp_path / "b", "--url", f"http://watcher@{nodes.console(0)}", "--password-file", password, expect=2
    )
    assert "needs the tag administrator" in refused.stderr
    assert not (tmp_path / "b" / "backups").exists()
    command("backup", tmp_path / "b", COTERIE_URL=console)
    lines = [json.loads(line) for path in (nodes.data(0) / "audit").iterdir() for line in path.read_text().splitlines()]
    found = [(line["data"]["action"], line["data"]["user"], line["data"]["result"]) for line in lines]
    assert ("backup.begun", "watcher", "refused") in found
    assert ("backup.begun", "guest", "done") in found
    assert ("backup.ended", "guest", "done") in found
