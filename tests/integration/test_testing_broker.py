"""Brokers inside the process that tests them: looked into, cut off, stopped, killed, clustered."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import aio_pika
import kombu
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError

import coterie.testing
from coterie.amqp.wire.properties import Properties
from coterie.errors import CoterieError, ProtocolError, UserError
from coterie.testing import EmbeddedBroker, QueueState

PERSISTENT = pika.BasicProperties(delivery_mode=2)
Connect = Callable[[EmbeddedBroker], BlockingChannel]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connections that end with the test, if they have not before."""
    made: list[pika.BlockingConnection] = []

    def connect(broker: EmbeddedBroker) -> BlockingChannel:
        made.append(pika.BlockingConnection(pika.URLParameters(broker.url)))
        return made[-1].channel()

    yield connect
    for connection in made:
        try:
            connection.close()
        except AMQPError:
            pass


def test_what_is_in_a_queue_can_be_looked_at_and_stays_there(connect: Connect) -> None:
    with coterie.testing.broker() as broker:
        channel = connect(broker)
        channel.queue_declare("orders")
        assert broker.wait_for("orders", ready=0).exists
        sent = pika.BasicProperties(headers={"table": 4}, content_type="application/json")
        channel.basic_publish("", "orders", b'{"drink": "tea"}', sent)
        channel.basic_publish("", "orders", b"second")
        broker.wait_for("orders", ready=2)
        for _ in range(2):
            first, second = broker.messages("orders")
            assert (first.json(), first.headers, first.routing_key) == ({"drink": "tea"}, {"table": 4}, "orders")
            assert first.properties.content_type == "application/json"
            assert (second.text, second.held, second.redelivered) == ("second", False, False)
        channel.basic_get("orders")
        assert [message.held for message in broker.messages("orders")] == [True, False]
        assert broker.queues() == {"orders": QueueState("orders", True, 1, 1, 0)}
        assert broker.queue("orders").messages == 2
        with pytest.raises(ProtocolError, match="no queue 'nothing'"):
            broker.messages("nothing")


def test_waiting_ends_when_it_is_so_and_tells_what_is_there_if_it_never_is(connect: Connect) -> None:
    with coterie.testing.broker() as broker:
        with pytest.raises(TimeoutError, match=r"there is no queue 'orders' after 0.05 s of waiting for ready=1"):
            broker.wait_for("orders", ready=1, timeout=0.05)
        channel = connect(broker)
        channel.queue_declare("orders")
        waiting = threading.Thread(target=broker.wait_for, args=("orders",), kwargs={"consumers": 1, "messages": 1})
        waiting.start()
        channel.basic_consume("orders", lambda *_: None)
        assert waiting.is_alive()
        channel.basic_publish("", "orders", b"one")
        waiting.join(30)
        assert not waiting.is_alive()
        with pytest.raises(TimeoutError, match=r"queue 'orders' has 0 ready, 1 held, 1 consumers after .* held=7"):
            broker.wait_for("orders", held=7, timeout=0.05)


def test_an_asyncio_test_awaits_the_same() -> None:
    async def main(broker: EmbeddedBroker) -> list[str]:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=False)
            await channel.declare_queue("orders")
            for number in range(3):
                await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), "orders")
            await broker.until("orders", ready=3)
        return [message.text for message in broker.messages("orders")]

    with coterie.testing.broker() as broker:
        assert asyncio.run(main(broker)) == ["0", "1", "2"]


def test_a_test_can_publish_by_itself(connect: Connect) -> None:
    with coterie.testing.broker() as broker:
        assert not broker.publish("orders", "nobody is there")
        channel = connect(broker)
        channel.queue_declare("orders")
        assert broker.publish("orders", "tea", properties=Properties(message_id="1"))
        _, properties, body = channel.basic_get("orders", auto_ack=True)
        assert properties is not None
        assert (body, properties.message_id) == (b"tea", "1")


def test_kombu_works_with_the_url() -> None:
    with coterie.testing.broker() as broker, kombu.Connection(broker.url) as connection:
        queue = connection.SimpleQueue("jobs")
        queue.put({"job": 1})
        assert broker.wait_for("jobs", ready=1)
        message = queue.get(timeout=10)
        assert message.payload == {"job": 1}
        assert broker.queue("jobs").held == 1
        message.ack()
        broker.wait_for("jobs", messages=0)
        queue.close()


def test_purging_empties_queues_and_leaves_the_rest(connect: Connect) -> None:
    with coterie.testing.broker() as broker:
        channel = connect(broker)
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare("orders", durable=True)
        for queue in ("mine", "orders"):
            assert broker.publish(queue, b"x")
        broker.purge()
        assert {name: state.messages for name, state in broker.queues().items()} == {"mine": 0, "orders": 0}
        assert channel.queue_declare("orders", passive=True).method.message_count == 0


