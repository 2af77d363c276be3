"""Exchanges, queues and bindings: looked at, declared, deleted, with the permissions that a client would need."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_plus

from aiohttp import web

from coterie.broker.arguments import ALTERNATE, DEAD_EXCHANGE
from coterie.broker.exchange import Exchange
from coterie.broker.following.permission import check_exchange
from coterie.broker.queue import Queue
from coterie.broker.specs import Binding, Destination, ExchangeSpec, QueueSpec
from coterie.broker.vhost import Vhost
from coterie.console.ask import Ask, Route, answer, bad, flag_of, not_found, nothing, number_of, text_of
from coterie.console.listing import Shape
from coterie.console.shapes import (
    DEFAULT_EXCHANGE,
    binding_shape,
    default_bindings,
    encoded_key,
    exchange_shape,
    properties_key,
    queue_detail,
    queue_keys,
    queue_shape,
    quoted,
)
from coterie.console.tables import checked_table

Bound = tuple[Vhost, Binding]


def arguments_of(body: Shape) -> Shape:
    return checked_table("arguments", body.get("arguments"))


# Exchanges.


async def exchanges(ask: Ask) -> web.Response:
    found: list[tuple[Vhost, Exchange | None]] = []
    for vhost in ask.visible():
        found += [(vhost, None), *((vhost, vhost.exchanges[name]) for name in sorted(vhost.exchanges))]
    return await ask.listed(found, lambda each: each[1].name if each[1] else "", lambda each: exchange_shape(*each))


def _exchange(ask: Ask) -> tuple[Vhost, Exchange | None]:
    vhost, name = ask.vhost(), ask.exchange_name()
    if name and name not in vhost.exchanges:
        raise not_found(f"no {vhost.exchange_name(name)}")
    return vhost, vhost.exchanges.get(name)


async def exchange(ask: Ask) -> web.Response:
    return answer(exchange_shape(*_exchange(ask)))


async def declare_exchange(ask: Ask) -> web.Response:
    vhost, name, body = ask.entered(), ask.exchange_name(), await ask.body()
    arguments = arguments_of(body)
    ask.permit(vhost, "configure", "exchange", name)
    alternate = arguments.get(ALTERNATE)
    if isinstance(alternate, str):
        ask.permit(vhost, "read", "exchange", name)
        ask.permit(vhost, "write", "exchange", alternate)
    durable = flag_of({"durable": True} | body, "durable")
    spec = ExchangeSpec(
        name, text_of(body, "type", "direct"), durable, flag_of(body, "auto_delete"), flag_of(body, "internal"),
        arguments,
    )  # fmt: skip
    check_exchange(ask.user, spec.kind)
    there = name in vhost.exchanges
    await ask.context.outcome(lambda done: vhost.declare_exchange(spec, False, done))
    return nothing(204 if there else 201)


async def delete_exchange(ask: Ask) -> web.Response:
    vhost, name = ask.entered(), ask.exchange_name()
    _exchange(ask)
    ask.permit(vhost, "configure", "exchange", name)
    await ask.context.outcome(lambda done: vhost.delete_exchange(name, ask.flag("if-unused"), done))
    return nothing()


# Queues.


async def queues(ask: Ask) -> web.Response:
    found = [vhost.queues[name] for vhost in ask.visible() for name in sorted(vhost.queues)]
    return await ask.listed(
        found, lambda queue: queue.name, lambda queue: queue_shape(ask.context, queue), queue_keys(ask.context)
    )


def queue_of(ask: Ask) -> Queue:
    vhost, name = ask.vhost(), ask.part("name")
    queue = vhost.queues.get(name)
    if queue is None:
        raise not_found(f"no {vhost.queue_name(name)}")
    return queue


async def queue(ask: Ask) -> web.Response:
    queue = queue_of(ask)
    return answer(queue_detail(ask.context, queue) | {"may": _may(ask, queue)})


def _may(ask: Ask, queue: Queue) -> Shape:
    """What the one who asks may do with it."""
    vhost, user = queue.vhost.name, ask.user
    shape: Shape = {what: user.may(vhost, what, queue.name) for what in ("configure", "write", "read")}
    return shape | {"publish": user.may(vhost, "write", DEFAULT_EXCHANGE), "open": queue.owner is None}


async def declare_queue(ask: Ask) -> web.Response:
    vhost, name, body = ask.entered(), ask.part("name"), await ask.body()
    arguments = arguments_of(body)
    ask.permit(vhost, "configure", "queue", name)
    dead_letters = arguments.get(DEAD_EXCHANGE)
    if isinstance(dead_letters, str):
        ask.permit(vhost, "read", "queue", name)
        ask.permit(vhost, "write", "exchange", dead_letters)
    if flag_of(body, "exclusive"):
        raise bad("an exclusive queue belongs to a connection: it cannot be declared here")
    durable = flag_of({"durable": True} | body, "durable")
    spec = QueueSpec(durable, flag_of(body, "auto_delete"), False, arguments)
    there = name in vhost.queues
    await ask.context.outcome(lambda done: vhost.declare_queue(name, spec, False, None, done))
    return nothing(204 if there else 201)


async def delete_queue(ask: Ask) -> web.Response:
    vhost, queue = ask.entered(), queue_of(ask)
    ask.permit(vhost, "configure", "queue", queue.name)
    unused, empty = ask.flag("if-unused"), ask.flag("if-empty")
    await ask.context.outcome(lambda done: vhost.delete_queue(queue.name, unused, empty, done, ask.context))
    return nothing()


async def purge(ask: Ask) -> web.Response:
    vhost, queue = ask.entered(), queue_of(ask)
    ask.permit(vhost, "read", "queue", queue.name)
    await ask.context.outcome(lambda done: vhost.purge(queue.name, done, ask.context))
    return nothing()


async def move(ask: Ask) -> web.Response:
    """Ready messages from the head of one queue to the tail of another, some at a time: others have their turns."""
    vhost, queue = ask.entered(), queue_of(ask)
    body = await ask.body("destination")
    name, count = text_of(body, "destination"), number_of(body, "count", queue.ready)
    if count < 0:
        raise bad("'count' must be 0 or more")
    ask.permit(vhost, "read", "queue", queue.name)
    ask.permit(vhost, "write", "queue", name)
    for each in (queue, vhost.queue(name)):
        vhost.check_owner(each, ask.context)
    moved, batch = 0, ask.context.settings.move_batch
    while moved < count:
        wanted = min(batch, count - moved)
        found = await ask.context.outcome(lambda done: vhost.move(queue.name, name, wanted, done))  # noqa: B023
        assert isinstance(found, int)
        moved += found
        if found < wanted:
            break
    return answer({"moved": moved})


# Bindings.


async def _listed(ask: Ask, found: Iterable[Bound]) -> web.Response:
    return await ask.listed(list(found), lambda each: each[1].destination, lambda each: binding_shape(*each))


def _bindings(ask: Ask, vhost: Vhost) -> Iterable[Bound]:
    """`default=false`: without those of the default exchange, of which there is one for each queue."""
    own = [] if ask.request.query.get("default") == "false" else default_bindings(vhost)
    return ((vhost, binding) for binding in (*own, *vhost.bindings()))


async def bindings(ask: Ask) -> web.Response:
    return await _listed(ask, (each for vhost in ask.visible() for each in _bindings(ask, vhost)))


async def of_queue(ask: Ask) -> web.Response:
    queue, vhost = queue_of(ask), ask.vhost()
    found = [Binding("", "queue", queue.name, queue.name), *vhost.bindings_to(("queue", queue.name))]
    return await _listed(ask, ((vhost, binding) for binding in found))


async def from_exchange(ask: Ask) -> web.Response:
    vhost, exchange = _exchange(ask)
    found = default_bindings(vhost) if exchange is None else list(exchange.bindings.values())
    return await _listed(ask, ((vhost, binding) for binding in found))


async def to_exchange(ask: Ask) -> web.Response:
    vhost, exchange = _exchange(ask)
    found = [] if exchange is None else vhost.bindings_to(("exchange", exchange.name))
    return await _listed(ask, ((vhost, binding) for binding in found))


def _kind(ask: Ask) -> Destination:
    return "queue" if ask.part("kind") == "q" else "exchange"


def _between(ask: Ask) -> tuple[Vhost, list[Binding]]:
    """Those between the two that the path names."""
    vhost, source, kind = ask.vhost(), ask.exchange_name("source"), _kind(ask)
    name = ask.part("destination")
    if source and source not in vhost.exchanges:
        raise not_found(f"no {vhost.exchange_name(source)}")
    if name not in (vhost.queues if kind == "queue" else vhost.exchanges):
        raise not_found(f"no {vhost.queue_name(name) if kind == 'queue' else vhost.exchange_name(name)}")
    if not source:
        return vhost, [Binding("", "queue", name, name)] if kind == "queue" else []
    return vhost, [each for each in vhost.bindings_to((kind, name)) if each.source == source]


async def between(ask: Ask) -> web.Response:
    vhost, found = _between(ask)
    return await _listed(ask, ((vhost, binding) for binding in found))


def _one(ask: Ask) -> tuple[Vhost, Binding]:
    vhost, found = _between(ask)
    wanted = ask.part("properties")
    head, tilde, digest = wanted.rpartition("~") if "~" in wanted else (wanted, "", "")
    # A path is decoded once: the key may have stood in it as it was told, or quoted for a path. Who made it without
    # having been told may have quoted more than we do, or a space in another way.
    keys = (encoded_key(wanted), encoded_key(head) + tilde + digest, encoded_key(unquote_plus(head)) + tilde + digest)
    for key in (wanted, *keys):
        for binding in found:
            if properties_key(binding) == key:
                return vhost, binding
    raise not_found("no such binding")


async def binding(ask: Ask) -> web.Response:
    return answer(binding_shape(*_one(ask)))


def _permit_binding(ask: Ask, vhost: Vhost, binding: Binding) -> None:
    ask.permit(vhost, "write", binding.kind, binding.destination)
    ask.permit(vhost, "read", "exchange", binding.source)
    ask.permit_topic(vhost, "read", binding.source, binding.key)


async def bind(ask: Ask) -> web.Response:
    vhost, body = ask.entered(), await ask.body()
    kind = _kind(ask)
    binding = Binding(
        ask.exchange_name("source"), kind, ask.part("destination"), text_of(body, "routing_key", ""), arguments_of(body)
    )
    _permit_binding(ask, vhost, binding)
    await ask.context.outcome(lambda done: vhost.bind(binding, done, ask.context))
    response = nothing(201)
    path = (vhost.name, "e", ask.part("source"), ask.part("kind"), binding.destination, properties_key(binding))
    response.headers["Location"] = f"../../../../{quoted(*path)}"
    return response


async def unbind(ask: Ask) -> web.Response:
    ask.entered()
    vhost, binding = _one(ask)
    _permit_binding(ask, vhost, binding)
    await ask.context.outcome(lambda done: vhost.unbind(binding, done, ask.context))
    return nothing()


EXCHANGE, QUEUE = "/api/exchanges/{vhost}/{name}", "/api/queues/{vhost}/{name}"
BINDINGS = "/api/bindings/{vhost}/e/{source}/{kind:[eq]}/{destination}"
ROUTES: list[Route] = [
    ("GET", "/api/exchanges", exchanges),
    ("GET", "/api/exchanges/{vhost}", exchanges),
    ("GET", EXCHANGE, exchange),
    ("PUT", EXCHANGE, declare_exchange),
    ("DELETE", EXCHANGE, delete_exchange),
    ("GET", f"{EXCHANGE}/bindings/source", from_exchange),
    ("GET", f"{EXCHANGE}/bindings/destination", to_exchange),
    ("GET", "/api/queues", queues),
    ("GET", "/api/queues/{vhost}", queues),
    ("GET", QUEUE, queue),
    ("PUT", QUEUE, declare_queue),
    ("DELETE", QUEUE, delete_queue),
    ("DELETE", f"{QUEUE}/contents", purge),
    ("POST", f"{QUEUE}/move", move),
    ("GET", f"{QUEUE}/bindings", of_queue),
    ("GET", "/api/bindings", bindings),
    ("GET", "/api/bindings/{vhost}", bindings),
    ("GET", BINDINGS, between),
    ("POST", BINDINGS, bind),
    ("GET", f"{BINDINGS}/{{properties}}", binding),
    ("DELETE", f"{BINDINGS}/{{properties}}", unbind),
]
