"""Messages: published, got and looked at through the console. For people and tests; programs speak AMQP."""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
from dataclasses import fields

from aiohttp import web

from coterie.amqp.wire.properties import Properties
from coterie.broker import validation
from coterie.broker.delivery import Delivery, add_range
from coterie.broker.message import Message, make_message
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.rows import Row
from coterie.broker.vhost import Got
from coterie.cluster.bodiless import is_bodiless
from coterie.console.api_wiring import queue_of
from coterie.console.ask import Ask, Refused, Route, answer, bad, number_of, table_of, text_of
from coterie.console.listing import Shape
from coterie.console.shapes import plain
from coterie.console.tables import checked_table
from coterie.errors import ProtocolError

NUMBERS = {"delivery_mode": 255, "priority": 255, "timestamp": 2**63 - 1}
"""Properties that are whole numbers, and their largest."""
MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")


async def publish(ask: Ask) -> web.Response:
    vhost, name = ask.entered(), ask.exchange_name()
    body = await ask.body("routing_key", "payload", long=True)
    payload = text_of(body, "payload")
    encoding = text_of(body, "payload_encoding", "string")
    if encoding == "base64":
        try:
            content = base64.b64decode(payload, validate=True)
        except (binascii.Error, ValueError):
            raise bad("'payload' is not base64") from None
    elif encoding == "string":
        content = payload.encode("utf-8", "surrogateescape")
    else:
        raise bad(f"'payload_encoding' must be string or base64, not {encoding!r}")
    properties = properties_of(table_of(body, "properties"))
    if properties.user_id is not None and properties.user_id != ask.user.name:
        raise bad(f"user_id is '{properties.user_id}', but the user is '{ask.user.name}'")
    ask.permit(vhost, "write", "exchange", name)
    ask.permit_topic(vhost, "write", name, text_of(body, "routing_key"))
    vhost.check_publish(name, ask.user)
    if ask.context.broker.blocked:
        raise bad(f"publishers are blocked: the broker is {ask.context.broker.blocked}")
    one = Publish(make_message(name, text_of(body, "routing_key"), content, properties))
    ask.context.published += 1
    await ask.context.outcome(lambda done: vhost.publish([one], lambda: done(None), ask.user))
    if one.refused:
        raise bad("a full queue refused the message")
    return answer({"routed": not one.unroutable})


def properties_of(given: Shape) -> Properties:
    """Raises Refused for what no message can have."""
    names = {field.name for field in fields(Properties)}
    values: dict[str, object] = {}
    for name, value in given.items():
        if name not in names:
            raise bad(f"a message has no property '{name}' (there are: {', '.join(sorted(names))})")
        if name == "headers":
            table = checked_table(name, value)
            wrong = validation.copies(table)
            if wrong:
                raise bad(f"invalid message: {wrong}")
            value = table
        elif name in NUMBERS:
            number = given[name]
            if isinstance(number, bool) or not isinstance(number, int):
                raise bad(f"property '{name}' must be a whole number")
            if not 0 <= number <= NUMBERS[name]:
                raise bad(f"property '{name}' must be between 0 and {NUMBERS[name]}")
        else:
            text_of(given, name)
        values[name] = value
    return Properties(**values)  # type: ignore[arg-type]


def message_shape(position: int, message: Message, redelivered: bool, encoding: str, truncate: int | None) -> Shape:
    body = message.body if truncate is None else message.body[:truncate]
    shape: Shape = {
        "payload_bytes": len(message.body), "redelivered": redelivered, "exchange": message.exchange,
        "routing_key": message.key, "position": position,
    }  # fmt: skip
    text = None
    if encoding == "auto":
        try:
            # Where the body was cut, half a character may be left: that is dropped.
            text = codecs.getincrementaldecoder("utf-8")().decode(body, final=len(body) == len(message.body))
        except UnicodeDecodeError:
            pass
    shape["payload"] = base64.b64encode(body).decode() if text is None else text
    shape["payload_encoding"] = "base64" if text is None else "string"
    try:
        found = message.properties()
    except ProtocolError as error:  # the headers do not make sense, and no client minded
        shape["properties_error"] = str(error)
    else:
        named = ((field.name, getattr(found, field.name)) for field in fields(Properties))
        shape["properties"] = {name: plain(value) for name, value in named if value is not None}
    return shape


