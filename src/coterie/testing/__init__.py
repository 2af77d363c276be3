"""Brokers inside the process that tests them: real ones, over real sockets, without a disk unless one is given.

    import coterie.testing

    with coterie.testing.broker() as broker:
        pika.BlockingConnection(pika.URLParameters(broker.url))
        ...
        broker.wait_for("orders", ready=1)
        assert broker.messages("orders")[0].body == b"one coffee"

    with coterie.testing.cluster(3) as cluster:
        cluster[0].kill()

Fixtures for pytest are in `coterie.pytest_plugin`, which pytest finds by itself where Coterie is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.testing.broker import EmbeddedBroker, Settings
from coterie.testing.cluster import EmbeddedCluster
from coterie.testing.looking import QueuedMessage, QueueState

__all__ = ["EmbeddedBroker", "EmbeddedCluster", "QueueState", "QueuedMessage", "broker", "cluster"]


@contextmanager
def broker(
    *, settings: Settings | None = None, data: Path | None = None, port: int = 0, console: bool = False
) -> Iterator[EmbeddedBroker]:
    """One broker, until the block ends. `settings` by section and name, as in a node's TOML file; `data`: a folder for
    what must survive its restart; `console`: serve the HTTP API too, which needs the extra `console`."""
    running = EmbeddedBroker(settings=settings, data=data, port=port, console=console)
    try:
        running.start()
        yield running
    finally:
        running.close()


@contextmanager
def cluster(
    nodes: int = 3, *, settings: Settings | None = None, data: Path | None = None, console: bool = False
) -> Iterator[EmbeddedCluster]:
    """So many brokers that are one, all of them serving; `data`: a folder in which each has one of its own."""
    running = EmbeddedCluster(nodes, settings=settings, data=data, console=console)
    try:
        running.start()
        yield running
    finally:
        running.close()
