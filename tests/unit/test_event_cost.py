"""What an event of one message costs beside its bytes: functions that each broker calls for it.

The bounds are what it costs now, and a little. A step that nothing needs shows here before a benchmark can tell it from
the noise of a machine. `python scripts/bench_events.py` says what it comes to in processor time.
"""

from __future__ import annotations

import pytest
from call_counts import calls_of_publishes

SAME, APART = (0, 0), (1, 2)
"""Who publishes, and who consumes; the first is the sequencer."""


@pytest.mark.parametrize(
    ("place", "most"), [(SAME, (572, 412, 352)), (APART, (415, 521, 453))], ids=["same broker", "different brokers"]
)
def test_no_broker_calls_more_functions_for_an_event_than_it_did(
    place: tuple[int, int], most: tuple[int, int, int]
) -> None:
    hosts, calls = calls_of_publishes(*place)
    found = [round(sum(calls.of(host).values())) for host in hosts]
    assert all(0 < ours <= bound for ours, bound in zip(found, most, strict=True)), (found, most)
