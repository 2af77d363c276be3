"""A test suite with a real broker inside it: a small shop that takes orders over AMQP, and its tests.

python -m pytest -p coterie.pytest_plugin examples/test_embedded.py
"""

from __future__ import annotations

import json

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from coterie.testing import EmbeddedBroker

# What is tested: it knows nothing of Coterie.


class Shop:
    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.queue_declare("orders", durable=True)
        self._channel.queue_declare("bills", durable=True)

    def order(self, drink: str, cups: int) -> None:
        self._channel.basic_publish("", "orders", json.dumps({"drink": drink, "cups": cups}).encode())

    def serve_one(self) -> bool:
        """Whether there was an order."""
        method, _, body = self._channel.basic_get("orders")
        if method is None:
            return False
        assert method.delivery_tag is not None
        order = json.loads(body or b"")
        self._channel.basic_publish("", "bills", f"{order['cups']} x {order['drink']}".encode())
        self._channel.basic_ack(method.delivery_tag)
        return True

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()


# Its tests. Each begins with an empty broker.


@pytest.fixture
def shop(coterie_broker: EmbeddedBroker) -> Shop:
    return Shop(coterie_broker.url)


def test_an_order_waits_until_somebody_serves_it(coterie_broker: EmbeddedBroker, shop: Shop) -> None:
    shop.order("tea", 2)
    coterie_broker.wait_for("orders", ready=1)
    assert coterie_broker.messages("orders")[0].json() == {"drink": "tea", "cups": 2}
    shop.close()


def test_what_is_served_is_billed_and_no_order_any_more(coterie_broker: EmbeddedBroker, shop: Shop) -> None:
    coterie_broker.publish("orders", json.dumps({"drink": "coffee", "cups": 1}))
    assert shop.serve_one()
    coterie_broker.wait_for("orders", messages=0)
    assert [bill.text for bill in coterie_broker.messages("bills")] == ["1 x coffee"]
    assert not shop.serve_one()
    shop.close()


def test_an_order_is_not_lost_if_the_broker_goes_while_it_is_served(coterie_broker: EmbeddedBroker, shop: Shop) -> None:
    shop.order("tea", 1)
    coterie_broker.wait_for("orders", ready=1)
    coterie_broker.disconnect()
    with pytest.raises(AMQPConnectionError):
        shop.serve_one()
    assert coterie_broker.queue("orders").ready == 1
    shop.close()
