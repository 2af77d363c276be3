"""The commands about exchanges, queues and bindings.

Names are taken as RabbitMQ takes them: without line ends; an empty queue name is the one that the channel declared
last. Permissions are checked here, everything else by the vhost, whose refusals are the client's. What is made, removed
or emptied is told to the audit log, but for exclusive queues, which are gone with their connection anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.codes import NOT_FOUND
from coterie.amqp.wire.methods import Call
from coterie.auditlog.log import DONE
from coterie.broker.arguments import ALTERNATE, DEAD_EXCHANGE
from coterie.broker.exchange import binding_id
from coterie.broker.following.permission import check_exchange
from coterie.broker.queue import Queue
from coterie.broker.specs import REPLY_TO, Binding, Destination, ExchangeSpec, QueueSpec
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
    if not passive:
        check_exchange(channel.connection.user, spec.kind)
    there = name in channel.vhost.exchanges

    def declared(_: object) -> None:
        if not passive and not there:
            _tell(channel, "exchange.created", of_name=name, type=spec.kind, durable=spec.durable)
        channel.answer(call, "exchange.declare-ok")

    channel.vhost.declare_exchange(spec, passive, channel.later(call, declared))


def delete_exchange(channel: Channel, call: Call) -> None:
    name = call.name("exchange")
    channel.connection.permit("configure", "exchange", name)
    there = name in channel.vhost.exchanges

    def deleted(_: object) -> None:
        if there:
            _tell(channel, "exchange.deleted", of_name=name)
        channel.answer(call, "exchange.delete-ok")

    channel.vhost.delete_exchange(name, call.flag("if_unused"), channel.later(call, deleted))


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
    vhost, unbinds = channel.vhost, call.method.name.endswith("unbind")
    exchange = vhost.exchanges.get(source)
    there = exchange is not None and binding_id(binding) in exchange.bindings
    lasting = kind == "exchange" or _lasts(vhost.queues.get(destination))

    def changed(_: object) -> None:
        if there is unbinds and lasting:
            between = {"of_source": source, "of_kind": kind[0], "of_destination": destination}
            _tell(channel, f"binding.{'deleted' if unbinds else 'created'}", **between, routing_key=key)
        channel.answer(call, f"{call.method.name}-ok")

    change = vhost.unbind if unbinds else vhost.bind
    change(binding, channel.later(call, changed), channel.connection)


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

    there = name in channel.vhost.queues

    def declared(queue: Queue) -> None:
        if not passive and not there and _lasts(queue):
            _tell(channel, "queue.created", of_name=queue.name, durable=spec.durable)
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
    lasting = _lasts(channel.vhost.queues.get(name))

    def purged(count: int) -> None:
        if lasting:
            _tell(channel, "queue.purged", of_name=name, count=count)
        channel.answer(call, "queue.purge-ok", message_count=count)

    channel.vhost.purge(name, channel.later(call, purged), channel.connection)


def delete_queue(channel: Channel, call: Call) -> None:
    name = channel.queue_name(call)
    channel.connection.permit("configure", "queue", name)
    lasting = _lasts(channel.vhost.queues.get(name))

    def deleted(count: int) -> None:
        if lasting:
            _tell(channel, "queue.deleted", of_name=name, count=count)
        channel.answer(call, "queue.delete-ok", message_count=count)

    done = channel.later(call, deleted)
    channel.vhost.delete_queue(name, call.flag("if_unused"), call.flag("if_empty"), done, channel.connection)


def _lasts(queue: Queue | None) -> bool:
    """Whether it is there, and not only for a connection."""
    return queue is not None and not queue.spec.exclusive


def _tell(channel: Channel, action: str, **told: object) -> None:
    channel.connection.record_own(action, DONE, "", of_vhost=channel.vhost.name, **told)


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
