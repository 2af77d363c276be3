"""What Spark does with the source `format("coterie")`, without Spark: a query with its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from coterie.spark.source import QueueStream
from coterie.spark.source_options import SourceOptions

SCHEMA = StructType(
    [StructField("value", BinaryType()), StructField("queue", StringType()), StructField("position", LongType())]
)
Offset = dict[str, Any]


QUERIES: list[Query] = []
"""Of one test."""


@pytest.fixture(autouse=True)
def stop_queries() -> Iterator[None]:
    yield
    for query in QUERIES:
        query.reader.stop()
    QUERIES.clear()


class Query:
    """What Spark does with a stream: offsets come back as JSON has them, batches are read in parts."""

    def __init__(self, servers: str, **options: str) -> None:
        self.given = {"servers": servers, "columns": "value,queue,position", **options}
        self.reader = QueueStream(SourceOptions.of(self.given), SCHEMA)
        self.log: list[Offset] = [self.reader.initialOffset()]
        QUERIES.append(self)

    def restart(self, **options: str) -> None:
        """Another driver, on the same checkpoint."""
        self.reader.stop()
        self.reader = QueueStream(SourceOptions.of({**self.given, **options}), SCHEMA)

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """One more batch, if there is something for it."""
        start = self.log[-1]
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())))
        if json.dumps(end) == json.dumps(start):
            return False
        self.log.append(end)
        return True

    def rows(self, batch: int = -1) -> list[tuple[str, str]]:
        end = len(self.log) - 1 if batch == -1 else batch
        found = []
        for part in self.reader.partitions(self.log[end - 1], self.log[end]):
            for records in self.reader.read(part):
                columns = records.to_pydict()
                found += [(q, v.decode()) for q, v in zip(columns["queue"], columns["value"], strict=True)]
        return found

    def bodies(self, batch: int = -1) -> list[str]:
        return [body for _, body in self.rows(batch)]

    def next(self, limit: ReadLimit | None = None) -> list[str]:
        """The rows of one more batch."""
        assert self.plan(limit), "there is no other batch"
        return self.bodies()


def begun(servers: str, **options: str) -> Query:
    """A query whose first, empty batch is behind it."""
    query = Query(servers, **options)
    assert query.next() == []
    return query
