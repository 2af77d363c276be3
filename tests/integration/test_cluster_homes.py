"""What is at home on one of three brokers, with pika: direct replies, and queues that are not replicated."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker
from three_brokers import PATIENCE, ThreeBrokers

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(tmp_path_factory.mktemp("homes"))
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("responder", ["node1", "node2", "node3"])
def test_a_question_is_answered_directly_by_a_client_of_any_broker(three: ThreeBrokers, responder: str) -> None:
    asker, other = three.channel("node1"), three.channel(responder)
    asker.queue_declare("questions", durable=True)
    answers: list[tuple[bytes, str]] = []
    asker.basic_consume(
        REPLY_TO,
        lambda _, __, properties, body: answers.append((body, str(properties.correlation_id))),
        auto_ack=True,
    )
    asker.basic_publish("", "questions", b"question", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="7"))
    method, properties, body = next(other.consume("questions", inactivity_timeout=PATIENCE))
    assert method is not None
    assert method.delivery_tag is not None
    assert properties is not None
    assert body == b"question"
    address = str(properties.reply_to)
    assert other.queue_declare(address, passive=True).method.consumer_count == 1
    other.confirm_delivery()
    reply = pika.BasicProperties(correlation_id=properties.correlation_id)
    other.basic_publish("", address, b"answer", reply, mandatory=True)
    other.basic_ack(method.delivery_tag)
    asker.connection.process_data_events(PATIENCE)
    assert answers == [(b"answer", "7")]
    asker.connection.close()
    with pytest.raises(ChannelClosedByBroker, match="404"):
        other.queue_declare(address, passive=True)
