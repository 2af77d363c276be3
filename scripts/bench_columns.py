"""What a message costs in columns, beside what it costs as an object today; prints JSON. Not a part of any test.

Microseconds of processor time a message, the fastest of many rounds, the two ways in turns; `ratio` is columns to
objects. Steps: `build` (frames of publishers to the parts of an event), `follow` (bytes of an event to what each queue
gets, with lengths), `frames` (to a consumer's bytes, joined). `use` is the sum of the last two: who has objects has
paid for them when they were read. `write` is about columns only: one join and one send, or one scatter write.

    python scripts/bench_columns.py [--rounds 40] [CASE]...
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from coterie.amqp.delivering import Frames
from coterie.amqp.publishing import Inbound
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties, encode
from coterie.broker.columns.builder import EventBuilder
from coterie.broker.columns.event import PublishEvent
from coterie.broker.columns.frames import ConsumerFrames
from coterie.broker.columns.intake import Intake
from coterie.broker.columns.routes import KnownRoutes
from coterie.broker.delivery import Delivery
from coterie.broker.message import Message
from coterie.broker.message_codec import Routes, decode_messages
from coterie.broker.publish import Routed
from coterie.broker.queue import Queue
from coterie.cluster import wire
from coterie.runtime.base import Buffer

FRAME_MAX = 131_072
IOV_MAX = 1024
MESSAGE_MAX = 16 << 20


class Publish(Protocol):
    def publish(self, method: bytes, header: bytes, body: bytes) -> Callable[[bytes], None] | None: ...


class Line:
    """What encoders see of a queue."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation


class Case:
    """A publisher's messages: (method, header, bodies) that differ in nothing but their bodies, as they come in."""

    def __init__(self, name: str, series: Sequence[tuple[bytes, bytes, list[bytes]]], keys: int = 1) -> None:
        self.name = name
        self.series = series
        self.count = sum(len(bodies) for _, _, bodies in series)
        self.queues = {f"key{number}": number + 1 for number in range(keys)}


def method(key: str) -> bytes:
    return METHODS["basic.publish"].encode(exchange="", routing_key=key)


def message(size: int, **properties: Any) -> tuple[bytes, bytes]:
    return encode(Properties(delivery_mode=2, content_type="text/plain", **properties), size), b"x" * size


def cases() -> list[Case]:
    header, body = message(1024)
    small, small_body = message(100)
    large, large_body = message(16 << 10)
    sizes = [message(500 + 20 * number) for number in range(50)]
    ids = [message(1024, message_id=f"{number:036d}") for number in range(50)]
    return [
        Case("1 x 1 KiB", [(method("key0"), header, [body])]),
        Case("50 x 1 KiB", [(method("key0"), header, [body] * 50)]),
        Case("50 x 100 bytes", [(method("key0"), small, [small_body] * 50)]),
        Case("1000 x 100 bytes", [(method("key0"), small, [small_body] * 1000)]),
        Case("50 of 50 lengths", [(method("key0"), header, [body]) for header, body in sizes]),
        Case("20 x 16 KiB", [(method("key0"), large, [large_body] * 20)]),
        Case("50 with an id each", [(method("key0"), header, [body]) for header, body in ids]),
        Case("50 to 10 queues in turn", [(method(f"key{n % 10}"), header, [body]) for n in range(50)], keys=10),
    ]


def feed(case: Case, into: Publish) -> None:
    """As the frame reader does."""
    for method, header, bodies in case.series:
        repeat = into.publish(method, header, bodies[0])
        if len(bodies) > 1:
            assert repeat is not None
            for body in bodies[1:]:
                repeat(body)


class Wiring:
    version = 1

    def __init__(self, queues: Mapping[str, int]) -> None:
        self._queues = queues

    def find(self, exchange: str, keys: Sequence[str], headers: object) -> tuple[tuple[int, ...], bool]:
        return (self._queues[keys[0]],), True


def free(exchange: str, key: str) -> None:
    """Everything is allowed."""


class Columns:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.builder: EventBuilder[str] = EventBuilder()
        self.intake = Intake(self.builder, "channel", Wiring(case.queues), MESSAGE_MAX, "guest", free)
        self.known = KnownRoutes()
        self.consumer = ConsumerFrames(1, FRAME_MAX, "consumer")
        self.data = b"".join(self.build())
        self.event = PublishEvent.read(self.data, self.known)

    def build(self) -> list[Buffer]:
        feed(self.case, self.intake)
        event, _ = self.builder.take()
        assert event is not None
        return event.buffers()

    def follow(self) -> object:
        event = PublishEvent.read(memoryview(self.data), self.known)
        found: list[object] = []
        for queue, ranges in event.by_queue().items():
            length = event.length
            for first, stop in ranges:
                found.append((queue, first, stop, event.lengths(first, stop) if length is None else length))
        return found

    def frames(self) -> bytes:
        out: list[Buffer] = []
        self.consumer.deliver(self.event, 0, self.event.count, 1, (), out)
        return b"".join(out)


