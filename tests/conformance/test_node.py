"""`coterie up` as a user runs it: a real process with real files, stopped, killed and started again."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from raw_client import Raw

from coterie.amqp.wire.properties import Properties

PERSISTENT = Properties(delivery_mode=2)


class Up:
    """One `coterie up`."""

    def __init__(self, *arguments: str) -> None:
        self._clients: list[Raw] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coterie", "up", "--json", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = self._process.stdout.readline()
            assert line, self._process.communicate()[1]
            text += line
        self.told: dict[str, Any] = json.loads(text)
        self.url = f"amqp://guest:guest@{self.told['amqp'][0]}/"
        self.log = ""
        """What it said on standard error, once it has stopped."""

    def client(self) -> Raw:
        client = Raw(self.url).open()
        self._clients.append(client)
        return client

    def stop(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        _, self.log = self._process.communicate(timeout=60)
        return self._process.returncode

    def __enter__(self) -> Up:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        if self._process.poll() is None:
            self.stop(signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "broker"


def confirmed(client: Raw, queue: str, bodies: list[bytes]) -> None:
    """Publish them persistently, and wait until the broker has confirmed all."""
    client.call(1, "confirm.select")
    for body in bodies:
        client.publish(1, "", queue, body, PERSISTENT)
    tag = 0
    while tag < len(bodies):
        tag = client.expect(1, "basic.ack").number("delivery_tag")


def bodies_of(client: Raw, queue: str) -> list[bytes]:
    """Everything in the queue, accepted."""
    found = []
    while (heard := client.get(queue, no_ack=True)).name == "basic.get-ok":
        found.append(heard.body)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_confirmed_is_there_after_the_node_died_or_stopped_and_what_was_accepted_is_not(
    folder: Path, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = tmp_path / "traces"
    monkeypatch.setenv("COTERIE_NODE_TRACE", str(traces))
    monkeypatch.setenv("COTERIE_NODE_NAME", "jobber")
    sent = [b"%d" % count for count in range(200)]
    with Up("--data", str(folder)) as up:
        client = up.client()
        client.call(1, "queue.declare", queue="jobs", durable=True)
        confirmed(client, "jobs", sent)
        for _ in range(50):
            heard = client.get("jobs")
            client.send(1, "basic.ack", delivery_tag=heard.number("delivery_tag"))
        client.call(1, "queue.declare", queue="after", durable=True)  # and the acks are done when this is answered
        confirmed(client, "after", [b"x"])
        up.stop(number)
    with Up("--data", str(folder)) as up:
        assert bodies_of(up.client(), "jobs") == sent[50:]
        up.stop()
    assert len([*traces.iterdir()]) == 2
    checked = subprocess.run(
        [sys.executable, "-m", "coterie", "check", str(traces)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_a_node_that_is_told_to_stop_tells_its_clients_and_exits_with_0() -> None:
    with Up() as up:
        client = up.client()
        assert up.stop() == 0
        client.connection_closed(320, None)


def test_the_last_line_of_its_log_says_that_it_has_stopped_and_each_line_whose_it_is() -> None:
    with Up() as up:
        up.client()
        up.stop()
        name = up.told["name"]
        lines = up.log.splitlines()
        assert lines[-1].endswith(f"INFO {name} node.node: the node has stopped name={name}")
        assert all(line.split(" ")[2] == name for line in lines)


def test_clients_of_this_host_come_in_by_either_protocol() -> None:
    """`localhost` is ::1 to some clients, and 127.0.0.1 to others."""
    with Up() as up:
        four, six = up.told["amqp"]
        host, _, port = four.rpartition(":")
        assert (host, six) == ("127.0.0.1", f"[::1]:{port}")
        Raw(f"amqp://guest:guest@{six}/").open().close()
        for door, path in (("console", "/"), ("probes", "/health/ready")):
            port = up.told[door].rpartition(":")[2]
            for host in ("127.0.0.1", "::1"):
                with socket.create_connection((host, int(port)), 10) as connection:
                    connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                    assert connection.recv(12).endswith(b" 200")


def test_a_node_has_the_same_name_after_a_restart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data, and other nodes, know it by that; a container's host has another name each time."""
    with Up("--data", str(folder)) as up:
        first = up.told["name"]
        up.stop(signal.SIGKILL)
    with Up("--data", str(folder)) as up:
        assert up.told["name"] == first
    monkeypatch.setenv("COTERIE_NODE_NAME", "chosen")
    with Up("--data", str(folder)) as up:
        assert up.told["name"] == "chosen"
    monkeypatch.delenv("COTERIE_NODE_NAME")
    with Up("--data", str(folder)) as up:
        assert up.told["name"] == "chosen"


def test_without_a_folder_nothing_survives() -> None:
    with Up() as up:
        client = up.client()
        client.call(1, "queue.declare", queue="jobs", durable=True)
    with Up() as up:
        client = up.client()
        client.send(1, "queue.declare", queue="jobs", passive=True)
        client.channel_closed(1, 404, "queue.declare")


def refusal(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("coterie: ")]
    return line


def test_two_nodes_cannot_share_a_folder(folder: Path) -> None:
    with Up("--data", str(folder)):
        assert "another node is using that folder" in refusal("up", "--port", "0", "--data", str(folder))


def test_wrong_settings_are_refused_with_one_line(folder: Path) -> None:
    assert "--nodes 99" in refusal("up", "--nodes", "99")
    assert "listen.amqp: 'nowhere' is not host:port" in refusal("node", "--amqp", "nowhere")
    assert "tls_cert" in refusal("node", "--amqp", "127.0.0.1:0", "--amqps", "127.0.0.1:0")
    folder.write_text("a file")
    assert "--data" in refusal("up", "--port", "0", "--data", str(folder))
