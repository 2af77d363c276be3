"""Traces that brokers publish themselves (`coterie.trace`), from a queue: messages become lines, as those of files are.

A message is a block of its queue's lines. Its position is never given twice, so that no two lines have the same place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from coterie.spark import register
from coterie.spark.stream_chunks import CHUNK_DDL, gathered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINES_MAX = 1 << 20
"""Of a message: the place of a line is the position of its message times this, plus its number."""


@dataclass(frozen=True, slots=True)
class TraceQueue:
    """A queue of the vhost / that is bound to the exchange."""

    server: str
    """http://HOST:PORT; the other brokers are found from there."""
    user: str
    password: str = field(repr=False)
    name: str

    def __str__(self) -> str:
        return f"queue {self.name} at {self.server}"

    def chunks(self, spark: SparkSession, parallelism: int) -> DataFrame:
        """CHUNK_DDL, of whatever comes into it."""
        register(spark)
        reader = spark.readStream.format("coterie").option("servers", self.server).option("queue", self.name)
        reader = reader.option("user", self.user).option("password", self.password)
        messages = reader.option("columns", "value,queue,position").option("minPartitions", parallelism).load()
        return messages.mapInArrow(gathered_messages, CHUNK_DDL)


def gathered_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of value, queue and position -> chunks."""
    return gathered(map(lines_of, batches))


def lines_of(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Of value, file and block, as a folder's."""
    lines = pc.split_pattern(messages.column("value"), "\n")
    message = pc.list_parent_indices(lines)
    block = pc.multiply(messages.column("position"), LINES_MAX)
    return pa.RecordBatch.from_arrays(
        [lines.flatten(), messages.column("queue").take(message), block.take(message)], ["value", "file", "block"]
    )
