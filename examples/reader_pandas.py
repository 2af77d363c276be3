"""A queue in pandas: what was published by the minute, from a look that takes nothing.

python examples/reader_pandas.py
"""

from __future__ import annotations

import pika

import coterie.testing  # a broker in this process; the console of any other one does as well: `coterie up`
from coterie import reader

BEGIN = 1_750_000_020
"""A full minute, in seconds since 1970."""


def measure(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("readings", durable=True)
        channel.tx_select()
        for number in range(180):
            properties = pika.BasicProperties(timestamp=BEGIN + number, content_type="text/plain")
            channel.basic_publish("", "readings", str(20 + number // 60).encode(), properties)
        channel.tx_commit()


def main(console: str) -> None:
    table = reader.read_table("readings", console, columns=["timestamp", "value"])
    readings = table.to_pandas()
    readings["value"] = readings["value"].str.decode("utf-8").astype(float)
    by_minute = readings.set_index("timestamp")["value"].resample("1min").mean()
    for minute, value in by_minute.items():
        print(f"{minute:%H:%M} {value:.1f} degrees")


if __name__ == "__main__":
    with coterie.testing.broker(console=True) as broker:
        assert broker.console is not None
        measure(broker.url)
        main(broker.console)
