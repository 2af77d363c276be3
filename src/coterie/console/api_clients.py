"""Who is connected: connections, channels, consumers; and how to end a connection."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from coterie.amqp.channel import Channel
from coterie.amqp.connection import Connection
from coterie.broker.consumer import Consumer
from coterie.console.ask import Ask, Refused, Route, answer, not_found, nothing
from coterie.console.shapes import channel_shape, connection_shape, consumer_shape


def _connections(ask: Ask) -> list[Connection]:
    found = ask.connections()
    if "vhost" in ask.request.match_info:
        vhost = ask.vhost()
        return [each for each in found if each.vhost is vhost]
    if "user" in ask.request.match_info:
        return [each for each in found if each.user.name == ask.part("user")]
    return found


async def connections(ask: Ask) -> web.Response:
    found = _connections(ask)
    return await ask.listed(found, lambda each: each.name, lambda each: connection_shape(ask.context, each))


def _connection(ask: Ask) -> Connection:
    for each in ask.connections():
        if each.name == ask.part("name"):
            return each
    raise not_found(f"no connection '{ask.part('name')}'")


async def connection(ask: Ask) -> web.Response:
    return answer(connection_shape(ask.context, _connection(ask)))


def _close(ask: Ask, connection: Connection) -> None:
    if connection.user.name != ask.user.name and not ask.user.administrator:
        raise Refused(403, "access_refused", "a connection is closed by its user or by an administrator")
    reason = ask.request.headers.get("X-Reason", "Closed via management plugin")
    connection.close("".join(letter for letter in reason if letter.isprintable())[:200])


async def close_connection(ask: Ask) -> web.Response:
    _close(ask, _connection(ask))
    return nothing()


async def close_user(ask: Ask) -> web.Response:
    """All of a user's."""
    for each in _connections(ask):
        _close(ask, each)
    return nothing()


def _channels(found: Iterable[Connection]) -> list[Channel]:
    return [channel for each in found for channel in each.channels.values()]


async def channels(ask: Ask) -> web.Response:
    return await _listed_channels(ask, _channels(_connections(ask)))


async def of_connection(ask: Ask) -> web.Response:
    return await _listed_channels(ask, _channels([_connection(ask)]))


async def _listed_channels(ask: Ask, found: list[Channel]) -> web.Response:
    return await ask.listed(found, lambda each: each.name, lambda each: channel_shape(ask.context, each))


async def channel(ask: Ask) -> web.Response:
    for each in _channels(ask.connections()):
        if each.name == ask.part("name"):
            details = [consumer_shape(consumer) for consumer in each.consumers.values()]
            return answer(channel_shape(ask.context, each) | {"consumer_details": details})
    raise not_found(f"no channel '{ask.part('name')}'")


async def consumers(ask: Ask) -> web.Response:
    def tag(consumer: Consumer) -> str:
        return consumer.tag

    found = [each for vhost in ask.visible() for queue in vhost.queues.values() for each in queue.consumers]
    return await ask.listed(found, tag, consumer_shape)


ROUTES: list[Route] = [
    ("GET", "/api/connections", connections),
    ("GET", "/api/connections/{name}", connection),
    ("DELETE", "/api/connections/{name}", close_connection),
    ("GET", "/api/connections/{name}/channels", of_connection),
    ("GET", "/api/connections/username/{user}", connections),
    ("DELETE", "/api/connections/username/{user}", close_user),
    ("GET", "/api/vhosts/{vhost}/connections", connections),
    ("GET", "/api/vhosts/{vhost}/channels", channels),
    ("GET", "/api/channels", channels),
    ("GET", "/api/channels/{name}", channel),
    ("GET", "/api/consumers", consumers),
    ("GET", "/api/consumers/{vhost}", consumers),
]
