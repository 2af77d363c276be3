"""What all tests share: how hard randomised ones try, and that a failure of theirs can be had again."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A test run is the same every time, so that a red one means the change and not the dice; `make fuzz` throws the dice.
# No deadline: how fast a shared machine is says nothing about correctness.
settings.register_profile(
    "standard", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", parent=settings.get_profile("standard"), derandomize=False, max_examples=10_000)
settings.load_profile("standard")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-rounds", type=int, default=10_000, help="packets of garbage per transport")
    parser.addoption("--amqp-url", help="run tests/conformance against this broker instead of one of their own")


@pytest.fixture
def fuzz_rounds(request: pytest.FixtureRequest) -> int:
    """How many pieces of garbage a test should try."""
    rounds = request.config.getoption("--fuzz-rounds")
    assert isinstance(rounds, int)
    return rounds
