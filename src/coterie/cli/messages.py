"""`coterie publish`, `get`: a message to a node, messages from it. For people and tests; programs speak AMQP."""

from __future__ import annotations

import argparse
import base64
import sys
from pathlib import Path

from coterie.cli.output import print_json, tell
from coterie.cli.remote import Commands, Remote, Shape, as_json, cell, pairs, path_of, vhost_of
from coterie.errors import CoterieError, UserError
from coterie.visible import visible

PUBLISH = """\
  coterie publish orders 'hello'                          to the queue orders, by the default exchange
  coterie publish order.new --exchange events <body.json  a body from standard input
  coterie publish orders 'hello' --property delivery_mode=2 --header trace=on
"""
GET = """\
  coterie get orders                      look at the next message; it stays
  coterie get orders --count 10 --ack     take ten
  coterie get orders --reject             to the dead-letter exchange, if the queue has one
  coterie get orders --first 120 --last 140   by position: also messages that consumers hold, and nothing changes
"""
DEFAULT_EXCHANGE = "amq.default"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Publishes one message. Exit code 1: it reached no queue, or a full queue refused it."
    parser = Commands(subparsers, "publish", "publish a message", text, PUBLISH, publish).parser
    parser.add_argument("key", metavar="KEY", help="the routing key; without --exchange the name of a queue")
    parser.add_argument("body", nargs="?", metavar="BODY", help="the body (default: standard input)")
    parser.add_argument("--file", type=Path, help="the body from a file")
    parser.add_argument("--exchange", default=DEFAULT_EXCHANGE, help="where to (default: the default exchange)")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="delivery_mode=2 ...")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="a header")
    text = "Shows messages of a queue. They stay in it, marked as redelivered, unless they are taken or rejected."
    parser = Commands(subparsers, "get", "look at messages, or take them", text, GET, get).parser
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--count", type=int, default=1, help="how many at most (default: %(default)s)")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--ack", action="store_true", help="take them out of the queue")
    way.add_argument("--reject", action="store_true", help="reject them: dead letters, or dropped")
    way.add_argument("--first", type=int, metavar="POSITION", help="browse from there")
    parser.add_argument("--last", type=int, metavar="POSITION", help="browse up to there; a --count of 100 then")


def publish(remote: Remote, options: argparse.Namespace) -> int:
    if options.file is not None and options.body is not None:
        raise UserError("both BODY and --file say what the body is: leave one out")
    try:
        body = options.body.encode() if options.body is not None else _read(options.file)
    except OSError as error:
        raise UserError(f"{options.file}: {error.strerror}") from None
    properties = pairs(options.property, "--property")
    if options.header:
        properties["headers"] = pairs(options.header, "--header")
    message = {
        "routing_key": options.key, "payload": base64.b64encode(body).decode(), "payload_encoding": "base64",
        "properties": properties,
    }  # fmt: skip
    answer = remote.ask("POST", path_of("exchanges", vhost_of(options), options.exchange, "publish"), message)
    routed = isinstance(answer, dict) and answer.get("routed") is True
    if as_json(options):
        print_json({"routed": routed, "bytes": len(body)})
    else:
        print(f"published, {len(body)} bytes" if routed else "published, but it reached no queue")
    return 0 if routed else 1


def _read(file: Path | None) -> bytes:
    return sys.stdin.buffer.read() if file is None else file.read_bytes()


def get(remote: Remote, options: argparse.Namespace) -> int:
    if options.first is not None or options.last is not None:
        if options.ack or options.reject:
            raise UserError("--first and --last look at messages: they cannot be taken so")
        limit = options.count if options.count != 1 else 100
        query = {"first": str(options.first or 1), "limit": str(limit)}
        if options.last is not None:
            query["last"] = str(options.last)
        answer = remote.get("queues", vhost_of(options), options.queue, "messages", **query)
        found = answer.get("items") if isinstance(answer, dict) else None
    else:
        mode = "ack_requeue_false" if options.ack else "reject_requeue_false" if options.reject else "ack_requeue_true"
        body = {"count": options.count, "ackmode": mode, "encoding": "auto"}
        found = remote.ask("POST", path_of("queues", vhost_of(options), options.queue, "get"), body)
    if not isinstance(found, list):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    messages = [message for message in found if isinstance(message, dict)]
    if as_json(options):
        print_json({"messages": [*messages]})
    elif not messages:
        print("no messages")
    else:
        tell("\n\n".join(map(_told, messages)))
    return 0


def _told(message: Shape) -> str:
    """A message as a person reads it."""
    lines = [
        f"position {message.get('position')}, exchange '{cell(message, 'exchange')}', "
        f"key '{cell(message, 'routing_key')}', {message.get('payload_bytes')} bytes"
    ]
    if message.get("redelivered"):
        lines[0] += ", redelivered"
    if "state" in message:
        lines[0] += f", {message['state']}"
    properties = message.get("properties")
    if isinstance(properties, dict):
        lines += [f"  {visible(name)}: {cell(properties, name)}" for name in properties]
    kind = "" if message.get("payload_encoding") == "string" else "(base64) "
    lines.append(f"  {kind}{message.get('payload')}")
    return "\n".join(lines)
