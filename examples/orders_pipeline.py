"""A pipeline: orders from a queue through Spark into Parquet, and alerts back into a queue, each exactly once.

python examples/orders_pipeline.py

Orders are published to an exchange. A stream takes them from their queue, looks up what they are worth, and adds them
up by minute and kind, by the time at which they were made and not by that at which they came. Minutes that are over go
to Parquet files; those that were very good become alerts, which go back to the brokers. In the middle the stream dies,
after it has written and before it knows; it is started again, and nothing is there twice.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from coterie.spark.session import session  # as any other, and brings Java along where there is none

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 5, 4, 12, 0)
MINUTES, ORDERS = 10, 600
PRODUCTS = [
    ("espresso", "coffee", 2.2), ("latte", "coffee", 3.4), ("earl grey", "tea", 2.6), ("sencha", "tea", 3.1),
    ("cheesecake", "cake", 4.2), ("brownie", "cake", 2.9),
]  # fmt: skip
GOOD = 200
"""Euros of one kind in one minute that are worth an alert."""
SPARK = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}


# The brokers, and what is sent to them.


def start_brokers(folder: Path) -> tuple[subprocess.Popen[str], list[dict[str, Any]]]:
    """Three that are one, and where they are."""
    command = [sys.executable, "-m", "coterie", "up", "--nodes", "3", "--data", str(folder / "brokers"), "--port", "0"]
    with (folder / "brokers.log").open("w") as log:
        cluster = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=log, text=True)
    assert cluster.stdout is not None
    text = ""
    while text.count("\n}\n") < 2:  # one object says where they are, another one that all of them serve
        line = cluster.stdout.readline()
        assert line, (folder / "brokers.log").read_text()
        text += line
    nodes: list[dict[str, Any]] = json.JSONDecoder().raw_decode(text)[0]["nodes"]
    return cluster, nodes


def connected(node: dict[str, Any]) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{host(node)}/"))


def host(node: dict[str, Any]) -> str:
    return str(node["amqp"][0]).rpartition("/")[2]


def declare(channel: BlockingChannel) -> None:
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "shop", "order.*")
    # A queue that takes each message id once: whatever is published again after a crash is there already.
    channel.queue_declare("alerts", durable=True, arguments={"x-deduplicate-length": 10_000})
    channel.queue_bind("alerts", "shop", "alert.*")


def publish_orders(channel: BlockingChannel) -> None:
    """Ten minutes of them, which come in no particular order; one that is far too late, and one of the next day."""
    chance = random.Random(3)
    made = [NOON + timedelta(seconds=60 * MINUTES * number / ORDERS) for number in range(ORDERS)]
    made.sort(key=lambda at: at + timedelta(seconds=chance.uniform(0, 90)))
    made += [NOON - timedelta(hours=1), NOON + timedelta(hours=20)]
    for number, at in enumerate(made):
        product = chance.choice(PRODUCTS)[0]
        order = {"id": number, "product": product, "pieces": chance.randint(1, 5), "made": at.isoformat()}
        kept = pika.BasicProperties(delivery_mode=2, content_type="application/json")
        channel.basic_publish("shop", f"order.{number % 3}", json.dumps(order), kept)


# The stream.


def totals(orders: DataFrame, products: DataFrame) -> DataFrame:
    """Messages, as they come out of the queue, to one row for each minute and kind."""
    said = f.from_json(f.col("value").cast("string"), "id int, product string, pieces int, made timestamp")
    rows = orders.select(said.alias("said")).select("said.*").join(f.broadcast(products), "product")
    worth = rows.withColumn("worth", f.expr("pieces * price"))
    # A minute is over when an order was seen that was made two minutes after it: what comes later is too late.
    minutes = worth.withWatermark("made", "2 minutes").groupBy(f.window("made", "1 minute").alias("minute"), "kind")
    return minutes.agg(f.count("*").alias("orders"), f.round(f.sum("worth"), 2).alias("worth")).selectExpr(
        "minute.start as minute", "kind", "orders", "worth"
    )


def alerts(minutes: DataFrame) -> DataFrame:
    """The very good ones, as messages: columns have the names of what they are."""
    return minutes.where(f"worth >= {GOOD}").selectExpr(
        "concat('alert.', kind) as routing_key",
        "concat(date_format(minute, 'HH:mm'), ' ', kind) as message_id",
        "to_json(struct(minute, kind, orders, worth)) as value",
        "'application/json' as content_type",
    )


class Pipeline:
    """What is started, dies, and is started again."""

    def __init__(self, spark: SparkSession, nodes: list[dict[str, Any]], folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.servers = ",".join(f"http://{node['console']}" for node in nodes)
        self.brokers = ",".join(f"amqp://{host(node)}" for node in nodes)
        self.products = spark.createDataFrame(PRODUCTS, "product string, kind string, price double")
        self.published: list[int] = []

    def run(self, dies: bool = False) -> None:
        """Until everything that is in the queue now is worked through."""
        orders = (
            self.spark.readStream.format("coterie").option("servers", self.servers).option("queue", "orders")
            .option("columns", "value").option("maxRowsPerTrigger", ORDERS // 2).load()
        )  # fmt: skip

        def write(minutes: DataFrame, batch: int) -> None:
            """One batch. It may come again, under the same number: so it writes over what it wrote."""
            minutes.persist()
            minutes.write.mode("overwrite").parquet(str(self.folder / "minutes" / f"batch={batch}"))
            found = alerts(minutes)
            count = found.count()
            if count:
                sink = found.write.format("coterie").option("servers", self.brokers).option("exchange", "shop")
                sink.mode("append").save()
                self.published.append(count)
                if dies:
                    raise SystemError("this is the end")
            minutes.unpersist()

        query = totals(orders, self.products).writeStream.outputMode("append").foreachBatch(write)
        query = query.option("checkpointLocation", str(self.folder / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()


def main(folder: Path) -> None:
    cluster, nodes = start_brokers(folder)
    try:
        with connected(nodes[0]) as connection:
            channel = connection.channel()
            channel.confirm_delivery()  # a publish returns when a majority of the brokers has it
            declare(channel)
            publish_orders(channel)
        print(f"{ORDERS + 2} orders are in the queue of three brokers")
        with session("orders", "local[2]", SPARK) as spark:
            pipeline = Pipeline(spark, nodes, folder)
            try:
                pipeline.run(dies=True)
            except StreamingQueryException:
                print("the stream dies: its first alerts are out, and Spark does not know it")
            pipeline.run()
            print("it is started again, and works through what there is")
            report_minutes(spark.read.parquet(str(folder / "minutes")))
        with connected(nodes[2]) as connection:
            report_alerts(connection.channel(), sum(pipeline.published))
    finally:
        cluster.terminate()
        cluster.communicate()


def report_minutes(minutes: DataFrame) -> None:
    row = minutes.selectExpr("count(distinct minute)", "sum(orders)", "count(*) = count(distinct minute, kind)").first()
    assert row is not None
    assert row[2], "a minute is there twice"
    print(f"Parquet has {row[0]} minutes with {row[1]} orders: one was too late, and the next day is not over")
    for each in minutes.groupBy("kind").agg(f.sum("orders"), f.sum("worth")).orderBy("kind").collect():
        print(f"  {each[0]:6} {each[1]:4} orders, {each[2]:8.2f} euros")


def report_alerts(channel: BlockingChannel, published: int) -> None:
    found = []
    for _ in range(channel.queue_declare("alerts", passive=True).method.message_count):
        _, properties, _ = channel.basic_get("alerts", auto_ack=True)
        assert properties is not None
        found.append(str(properties.message_id))
    assert len({*found}) == len(found), "an alert is there twice"
    print(f"alerts were published {published} times; the queue has {len(found)}, each of them once:")
    print(f"  {', '.join(sorted(found))}")
    left = channel.queue_declare("orders", passive=True).method.message_count
    print(f"{left} orders are left in the queue")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