class Objects:
    """Today's way."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.inbound = Inbound(MESSAGE_MAX, "guest", free, lambda route, kept: 1)
        self.queues = {key: cast(Queue, Line(number)) for key, number in case.queues.items()}
        self.routes = Routes()
        self.writer = Frames(1, FRAME_MAX)
        self.heads: dict[bytes, bytes] = {}
        self.data = b"".join(self.build())
        found = [message for some in self.follow() for message in some]
        order = {body: at for at, body in enumerate(body for _, _, bodies in case.series for body in bodies)}
        self.messages = sorted(found, key=lambda message: order[message.body])

    def build(self) -> list[Buffer]:
        feed(self.case, cast(Publish, self.inbound))
        publishes, _, _ = self.inbound.take()
        routed: Routed = {}
        adders: dict[bytes, Callable[[Message], None]] = {}
        for publish in publishes:
            add = adders.get(publish.message.route)
            if add is None:
                messages = routed.setdefault(self.queues[publish.message.key], [])
                add = adders[publish.message.route] = messages.append
            add(publish.message)
        out: list[Buffer] = []
        self.kind = wire.encode_publish(routed, out)
        return out

    def follow(self) -> list[list[Message]]:
        data = memoryview(self.data)
        if self.kind is wire.Kind.PUBLISH:
            number, at = wire.read_queue(data, 0)
            found = [(number, decode_messages(data, at, len(data), self.routes))]
        else:
            found = wire.decode_fanout(data, 0, self.routes)
        return [messages for _, messages in found]

    def frames(self) -> bytes:
        out: list[bytes] = []
        delivery = Delivery(cast(Queue, None), None, [(0, len(self.messages))], self.messages)
        self.writer.deliver("consumer", self.heads, 1, delivery, out)
        return b"".join(out)


def fastest(works: Sequence[Callable[[], object]], rounds: int, count: int) -> list[float]:
    """Microseconds a message, of each; in turns."""
    calls = max(1, 1000 // count)
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for at, work in enumerate(works):
            begin = time.process_time()
            for _ in range(calls):
                work()
            best[at] = min(best[at], time.process_time() - begin)
    return [seconds / calls / count * 1e6 for seconds in best]


class Pipe:
    """A socket that takes everything that is written to it."""

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair()
        for end in (self._out, self._in):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)

    def drain(self) -> None:
        try:
            while self._in.recv(1 << 20):
                pass
        except BlockingIOError:
            pass

    def join(self, parts: Sequence[Buffer]) -> None:
        self._out.send(b"".join(parts))

    def scatter(self, parts: Sequence[Buffer]) -> None:
        for at in range(0, len(parts), IOV_MAX):
            self._out.sendmsg(parts[at : at + IOV_MAX])


def bench_write(columns: Columns, rounds: int) -> dict[str, float]:
    pipe, out = Pipe(), list[Buffer]()
    columns.consumer.deliver(columns.event, 0, columns.event.count, 1, (), out)
    best = [float("inf")] * 2
    for _ in range(10 * rounds):
        for at, write in enumerate((pipe.join, pipe.scatter)):
            begin = time.process_time()
            write(out)
            best[at] = min(best[at], time.process_time() - begin)
            pipe.drain()
    joined, scattered = (seconds / columns.event.count * 1e6 for seconds in best)
    return {"join_us": round(joined, 3), "scatter_us": round(scattered, 3), "ratio": round(scattered / joined, 2)}


def figures(new: float, old: float) -> dict[str, float]:
    return {"columns_us": round(new, 3), "objects_us": round(old, 3), "ratio": round(new / old, 2)}


def bench(case: Case, rounds: int) -> dict[str, dict[str, float]]:
    columns, objects = Columns(case), Objects(case)
    found, use = {}, [0.0, 0.0]
    for step in ("build", "follow", "frames"):
        pair = fastest([getattr(columns, step), getattr(objects, step)], rounds, case.count)
        found[step] = figures(*pair)
        if step != "build":
            use = [before + more for before, more in zip(use, pair, strict=True)]
    found["use"] = figures(*use)
    found["write"] = bench_write(columns, rounds)
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="columns beside objects, in us a message")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args(arguments)
    known = {case.name: case for case in cases()}
    unknown = sorted({*options.cases} - {*known})
    if unknown:
        parser.error(f"no case '{unknown[0]}' (there are: {', '.join(known)})")
    print(json.dumps({name: bench(known[name], options.rounds) for name in options.cases or known}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
