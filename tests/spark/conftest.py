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
