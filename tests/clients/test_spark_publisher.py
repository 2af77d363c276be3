"""The publisher of the Spark sink, without Spark: a real node, connections that end, queues that refuse."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pika
import pyarrow as pa
import pytest
from client_fixtures import Line
from node_process import NodeProcess
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from coterie.errors import UserError
from coterie.spark.ids import CONTENT, Ids
from coterie.spark.letters import Letters, check_schema
from coterie.spark.link import Refused
from coterie.spark.options import Login, Server
from coterie.spark.publisher import Brokers, Publisher
from coterie.spark.sink import SinkOptions

GUEST = Login("guest", "guest")


@pytest.fixture
def channel(node: NodeProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    yield connection.channel()
    connection.close()


def server(url: str) -> Server:
    port = urlsplit(url).port
    assert port is not None
    return Server("amqp", "127.0.0.1", port)


def at(node: NodeProcess) -> Brokers:
    return Brokers((server(node.url),), GUEST)


def nobody() -> Server:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return Server("amqp", "127.0.0.1", port)


def letters(key: str, exchange: str | None = None, ids: Ids | None = None, mandatory: bool = True) -> Letters:
    return Letters(ids, exchange, key, mandatory, True, 131072)


def rows(*values: bytes | None, **columns: object) -> pa.RecordBatch:
    given = {"value": pa.array(values, pa.binary()), **columns}
    return pa.record_batch([*given.values()], names=[*given])


def send(publisher: Publisher, made: Letters, batch: pa.RecordBatch) -> None:
    for bulk in made.bulks(batch):
        publisher.send(bulk)


def write(brokers: Brokers, made: Letters, batch: pa.RecordBatch) -> None:
    with Publisher(brokers) as publisher:
        send(publisher, made, batch)
        publisher.flush()


def content(found: BlockingChannel, queue: str) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        method, _, body = found.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return bodies
        bodies.append(body)


def test_whatever_ends_a_connection_everything_is_there_once(line: Line, node: NodeProcess, name: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    arguments = {"x-deduplicate-length": 100_000}
    connection.channel().queue_declare(name, durable=True, arguments=arguments)
    connection.close()
    made = letters(name, ids=Ids("run", "0", 0))
    expected = [b"%d" % number for number in range(2000)]
    with Publisher(Brokers((nobody(), server(line.url)), GUEST, window=700)) as publisher:
        send(publisher, made, rows(*expected[:1000]))
        line.cut_off()
        send(publisher, made, rows(*expected[1000:]))
        publisher.flush()
    assert publisher.connections == 2
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        assert sorted(content(connection.channel(), name), key=int) == expected


def test_a_row_has_all_properties_and_bodies_of_any_size(
    node: NodeProcess, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    large = bytes(range(256)) * 2000
    batch = rows(
        b"small", large, None,
        routing_key=pa.array([name, name, name]),
        headers=pa.array([[("a", "x"), ("b", "y")], None, []], pa.map_(pa.string(), pa.string())),
        content_type=pa.array(["text/plain", None, None]),
        correlation_id=pa.array(["c", None, None]),
        delivery_mode=pa.array([1, 2, None], pa.int32()),
        priority=pa.array([7, None, None], pa.int8()),
        timestamp=pa.array([when, None, None], pa.timestamp("us", "UTC")),
        message_id=pa.array(["mine", None, None]),
    )  # fmt: skip
    write(at(node), Letters(Ids("the run", "4", 1), None, None, True, True, 131072), batch)
    found = [channel.basic_get(name, auto_ack=True)[1:] for _ in range(3)]
    bodies = [body for _, body in found]
    assert bodies == [b"small", large, b""]
    first, second, third = (properties for properties, _ in found)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.headers == {"a": "x", "b": "y"}
    assert (first.content_type, first.correlation_id, first.delivery_mode, first.priority) == ("text/plain", "c", 1, 7)
    assert (first.timestamp, first.message_id) == (int(when.timestamp()), "mine")
    assert (second.delivery_mode, third.delivery_mode) == (2, 2)
    assert second.message_id is not None
    assert second.message_id.startswith("the run-4-1-0-")


def test_ids_tell_rows_apart_and_repeat_with_them() -> None:
    def ids(mode: str, *bodies: bytes, epoch: str = "1") -> list[str]:
        made = Ids("run", epoch, 0, mode)
        return [made.next(("", "q"), b"", body) for body in bodies]

    assert ids("rows", b"a", b"b") == ids("rows", b"a", b"b")
    assert not {*ids("rows", b"a", b"b")} & {*ids("rows", b"b", b"a")}, "other rows are never taken for these"
    assert {*ids(CONTENT, b"a", b"b", b"a")} == {*ids(CONTENT, b"b", b"a", b"a")}
    assert len({*ids("rows", b"a", b"a"), *ids("rows", b"a", epoch="2")}) == 3


def test_a_message_that_no_queue_takes_is_an_error_unless_told_otherwise(node: NodeProcess) -> None:
    write(at(node), letters("nowhere", mandatory=False), rows(b"x"))
    with pytest.raises(Refused, match="no queue takes a message to exchange '' with routing key 'nowhere'"):
        write(at(node), letters("nowhere"), rows(b"x"))


def test_what_a_full_queue_refuses_is_sent_again_until_it_is_taken(
    node: NodeProcess, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 20, "x-overflow": "reject-publish"})
    taken: list[bytes] = []
    over = threading.Event()

    def consume() -> None:
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            mine = connection.channel()
            while not over.is_set() or len(taken) < 100:
                taken.extend(content(mine, name))

    consumer = threading.Thread(target=consume)
    with Publisher(at(node)) as publisher:
        send(publisher, letters(name), rows(*(b"%d" % number for number in range(100))))
        consumer.start()
        publisher.flush()
    over.set()
    consumer.join()
    assert sorted(taken, key=int) == [b"%d" % number for number in range(100)]


def test_a_queue_that_stays_full_is_an_error_in_the_end(node: NodeProcess, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(Refused, match="it is full"):
        write(Brokers((server(node.url),), GUEST, confirm_timeout=0.5), letters(name), rows(b"a", b"b"))


@pytest.mark.parametrize(
    ("login", "vhost", "exchange", "text"),
    [
        (Login("guest", "geheim"), "/", "", "ACCESS_REFUSED.*check the options user, password and vhost"),
        (GUEST, "elsewhere", "", "vhost elsewhere not found"),
        (GUEST, "/", "missing", "no exchange 'missing' in vhost '/'"),
        (Login("guest", "", "/no/such/file"), "/", "", "passwordFile: /no/such/file: cannot be read"),
    ],
)
def test_what_no_broker_would_take_is_one_clear_error(
    node: NodeProcess, login: Login, vhost: str, exchange: str, text: str
) -> None:
    brokers = Brokers((server(node.url),), login, vhost)
    assert "geheim" not in repr(brokers)
    with pytest.raises(UserError, match=text) as caught:
        write(brokers, letters("q", exchange), rows(b"x"))
    assert "geheim" not in str(caught.value)


def test_where_nobody_listens_every_address_is_named() -> None:
    first, second = nobody(), nobody()
    with pytest.raises(Refused, match=f"no broker can be reached: {first}: .*; {second}: .*check the option servers"):
        Publisher(Brokers((first, second), GUEST, connect_timeout=0.3))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"body": StringType()}, "a sink needs a column 'value', the body; there are: body"),
        ({"value": LongType()}, "column 'value': binary or string is due, not bigint"),
        ({"value": StringType(), "topic": StringType()}, "column 'topic': a message has none"),
        ({"value": StringType(), "headers": StringType()}, "column 'headers': map<string,string> or .*, not string"),
    ],
)
def test_rows_that_are_no_messages_are_refused(schema: dict[str, DataType], text: str) -> None:
    with pytest.raises(UserError, match=text):
        check_schema(StructType([StructField(name, kind) for name, kind in schema.items()]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "option servers is missing: amqp://HOST:PORT"),
        ({"servers": "amqp://guest:geheim@here"}, "user and password are options of their own"),
        ({"servers": "http://here"}, "'http://here' is no address"),
        ({"servers": "here:port"}, "'here:port' is no address"),
        ({"servers": "amqp://a,amqps://b"}, "all with TLS, or none"),
        ({"servers": "a", "routingkey": "k", "queue": "q"}, "option queue: it goes without exchange and routingKey"),
        ({"servers": "a", "routinKey": "k"}, "there is no option 'routinKey': is 'routingKey' meant"),
        ({"servers": "a", "mandatory": "perhaps"}, "option mandatory: true or false is due"),
        ({"servers": "a", "maxInFlight": "0"}, "option maxInFlight: a whole number from 1 on is due"),
        ({"servers": "a", "confirmTimeout": "soon"}, "option confirmTimeout: a time is due"),
        ({"servers": "a", "messageIds": "uuid"}, "option messageIds: one of rows, content, none is due"),
        ({"servers": "a", "password": "geheim", "passwordFile": "f"}, "give one of them"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(options: dict[str, str], text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        SinkOptions.of(options)
    assert "geheim" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_options_say() -> None:
    found = SinkOptions.of(
        {
            "SERVERS": "amqps://a, amqps://b.example:1234, amqps://[::1]:5", "user": "me", "password": "geheim",
            "queue": "q", "mandatory": "FALSE", "persistent": "false", "runid": "today", "connectTimeout": "500ms",
            "maxinflight": "7", "checkpointLocation": "/not/ours",
        }
    )  # fmt: skip
    assert [*map(str, found.brokers.servers)] == ["amqps://a:5671", "amqps://b.example:1234", "amqps://[::1]:5"]
    assert (found.exchange, found.key, found.mandatory, found.persistent) == ("", "q", False, False)
    assert (found.run, found.run_given, found.brokers.window, found.brokers.connect_timeout) == ("today", True, 7, 0.5)
    assert "geheim" not in repr(found)
    assert found.brokers.login.secret() == "geheim"
