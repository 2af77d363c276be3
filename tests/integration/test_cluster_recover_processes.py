"""Two of three real brokers are gone for good: the third goes on, and nothing of the old cluster is mixed in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from three_brokers import PATIENCE, PERSISTENT, eventually, take
from three_nodes import Nodes

COUNT = 300


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    three = Nodes(tmp_path / "nodes")
    three.start(0, 1, 2)
    yield three
    three.stop()


def command(*arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "cluster", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done


def recover(nodes: Nodes, *numbers: int, expect: int = 0, **flags: bool) -> dict[str, Any]:
    data = [nodes.data(number) for number in numbers]
    others = ",".join(nodes.group_port(number) for number in range(3) if number not in numbers)
    more = [f"--{name.replace('_', '-')}" for name in flags]
    found: dict[str, Any] = json.loads(
        command("recover", "--data", *data, "--peers", others, "--json", *more, expect=expect).stdout
    )
    return found


def published(nodes: Nodes, number: int, queue: str, first: int) -> list[bytes]:
    """Each of them confirmed."""
    channel = nodes.channel(number)
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    sent = [b"%d" % each for each in range(first, first + COUNT)]
    for body in sent:
        channel.basic_publish("", queue, body, PERSISTENT)
    channel.connection.close()
    return sent


def served(nodes: Nodes, number: int, queue: str, count: int) -> list[tuple[bytes, bool]]:
    channel = nodes.channel(number)
    found = [(body, redelivered) for body, redelivered, _ in take(channel, queue, count)]
    channel.connection.close()
    return found


def voters(nodes: Nodes, number: int) -> list[str]:
    found = nodes.status(number)
    in_step = [member["name"] for member in found.get("members", []) if member["state"] == "in step"]
    return sorted(in_step) if sorted(in_step) == sorted(found.get("voters", [])) else []


def test_the_third_goes_on_others_join_empty_and_old_ones_that_come_back_are_refused(nodes: Nodes) -> None:
    sent = published(nodes, 0, "kept", 0)
    confirmed = sorted(member["disk_index"] for member in nodes.status(0)["members"])[1]  # a majority has it on disk
    eventually("the third has it on disk, too", lambda: nodes.status(2)["disk_index"] >= confirmed)
    old = nodes.status(2)["cluster"]

    assert "another node is using that folder" in command(
        "recover", "--data", nodes.data(2), "--peers", nodes.group_port(0), expect=2
    ).stderr  # fmt: skip
    nodes.kill(2)
    assert "may be there yet" in recover(nodes, 2, expect=1, accept_loss=True)["refused"]
    nodes.kill(0, 1)
    assert "a majority of the voters" in recover(nodes, 1, 2, expect=1, accept_loss=True)["refused"]

    before = {path: path.read_bytes() for path in (nodes.data(2) / "log").iterdir()}
    told = recover(nodes, 2)
    assert {path: path.read_bytes() for path in (nodes.data(2) / "log").iterdir()} == before
    assert (told["dry_run"], told["cluster"], told["was"], told["lost"]) == (True, None, old, ["node0", "node1"])
    assert told["queues"] == [{"vhost": "/", "name": "kept", "messages": COUNT}]
    assert "'kept'" in told["missing"][0]

    new = recover(nodes, 2, accept_loss=True)["cluster"]
    lines = [json.loads(line) for path in (nodes.data(2) / "audit").iterdir() for line in path.read_text().splitlines()]
    assert any(line["data"]["action"] == "cluster.recovered" and line["data"]["was"] == old for line in lines)
    nodes.start(2)
    eventually("it serves alone", lambda: nodes.state(2) == "serving")
    assert (nodes.status(2)["cluster"], nodes.status(2)["voters"]) == (new, ["node2"])
    assert served(nodes, 2, "kept", COUNT) == [(body, True) for body in sent]

    nodes.start(0, 1)  # as they were: a majority of the old cluster
    for number in (0, 1):
        eventually("it knows why", lambda number=number: f"goes on as {new}" in str(nodes.status(number).get("why")))  # type: ignore[misc]
        assert nodes.state(number) != "serving"
    assert any("a broker is refused" in line and "given up" in line for line in nodes.log(2).splitlines())
    nodes.kill(0, 1)
    for number in (0, 1):
        kept = json.loads(command("set-aside", "--data", nodes.data(number), "--json").stdout)["kept"]
        assert [*Path(kept).glob("log/*.seg")]
    nodes.start(0, 1)
    eventually("all of them vote", lambda: voters(nodes, 2) == ["node0", "node1", "node2"])
    more = published(nodes, 1, "kept", COUNT)
    assert [body for body, _ in served(nodes, 0, "kept", 2 * COUNT)] == sent + more

    nodes.kill(2)  # whoever joined knows what was given up, too: a majority goes on without the one that was recovered
    eventually("the others serve", lambda: nodes.state(0) == nodes.state(1) == "serving")
    assert [body for body, _ in served(nodes, 1, "kept", 2 * COUNT)] == sent + more
