"""The example of a pipeline runs as it stands, and prints what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orders_become_minutes_and_alerts_once_each_over_a_crash(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / "orders_pipeline.py"), run_name="__main__")  # in the session that is there
    out, errors = capsys.readouterr()
    assert errors == ""
    assert out.splitlines() == [
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
