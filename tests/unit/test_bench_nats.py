"""The clients of `bench broker` for NATS JetStream, by the bytes that they are given and that they write."""

from __future__ import annotations

import asyncio
from typing import cast

from coterie.bench.broker_clients import BODY, PREFETCH
from coterie.bench.broker_nats import NatsConsumer, NatsPublisher

SIZE = 64


class Line(asyncio.Transport):
    """Remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: object) -> None:
        self.written += cast(bytes, data)

    def taken(self) -> bytes:
        taken, self.written = self.written, b""
        return taken


def hello(client: NatsConsumer | NatsPublisher) -> Line:
    line = Line()
    client.connection_made(line)
    assert line.taken().endswith(b"PING\r\n")
    client.data_received(b'INFO {"server_name":"one"}\r\nPO')
    assert not client.ready.done()
    client.data_received(b"NG\r\n")
    assert client.ready.done()
    assert client.server == "one"
    return line


def delivery(number: int) -> bytes:
    body = BODY.pack(0, number, 0.0).ljust(SIZE, b"\n")
    return f"MSG inbox 1 $JS.ACK.q.bench.1.{number} {SIZE}\r\n".encode() + body + b"\r\n"


def test_a_consumer_takes_each_message_once_wherever_the_bytes_are_cut_and_acknowledges_each() -> None:
    stream = b"".join(delivery(n) for n in (1, 2)) + b"HMSG inbox 1 10 10\r\nNATS/1.0\r\n\r\nPING\r\n" + delivery(3)

    async def scenario() -> None:
        for cut in range(len(stream)):
            consumer = NatsConsumer("q", SIZE, 1)
            line = hello(consumer)
            line.taken()
            consumer.data_received(stream[:cut])
            consumer.data_received(stream[cut:])
            assert (consumer.got, consumer.total, consumer.acked) == (3, 6, 3)
            said = line.taken()
            assert [said.count(f"PUB $JS.ACK.q.bench.1.{n} 4\r\n+ACK\r\n".encode()) for n in (1, 2, 3)] == [1, 1, 1]
            assert said.count(b"PONG\r\n") == 1

    asyncio.run(scenario())


def test_a_consumer_never_has_more_than_its_prefetch_asked_for_or_held() -> None:
    async def scenario() -> None:
        consumer = NatsConsumer("q", SIZE, 100)
        line = hello(consumer)
        asked = PREFETCH
        assert f'"batch": {PREFETCH}'.encode() in line.taken()
        for number in range(1, PREFETCH + 1):
            consumer.data_received(delivery(number))
            said = line.taken()
            if b"MSG.NEXT" in said:
                asked += int(said.partition(b'"batch": ')[2].partition(b",")[0])
            assert asked - consumer.acked <= PREFETCH
        assert asked > PREFETCH

    asyncio.run(scenario())


def test_a_publish_is_confirmed_by_the_answer_of_the_stream_and_by_nothing_else() -> None:
    async def scenario() -> None:
        publisher = NatsPublisher("q", 7, SIZE, True)
        line = hello(publisher)
        publisher.begin(3)
        said = line.taken()
        head, _, rest = said.partition(b"\r\n")
        assert head.split(b" ")[::3] == [b"PUB", str(SIZE).encode()]
        assert BODY.unpack_from(rest)[:2] == (7, 1)
        assert rest[SIZE : SIZE + 5] == b"\r\nPUB"
        inbox = head.split(b" ")[2]
        answers = [b'{"stream":"q","seq":1}', b'{"error":{"code":503}}', b'{"stream":"q","seq":2}']
        data = b"".join(b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(text), text) for text in answers) + b"PING\r\n"
        for at in range(len(data)):
            publisher.data_received(data[at : at + 1])
        assert (publisher.sent, publisher.confirmed, publisher.unconfirmed) == (3, 2, [3])
        assert line.taken() == b"PONG\r\n"

    asyncio.run(scenario())
