"""The process of the broker's demonstration that has Spark: it reads the archive of all orders, and says what is in it.

It starts Spark, says so, and waits for a line that tells where to read. Whatever goes wrong is one line too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.spark import register
from coterie.spark.effort import QUICK
from coterie.spark.session import session
from coterie.workers import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {"spark.sql.shuffle.partitions": "2", **QUICK}


def read(spark: SparkSession, servers: list[str], queue: str, confirmed: str) -> Message:
    """`confirmed`: a file with the orders that must be there, one in a line."""
    began = time.monotonic()
    table = spark.read.format("coterie").option("servers", ",".join(servers)).option("queue", queue)
    # One part for each broker: they are read side by side.
    rows = table.option("columns", "value").option("minPartitions", len(servers)).load()
    orders = rows.selectExpr("cast(value as string) as value", "split(cast(value as string), '-')[0] as publisher")
    orders = orders.persist()
    found = orders.groupBy("publisher").count().orderBy("publisher").collect()
    missing = spark.read.text(confirmed).join(orders, "value", "left_anti").count()
    return {
        "read_ms": (time.monotonic() - began) * 1000,
        "by_publisher": {row[0]: row[1] for row in found},
        "orders": sum(row[1] for row in found),
        "different": orders.select("value").distinct().count(),
        "missing": missing,
    }


def main() -> None:
    began = time.monotonic()
    with session("coterie demo", "local[2]", SETTINGS) as spark:
        register(spark)
        spark.range(1).count()
        _say({"start_ms": (time.monotonic() - began) * 1000})
        line = sys.stdin.readline()
        if line:
            _say(read(spark, **json.loads(line)))


def _say(message: Message) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except CoterieError as error:
        _say({"error": str(error)})
        sys.exit(1)
