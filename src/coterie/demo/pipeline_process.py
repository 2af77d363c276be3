"""The process of the broker's demonstration that has Spark: a stream from the queue of the sales to Parquet, and back.

It starts Spark, says so, and waits for a line that tells what to do. Whatever goes wrong is one line too. As an example
to copy from, with a crash in the middle: examples/orders_pipeline.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.demo.pipeline import Work
from coterie.demo.shop import EXCHANGE, PRODUCTS, SALES
from coterie.errors import CoterieError
from coterie.spark import register
from coterie.spark.effort import QUICK
from coterie.spark.session import LOCAL, session
from coterie.workers import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    **QUICK,
    "spark.sql.shuffle.partitions": "1",
    # The state is a few hundred rows: a map in memory will do.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}
WATERMARK = "10 seconds"
"""A second is over when an order was seen that was made so much later."""


def seconds(messages: DataFrame, products: DataFrame) -> DataFrame:
    """Messages, as they come out of the queue, to one row for each second and kind."""
    from pyspark.sql import functions as f

    said = f.from_json(f.col("value").cast("string"), "id string, product string, pieces int, made timestamp")
    # A left join: the message at closing time names no product, but moves the watermark.
    orders = messages.select(said.alias("said")).select("said.*").join(f.broadcast(products), "product", "left")
    timely = orders.withWatermark("made", WATERMARK).groupBy(f.window("made", "1 second").alias("second"), "kind")
    worth = f.round(f.sum(f.expr("pieces * price")), 2).alias("worth")
    rows = timely.agg(f.count("*").alias("orders"), worth, f.collect_list("id").alias("ids"))
    return rows.selectExpr("second.start as second", "kind", "orders", "worth", "ids")


def alerts(rows: DataFrame, good: int) -> DataFrame:
    """The very good seconds, as messages: columns have the names of what they are."""
    return rows.where(f"worth >= {good}").selectExpr(
        "concat('alert.', kind) as routing_key",
        "concat(date_format(second, 'HH:mm:ss'), ' ', kind) as message_id",
        "to_json(struct(second, kind, orders, worth)) as value",
        "'application/json' as content_type",
    )


def stream(spark: SparkSession, work: Work) -> None:
    """Until everything that is in the queue now is worked through."""
    source = spark.readStream.format("coterie").option("servers", ",".join(work.servers)).option("queue", SALES)
    # One part for each broker: they are read side by side.
    messages = source.option("columns", "value").option("minPartitions", len(work.servers)).load()
    products = spark.createDataFrame([*PRODUCTS], "product string, kind string, price double")

    def write(rows: DataFrame, batch: int) -> None:
        """One batch. It may come again, under the same number: so it writes over what it wrote."""
        rows.persist()
        if not rows.isEmpty():
            rows.write.mode("overwrite").parquet(f"{work.sales}/batch={batch}")
            sink = alerts(rows, work.good).write.format("coterie").option("servers", ",".join(work.brokers))
            sink.option("exchange", EXCHANGE).mode("append").save()
        rows.unpersist()

    query = seconds(messages, products).writeStream.outputMode("append").foreachBatch(write)
    query = query.option("checkpointLocation", work.checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()


def found(work: Work) -> Message:
    """What the Parquet files have."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(work.sales).to_pylist() if Path(work.sales).exists() else []
    ids = [each for row in rows for each in row["ids"]]
    confirmed = Path(work.confirmed).read_text().splitlines()
    kinds = []
    for kind in sorted({row["kind"] for row in rows}):
        own = [row for row in rows if row["kind"] == kind]
        best = max(own, key=lambda row: row["worth"])
        orders, euros = sum(row["orders"] for row in own), round(sum(row["worth"] for row in own))
        kinds.append((kind, orders, euros, f"{best['second']:%H:%M:%S}", round(best["worth"])))
    return {
        "orders": len(ids),
        "different": len({*ids}),
        "missing": len({*confirmed} - {*ids}),
        "rows": len(rows),
        "kinds": kinds,
        "alerts": sorted(f"{row['second']:%H:%M:%S} {row['kind']}" for row in rows if row["worth"] >= work.good),
    }


def main() -> None:
    began = time.monotonic()
    with session("coterie demo", LOCAL, SETTINGS) as spark:
        register(spark)
        _say({"start_ms": (time.monotonic() - began) * 1000})
        line = sys.stdin.readline()
        if line:
            work, began = Work(**json.loads(line)), time.monotonic()
            stream(spark, work)
            _say({"read_ms": (time.monotonic() - began) * 1000, **found(work)})


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
