"""The commands about exchanges, queues and bindings.

Names are taken as RabbitMQ takes them: without line ends; an empty queue name is the one that the channel declared
last. Permissions are checked here, everything else by the vhost, whose refusals are the client's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from coterie.amqp.codes import NOT_FOUND
from coterie.amqp.methods import Call
from coterie.amqp.publishing import REPLY_TO
from coterie.broker.arguments import ALTERNATE, DEAD_EXCHANGE
from coterie.broker.queue import Queue
from coterie.broker.specs import Binding, Destination, ExchangeSpec, QueueSpec
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.amqp.channel import Channel

SERVER_NAMED: Final = "amq.gen-"
"""What permissions are asked for if the broker makes up the name, which begins so."""


def declare_exchange(channel: Channel, call: Call) -> None:
    name, arguments, passive = call.name("exchange"), call.table("arguments"), call.flag("passive")
    permit = channel.connection.permit
    if not passive:
        permit("configure", "exchange", name)
        alternate = arguments.get(ALTERNATE)
        if isinstance(alternate, str):
            permit("read", "exchange", name)
            permit("write", "exchange", alternate)
    durable, auto_delete, internal = call.flag("durable"), call.flag("auto_delete"), call.flag("internal")
    spec = ExchangeSpec(name, call.text("type"), durable, auto_delete, internal, arguments)
    done = channel.later(call, lambda _: channel.answer(call, "exchange.declare-ok"))
    channel.vhost.declare_exchange(spec, passive, done)


def delete_exchange(channel: Channel, call: Call) -> None:
    name = call.name("exchange")
    channel.connection.permit("configure", "exchange", name)
    done = channel.later(call, lambda _: channel.answer(call, "exchange.delete-ok"))
    channel.vhost.delete_exchange(name, call.flag("if_unused"), done)


def bind_exchange(channel: Channel, call: Call) -> None:
    _bind(channel, call, "exchange", call.name("destination"), call.name("source"), call.text("routing_key"))


def bind_queue(channel: Channel, call: Call) -> None:
    name, key = channel.queue_name(call), call.text("routing_key")
    if not call.text("queue") and not key:
        key = name
    _bind(channel, call, "queue", name, call.name("exchange"), key)


def _bind(channel: Channel, call: Call, kind: Destination, destination: str, source: str, key: str) -> None:
    channel.connection.permit("write", kind, destination)
    channel.connection.permit("read", "exchange", source)
    channel.connection.permit_topic("read", source, key)
    binding = Binding(source, kind, destination, key, call.table("arguments"))
    change = channel.vhost.unbind if call.method.name.endswith("unbind") else channel.vhost.bind
    done = channel.later(call, lambda _: channel.answer(call, f"{call.method.name}-ok"))
    change(binding, done, channel.connection)


def declare_queue(channel: Channel, call: Call) -> None:
    name, arguments, passive = call.name("queue"), call.table("arguments"), call.flag("passive")
    if name.startswith(REPLY_TO):
        _declare_replies(channel, call, name)
        return
    if not passive:
        permit = channel.connection.permit
        wanted = name or SERVER_NAMED
        permit("configure", "queue", wanted)
        dead_letters = arguments.get(DEAD_EXCHANGE)
        if isinstance(dead_letters, str):
            permit("read", "queue", wanted)
            permit("write", "exchange", dead_letters)

    def declared(queue: Queue) -> None:
        channel.last_queue = queue.name
        if queue.elsewhere:
            channel.vhost.count(queue.name, channel.later(call, partial(told, queue)), channel.connection)
        else:
            told(queue, (queue.ready, len(queue.consumers)))

    def told(queue: Queue, counts: tuple[int, int]) -> None:
        ready, consumers = counts
        channel.answer(call, "queue.declare-ok", queue=queue.name, message_count=ready, consumer_count=consumers)

    spec = QueueSpec(call.flag("durable"), call.flag("auto_delete"), call.flag("exclusive"), arguments)
    channel.vhost.declare_queue(name, spec, passive, channel.connection, channel.later(call, declared))


def _declare_replies(channel: Channel, call: Call, name: str) -> None:
    """A client asks whether whoever waits for a direct reply is still there."""

    def found(there: bool) -> None:
        if not there:
            raise ProtocolError(NOT_FOUND, f"no {channel.vhost.queue_name(name)}")
        channel.answer(call, "queue.declare-ok", queue=name, message_count=0, consumer_count=1)

    if name == REPLY_TO or name in channel.vhost.pseudo:
        found(True)
    else:
        channel.vhost.cluster.waits_elsewhere(channel.vhost, name, channel.later(call, found))


def purge_queue(channel: Channel, call: Call) -> None:
    name = channel.queue_name(call)
    channel.connection.permit("read", "queue", name)

    def purged(count: int) -> None:
        channel.answer(call, "queue.purge-ok", message_count=count)

    channel.vhost.purge(name, channel.later(call, purged), channel.connection)


def delete_queue(channel: Channel, call: Call) -> None:
    name = channel.queue_name(call)
    channel.connection.permit("configure", "queue", name)

    def deleted(count: int) -> None:
        channel.answer(call, "queue.delete-ok", message_count=count)

    done = channel.later(call, deleted)
    channel.vhost.delete_queue(name, call.flag("if_unused"), call.flag("if_empty"), done, channel.connection)


def request_access(channel: Channel, call: Call) -> None:
    """Of an older AMQP: everybody gets the same ticket."""
    channel.send("access.request-ok", ticket=1)


COMMANDS: Final[dict[str, Callable[[Channel, Call], None]]] = {
    "access.request": request_access,
    "exchange.declare": declare_exchange,
    "exchange.delete": delete_exchange,
    "exchange.bind": bind_exchange,
    "exchange.unbind": bind_exchange,
    "queue.declare": declare_queue,
    "queue.bind": bind_queue,
    "queue.unbind": bind_queue,
    "queue.purge": purge_queue,
    "queue.delete": delete_queue,
}
