"""Several brokers of one cluster in one thread of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coterie.errors import UserError
from coterie.testing.broker import EmbeddedBroker, Settings
from coterie.testing.looping import LoopThread

NODES_MAX = 9
QUICK = {"lease": 0.5, "heartbeat_timeout": 1.0}
"""A test should not wait for seconds until a broker is missed; settings that are given win."""


class EmbeddedCluster:
    """`cluster[0]` is its first broker. All of them run in one event loop, so a loss is noticed at once."""

    def __init__(
        self, nodes: int = 3, *, settings: Settings | None = None, data: Path | None = None, console: bool = False
    ) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise UserError(f"a cluster for tests has 1 to {NODES_MAX} brokers, not {nodes}")
        given = dict(settings or {})
        given["cluster"] = {**QUICK, **given.get("cluster", {}), "size": nodes}
        self._loop = LoopThread("cluster")
        self.brokers = [
            EmbeddedBroker(
                f"node{number + 1}", settings=given, data=data and data / f"node{number + 1}", console=console,
                loop=self._loop,
            )
            for number in range(nodes)
        ]  # fmt: skip

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def start(self) -> None:
        """Returns when all serve. Those that run stay as they are."""
        for broker in self.brokers:
            if not broker.running:
                broker.start(peers=[each.address for each in self.brokers if each.address])
        self.wait_until_all_serve()

    def wait_until_all_serve(self, timeout: float = 30.0) -> None:
        for broker in self.brokers:
            if broker.running:
                broker.wait_until_it_serves(timeout)

    def close(self) -> None:
        """Stop all for good. A second call does nothing."""
        try:
            for broker in self.brokers:
                broker.close()
        finally:
            self._loop.close()

    def __getitem__(self, number: int) -> EmbeddedBroker:
        return self.brokers[number]

    def __iter__(self) -> Iterator[EmbeddedBroker]:
        return iter(self.brokers)

    def __len__(self) -> int:
        return len(self.brokers)
