"""`coterie.reader` on three real brokers, one of which is killed with -9 in the middle of a read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from three_brokers import NAMES, PERSISTENT, ThreeBrokers

from coterie import reader

COUNT = 400
SIZE = 100_000
"""So large that much of them does not fit into the buffers between a broker and its reader."""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[ThreeBrokers]:
    """With a queue that is full."""
    found = ThreeBrokers(tmp_path, consoles=True)
    try:
        channel = found.channel("node1")
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(COUNT):
            channel.basic_publish("", "q", f"{number}".encode().ljust(SIZE), PERSISTENT)
            if number % 50 == 49:
                channel.tx_commit()
        yield found
    finally:
        found.stop()


def url(brokers: ThreeBrokers, name: str) -> str:
    return f"http://{brokers.console[name]}"


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(body) for body in batch["value"].to_pylist()]


def test_a_look_survives_the_broker_that_it_reads_from(brokers: ThreeBrokers) -> None:
    look = reader.read("q", url(brokers, "node2"), columns=["value", "position"])
    found: list[int] = []
    positions: list[int] = []
    for batch in look:
        if not found:
            brokers.kill("node2")
        found += numbers(batch)
        positions += batch["position"].to_pylist()
    assert found == [*range(COUNT)]
    assert positions == [*range(1, COUNT + 1)]
    assert [*map(numbers, look)] != []  # its address is dead, the others are known
    with pytest.raises(reader.Unavailable):
        reader.read("q", url(brokers, "node2"), patience=1.0)
    again = reader.read("q", [url(brokers, name) for name in reversed(NAMES)], columns=["value"])
    assert again.to_table().num_rows == COUNT


def test_work_goes_on_when_the_broker_that_gives_it_is_killed(brokers: ThreeBrokers) -> None:
    found: list[int] = []
    with reader.lease("q", "loader", url(brokers, "node3"), batch_rows=100, batch_bytes=64 << 20) as taken:
        for batch in taken:
            if not found:
                brokers.kill("node3")
            found += numbers(batch)
            taken.done()
    assert found == [*range(COUNT)]
    look = reader.read("q", [url(brokers, name) for name in ("node1", "node2")])
    assert (look.cut.messages, look.cut.leased) == (0, 0)
