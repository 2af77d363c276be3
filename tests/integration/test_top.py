"""`coterie top` of a real node: once, as JSON, and on a real terminal with real keys."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from types import TracebackType

import pytest
from console_rig import Running

EVIL = "evil\x1b[2J\x07name"
PATIENCE = 30.0


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running(command="node", environment={"COTERIE_CONSOLE_SAMPLE_INTERVAL": "0.2"}) as running:
        channel = running.channel()
        channel.confirm_delivery()
        for number in range(40):
            channel.queue_declare(f"queue-{number:02}")
        for name, count in (("queue-07", 9), ("queue-03", 4)):
            for _ in range(count):
                channel.basic_publish("", name, b"12345")
        channel.queue_declare(EVIL)
        channel.basic_publish("", EVIL, b"x" * 5000)
        yield running


class Terminal:
    """A terminal of some size, with the command in it."""

    def __init__(self, node: Running, *arguments: str, rows: int = 30, columns: int = 100) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coterie", "top", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**os.environ, "COTERIE_URL": f"http://guest:guest@{node.console}", "TERM": "xterm"},
        )

    def sees(self, text: str) -> None:
        """From now on; colours do not count."""
        until = time.monotonic() + PATIENCE
        while text not in re.sub(r"\x1b\[[0-9;]*m", "", self.text):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{text!r} never came: {self.text[-3000:]!r}"
            self.text += os.read(self._ours, 65536).decode()
        self.text = ""

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._ours, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def ended(self) -> int:
        """With which code; the terminal must be as it was, and the cursor be seen."""
        while self.process.poll() is None:
            ready, _, _ = select.select([self._ours], [], [], 0.05)
            if ready:
                self.text += os.read(self._ours, 65536).decode()
        while select.select([self._ours], [], [], 0)[0]:
            self.text += os.read(self._ours, 65536).decode()
        assert self.text.endswith("\x1b[?25h\x1b[?1049l"), self.text[-200:]
        assert termios.tcgetattr(self._theirs) == self.before
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        return self.process.returncode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self._ours)
        os.close(self._theirs)


def test_once_it_tells_how_the_node_is_and_names_cannot_write_to_the_terminal(node: Running) -> None:
    node.eventually(lambda: node.get("/api/live")["totals"]["ready"] == 14)
    node.eventually(lambda: "evil" in node.command("top", "--once").stdout)  # it shows what was sampled last
    text = node.command("top", "--once").stdout
    assert "14 ready, 0 held in 41 queues" in text
    assert text.index("queue-07") < text.index("queue-03")
    assert "evil\\x1b[2J" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "no queues with 'nowhere'" in node.command("top", "--once", "--name", "nowhere").stdout


def test_without_a_terminal_it_shows_that_once_and_json_is_for_machines(node: Running) -> None:
    assert "14 ready" in node.command("top").stdout
    found = json.loads(node.command("top", "--json", "--sort", "size").stdout)
    assert (found["queues"][0]["name"], found["total"]) == (EVIL, 41)
    assert found["live"]["node"] == node.told["name"]
    found = json.loads(node.command("top", "--json", "--sort", "name", "--name", "queue").stdout)
    assert [queue["name"] for queue in found["queues"]] == [f"queue-{number:02}" for number in range(40)]


def test_what_makes_no_sense_is_one_line(node: Running) -> None:
    assert "a tenth of a second" in node.command("top", "--interval", "0", expect=2).stderr
    assert "look once, at least" in node.command("top", "--count", "0", expect=2).stderr
    node.command("top", "--sort", "colour", expect=2)
    assert "no node answers" in node.command("top", "--url", "http://127.0.0.1:1", "--once", expect=1).stderr


def test_on_a_terminal_keys_sort_turn_pages_and_end_it(node: Running) -> None:
    with Terminal(node, "--interval", "0.2") as terminal:
        terminal.sees("ready▼")
        terminal.press("s")
        terminal.sees("held▼")
        terminal.press("r")
        terminal.sees("held▲")
        terminal.press(" ")
        terminal.sees("page 2 of")
        terminal.press("b")
        terminal.sees("page 1 of")
        terminal.press("p")
        terminal.sees("paused")
        terminal.press("p")
        terminal.sees("q quit")
        terminal.resize(20, 60)
        terminal.sees("queue-0")
        terminal.press("q")
        assert terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(node: Running, number: int) -> None:
    with Terminal(node) as terminal:
        terminal.sees("queue-07")
        terminal.process.send_signal(number)
        assert terminal.ended() == 0


def test_a_node_that_goes_away_is_told_and_asked_again() -> None:
    with Running() as node, Terminal(node, "--interval", "0.2") as terminal:
        terminal.sees("no queues")
        node.stop(signal.SIGKILL)
        terminal.sees("no node answers")
        terminal.press("q")
        assert terminal.ended() == 0
