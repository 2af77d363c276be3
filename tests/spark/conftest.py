"""One Spark session for all of these tests: two cores, and a JVM that starts rather than runs fast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from coterie.spark.session import session
from spark.cluster import FAST
from spark.reports import broken_audit, clean_audit  # noqa: F401  (fixtures of several files)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that tests share. What a test registers or sets in it, it takes back."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with session("tests", "local[2]", {**FAST, "spark.sql.warehouse.dir": str(warehouse)}) as spark:
        yield spark


LONGEST = (
    "test_exactly_once", "test_campaign", "test_audit", "test_archive", "test_connect", "test_stream",
    "test_orders_pipeline", "test_demo_spark", "test_check", "test_report", "test_report_browser", "test_stream_queue",
)  # fmt: skip
"""Files that take a minute or more, the longest first: a worker has a file for itself, and none should come last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))
