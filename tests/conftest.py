"""What all tests share: how hard randomised ones try, and that a failure of theirs can be had again."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Nodes of several tests run at one time, and only one of them could have the usual port; what a test asks for itself
# is stronger.
os.environ.setdefault("COTERIE_LISTEN_PROBES", "localhost:0")

# A test run is the same every time, so that a red one means the change and not the dice; `make fuzz` throws the dice.
# No deadline: how fast a shared machine is says nothing about correctness.
settings.register_profile(
    "standard", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", parent=settings.get_profile("standard"), derandomize=False, max_examples=10_000)
settings.load_profile("standard")


# A shell without job control has what it runs in the background ignore Ctrl-C, and processes hand that on to those that
# they start: a test that sends it to one would send it in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-rounds", type=int, default=10_000, help="packets of garbage per transport")
    parser.addoption("--port-fuzz-inputs", type=int, default=400, help="pieces of garbage to each port of a real node")
    parser.addoption("--api-fuzz-requests", type=int, default=200, help="requests of each role to the HTTP API")
    parser.addoption("--api-fuzz-seed", type=int, default=1, help="which requests those are")
    parser.addoption("--amqp-url", help="run tests/conformance against this broker instead of one of their own")


def pytest_collection_finish() -> None:
    """Thousands of tests are a heap that stays: it is not looked through again whenever garbage is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fuzz_rounds(request: pytest.FixtureRequest) -> int:
    """How many pieces of garbage a test should try."""
    rounds = request.config.getoption("--fuzz-rounds")
    assert isinstance(rounds, int)
    return rounds


@pytest.fixture
def port_fuzz_inputs(request: pytest.FixtureRequest) -> int:
    """How many pieces of garbage a test should send to a port of a real node."""
    inputs = request.config.getoption("--port-fuzz-inputs")
    assert isinstance(inputs, int)
    return inputs
