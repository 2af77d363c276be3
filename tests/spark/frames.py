"""Events as the table that an audit reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from coterie.spark.rows import arrow_schema, columns_of
from coterie.spark.schema import EVENTS
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, events: Sequence[Event], file: str = "/traces/run.jsonl") -> DataFrame:
    """As if they stood in one file, in this order."""
    places = [pa.array([file] * len(events)), pa.array(range(len(events)))]
    return spark.createDataFrame(
        pa.Table.from_arrays([*columns_of(events), *places], schema=arrow_schema(EVENTS.columns))
    )  # fmt: skip
