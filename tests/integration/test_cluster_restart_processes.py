"""Real brokers that are killed all at once: in whatever order they come back, nothing is lost, and they serve soon."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from three_brokers import PERSISTENT, eventually, take
from three_nodes import Nodes

SOON = 30.0
"""Seconds until brokers with their stores serve again, on a machine that has much else to do."""
COUNT = 300


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    three = Nodes(tmp_path / "nodes")
    three.start(0, 1, 2)
    yield three
    three.stop()


def publish(nodes: Nodes) -> list[bytes]:
    channel = nodes.channel(0)
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    sent = [b"%d" % number for number in range(COUNT)]
    for body in sent:
        channel.basic_publish("", "kept", body, PERSISTENT)
    channel.connection.close()
    return sent


def found(nodes: Nodes, number: int) -> list[bytes]:
    channel = nodes.channel(number)
    bodies = [body for body, _, _ in take(channel, "kept", COUNT)]
    channel.connection.close()
    return bodies


def test_brokers_that_are_all_killed_come_back_in_any_order_and_one_dies_again_meanwhile(nodes: Nodes) -> None:
    sent = publish(nodes)
    nodes.kill(0, 1, 2)
    nodes.start(2, 0)
    began = time.monotonic()
    eventually("two of them serve", lambda: nodes.state(2) == nodes.state(0) == "serving")
    assert time.monotonic() - began < SOON
    nodes.start(1)
    eventually("the third is heard of", lambda: nodes.state(1) in ("joining", "catching up", "serving"))
    nodes.kill(2)  # perhaps it is bringing the third up to date
    eventually("the others serve", lambda: nodes.state(0) == nodes.state(1) == "serving")
    assert found(nodes, 1) == sent
    nodes.kill(0, 1)
    nodes.start(1, 2)
    began = time.monotonic()
    eventually("two of them serve", lambda: "serving" in (nodes.state(1), nodes.state(2)))
    assert time.monotonic() - began < SOON
    nodes.start(0)
    eventually("all of them serve", lambda: all(nodes.state(number) == "serving" for number in range(3)))
    assert found(nodes, 2) == sent


def test_one_with_other_settings_is_refused_and_says_which(nodes: Nodes) -> None:
    sent = publish(nodes)
    nodes.kill(0, 1, 2)
    nodes.start(2, COTERIE_CLUSTER_DISPATCH="ownership", COTERIE_BROKER_QUEUES_MAX="5")
    eventually("it waits", lambda: nodes.state(2) == "joining")
    nodes.start(0, 1)
    eventually("the others serve", lambda: nodes.state(0) == nodes.state(1) == "serving")
    assert found(nodes, 1) == sent
    eventually("it knows why", lambda: "its cluster.dispatch is ownership" in str(nodes.status(2).get("why")))
    limit = "its broker.queues_max is 5, and that of the cluster is 100000"
    assert limit in str(nodes.status(2).get("why"))
    for texts, words in ((nodes.log(2), "the cluster refuses"), (nodes.log(0) + nodes.log(1), "a broker is refused")):
        assert any(words in line and limit in line for line in texts.splitlines())
    nodes.kill(2)
    nodes.start(2)
    eventually("it is let in", lambda: nodes.state(2) == "serving")


def test_brokers_do_not_begin_a_cluster_if_only_some_of_them_have_a_guest(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "nodes")
    try:
        nodes.start(0, COTERIE_USERS_GUEST="false")
        nodes.start(1, 2)
        words = "users.guest is not the same everywhere: false, true"
        eventually("they know why", lambda: all(words in str(nodes.status(each).get("why")) for each in (1, 2)))
        nodes.kill(0)
        nodes.start(0)
        eventually("all of them serve", lambda: all(nodes.state(number) == "serving" for number in range(3)))
    finally:
        nodes.stop()


def test_one_with_the_store_of_another_cluster_is_refused_and_keeps_nobody_waiting(
    nodes: Nodes, tmp_path: Path
) -> None:
    sent = publish(nodes)
    others = Nodes(tmp_path / "others")
    others.start(0, 1, 2)
    try:
        others.channel(2).connection.close()
    finally:
        others.stop()
    nodes.kill(0, 1, 2)
    shutil.rmtree(nodes.data(2))
    shutil.copytree(others.data(2), nodes.data(2))
    nodes.start(2)
    eventually("it waits", lambda: nodes.state(2) == "joining")
    nodes.start(0, 1)
    eventually("the others serve", lambda: nodes.state(0) == nodes.state(1) == "serving")
    assert found(nodes, 1) == sent
    eventually("it knows why", lambda: "the cluster refuses this broker" in str(nodes.status(2).get("why")))
    assert any("a broker is refused" in nodes.log(number) for number in (0, 1))
