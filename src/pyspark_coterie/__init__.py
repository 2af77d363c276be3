"""Spark finds data sources in installed modules named `pyspark_...`: here is `format("coterie")`."""

from coterie.spark.queues import Coterie as DefaultSource

__all__ = ["DefaultSource"]
