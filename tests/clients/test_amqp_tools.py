"""Debian's amqp-tools (librabbitmq): what shell scripts use, and a client in C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from client_fixtures import Line
from node_process import eventually

pytestmark = pytest.mark.amqp_tools


def plain(url: str) -> str:
    """For librabbitmq a slash at the end would be the vhost with the empty name."""
    return url.removesuffix("/")


def tool(name: str, url: str, *arguments: str, given: bytes = b"", code: int = 0) -> bytes:
    program = shutil.which(f"amqp-{name}")
    assert program, "amqp-tools are missing: `make setup-tools` installs them where it can"
    command = [program, f"--url={plain(url)}", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + (done.stderr if code else b"")


def test_a_queue_is_declared_filled_read_and_deleted(url: str, name: str) -> None:
    assert tool("declare-queue", url, "--durable", "--queue", name).strip() == name.encode()
    tool("publish", url, "--routing-key", name, "--persistent", "--content-type", "text/plain", "--body", "one")
    tool("publish", url, "--routing-key", name, "--persistent", given=b"two, from standard input")
    assert tool("get", url, "--queue", name) == b"one"
    assert tool("get", url, "--queue", name) == b"two, from standard input"
    tool("get", url, "--queue", name, code=2)  # empty
    tool("publish", url, "--routing-key", name, "--body", "left over")
    assert tool("delete-queue", url, "--queue", name).strip() == b"1"


def test_lines_are_published_and_consumed_one_by_one(url: str, name: str) -> None:
    tool("declare-queue", url, "--durable", "--queue", name)
    lines = b"".join(b"line %d\n" % number for number in range(20))
    tool("publish", url, "--routing-key", name, "--line-buffered", given=lines)
    heard = tool("consume", url, "--queue", name, "--count", "20", "--prefetch-count", "5", "cat")
    assert heard == lines
    tool("delete-queue", url, "--queue", name)


def test_what_a_program_did_not_accept_comes_again(url: str, name: str) -> None:
    tool("declare-queue", url, "--durable", "--queue", name)
    tool("publish", url, "--routing-key", name, "--body", "work")
    reads_and_fails = ["sh", "-c", "cat > /dev/null; false"]
    tool("consume", url, "--queue", name, "--count", "1", "--", *reads_and_fails)
    assert tool("get", url, "--queue", name) == b"work"
    tool("delete-queue", url, "--queue", name)


def test_an_error_is_told_with_its_text(url: str, name: str) -> None:
    assert b"NOT_FOUND" in tool("get", url, "--queue", f"{name}.nowhere", code=1)
    wrong = url.replace("guest:guest", "guest:wrong")
    assert b"ACCESS_REFUSED" in tool("get", wrong, "--queue", name, code=1)


def test_what_was_persistent_is_there_after_the_consumer_lost_its_connection(
    line: Line, name: str, tmp_path: Path
) -> None:
    """A consumer whose program is at work when the connection ends: its message comes again."""
    tool("declare-queue", line.url, "--durable", "--queue", name)
    for number in range(5):
        tool("publish", line.url, "--routing-key", name, "--persistent", "--body", f"{number}")
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    work = f"touch '{begun}'; until [ -e '{go_on}' ]; do sleep 0.01; done"
    limits = ["--count", "2", "--prefetch-count", "2"]
    with subprocess.Popen(
        ["amqp-consume", f"--url={plain(line.url)}", "--queue", name, *limits, "--", "sh", "-c", work],
        stderr=subprocess.PIPE,
    ) as consumer:
        eventually("the program is at work", begun.exists)
        line.cut_off()
        go_on.touch()
        consumer.communicate(timeout=60)
        assert consumer.returncode != 0
    assert [tool("get", line.url, "--queue", name) for _ in range(5)] == [b"%d" % number for number in range(5)]
    tool("delete-queue", line.url, "--queue", name)
