"""The data pipeline: audits of traces and campaigns of simulated runs, as Spark jobs.

Needs the extra `spark` (`pip install 'coterie[spark]'`). Everything is written against the DataFrame API, so that the
same job runs in this process (`local[*]`), on a standalone cluster and, where it can, through Spark Connect. Nothing
that grows with the data comes back to the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("coterie")` known to this session. Where the package is installed, Spark finds it by itself."""
    from coterie.spark.queues import register as register_source

    register_source(spark)
