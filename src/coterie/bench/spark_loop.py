"""What `bench spark` is compared with: the loop that one writes without a source for queues.

A plain pika consumer on the driver, with a prefetch and acks for many at a time; whatever it has collected becomes a
DataFrame now and then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pika

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFETCH = 1000
BATCH = 10_000
"""Messages that become one DataFrame."""


def loop(spark: SparkSession, port: int, queue: str, messages: int) -> float:
    """Take so many from a queue into Spark; the seconds that it took."""
    began = time.monotonic()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    rows: list[tuple[bytes]] = []
    acked = 0
    for taken, (method, _, body) in enumerate(channel.consume(queue), 1):
        assert method is not None
        assert method.delivery_tag is not None
        rows.append((body,))
        if taken - acked >= PREFETCH // 2 or taken == messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
            acked = taken
        if len(rows) >= BATCH or taken == messages:
            spark.createDataFrame(rows, "value binary").write.format("noop").mode("overwrite").save()
            rows = []
        if taken == messages:
            break
    channel.cancel()
    connection.close()
    return time.monotonic() - began
