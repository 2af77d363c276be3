"""A queue in polars: a look that takes nothing, as a data frame; what was asked for is read, and no more.

python examples/reader_polars.py
"""

from __future__ import annotations

import json

import pika
import polars as pl

import coterie.testing  # a broker in this process; the console of any other one does as well: `coterie up`
from coterie import reader

SHOPS = ("north", "south", "west")


def sell(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.tx_select()
        for number in range(300):
            order = json.dumps({"order": number, "cents": 100 + number})
            properties = pika.BasicProperties(headers={"shop": SHOPS[number % 3], "paid": number % 4 > 0})
            channel.basic_publish("", "orders", order.encode(), properties)
        channel.tx_commit()


def main(console: str) -> None:
    look = reader.read("orders", console, columns=["position", "value", "headers"])
    orders = pl.DataFrame(look)
    print(f"{orders.height} orders, positions {orders['position'].min()} to {orders['position'].max()}")

    cents = orders["value"].cast(pl.String).str.json_path_match("$.cents").cast(pl.Int64)
    print(f"worth {cents.sum() / 100:.2f}")

    # As they come, for a queue that does not fit into memory: one batch at a time.
    largest = max(batch.num_rows for batch in reader.read("orders", console, batch_rows=100))
    print(f"no batch with more than {largest}")

    # Headers are texts in their own column; with their types they are in `properties`.
    shops = reader.read_table("orders", console, columns=["properties"], first=1, last=4)["properties"].to_pylist()
    print([reader.properties(each).headers for each in shops][-1])


if __name__ == "__main__":
    with coterie.testing.broker(console=True) as broker:
        assert broker.console is not None
        sell(broker.url)
        main(broker.console)
