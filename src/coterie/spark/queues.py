"""`format("coterie")`: queues of a broker or cluster as a Spark data source.

Spark finds it by itself where the package is installed (`pyspark_coterie`); elsewhere `register` does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class Coterie(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        return "coterie"

    def __repr__(self) -> str:
        return "Coterie()"  # options may hold a password

    def schema(self) -> str:
        from coterie.spark.source_options import SourceOptions
        from coterie.streams.arrow import ddl

        return ddl(SourceOptions.of(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from coterie.spark.source import QueueTable
        from coterie.spark.source_options import SourceOptions

        return QueueTable(SourceOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from coterie.spark.source import QueueStream
        from coterie.spark.source_options import SourceOptions

        return QueueStream(SourceOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from coterie.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from coterie.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("coterie")` known to this session, whatever is installed."""
    spark.dataSource.register(Coterie)
