"""Garbage over HTTP, at the probes, and at AMQP before a login, against a real node: nothing stops, nothing grows."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import socket
from collections.abc import Callable, Iterator

import pika
import psutil
import pytest
from console_rig import Running

from coterie.amqp.wire.methods import METHODS as AMQP_METHODS
from coterie.amqp.wire.tables import Value
from coterie.runtime.aio import run

AT_ONCE = 8
GROWTH_MAX = 48 << 20
"""Bytes that a node may grow by."""

METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "\x00"]
PATHS = [
    "/", "/metrics", "/metrics/per-object", "/static/../../etc/passwd", "/api/overview", "/api/session", "/api/whoami",
    "/api/queues", "/api/queues/{v}/{n}", "/api/queues/{v}/{n}/get", "/api/queues/{v}/{n}/contents",
    "/api/exchanges/{v}/{n}",
    "/api/exchanges/{v}/{n}/publish", "/api/exchanges/{v}/amq.default/publish", "/api/bindings/{v}/e/amq.topic/q/{n}",
    "/api/users/{n}", "/api/permissions/{v}/{n}", "/api/topic-permissions/{v}/{n}", "/api/policies/{v}/{n}",
    "/api/operator-policies/{v}/{n}", "/api/parameters/vhost-limits/{v}/{n}", "/api/global-parameters/{n}",
    "/api/vhosts/{n}",
    "/api/vhost-limits/{n}/max-queues", "/api/user-limits/{n}/max-connections", "/api/definitions",
    "/api/definitions/{v}",
    "/api/leases/{v}/{n}/{n}", "/api/streams/tails", "/api/streams/{v}/{n}/rows", "/api/connections/{n}",
    "/api/channels/{n}",
    "/api/consumers", "/api/cluster", "/api/live/queues", "/api/log", "/api/tracing", "/api/nodes/{n}/memory",
    "/api/health/checks/port-listener/{n}", "/api/replication", "/api/aliveness-test/{v}", "/api/queues/{v}/{n}/move",
]  # fmt: skip
NAMES = ["q", "x" * 255, "x" * 300, "%00", "%FF%FE", "%1B%5B2J", "%2F", "..", "-1", "9" * 30, "a b", "%E2%80%AE", ""]
KEYS = [
    "name", "password", "tags", "pattern", "definition", "priority", "apply-to", "arguments", "durable", "type",
    "payload",
    "routing_key", "properties", "headers", "count", "ackmode", "encoding", "configure", "write", "read", "value",
    "queues",
    "exchange", "destination", "rows", "session", "publishing", "users", "vhosts", "bindings", "x-match", "max-length",
]  # fmt: skip
EXPECTED = ["Expect: 100-continue", "Expect: \xff\x83"]
QUERIES = [
    "page=1&page_size=0",
    "use_regex=true&name=(((",
    "sort=a.b.c&columns=x",
    "name=%FF",
    "from=-1&to=" + "9" * 40,
    "pattern=[",
    "=",
]
VALUES: list[object] = [
    "",
    "x" * 300,
    -1,
    2**63,
    2**70,
    1e308,
    None,
    True,
    "\x00",
    "\udcff",
    [],
    {},
    "(?=a)",
    "q",
    "direct",
]


@pytest.fixture
def node() -> Iterator[Running]:
    # Users are added and their passwords hashed by the hundred: fewer waits make the same attempts faster.
    quick = {
        "COTERIE_USERS_LOGIN_DELAY": "0",
        "COTERIE_USERS_LOGIN_FAILURES_MAX": "1000000",
        "COTERIE_NODE_LOG_LEVEL": "error",
    }
    with Running(command="node", environment=quick) as running:
        yield running
        code, logged = running.stop()
    assert (code, logged) == (0, "")


def memory(node: Running) -> int:
    return int(psutil.Process(node._process.pid).memory_info().rss)


def value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.random()
    if depth < 4 and kind < 0.25:
        return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(5))}
    if depth < 4 and kind < 0.35:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return rng.choice(VALUES)


def spoilt(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        if found:
            at = rng.randrange(len(found))
            found[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
    return bytes(found)


def request(rng: random.Random) -> tuple[bytes, bool]:
    """And whether it is whole."""
    path = rng.choice(PATHS).replace("{v}", rng.choice(["%2F", "%2F", "v", ""])).replace("{n}", rng.choice(NAMES))
    if rng.random() < 0.3:
        path += "?" + rng.choice(QUERIES)
    body = json.dumps(value(rng)).encode() if rng.random() < 0.7 else rng.randbytes(rng.randrange(50))
    if rng.random() < 0.6:
        body = json.dumps({key: value(rng) for key in rng.sample(KEYS, rng.randrange(8))}).encode()
    method = rng.choice(METHODS)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    if rng.random() < 0.85:
        lines.append("Authorization: Basic " + base64.b64encode(b"guest:guest").decode())
    elif rng.random() < 0.5:
        lines.append("Authorization: Basic " + base64.b64encode(rng.randbytes(9)).decode())
    if rng.random() < 0.1:
        lines.append(rng.choice(["Content-Encoding: gzip", "Transfer-Encoding: chunked", *EXPECTED, "Upgrade: x"]))
    data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    whole = rng.random() < 0.7
    return (data if whole else spoilt(rng, data)), whole


def requests(rng: random.Random, count: int) -> Iterator[bytes]:
    """Some of them delete the vhost that most are about: it is made anew."""
    login = base64.b64encode(b"guest:guest").decode()
    everything = json.dumps({"configure": ".*", "write": ".*", "read": ".*"})
    for number in range(count):
        yield request(rng)[0]
        if number % 1000 == 0:
            for path, body in (("/api/vhosts/%2F", "{}"), ("/api/permissions/%2F/guest", everything)):
                head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"
                yield f"{head}\r\nAuthorization: Basic {login}\r\n\r\n{body}".encode()


async def say(at: str, data: bytes) -> bytes:
    """And hear everything that is answered. Without streams, which take longer than the node."""
    host, _, port = at.rpartition(":")
    loop = asyncio.get_running_loop()
    heard = b""
    with socket.socket() as connection:
        connection.setblocking(False)
        async with asyncio.timeout(60):
            await loop.sock_connect(connection, (host, int(port)))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(connection, data)
                connection.shutdown(socket.SHUT_WR)
                while piece := await loop.sock_recv(connection, 65536):
                    heard += piece
    return heard


def say_all(inputs: Iterator[tuple[str, bytes]], heard: Callable[[bytes, bytes], None] | None = None) -> None:
    """Some at a time: where and what; `heard` is given what was said and what was answered."""

    async def some() -> None:
        for at, data in inputs:
            answer = await say(at, data)
            if heard is not None:
                heard(data, answer)

    async def all_of_it() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(some())

    run(all_of_it())


def told(port: str, inputs: int, first: int, last: int) -> None:
    """For who has asked for a long run: `pytest -s`."""
    print(json.dumps({"port": port, "inputs": inputs, "memory": [first, last]}))


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
def test_garbage_in_requests_is_never_an_internal_error_and_memory_stays_flat(
    node: Running, port_fuzz_inputs: int
) -> None:
    rng = random.Random(1)

    def looked_at(data: bytes, heard: bytes) -> None:
        assert not heard.startswith(b"HTTP/1.1 500"), (data, heard)

    warm = max(100, port_fuzz_inputs // 10)
    say_all(((node.console, data) for data in requests(rng, warm)), looked_at)
    first = memory(node)
    say_all(((node.console, data) for data in requests(rng, port_fuzz_inputs - warm)), looked_at)
    assert node.ask("GET", "/api/whoami").status == 200
    last = memory(node)
    assert last - first < GROWTH_MAX
    told("console", port_fuzz_inputs, first, last)


def frame(method: str, **arguments: Value) -> bytes:
    return AMQP_METHODS[method].frame(0, **arguments)


PROPERTIES: dict[str, Value] = {"product": "x", "capabilities": {"a": True, "b": [1, {"c": None}]}}
LOGINS = {"PLAIN": b"guest", "AMQPLAIN": b"\x05LOGINS", "EXTERNAL": b"", "NONE": b""}
HEADERS = [b"AMQP\x00\x00\x09\x01"] * 8 + [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET "]
WRONG = frame("connection.start-ok", mechanism="PLAIN", response=b"\0guest\0wrong", locale="en_US")
SAID = [
    *(
        frame("connection.start-ok", client_properties=PROPERTIES, mechanism=name, response=response, locale="en_US")
        for name, response in LOGINS.items()
    ),
    frame("connection.tune-ok", channel_max=0, frame_max=0, heartbeat=0),
    frame("connection.open", virtual_host="/"),
    frame("connection.secure-ok", response=b"guest"),
    frame("connection.update-secret-ok"),
    frame("connection.close", reply_code=200, reply_text="x", class_id=0, method_id=0),
    frame("connection.close-ok"),
    AMQP_METHODS["channel.open"].frame(1),
    AMQP_METHODS["queue.declare"].frame(1, queue="q"),
    b"\x08\x00\x00\x00\x00\x00\x00\xce",
    b"\x03\x00\x01\xff\xff\xff\xff" + bytes(40),
    b"",
]


def before_login(rng: random.Random) -> bytes:
    """What somebody says to AMQP who does not know a password, or does not get as far as to say it."""
    said = [rng.choice(SAID) or rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(4))]
    if rng.random() < 0.002:  # each takes the broker as long as a password does
        said = [WRONG]
    session = rng.choice(HEADERS) + b"".join(said)
    return session if rng.random() < 0.2 else spoilt(rng, session)


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
def test_garbage_at_amqp_before_a_login_stops_nothing(node: Running, port_fuzz_inputs: int) -> None:
    rng = random.Random(2)
    host, _, number = node.amqp.rpartition(":")  # asked nothing for as long as it takes: no heartbeats
    open_before = pika.BlockingConnection(pika.ConnectionParameters(host, int(number), heartbeat=0))
    warm = max(100, port_fuzz_inputs // 10)
    say_all((node.amqp, before_login(rng)) for _ in range(warm))
    first = memory(node)
    say_all((node.amqp, before_login(rng)) for _ in range(port_fuzz_inputs - warm))
    node.client().close()
    assert open_before.is_open
    assert open_before.channel().queue_declare("", exclusive=True).method.message_count == 0
    open_before.close()
    last = memory(node)
    assert last - first < GROWTH_MAX
    told("amqp", port_fuzz_inputs, first, last)


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
def test_garbage_at_the_probes_stops_nothing(node: Running, port_fuzz_inputs: int) -> None:
    rng = random.Random(3)
    first = memory(node)
    asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    say_all((node.probes, spoilt(rng, asked)) for _ in range(port_fuzz_inputs))
    say_all(iter([(node.probes, b"GET /health/ready HTTP/1.1\r\n\r\n")]), is_ready)
    last = memory(node)
    assert last - first < GROWTH_MAX
    told("probes", port_fuzz_inputs, first, last)


def is_ready(_: bytes, heard: bytes) -> None:
    assert heard.startswith(b"HTTP/1.1 200")
