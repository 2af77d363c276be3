"""What `coterie top` draws: members, alarms and queues, never wider or longer than the terminal."""

from __future__ import annotations

import re

import pytest

from coterie.cli.remote import Shape
from coterie.cli.top_screen import Look, clip, draw

LIVE: Shape = {
    "node": "node1", "version": "1.0", "uptime": 61_000, "alarms": [], "closed": "", "interval": 5.0,
    "totals": {"ready": 1234, "unacked": 5, "queues": 2, "connections": 1, "channels": 1, "consumers": 1},
    "cluster": {
        "clustered": True, "state": "serving", "coordinator": "node1",
        "members": [
            {"name": "node1", "state": "in step", "voter": True, "this": True},
            {"name": "node2", "state": "lost", "voter": True, "this": False},
        ],
    },
    "history": {
        "columns": ["number", "publish", "confirm", "deliver", "ack", "confirm_mean", "confirm_worst", "sync_mean"],
        "rows": [[1, 0, 0, 0, 0, None, None, None], [2, 1500.4, 3.25, 0, 0, 0.0021, 1.5, None]],
    },
}  # fmt: skip
QUEUE: Shape = {
    "name": "orders", "vhost": "/", "messages_ready": 1234, "messages_unacknowledged": 5, "consumers": 1,
    "message_bytes": 4096,
    "message_stats": {"publish_details": {"rate": 12.5}, "deliver_get_details": {"rate": 0.5}},
}  # fmt: skip
PAGE: Shape = {
    "items": [QUEUE, {**QUEUE, "name": "n" * 300, "vhost": "shop"}],
    "filtered_count": 2,
    "page": 1,
    "page_count": 1,
}


def bare(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def test_members_rates_and_latencies_are_told() -> None:
    text = "\n".join(draw(LIVE, PAGE, Look(), 120, 40))
    assert re.search(r"node1 +in step +voter, coordinator, this node", text)
    assert re.search(r"node2 +lost +voter$", text, re.MULTILINE)
    assert "1,234 ready, 5 held in 2 queues" in text
    assert "published 1,500, confirmed 3.2, delivered 0, acknowledged 0" in text
    assert "confirm 2.1 ms (worst 1.5 s), disk sync - (worst -)" in text
    assert re.search(r"orders +1,234 +5 +12/s +0.5/s +1 +4.0 KiB", text)
    assert "shop: nnn" in text


def test_why_a_node_does_not_serve_comes_before_its_alarms() -> None:
    assert "alarm: memory, disk: publishers are blocked" in "\n".join(
        draw({**LIVE, "alarms": ["memory", "disk"]}, PAGE, Look(), 120, 40)
    )
    closed = "\n".join(draw({**LIVE, "alarms": ["cluster"], "closed": "no majority"}, PAGE, Look(), 120, 40))
    assert "does not serve: no majority" in closed
    assert "alarm" not in closed


def test_those_who_may_not_see_everything_see_their_queues() -> None:
    mine: Shape = {key: value for key, value in LIVE.items() if key not in ("cluster", "history")}
    text = "\n".join(draw(mine, PAGE, Look(), 120, 40))
    assert "published" not in text
    assert "orders" in text


@pytest.mark.parametrize("width", [20, 60, 80, 200])
@pytest.mark.parametrize("height", [8, 12, 40])
def test_it_is_never_wider_or_longer_than_the_terminal(width: int, height: int) -> None:
    for colour in (False, True):
        lines = draw(LIVE, PAGE, Look(name="x"), width, height, colour)
        assert len(lines) <= height
        assert max(len(bare(line)) for line in lines) <= width


def test_a_line_that_is_cut_keeps_its_colours_whole() -> None:
    assert clip("\x1b[1mabc\x1b[0mdef", 4) == "\x1b[1mabc\x1b[0md"
    assert clip("\x1b[1mabc\x1b[0mdef", 2) == "\x1b[1mab\x1b[0m"
    assert clip("abc", 3) == "abc"


def test_the_column_that_it_is_sorted_by_is_marked() -> None:
    assert any("held▼" in line for line in draw(LIVE, PAGE, Look(sort="held"), 120, 40))
    assert any("name▲" in line for line in draw(LIVE, PAGE, Look(sort="name", reverse=True), 120, 40))
