"""A queue in DuckDB: SQL over what is in it now, batch by batch, and a table that is loaded from it exactly once.

python examples/reader_duckdb.py
"""

from __future__ import annotations

import duckdb
import pika

import coterie.testing  # a broker in this process; the console of any other one does as well: `coterie up`
from coterie import reader


def sell(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.tx_select()
        for number in range(1000):
            channel.basic_publish("", "orders", f'{{"shop": {number % 3}, "cents": {number}}}'.encode())
        channel.tx_commit()


def look(console: str) -> None:
    """Nothing is taken; DuckDB pulls batches while it computes."""
    with duckdb.connect() as database:
        database.register("orders", reader.read("orders", console, columns=["value"]).to_reader())
        sums = database.sql("""
            select decode(value)->>'shop' as shop, count(*), sum((decode(value)->>'cents')::int) from orders
            group by shop order by shop
        """).fetchall()
    print(*(f"shop {shop}: {count} orders, {cents} cents" for shop, count, cents in sums), sep="\n")


def load(console: str, database: duckdb.DuckDBPyConnection, falls_at: int | None = None) -> None:
    """Take the messages, and retire what is committed. The key makes a batch that comes again do nothing."""
    database.execute("create table if not exists orders (position bigint primary key, body varchar)")
    with reader.lease("orders", "loader", console, columns=["position", "value"], batch_rows=100) as taken:
        for number, batch in enumerate(taken):
            database.register("batch", batch)
            database.execute("insert or ignore into orders select position, decode(value) from batch")
            if number == falls_at:
                raise RuntimeError("the loader falls, with a batch that is stored and not done")
            taken.done()


def main(console: str) -> None:
    look(console)
    with duckdb.connect() as database:
        try:
            load(console, database, falls_at=3)
        except RuntimeError as error:
            print(error)
        load(console, database)
        ((rows, different),) = database.sql("select count(*), count(distinct position) from orders").fetchall()
        print(f"{rows} rows, {different} different ones")
    print(f"{reader.read_table('orders', console).num_rows} messages are left")


if __name__ == "__main__":
    with coterie.testing.broker(console=True) as broker:
        assert broker.console is not None
        sell(broker.url)
        main(broker.console)
