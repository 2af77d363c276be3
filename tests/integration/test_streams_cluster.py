"""A lease of a real cluster: read from all brokers at once, while one of them is killed in the middle."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from three_brokers import NAMES, PERSISTENT, ThreeBrokers

from coterie.streams.client import Client, Lease

COUNT = 600
SIZE = 100_000
"""So large that a part of them does not fit into the buffers between a broker and its reader."""
PARTS = 3


class Reader(threading.Thread):
    """Reads a part, beginning at one broker; waits in the middle until it is told to go on."""

    def __init__(self, client: Client, lease: Lease, part: int) -> None:
        super().__init__(daemon=True)
        self.client = client
        self._lease = lease
        step = COUNT // PARTS
        self._range = part * step, (part + 1) * step
        self.found: dict[int, bytes] = {}
        self.in_the_middle = threading.Event()
        self.go_on = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for batch in self.client.read_lease(self._lease, *self._range):
                assert not self.found or batch.offset[0] == max(self.found) + 1
                self.found.update(zip(batch.offset, batch.bodies(), strict=True))
                self.in_the_middle.set()
                assert self.go_on.wait(60)
        except BaseException as error:
            self.error = error
            self.in_the_middle.set()


def test_executors_read_from_all_brokers_and_one_is_killed(tmp_path: Path) -> None:
    brokers = ThreeBrokers(tmp_path, consoles=True)
    try:
        channel = brokers.channel("node1")
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for number in range(COUNT):
            channel.basic_publish("", "q", f"{number}".encode().ljust(SIZE), PERSISTENT)
            if number % 50 == 49:
                channel.tx_commit()
        clients = [Client([f"http://{brokers.console[name]}"]) for name in NAMES]
        driver = clients[0]
        lease = driver.acquire("q", "l", "first")
        assert lease.acquired == COUNT
        urls = {f"http://{brokers.console[name]}" for name in NAMES}
        assert {node.url for node in driver.nodes()} == urls
        for number, client in enumerate(clients):
            assert set(client.spread(number)) == urls
        assert len({client.urls[0] for client in clients}) == PARTS

        readers = [Reader(client, lease, part) for part, client in enumerate(clients)]
        for reader in readers:
            reader.start()
        for reader in readers:
            assert reader.in_the_middle.wait(60)
            assert reader.error is None
            assert reader.is_alive()
        victim = next(name for name in NAMES if f"http://{brokers.console[name]}" == clients[0].urls[0])
        brokers.kill(victim)
        for reader in readers:
            reader.go_on.set()
            reader.join(60)
            assert reader.error is None
            assert not reader.is_alive()
        found = {offset: body for reader in readers for offset, body in reader.found.items()}
        assert [found[n].rstrip() for n in range(COUNT)] == [str(n).encode() for n in range(COUNT)]
        assert clients[0].asked != f"http://{brokers.console[victim]}"

        taken = clients[1].take(lease, "second")
        assert clients[2].retire(taken, COUNT).count == 0
        assert clients[1].cut("q").messages == 0
        with pytest.raises(StopIteration):
            next(clients[1].read_range(clients[1].cut("q")))
        for client in clients:
            client.close()
    finally:
        brokers.stop()
