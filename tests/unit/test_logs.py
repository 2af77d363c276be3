"""Logs: one line for each event, for people or for machines, whatever is in the facts."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from coterie.group.members import Address
from coterie.logs import Log, setup

LOG = Log("coterie.group.sample")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger("coterie")
    before = root.handlers[:], root.level, root.propagate
    yield io.StringIO()
    root.handlers[:], root.level, root.propagate = before


def test_a_line_of_text_has_time_level_place_event_and_facts(stream: io.StringIO) -> None:
    setup("info", "text", stream)
    LOG.info("peer connected", peer=Address("b", 1), attempts=3)
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == "INFO group.sample: peer connected peer=b#1 attempts=3\n"


def test_a_line_of_json_has_the_same_as_keys(stream: io.StringIO) -> None:
    setup("info", "json", stream)
    LOG.warning("peer lost", peer=Address("b", 1), level="mine", ratio=0.5)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "coterie.group.sample",
        "event": "peer lost",
        "peer": "b#1",
        "level_": "mine",
        "ratio": 0.5,
    }


def test_lines_of_a_node_carry_its_name(stream: io.StringIO) -> None:
    """Those of several processes may come together: a cluster on one machine."""
    setup("info", "text", stream, node="node1")
    LOG.info("peer connected", peer="b")
    assert stream.getvalue().split(" ", 1)[1] == "INFO node1 group.sample: peer connected peer=b\n"
    stream.truncate(0)
    stream.seek(0)
    setup("info", "json", stream, node="a node")
    LOG.info("peer connected", node="b")
    line = json.loads(stream.getvalue())
    assert (line["node"], line["node_"]) == ("a node", "b")


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_a_peer_put_into_a_fact_cannot_forge_a_second_line(stream: io.StringIO, format: str) -> None:
    setup("info", format, stream)
    LOG.error("refused", name='x\n2026-01-01 INFO "forged"\x1b[2J')
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_less_important_events_than_asked_for_are_left_out(stream: io.StringIO) -> None:
    setup("warning", "text", stream)
    LOG.debug("a")
    LOG.info("b")
    LOG.warning("c")
    LOG.error("d")
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["c", "d"]


def test_a_second_setup_replaces_the_first(stream: io.StringIO) -> None:
    setup("info", "text", io.StringIO())
    setup("info", "text", stream)
    LOG.info("once")
    assert stream.getvalue().count("once") == 1


def test_an_application_that_embeds_coterie_catches_its_events_as_usual(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coterie"):
        LOG.info("peer connected", peer="b#1")
    assert caplog.messages == ["peer connected"]
