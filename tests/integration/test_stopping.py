"""Stopping real processes: in good order, within a time, and at once when told twice."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from coterie.node import node as node_module
from coterie.node.node import Node, NodeConfig
from coterie.node.settings import ListenSettings

AT_ONCE = 10.0
"""Seconds within which a process has gone that ends by itself: far less than it would wait for what hangs."""


class Command:
    """One `coterie` command, and what it says."""

    def __init__(self, *arguments: str, patch: str = "") -> None:
        code = f"import sys; from coterie.cli import main, node, up_cluster; {patch}; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: list[str] = []
        self._heard = threading.Condition()
        self._ended = False
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def end(self) -> None:
        """Whatever failed: no process of its own, and none of theirs, stays."""
        while self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(1.0)
            except subprocess.TimeoutExpired:
                continue
        self._listening.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self._lines.append(line)
                self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    def says(self, text: str) -> None:
        """Wait until a line of its standard error has this."""
        with self._heard:
            assert self._heard.wait_for(lambda: self._ended or self._said(text), 60), self._lines
            assert self._said(text), self._lines

    def _said(self, text: str) -> bool:
        return any(text in line for line in self._lines)

    def told(self) -> Any:
        """The next JSON object of its standard output."""
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            line = self.process.stdout.readline()
            assert line, self._lines
            text += line
        return json.loads(text)


@contextmanager
def command(*arguments: str, patch: str = "pass") -> Iterator[Command]:
    running = Command(*arguments, patch=patch)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def three(patch: str = "pass") -> Iterator[tuple[Command, list[int]]]:
    with command("up", "--nodes", "3", "--port", "0", "--console-port", "", "--json", patch=patch) as up:
        pids = [each["pid"] for each in up.told()["nodes"]]
        up.told()  # all of them serve
        try:
            yield up, pids
        finally:
            for pid in pids:
                if _lives(pid):
                    os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_second_signal_kills_the_brokers_that_hang_at_once() -> None:
    with three() as (up, pids):
        os.kill(pids[1], signal.SIGSTOP)
        up.process.send_signal(signal.SIGTERM)
        up.says("the node stops")
        up.process.send_signal(signal.SIGTERM)
        up.says("node2 killed")
        assert up.process.wait(AT_ONCE) == 1
        assert not any(map(_lives, pids))


def test_brokers_that_do_not_stop_in_time_are_killed_and_named() -> None:
    with three("up_cluster.STOP_TIMEOUT = 2.0") as (up, pids):
        os.kill(pids[2], signal.SIGSTOP)
        up.process.send_signal(signal.SIGTERM)
        up.says("node3 did not stop in 2 s: killed")
        assert up.process.wait(AT_ONCE) == 1
        assert not any(map(_lives, pids))


def test_a_cluster_that_is_told_to_stop_while_it_starts_stops() -> None:
    with command("up", "--nodes", "3", "--port", "0", "--console-port", "", "--json") as up:
        up.told()
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(AT_ONCE) == 0


def _silent_client(node: Command) -> pika.BlockingConnection:
    """One that never answers that its connection is closed, as it never looks."""
    host, _, port = node.told()["amqp"][0].rpartition(":")
    return pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))


NODE = ("node", "--json", "--amqp", "127.0.0.1:0", "--console", "")


def test_a_second_signal_ends_a_node_at_once() -> None:
    with command(*NODE) as node:
        client = _silent_client(node)
        node.process.send_signal(signal.SIGTERM)
        node.says("the node stops")
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(2.0) == -signal.SIGTERM
        with pytest.raises(AMQPConnectionError):
            client.process_data_events(10)


def test_a_node_whose_threads_hang_is_ended_by_force_and_says_where() -> None:
    hang = (
        "import threading, time; node.STOP_MAX = 1.0; "
        "threading.Thread(target=time.sleep, args=(300,), name='stuck').start()"
    )
    with command(*NODE, patch=hang) as node:
        node.told()
        node.process.send_signal(signal.SIGTERM)
        node.says("ended by force")
        assert node.process.wait(AT_ONCE) == 1


def test_a_node_that_waits_for_others_stops_when_told(tmp_path: Path) -> None:
    cluster = ("--bind", "127.0.0.1:0", "--peers", "127.0.0.1:1,127.0.0.1:2", "--cluster-size", "3")
    with command(*NODE, *cluster, "--data", str(tmp_path)) as node:
        node.told()
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(AT_ONCE) == 0


@pytest.mark.parametrize(
    ("hangs", "step"),
    [
        (lambda node: (node.amqp, "stop"), "close clients"),
        (lambda node: (node.broker, "stop"), "close the store"),
        (lambda node: (node.runtime.disk, "close"), "close sockets and files"),
    ],
)
def test_a_step_that_hangs_is_named_and_the_next_ones_are_taken(
    hangs: Callable[[Node], tuple[object, str]],
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    within = node_module._within
    soon = 0.1  # for the step that hangs; how long the others take is the machine's business
    monkeypatch.setattr(
        node_module, "_within", lambda what, seconds, taken: within(what, soon if what == step else AT_ONCE, taken)
    )
    monkeypatch.setattr(logging.getLogger("coterie"), "propagate", True)

    async def scene() -> None:
        node = Node(NodeConfig("n1", tmp_path, ListenSettings(amqp="127.0.0.1:0", console="", probes="")))
        await node.start()
        part, method = hangs(node)
        never = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as patched:
            if method == "close":
                patched.setattr(part, method, lambda: never)
            else:
                patched.setattr(part, method, lambda done: None)
            async with asyncio.timeout(AT_ONCE):
                await node.stop()
        lines = [str(getattr(record, "coterie_facts", {}).get("step", "")) for record in caplog.records]
        assert [line for line in lines if line] == [step]

    asyncio.run(scene())
