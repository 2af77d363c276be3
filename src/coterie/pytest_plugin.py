"""Fixtures for pytest: a broker for every test, started once, and brokers of a test's own.

pytest finds this by itself where Coterie is installed; `-p coterie.pytest_plugin` loads it where it is not, and
`-p no:coterie.pytest_plugin` leaves it out. Nothing of the broker is imported before a test asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coterie.testing import EmbeddedBroker, EmbeddedCluster
    from coterie.testing.broker import Settings

BETWEEN = "coterie_between_tests"
CHOICES = ("reset", "purge", "nothing")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        BETWEEN,
        "what coterie_broker does after each test: reset (cut connections, delete all that was declared), "
        "purge (empty the queues, leave the rest) or nothing",
        default="reset",
    )


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getini(BETWEEN)
    if chosen not in CHOICES:
        raise pytest.UsageError(f"{BETWEEN} must be one of {', '.join(CHOICES)}, not '{chosen}'")


@pytest.fixture(scope="session")
def coterie_settings() -> Settings:
    """Settings of the brokers, by section and name as in a node's TOML file. Override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def coterie_session_broker(coterie_settings: Settings) -> Iterator[EmbeddedBroker]:
    """The broker that all tests of this process share, and nobody clears."""
    import coterie.testing

    with coterie.testing.broker(settings=coterie_settings) as broker:
        yield broker


@pytest.fixture
def coterie_broker(coterie_session_broker: EmbeddedBroker, pytestconfig: pytest.Config) -> Iterator[EmbeddedBroker]:
    """A broker, empty: `host`, `port`, `url` for clients; `messages`, `wait_for`, `publish` and more for the test."""
    broker = coterie_session_broker
    broker.start()  # a test may have stopped it
    yield broker
    if not broker.running:
        return
    if pytestconfig.getini(BETWEEN) == "reset":
        broker.reset()
    elif pytestconfig.getini(BETWEEN) == "purge":
        broker.purge()


@pytest.fixture
def coterie_make_broker(coterie_settings: Settings) -> Iterator[Callable[..., EmbeddedBroker]]:
    """Brokers of this test alone: `coterie_make_broker(settings=..., data=tmp_path, console=True)`."""
    import coterie.testing

    with ExitStack() as ends:

        def make(**options: object) -> EmbeddedBroker:
            given = {"settings": coterie_settings, **options}
            return ends.enter_context(coterie.testing.broker(**given))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def coterie_make_cluster(coterie_settings: Settings) -> Iterator[Callable[..., EmbeddedCluster]]:
    """Clusters of this test alone: `coterie_make_cluster(3)`; all of their brokers serve when it returns."""
    import coterie.testing

    with ExitStack() as ends:

        def make(nodes: int = 3, **options: object) -> EmbeddedCluster:
            given = {"settings": coterie_settings, **options}
            return ends.enter_context(coterie.testing.cluster(nodes, **given))  # type: ignore[arg-type]

        yield make
