"""Users, their permissions and limits, and vhosts: for administrators; others see the vhosts that are open to them."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from coterie.addresses import allow_list
from coterie.amqp.connection import Connection
from coterie.amqp.rates import RATE_MAX, RATES
from coterie.broker.passwords import Hash, given
from coterie.broker.topic_permissions import TopicPermissions
from coterie.broker.users import Permissions, User
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import LIMITS as VHOST_LIMITS
from coterie.console import audited
from coterie.console.ask import Ask, Route, answer, bad, not_found, nothing, number_of, text_of
from coterie.console.definitions import algorithm_of
from coterie.console.import_check import USER_LIMITS
from coterie.console.listing import Shape
from coterie.console.shapes import permission_shapes, topic_shapes, user_shape, vhost_shape, with_problems

# Users.


def _user(ask: Ask) -> User:
    user = ask.context.users.get(ask.part("user"))
    if user is None:
        raise not_found(f"no user '{ask.part('user')}'")
    return user


async def users(ask: Ask) -> web.Response:
    ask.require()
    found = sorted(ask.context.users, key=lambda user: user.name)
    return await ask.listed(found, lambda user: user.name, user_shape)


async def without_permissions(ask: Ask) -> web.Response:
    ask.require()
    found = [user for user in ask.context.users if not user.permissions]
    return await ask.listed(found, lambda user: user.name, user_shape)


async def user(ask: Ask) -> web.Response:
    if ask.part("user") != ask.user.name:
        ask.require()
    return answer(user_shape(_user(ask)))


def tags_of(value: object) -> list[str]:
    """A list, or texts between commas as RabbitMQ took them for long. Raises Refused."""
    tags = [tag.strip() for tag in value.split(",")] if isinstance(value, str) else value
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise bad("'tags' must be a list of texts")
    return [tag for tag in tags if tag]


async def put_user(ask: Ask) -> web.Response:
    ask.require()
    name, body = ask.part("user"), await ask.body("tags")
    there = ask.context.users.get(name)
    password: str | Hash | None
    hashed, algorithm = text_of(body, "password_hash", ""), algorithm_of(body)
    if "password" in body:
        password = text_of(body, "password")
    elif hashed:
        password = given(algorithm, hashed)
    elif "password_hash" in body:
        password = None
    elif there is not None:
        password = there.password
    else:
        raise bad("the body lacks 'password' or 'password_hash' (empty: no password, log in by certificate)")
    tags = tags_of(body["tags"])
    await ask.context.outcome(lambda done: ask.context.users.put(name, password, tags, done))
    return nothing(201 if there is None else 204)


async def delete_user(ask: Ask) -> web.Response:
    ask.require()
    name = _user(ask).name
    if name == ask.user.name:
        raise bad("a user cannot delete itself")
    await ask.context.outcome(lambda done: ask.context.users.delete(name, done))
    return nothing()


async def delete_users(ask: Ask) -> web.Response:
    """Nobody, if one of them is not there or is the one who asks."""
    ask.require()
    names = (await ask.body("users"))["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad("'users' must be a list of names")
    for name in names:
        if ask.context.users.get(name) is None:
            raise bad(f"no user '{name}'")
        if name == ask.user.name:
            raise bad("a user cannot delete itself")
    for name in dict.fromkeys(names):
        await ask.context.outcome(partial(ask.context.users.delete, name))
        audited.user_deleted(ask, name)
    return nothing()


# Permissions.


async def permissions(ask: Ask) -> web.Response:
    ask.require()
    return await _listed(ask, [shape for user in ask.context.users for shape in permission_shapes(user)])


async def permissions_of_user(ask: Ask) -> web.Response:
    if ask.part("user") != ask.user.name:
        ask.require()
    return await _listed(ask, permission_shapes(_user(ask)))


async def permissions_of_vhost(ask: Ask) -> web.Response:
    ask.require()
    vhost = ask.vhost().name
    shapes = [shape for user in ask.context.users for shape in permission_shapes(user)]
    return await _listed(ask, [shape for shape in shapes if shape["vhost"] == vhost])


async def _listed(ask: Ask, shapes: list[Shape]) -> web.Response:
    return await ask.listed(shapes, lambda shape: str(shape["user"]), _with_problems)


def _with_problems(shape: Shape) -> Shape:
    return with_problems(shape, *(key for key in ("configure", "write", "read") if key in shape))


async def permission(ask: Ask) -> web.Response:
    ask.require()
    vhost, user = ask.vhost().name, _user(ask)
    for shape in permission_shapes(user):
        if shape["vhost"] == vhost:
            return answer(_with_problems(shape))
    raise not_found(f"user '{user.name}' has no permissions in vhost '{vhost}'")


async def permit(ask: Ask) -> web.Response:
    ask.require()
    vhost, user, body = ask.vhost().name, _user(ask), await ask.body("configure", "write", "read")
    granted = Permissions(text_of(body, "configure"), text_of(body, "write"), text_of(body, "read"))
    granted.check()
    there = vhost in user.permissions
    await ask.context.outcome(lambda done: ask.context.users.permit(user.name, vhost, granted, done))
    return nothing(204 if there else 201)


async def forbid(ask: Ask) -> web.Response:
    await permission(ask)
    vhost, user = ask.vhost().name, _user(ask)
    await ask.context.outcome(lambda done: ask.context.users.permit(user.name, vhost, None, done))
    return nothing()


# Topic permissions: which routing keys of a topic exchange; elsewhere any.


async def topics(ask: Ask) -> web.Response:
    ask.require()
    return await _listed(ask, [shape for user in ask.context.users for shape in topic_shapes(user)])


async def topics_of_user(ask: Ask) -> web.Response:
    if ask.part("user") != ask.user.name:
        ask.require()
    shapes = topic_shapes(_user(ask))
    if "vhost" in ask.request.match_info:
        shapes = [shape for shape in shapes if shape["vhost"] == ask.vhost().name]
    return await _listed(ask, shapes)


async def topics_of_vhost(ask: Ask) -> web.Response:
    ask.require()
    vhost = ask.vhost().name
    shapes = [shape for user in ask.context.users for shape in topic_shapes(user)]
    return await _listed(ask, [shape for shape in shapes if shape["vhost"] == vhost])


async def permit_topic(ask: Ask) -> web.Response:
    ask.require()
    vhost, user, body = ask.vhost().name, _user(ask), await ask.body("exchange", "write", "read")
    exchange = text_of(body, "exchange")
    granted = TopicPermissions(text_of(body, "write"), text_of(body, "read"))
    granted.check()
    there = exchange in user.topics.get(vhost, {})
    await ask.context.outcome(lambda done: ask.context.users.permit_topic(user.name, vhost, exchange, granted, done))
    return nothing(204 if there else 201)


async def free_topics(ask: Ask) -> web.Response:
    """Of one exchange, or of all of the vhost."""
    ask.require()
    vhost, user = ask.vhost().name, _user(ask)
    named = ask.request.match_info.get("exchange")
    for exchange in list(user.topics.get(vhost, {})):
        if named is None or exchange == named:
            await _free_topic(ask, user.name, vhost, exchange)
    return nothing()


async def _free_topic(ask: Ask, user: str, vhost: str, exchange: str) -> None:
    await ask.context.outcome(lambda done: ask.context.users.permit_topic(user, vhost, exchange, None, done))


# Vhosts.


async def vhosts(ask: Ask) -> web.Response:
    def shape(vhost: Vhost) -> Shape:
        return vhost_shape(ask.context, vhost, connections.get(vhost.name, ()))

    connections = _connections(ask)
    return await ask.listed(ask.visible(), lambda vhost: vhost.name, shape)


async def vhost(ask: Ask) -> web.Response:
    vhost = ask.vhost()
    return answer(vhost_shape(ask.context, vhost, _connections(ask).get(vhost.name, ())))


def _connections(ask: Ask) -> dict[str, list[Connection]]:
    """By vhost."""
    found: dict[str, list[Connection]] = {}
    for each in ask.context.connections():
        found.setdefault(each.vhost.name, []).append(each)
    return found


async def add_vhost(ask: Ask) -> web.Response:
    """Whoever makes it may use it, as in RabbitMQ; what a token allows only its issuer can change."""
    ask.require()
    name, user = ask.part("vhost"), ask.user.name
    there = name in ask.context.broker.vhosts
    await ask.context.outcome(lambda done: ask.context.broker.add_vhost(name, done))
    if not there and ask.user.expires is None:
        everything = Permissions(".*", ".*", ".*")
        await ask.context.outcome(lambda done: ask.context.users.permit(user, name, everything, done))
    return nothing(204 if there else 201)


async def delete_vhost(ask: Ask) -> web.Response:
    ask.require()
    name = ask.vhost().name
    await ask.context.outcome(lambda done: ask.context.broker.delete_vhost(name, done))
    return nothing()


# Limits.


async def vhost_limits(ask: Ask) -> web.Response:
    shapes: list[Shape] = [
        {"vhost": vhost.name, "value": dict(vhost.limits)} for vhost in ask.visible() if vhost.limits
    ]
    return await ask.listed(shapes, lambda shape: str(shape["vhost"]), lambda shape: shape)


async def set_vhost_limit(ask: Ask) -> web.Response:
    ask.require()
    vhost, name = ask.vhost(), ask.part("limit")
    value = None if ask.request.method == "DELETE" else await limit_value(ask, name, VHOST_LIMITS)
    await ask.context.outcome(lambda done: vhost.set_limit(name, value, done))
    return nothing()


async def user_limits(ask: Ask) -> web.Response:
    ask.require()
    found = [_user(ask)] if "user" in ask.request.match_info else list(ask.context.users)
    shapes: list[Shape] = [{"user": user.name, "value": user.limits} for user in found if user.limits]
    return await ask.listed(shapes, lambda shape: str(shape["user"]), lambda shape: shape)


async def set_user_limit(ask: Ask) -> web.Response:
    ask.require()
    user, name = _user(ask), ask.part("limit")
    value = None if ask.request.method == "DELETE" else await limit_value(ask, name, USER_LIMITS)
    await ask.context.outcome(lambda done: ask.context.users.limit(user.name, name, value, done))
    return nothing()


async def set_addresses(ask: Ask) -> web.Response:
    """Where a user may come from."""
    ask.require()
    user = _user(ask)
    networks = [] if ask.request.method == "DELETE" else (await ask.body("value"))["value"]
    if not isinstance(networks, list):
        raise bad("'value' must be a list of networks")
    allow = allow_list(networks, "value")
    await ask.context.outcome(lambda done: ask.context.users.allow_from(user.name, allow, done))
    return nothing()


async def limit_value(ask: Ask, name: str, names: tuple[str, ...]) -> int | None:
    """Less than nothing is no limit."""
    if name not in names:
        raise bad(f"there is no limit '{name}' (there are: {', '.join(names)})")
    value = number_of(await ask.body("value"), "value")
    if name in RATES and (not value or value > RATE_MAX):
        raise bad(f"'{name}' must be from 1 to {RATE_MAX}; -1: no limit")
    return None if value < 0 else value


USER, VHOST = "/api/users/{user}", "/api/vhosts/{vhost}"
PERMISSION, TOPICS = "/api/permissions/{vhost}/{user}", "/api/topic-permissions/{vhost}/{user}"
ROUTES: list[Route] = [
    ("GET", "/api/users", users),
    ("GET", "/api/users/without-permissions", without_permissions),
    ("POST", "/api/users/bulk-delete", delete_users),
    ("GET", USER, user),
    ("PUT", USER, put_user),
    ("DELETE", USER, delete_user),
    ("GET", f"{USER}/permissions", permissions_of_user),
    ("GET", "/api/permissions", permissions),
    ("GET", PERMISSION, permission),
    ("PUT", PERMISSION, permit),
    ("DELETE", PERMISSION, forbid),
    ("GET", f"{USER}/topic-permissions", topics_of_user),
    ("GET", f"{VHOST}/topic-permissions", topics_of_vhost),
    ("GET", "/api/topic-permissions", topics),
    ("GET", TOPICS, topics_of_user),
    ("PUT", TOPICS, permit_topic),
    ("DELETE", TOPICS, free_topics),
    ("DELETE", f"{TOPICS}/{{exchange}}", free_topics),
    ("GET", "/api/vhosts", vhosts),
    ("GET", VHOST, vhost),
    ("PUT", VHOST, add_vhost),
    ("DELETE", VHOST, delete_vhost),
    ("GET", f"{VHOST}/permissions", permissions_of_vhost),
    ("GET", "/api/vhost-limits", vhost_limits),
    ("GET", "/api/vhost-limits/{vhost}", vhost_limits),
    ("PUT", "/api/vhost-limits/{vhost}/{limit}", set_vhost_limit),
    ("DELETE", "/api/vhost-limits/{vhost}/{limit}", set_vhost_limit),
    ("GET", "/api/user-limits", user_limits),
    ("GET", "/api/user-limits/{user}", user_limits),
    ("PUT", "/api/user-limits/{user}/{limit}", set_user_limit),
    ("DELETE", "/api/user-limits/{user}/{limit}", set_user_limit),
    ("PUT", "/api/user-addresses/{user}", set_addresses),
    ("DELETE", "/api/user-addresses/{user}", set_addresses),
]
