"""Every option of `format("coterie")`, with a real broker and without Spark: each test fails if its option is ignored.

What options mean for several brokers, for what is lost and for queues by their names is in test_spark_source.py; over
TLS in test_spark_tls.py; with connections that end in test_spark_publisher.py.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

import coterie.testing
from coterie.amqp.wire.properties import join, split
from coterie.cli.remote import Remote, path_of
from coterie.errors import CoterieError, UserError
from coterie.spark import sink, source_options
from coterie.spark.leased import DataLoss
from coterie.spark.letters import Letters
from coterie.spark.publisher import Publisher
from coterie.spark.queues import Coterie
from coterie.spark.sink import BatchSink, SinkOptions
from coterie.spark.source import QueueStream, QueueTable
from coterie.spark.source_options import SourceOptions
from coterie.streams.client import Client
from coterie.testing import EmbeddedBroker, QueuedMessage

PAGE = Path(__file__).parents[2] / "docs" / "spark-streams.md"
SECRET = "geheim-1234"
READ = StructType(
    [StructField("value", BinaryType()), StructField("queue", StringType()), StructField("position", LongType())]
)
WRITTEN = StructType([StructField("value", BinaryType()), StructField("routing_key", StringType())])
ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedBroker]:
    """With a user who may read and write, but not as guest does, and with a second vhost."""
    with coterie.testing.broker(console=True) as found:
        remote = remote_of(found)
        remote.ask("PUT", path_of("vhosts", "shop"), {})
        remote.ask("PUT", path_of("users", "reader"), {"password": SECRET, "tags": "management"})
        for vhost in ("/", "shop"):
            remote.ask(
                "PUT", path_of("permissions", vhost, "reader"), {"configure": "none", "write": ".*", "read": "mine.*"}
            )
        yield found


def remote_of(node: EmbeddedBroker) -> Remote:
    assert node.console is not None
    return Remote(node.console.replace("://", "://guest:guest@"), 30.0)


def declare(node: EmbeddedBroker, queue: str, vhost: str = "/", **arguments: object) -> None:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    remote_of(node).ask("PUT", path_of("queues", vhost, queue), {"durable": True, "arguments": given})


def fill(node: EmbeddedBroker, queue: str, *bodies: str, vhost: str = "/") -> None:
    declare(node, queue, vhost)
    for body in bodies:
        assert node.publish(queue, body, vhost=vhost)


def nobody() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("secrets") / "password"
    file.write_text(f"{SECRET}\n")
    return str(file)


def test_the_page_has_every_option_and_no_other() -> None:
    text = PAGE.read_text()
    reading, writing = text.split("\n## Writing\n")
    for part, heading, known in (
        (reading, "### Options", source_options.KNOWN),
        (writing, "### Options of a sink", sink.KNOWN),
    ):
        table = part.split(f"{heading}\n")[1].split("\n#")[0]
        cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(known)


# Reading.


def given_of(node: EmbeddedBroker, **options: str) -> dict[str, str]:
    return {"servers": str(node.console), "columns": "value,queue,position", **options}


def rows(node: EmbeddedBroker, **options: str) -> list[str]:
    """Of a table."""
    reader = QueueTable(SourceOptions.of(given_of(node, **options)), READ)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [value.decode() for batch in batches for value in batch.to_pydict()["value"]]


class Stream:
    """Its first, empty batch is behind it."""

    def __init__(self, node: EmbeddedBroker, **options: str) -> None:
        self.options = SourceOptions.of(given_of(node, **options))
        self.reader = QueueStream(self.options, READ)
        self.at = self.reader.latestOffset(self.reader.initialOffset(), ALL)
        self.before = self.at

    def next(self) -> list[list[str]]:
        """One more batch, by its parts."""
        self.before, self.at = self.at, self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        return self.parts()

    def parts(self) -> list[list[str]]:
        """Of the latest batch, again."""
        found = []
        for part in self.reader.partitions(self.before, self.at):
            batches = [batch.to_pydict()["value"] for batch in self.reader.read(part)]
            found.append([value.decode() for values in batches for value in values])
        return found


@pytest.fixture
def stream(node: EmbeddedBroker) -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make(**options: str) -> Stream:
        made.append(Stream(node, **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


def test_a_reader_is_the_user_of_its_options(node: EmbeddedBroker, password_file: str, tmp_path: Path) -> None:
    fill(node, "mine", "a")
    fill(node, "theirs", "b")
    for login in ({"password": SECRET}, {"passwordFile": password_file}):
        assert rows(node, queue="mine", user="reader", **login) == ["a"]
        with pytest.raises(CoterieError, match=r"theirs.*as user 'reader'") as caught:
            rows(node, queue="theirs", user="reader", **login)
        assert SECRET not in str(caught.value)
    assert rows(node, queue="theirs") == ["b"], "guest may"
    wrong = tmp_path / "password"
    wrong.write_text(f"{SECRET}-not\n")
    with pytest.raises(CoterieError, match="as user 'reader'") as caught:
        rows(node, queue="mine", user="reader", passwordFile=str(wrong))
    assert SECRET not in str(caught.value)
    with pytest.raises(UserError, match="option passwordFile: /no/such/file: cannot be read"):
        rows(node, queue="mine", user="reader", passwordFile="/no/such/file")
    with pytest.raises(UserError, match="options tlsCert and tlsKey: /no/such/file"):
        rows(node, servers="https://127.0.0.1:1", queue="mine", tlsCert="/no/such/file")


def test_a_reader_is_in_its_vhost(node: EmbeddedBroker) -> None:
    fill(node, "mine.two", "root")
    fill(node, "mine.two", "shop", vhost="shop")
    assert rows(node, queue="mine.two") == ["root"]
    assert rows(node, queue="mine.two", VHOST="shop") == ["shop"]


def test_one_server_that_answers_is_enough(node: EmbeddedBroker) -> None:
    fill(node, "servers", "here")
    assert rows(node, servers=f"http://{nobody()},{node.console}", queue="servers") == ["here"]
    began = time.monotonic()
    with pytest.raises(UserError, match=r"nobody could answer for 0.2 s") as caught:
        rows(node, servers=f"http://{nobody()}", queue="servers", password=SECRET, connectTimeout="200ms")
    assert time.monotonic() - began < 30, "60 s are the default"
    assert SECRET not in str(caught.value)


def test_columns_are_those_that_are_wanted_in_their_order(node: EmbeddedBroker) -> None:
    given = given_of(node, queue="columns")
    assert Coterie({**given, "columns": "position, value"}).schema() == "position bigint, value binary"
    assert Coterie({**given, "columns": ""}).schema().startswith("value binary, queue string, position bigint")


def test_parts_are_as_many_and_as_small_as_wanted(node: EmbeddedBroker, stream: Callable[..., Stream]) -> None:
    bodies = [str(number) for number in range(10)]
    fill(node, "parts", *bodies)
    for options, count in (({}, 1), ({"minPartitions": "3"}, 3), ({"maxRowsPerPartition": "2"}, 5)):
        table = QueueTable(SourceOptions.of(given_of(node, queue="parts", **options)), READ)
        assert len(table.partitions()) == count
        found = stream(queue="parts", leaseName=f"parts-{count}", **options)
        parts = found.next()
        assert (len(parts), [body for part in parts for body in part]) == (count, bodies)
        client = found.options.client()
        with client:
            lease = client.lease("parts", f"parts-{count}")
            assert lease is not None, "it has the name that it was given"
            client.end(lease)  # they are ready again


def test_whichever_limit_of_a_batch_is_reached_first_counts(
    node: EmbeddedBroker, stream: Callable[..., Stream]
) -> None:
    for name, options, count in (
        ("bytes", {"maxRowsPerTrigger": "8", "maxBytesPerTrigger": "300"}, 3),
        ("rows", {"maxRowsPerTrigger": "2", "maxBytesPerTrigger": "300"}, 2),
        ("all", {}, 10),
    ):
        fill(node, f"limit.{name}", *("x" * 100 for _ in range(10)))
        assert [len(part) for part in stream(queue=f"limit.{name}", **options).next()] == [count]


def test_a_batch_waits_for_so_many_rows_but_not_for_ever(node: EmbeddedBroker, stream: Callable[..., Stream]) -> None:
    fill(node, "few", "a", "b")
    for options, count in (
        ({"minRowsPerTrigger": "3"}, 0),
        ({"minRowsPerTrigger": "3", "maxRowsPerTrigger": "5"}, 0),
        ({"minRowsPerTrigger": "3", "maxBytesPerTrigger": "500"}, 0),
        ({"minRowsPerTrigger": "2"}, 2),
        ({"minRowsPerTrigger": "3", "maxTriggerDelay": "0s"}, 2),
    ):
        found = stream(queue="few", idleWait="0s", leaseName="few", **options)
        assert sum(map(len, found.next())) == count
        if not count:
            assert found.reader.latestOffset(found.at, ALL) != found.at, "the engine may want everything"
        with found.options.client() as client:
            lease = client.lease("few", "few")
            assert lease is not None
            client.end(lease)
    with pytest.raises(UserError, match="option minRowsPerTrigger: it is more than maxRowsPerTrigger"):
        stream(queue="few", minRowsPerTrigger="3", maxRowsPerTrigger="2")


def test_trigger_available_now_waits_for_no_rows(node: EmbeddedBroker, stream: Callable[..., Stream]) -> None:
    fill(node, "few.now", "a")
    found = stream(queue="few.now", minRowsPerTrigger="3")
    found.reader.prepareForTriggerAvailableNow()
    assert found.next() == [["a"]]


def test_a_stream_that_has_nothing_to_do_waits_at_the_broker_until_there_is_something(
    node: EmbeddedBroker, stream: Callable[..., Stream]
) -> None:
    fill(node, "quiet", "a")
    found = stream(queue="quiet", idleWait="25s")
    assert found.next() == [["a"]]
    assert found.next() == [], "Spark asks at once whether there is more"
    asked: list[str] = []
    request = Client._request

    def counted(client: Client, server: Any, method: str, path: str, body: Any) -> Any:
        asked.append(path)
        return request(client, server, method, path, body)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "_request", counted)
        next_batch = pool.submit(found.next)
        while not asked:
            time.sleep(0.01)
        assert not next_batch.done()
        began = time.monotonic()
        fill(node, "quiet", "b")
        assert next_batch.result() == [["b"]]
        assert time.monotonic() - began < 20
    assert sum("/api/streams/tails" in path for path in asked) == 1, "nobody asks again and again"
    found.reader.commit(found.at)
    began = time.monotonic()
    assert found.next() == [], "after a batch of the query, of whichever stream, nobody waits"
    assert time.monotonic() - began < 20


def test_a_stream_tells_how_far_it_lags(node: EmbeddedBroker, stream: Callable[..., Stream]) -> None:
    fill(node, "lag.a", *"abcde")
    fill(node, "lag.b", "f")
    late = stream(queue="lag.a", startingPositions="latest").reader.reportLatestOffset()
    assert late is not None
    assert late["lag"] == 0, "what is before its beginning is not the stream's"
    found = stream(queuePattern="lag[.].", maxRowsPerTrigger="3", idleWait="0s")
    found.next()
    report = found.reader.reportLatestOffset()
    assert report is not None
    ends = {queue: place["offset"] for queue, place in found.at["queues"].items()}
    assert report["lag"] == 6 - sum(ends.values()) == 3
    for queue, position in (("lag.a", 5), ("lag.b", 1)):
        each = report["queues"][queue]
        assert (each["offset"], each["position"]) == (position, position)
        assert each["offset"] - ends[queue] == each["lag"]
    while found.next():
        pass
    report = found.reader.reportLatestOffset()
    assert report is not None
    assert report["lag"] == 0


def test_a_range_that_was_retired_is_an_error_or_nothing(node: EmbeddedBroker, stream: Callable[..., Stream]) -> None:
    fill(node, "retired", "a", "b")
    for value in ("true", "false"):
        found = stream(queue="retired", failOnDataLoss=value)
        assert found.next() == [["a", "b"]]
        found.reader.commit(found.at)
        if value == "true":
            with pytest.raises(UserError, match=r"messages of this batch are gone; set the option failOnDataLoss"):
                found.parts()
            fill(node, "retired", "a", "b")
        else:
            assert found.parts() == [[]]
    fill(node, "retired", "c")
    with pytest.raises(DataLoss, match=r"positions 1 to 4 of queue 'retired' are gone: begin at 5"):
        rows(node, queue="retired", startingPositions='{"retired": 1}')
    assert rows(node, queue="retired", startingPositions='{"retired": 1}', failOnDataLoss="false") == ["c"]


# Writing.


def write(node: EmbeddedBroker, *values: bytes, key: str = "", **options: str) -> None:
    """As a task of a batch does it."""
    batch = pa.record_batch([pa.array(values, pa.binary()), pa.array([key] * len(values))], names=WRITTEN.names)
    BatchSink({"servers": f"127.0.0.1:{node.port}", **options}, WRITTEN, False).write(iter([batch]))


def written(node: EmbeddedBroker, queue: str) -> list[QueuedMessage]:
    found = node.messages(queue)
    node.purge()
    return found


def test_options_say_where_rows_go_and_win_over_columns(node: EmbeddedBroker) -> None:
    declare(node, "there")
    declare(node, "here")
    remote_of(node).ask("PUT", path_of("exchanges", "/", "post"), {"type": "direct"})
    remote_of(node).ask("POST", path_of("bindings", "/", "e", "post", "q", "there"), {"routing_key": "k"})
    write(node, b"1", key="here")
    write(node, b"2", key="here", queue="there")
    write(node, b"3", key="here", exchange="post", routingKey="k")
    write(node, b"4", key="k", exchange="post")
    write(node, b"5", key="here", routingKey="there")
    assert [each.body for each in node.messages("here")] == [b"1"]
    routes = [(each.body, each.exchange, each.routing_key) for each in written(node, "there")]
    assert routes == [(b"2", "", "there"), (b"3", "post", "k"), (b"4", "post", "k"), (b"5", "", "there")]


def test_a_writer_is_the_user_of_its_options_in_its_vhost(node: EmbeddedBroker, password_file: str) -> None:
    declare(node, "vhosts")
    declare(node, "vhosts", "shop")
    for login in ({"password": SECRET}, {"passwordFile": password_file}):
        write(node, b"shop", queue="vhosts", vhost="shop", user="reader", **login)
    assert [each.properties.delivery_mode for each in node.messages("vhosts", "shop")] == [2, 2]
    assert node.messages("vhosts") == []
    with pytest.raises(UserError, match="check the options user, password and vhost") as caught:
        write(node, b"x", queue="vhosts", user="reader", password=f"{SECRET}-not")
    assert SECRET not in str(caught.value)


def test_messages_that_nobody_takes_are_an_error_or_dropped(node: EmbeddedBroker) -> None:
    with pytest.raises(UserError, match="no queue takes a message to exchange '' with routing key 'nowhere'"):
        write(node, b"x", queue="nowhere")
    write(node, b"x", queue="nowhere", mandatory="false")


def test_messages_are_persistent_or_not(node: EmbeddedBroker) -> None:
    declare(node, "modes")
    write(node, b"yes", queue="modes")
    write(node, b"no", queue="modes", persistent="false")
    assert [each.properties.delivery_mode for each in written(node, "modes")] == [2, 1]


TYPED = b"".join(
    (
        b"\x01ab\x05", b"\x01bB\x05", b"\x01cs\x00\x05", b"\x01du\x00\x05", b"\x01eI\x00\x00\x00\x05",
        b"\x01fi\x00\x00\x00\x05",
        b"\x01gl\x00\x00\x00\x00\x00\x00\x00\x05", b"\x01hV", b"\x01ix\x00\x00\x00\x01\xff", b"\x01jf\x3f\x80\x00\x00",
        b"\x01kA\x00\x00\x00\x09F\x00\x00\x00\x04\x01zt\x01", b"\x01mD\x02\x00\x00\x00\x7b",
        b"\x01nT\x00\x00\x00\x00\x65\x53\xf1\x00",
    )
)  # fmt: skip
"""Headers: 5 in every width, signed and not; void, bytes, a float, a table in an array, a decimal, a moment."""
LIKE = StructType(
    [
        StructField("value", BinaryType()), StructField("properties", BinaryType()), StructField("type", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
    ]
)  # fmt: skip


def test_properties_go_through_source_and_sink_as_they_were(node: EmbeddedBroker) -> None:
    declare(node, "typed")
    headers = struct.pack(">I", len(TYPED)) + TYPED
    raw = b"\xb0\x00" + b"\x04text" + headers + b"\x01"

    def write_like(*rows: tuple[bytes, bytes | None, str | None, dict[str, str] | None], **options: str) -> None:
        kinds = [to_arrow_type(field.dataType) for field in LIKE]
        columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
        given = {"servers": f"127.0.0.1:{node.port}", "queue": "typed", **options}
        BatchSink(given, LIKE, False).write(iter([pa.record_batch(columns, names=LIKE.names)]))

    def read() -> list[bytes]:
        schema = StructType([StructField("properties", BinaryType())])
        reader = QueueTable(SourceOptions.of(given_of(node, queue="typed", columns="properties")), schema)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        node.purge()
        return [value for batch in batches for value in batch.to_pydict()["properties"]]

    write_like((b"", raw, None, None), messageIds="none")
    assert read() == [raw]
    write_like(
        (b"", raw, None, None), (b"", raw, "order", None), (b"", b"\x00\x80\x02id", None, None),
        (b"", None, None, None), (b"", raw, None, {"only": "this"}),
    )  # fmt: skip
    like, typed, with_id, without, other = map(split, read())
    ids = [fields.pop("message_id") for fields in (like, typed, with_id, without, other)]
    assert join(like) == raw
    assert typed == {**like, "type": b"\x05order"}, "what columns say wins"
    assert (with_id, ids[2]) == ({}, b"\x02id"), "it has an id of its own"
    assert without == {"delivery_mode": b"\x02"}
    assert {**other, "headers": headers} == like
    assert len(other["headers"]) == 4 + 5 + 5 + 4
    assert len({*ids}) == 5
    for wrong in (b"", b"\x80", b"\x80\x00\x05", b"\x00\x01", raw + b"x", b"\x20\x00" + struct.pack(">I", 1 << 31)):
        with pytest.raises(UserError, match="column 'properties': not the properties of a message"):
            write_like((b"", wrong, None, None))
    assert read() == []


def test_ids_are_made_as_the_options_say(node: EmbeddedBroker) -> None:
    declare(node, "ids")

    def ids(*values: bytes, **options: str) -> list[str | None]:
        write(node, *values, queue="ids", **options)
        return [each.properties.message_id for each in written(node, "ids")]

    assert ids(b"a", b"b", messageIds="none") == [None, None]
    first = ids(b"a", b"b", runId="tonight")
    assert first == ids(b"a", b"b", runId="tonight")
    assert all(str(each).startswith("tonight-batch-0-") for each in first)
    assert not {*first} & {*ids(b"a", b"b", runId="tomorrow")}
    assert not {*ids(b"a", b"b")} & {*ids(b"a", b"b")}, "each batch is another one"
    assert not {*first} & {*ids(b"b", b"a", runId="tonight")}
    content = {"runId": "tonight", "messageIds": "content"}
    assert {*ids(b"a", b"b", **content)} == {*ids(b"b", b"a", **content)}


def test_a_task_that_is_tried_again_publishes_nothing_twice(node: EmbeddedBroker) -> None:
    declare(node, "attempts", deduplicate_length=100)
    batches = [
        pa.record_batch([pa.array(values, pa.binary()), pa.array(["attempts"] * 2)], names=WRITTEN.names)
        for values in ([b"a", b"b"], [b"c", b"d"])
    ]

    def killed() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        raise RuntimeError("the executor is killed")

    task = BatchSink({"servers": f"127.0.0.1:{node.port}", "runId": "tonight"}, WRITTEN, False)
    with pytest.raises(RuntimeError, match="killed"):
        task.write(killed())
    for _ in range(2):  # the next attempt, and a speculative copy of it
        task.write(iter(batches))
    assert [each.body for each in written(node, "attempts")] == [b"a", b"b", b"c", b"d"]


def test_a_task_waits_while_a_broker_has_an_alarm() -> None:
    settings = {"broker": {"memory_high": 200_000, "alarm_interval": 0.05}}
    with coterie.testing.broker(console=True, settings=settings) as node, ThreadPoolExecutor(1) as pool:
        declare(node, "full")
        rows = [b"x" * 4000] * 10_000  # more than can be sent before the broker looks
        task = pool.submit(write, node, *rows, queue="full", persistent="false", maxInFlight="50")

        def enqueued() -> int:
            found: Any = remote_of(node).ask("GET", path_of("queues", "/", "full"))
            return int(found["counters"]["enqueued"])

        until = time.monotonic() + 60
        while not any(row["mem_alarm"] for row in remote_of(node).rows("nodes")):
            assert time.monotonic() < until
        while not any(row["held_back_by"] for row in remote_of(node).rows("connections")):
            assert time.monotonic() < until
        assert not task.done()
        while not task.done():
            node.purge()
        task.result()
        assert enqueued() == len(rows), "each once: nothing was sent again"


def test_no_more_messages_are_unconfirmed_than_wanted(node: EmbeddedBroker) -> None:
    declare(node, "window")
    options = SinkOptions.of({"servers": f"127.0.0.1:{node.port}", "queue": "window", "maxInFlight": "5"})
    batch = pa.record_batch([pa.array([b"x"] * 100, pa.binary())], names=["value"])
    with Publisher(options.brokers) as publisher:
        for bulk in Letters(None, "", "window", True, True, publisher.frame_max).bulks(batch):
            publisher.send(bulk)
            assert publisher._unconfirmed < 5
        publisher.flush()


def test_one_broker_that_lets_us_in_is_enough_and_none_is_an_error_in_time(node: EmbeddedBroker) -> None:
    declare(node, "servers.out")
    write(node, b"x", servers=f"{nobody()},127.0.0.1:{node.port}", queue="servers.out")
    assert len(node.messages("servers.out")) == 1
    began = time.monotonic()
    with pytest.raises(UserError, match="no broker can be reached") as caught:
        write(node, b"x", servers=nobody(), queue="servers.out", password=SECRET, connectTimeout="200ms")
    assert time.monotonic() - began < 20, "30 s are the default"
    assert SECRET not in str(caught.value)


def test_a_queue_that_stays_full_is_an_error_in_time(node: EmbeddedBroker) -> None:
    declare(node, "full", max_length=1, overflow="reject-publish")
    with pytest.raises(UserError, match=r"took none for 0.3 s: it is full"):
        write(node, b"a", b"b", queue="full", confirmTimeout="300ms")
