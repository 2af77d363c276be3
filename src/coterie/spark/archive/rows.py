"""The rows of an archive: messages with all that replays need, when they arrived, and what their bodies say.

This is the seam to the source. Whatever is read, it must give the same rows for the same batch; a lease of a work queue
does. `arrived` is the source's own column of that name; a source that has none (a lease has none) gets the time at
which its batch was planned: Spark keeps it with the batch, so that a batch that is repeated has the same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from coterie.errors import UserError
from coterie.spark import register
from coterie.spark.archive.files import DATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ARRIVED: Final = "arrived"
BODY: Final = "body"
"""What a body says, by a schema."""
_REST: Final = "_rest"
BAD: Final = "bad"
OBSERVED: Final = "archive"
"""What Spark's progress tells of the rows, by name: how many bodies the schema does not fit."""


def read(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """Messages as they come: a stream."""
    register(spark)
    return spark.readStream.format("coterie").options(**source).load()


def archived(messages: DataFrame, schema: StructType | None) -> DataFrame:
    """As the table has them, and the column that its folders are by."""
    from pyspark.sql import functions as F

    found = messages
    if ARRIVED not in found.columns:
        found = found.withColumn(ARRIVED, F.current_timestamp())
    if schema is not None:
        found = _typed(found, schema)
    found = found.withColumn(DATE, F.to_date(ARRIVED))
    bad = F.lit(0) if schema is None else F.count_if(F.col(BODY).isNull())
    return found.observe(OBSERVED, bad.alias(BAD)) if schema is not None else found


def _typed(messages: DataFrame, schema: StructType) -> DataFrame:
    """JSON bodies. One that is none, or that does not fit, has no typed body; the bytes are there in any case."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    wide = StructType([*schema.fields]).add(_REST, StringType())
    parsed = F.from_json(F.col("value").cast("string"), wide, {"columnNameOfCorruptRecord": _REST})
    fields = F.struct(*(F.col(f"_parsed.`{name}`").alias(name) for name in schema.names))
    found = messages.withColumn("_parsed", parsed)
    fits = F.col(f"_parsed.{_REST}").isNull() & F.col("_parsed").isNotNull()
    return found.withColumn(BODY, F.when(fits, fields)).drop("_parsed")


def schema_of(text: str) -> StructType:
    """Of bodies, as Spark writes it: `id bigint, total double, tags array<string>`. Raises UserError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except PySparkException as error:
        why = str(error).strip().splitlines()[0]
        raise UserError(f"--schema: '{text[:60]}' is no schema such as 'id bigint, total double': {why}") from None
    if not isinstance(found, StructType) or _REST in found.names:
        raise UserError(f"--schema: fields with other names than {_REST} are due, not '{text[:60]}'")
    return found
