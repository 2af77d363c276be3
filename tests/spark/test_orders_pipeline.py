"""The example of a pipeline runs as a user runs it, and prints what it says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orders_become_minutes_and_alerts_once_each_over_a_crash() -> None:
    command = [sys.executable, str(EXAMPLES / "orders_pipeline.py")]
    example = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        told, errors = example.communicate(timeout=270)
    except subprocess.TimeoutExpired:
        example.send_signal(signal.SIGINT)  # it ends its brokers
        example.communicate(timeout=20)
        raise
    assert (example.returncode, errors) == (0, ""), told + errors
    assert told.splitlines() == [
        "602 orders are in the queue of three brokers",
        "the stream dies: its first alerts are out, and Spark does not know it",
        "it is started again, and works through what there is",
        "Parquet has 10 minutes with 600 orders: one was too late, and the next day is not over",
        "  cake    195 orders,  2123.80 euros",
        "  coffee  202 orders,  1657.00 euros",
        "  tea     203 orders,  1673.20 euros",
        "alerts were published 7 times; the queue has 6, each of them once:",
        "  12:01 coffee, 12:04 cake, 12:05 cake, 12:06 cake, 12:07 cake, 12:08 cake",
        "0 orders are left in the queue",
    ]