def test_a_reset_leaves_nothing_that_was_declared(connect: Connect) -> None:
    with coterie.testing.broker() as broker:
        channel = connect(broker)
        channel.exchange_declare("news", "topic", durable=True)
        channel.queue_declare("orders", durable=True, arguments={"x-max-length": 1})
        channel.queue_bind("orders", "news", "#")
        assert broker.publish("a", b"x", exchange="news")
        broker.reset()
        assert broker.queues() == {}
        with pytest.raises(AMQPError):
            channel.queue_declare("orders", passive=True)
        channel = connect(broker)
        channel.queue_declare("orders", durable=False)  # not refused: no other one is there
        with pytest.raises(ProtocolError, match="no exchange 'news'"):
            broker.publish("a", b"x", exchange="news")


def test_clients_can_be_cut_off_and_what_they_held_is_ready_again(connect: Connect) -> None:
    with coterie.testing.broker() as broker:
        channel = connect(broker)
        channel.queue_declare("orders")
        broker.publish("orders", b"x")
        channel.basic_get("orders")
        assert broker.disconnect() == 1
        with pytest.raises(AMQPConnectionError):
            channel.basic_get("orders")
        broker.wait_for("orders", ready=1)
        assert broker.messages("orders")[0].redelivered


def test_a_broker_with_a_folder_has_everything_again_after_a_kill_and_at_the_same_port(
    tmp_path: Path, connect: Connect
) -> None:
    with coterie.testing.broker(data=tmp_path / "data") as broker:
        channel = connect(broker)
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"kept", PERSISTENT)
        port = broker.port
        broker.kill()
        with pytest.raises(AMQPError):
            channel.basic_get("orders")
        with pytest.raises(CoterieError, match="broker is not running: start it"):
            broker.queues()
        broker.start()
        assert broker.port == port
        assert [message.text for message in broker.messages("orders")] == ["kept"]
        broker.restart()
        assert [message.text for message in broker.messages("orders")] == ["kept"]


def test_nothing_is_left_when_it_ends() -> None:
    before = set(threading.enumerate())
    with coterie.testing.broker(console=True) as broker:
        assert urlopen(f"{broker.probes}/metrics").status == 200
        port = broker.port
    broker.close()
    assert set(threading.enumerate()) <= before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(CoterieError, match="this broker is closed"):
        broker.start()


def test_settings_are_those_of_a_node_and_are_checked_as_such(connect: Connect) -> None:
    with coterie.testing.broker(settings={"amqp": {"channel_max": 1}}) as broker:
        channel = connect(broker)
        with pytest.raises(pika.exceptions.AMQPError):
            channel.connection.channel()
    with pytest.raises(UserError, match=r"settings of broker, amqp: there is no setting 'chanel_max'.*channel_max"):
        coterie.testing.EmbeddedBroker(settings={"amqp": {"chanel_max": 1}})
    with pytest.raises(UserError, match="there is no section 'aqmp' to set here"):
        coterie.testing.EmbeddedBroker(settings={"aqmp": {}})


def test_what_a_cluster_confirmed_is_there_when_a_broker_was_killed(connect: Connect) -> None:
    with coterie.testing.cluster(3) as cluster:
        assert len({*cluster.urls}) == len(cluster) == 3
        first = connect(cluster[0])
        first.confirm_delivery()
        first.queue_declare("orders", durable=True)
        first.basic_publish("", "orders", b"kept", PERSISTENT)
        cluster[0].kill()
        with pytest.raises(AMQPError):
            first.basic_get("orders")
        second = connect(cluster[1])
        _, _, body = second.basic_get("orders", auto_ack=True)
        assert body == b"kept"
        cluster.start()
        for broker in cluster:
            broker.wait_for("orders", messages=0)


def test_a_cluster_of_no_brokers_is_refused() -> None:
    with pytest.raises(UserError, match="1 to 9 brokers, not 0"), coterie.testing.cluster(0):
        pass


def test_one_that_lost_its_majority_is_alive_and_not_ready() -> None:
    def answer(node: EmbeddedBroker, path: str) -> tuple[int, str]:
        try:
            with urlopen(f"{node.probes}{path}") as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    with coterie.testing.cluster(2, console=True) as cluster:
        assert [answer(node, "/health/ready")[0] for node in cluster] == [200, 200]
        cluster[1].kill()
        cluster[0].wait_until_it_serves_no_more()
        status, told = answer(cluster[0], "/health/ready")
        assert (status, "majority" in told) == (503, True)
        assert answer(cluster[0], "/health/live")[0] == 200
