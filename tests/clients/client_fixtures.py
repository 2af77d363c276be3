"""What the clients run against: one real node for each test process, and what may happen to a connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from node_process import Cable, NodeProcess


@dataclass
class Line:
    """A way to the node, and what becomes of it."""

    url: str
    cut_off: Callable[[], None]
    """Returns when the client's connections are over and new ones would be served."""


def _closed(node: NodeProcess, cable: Cable) -> None:
    node.stop()
    node.start()


def _cut(node: NodeProcess, cable: Cable) -> None:
    assert cable.cut(), "nobody was connected"


def _killed(node: NodeProcess, cable: Cable) -> None:
    node.kill()
    node.start()


ACCIDENTS = {
    "the broker closes the connection": _closed,
    "the connection is cut": _cut,
    "the broker is killed": _killed,
}


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """With a data folder; it does not wait long for clients that are not listening when it stops."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", "--amqp-close-timeout", "1") as node:
        yield node
        node.stop()


@pytest.fixture
def url(node: NodeProcess) -> str:
    return node.url


@pytest.fixture(params=ACCIDENTS)
def line(node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Line]:
    """One for each way to lose a connection."""
    accident = ACCIDENTS[request.param]
    with Cable(node.port) as cable:
        yield Line(node.url_at(cable.port), lambda: accident(node, cable))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For a queue or an exchange of the test's own."""
    return re.sub(r"[^a-z0-9_]+", ".", f"clients.{request.node.name}")[:200]