async def get(ask: Ask) -> web.Response:
    vhost, queue = ask.entered(), queue_of(ask)
    body = await ask.body()
    count, mode = number_of(body, "count", 1), text_of(body, "ackmode", MODES[0])
    encoding = text_of(body, "encoding", "auto")
    truncate = number_of(body, "truncate") if "truncate" in body else None
    settings = ask.context.settings
    if not 1 <= count <= settings.get_max:
        raise bad(f"'count' must be between 1 and {settings.get_max}")
    if mode not in MODES:
        raise bad(f"'ackmode' must be one of {', '.join(MODES)}")
    if encoding not in ("auto", "base64"):
        raise bad("'encoding' must be auto or base64")
    if truncate is not None and truncate < 0:
        raise bad("'truncate' must be 0 or more")
    ask.permit(vhost, "read", "queue", queue.name)
    no_ack = mode == "ack_requeue_false"
    held: list[Delivery] = []
    shapes: list[Shape] = []
    size = 0
    try:
        while len(shapes) < count and size < settings.get_bytes:
            got = await next_message(ask, queue, no_ack)
            if got is None:
                break
            held.append(got.delivery)
            ((position, message, redelivered),) = got.delivery.rows()
            shape = message_shape(position, message, redelivered, encoding, truncate)
            shapes.append(shape | {"message_count": got.left})
            size += len(message.body) if truncate is None else min(truncate, len(message.body))
    finally:
        if held and not no_ack:
            _settle(held, requeue=mode != "reject_requeue_false")
    return answer(shapes)


async def next_message(ask: Ask, queue: Queue, no_ack: bool) -> Got | None:
    future: asyncio.Future[Got | ProtocolError | None] = asyncio.get_running_loop().create_future()

    def decided(result: Got | ProtocolError | None) -> None:
        if not future.done():
            future.set_result(result)
        elif isinstance(result, Got) and not no_ack:  # too late: nobody has seen it
            result.delivery.release(redelivered=False)

    queue.vhost.get(queue.name, ask, no_ack, decided, ask.context)
    got = await ask.context.patiently(future)
    assert not isinstance(got, ProtocolError)
    return got


def _settle(held: list[Delivery], requeue: bool) -> None:
    """All at once: they are one queue's, and one holder's."""
    ranges: list[Range] = []
    for delivery in held:
        for first, stop in delivery.ranges:
            add_range(ranges, first, stop)
    queue, holder = held[0].queue, held[0].holder
    (queue.release if requeue else queue.reject)(holder, ranges)


async def browse(ask: Ask) -> web.Response:
    """Messages by their positions, ready and held ones; nothing changes."""
    vhost, queue = ask.entered(), queue_of(ask)
    ask.permit(vhost, "read", "queue", queue.name)
    vhost.check_owner(queue, ask.context)
    first, last = _position(ask, "first", 1), _position(ask, "last", queue.next_position - 1)
    limit = min(_position(ask, "limit", 100), ask.context.settings.get_max)
    truncate = _position(ask, "truncate", 0) if "truncate" in ask.request.query else None
    encoding = ask.request.query.get("encoding", "auto")
    queue.cluster.check_use(queue)
    ranges, next_first = queue.choose(first, last, limit, ask.context.settings.get_bytes)
    future: asyncio.Future[list[Row] | Exception] = asyncio.get_running_loop().create_future()
    queue.read_ranges(ranges, lambda result: None if future.done() else future.set_result(result))
    rows = await ask.context.patiently(future)
    assert isinstance(rows, list)
    if any(is_bodiless(row.message) for row in rows):
        raise Refused(
            503, "unavailable", "this node catches up, and lacks some of these messages: ask again, or another"
        )
    shapes = [
        message_shape(row.position, row.message, row.redelivered, encoding, truncate) | {"state": row.state}
        for row in rows
    ]
    return answer({"items": shapes, "next_first": next_first, "next_position": queue.next_position})


def _position(ask: Ask, name: str, default: int) -> int:
    text = ask.request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise bad(f"'{name}' must be a whole number")
    return int(text)


ROUTES: list[Route] = [
    ("POST", "/api/exchanges/{vhost}/{name}/publish", publish),
    ("POST", "/api/queues/{vhost}/{name}/get", get),
    ("GET", "/api/queues/{vhost}/{name}/messages", browse),
]
