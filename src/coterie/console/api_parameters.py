"""Parameters, as RabbitMQ's tools know them: of vhosts, by component, and global ones.

The components that there are have paths of their own too: `vhost-limits` and `operator_policy`.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from coterie.broker.policy import Policy
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import LIMITS
from coterie.console import global_parameters
from coterie.console.ask import (
    POLICYMAKER,
    Ask,
    Route,
    answer,
    bad,
    not_found,
    nothing,
    number_of,
    table_of,
    text_of,
)
from coterie.console.listing import Shape
from coterie.console.shapes import LIMITS_NAME, OPERATOR_POLICY, VHOST_LIMITS, parameter_shapes

COMPONENTS: Final = (OPERATOR_POLICY, VHOST_LIMITS)


async def parameters(ask: Ask) -> web.Response:
    ask.require(POLICYMAKER)
    component = ask.request.match_info.get("component")
    found = [shape for vhost in ask.visible() for shape in parameter_shapes(vhost)]
    shown = [shape for shape in found if component in (None, shape["component"])]
    return await ask.listed(shown, lambda shape: str(shape["name"]), lambda shape: shape)


def _one(ask: Ask) -> tuple[Vhost, Shape]:
    vhost, key = ask.vhost(), (ask.part("component"), ask.part("name"))
    for shape in parameter_shapes(vhost):
        if (shape["component"], shape["name"]) == key:
            return vhost, shape
    raise not_found(f"no parameter '{key[1]}' of component '{key[0]}' in vhost '{vhost.name}'")


async def parameter(ask: Ask) -> web.Response:
    ask.require(POLICYMAKER)
    return answer(_one(ask)[1])


async def put(ask: Ask) -> web.Response:
    ask.require()
    vhost, component, name = ask.vhost(), ask.part("component"), ask.part("name")
    value = table_of(await ask.body("value"), "value")
    there = any((shape["component"], shape["name"]) == (component, name) for shape in parameter_shapes(vhost))
    if component == OPERATOR_POLICY:
        policy = Policy(
            name, text_of(value, "pattern", ""), table_of(value, "definition"), text_of(value, "apply-to", "all"),
            number_of(value, "priority", 0),
        )  # fmt: skip
        await ask.context.outcome(lambda done: vhost.set_policy(policy, done, operator=True))
    elif component == VHOST_LIMITS:
        if name != LIMITS_NAME:
            raise bad(f"the one parameter of {VHOST_LIMITS} is called '{LIMITS_NAME}'")
        await _set_limits(ask, vhost, value)
    else:
        known = ", ".join(COMPONENTS)
        raise bad(f"Validation failed\n\ncomponent {component} not found\n(there are: {known}; policies have a path)")
    return nothing(204 if there else 201)


async def _set_limits(ask: Ask, vhost: Vhost, value: Shape) -> None:
    """These, and no others."""
    for name in value:
        if name not in LIMITS:
            raise bad(f"a vhost has no limit '{name}' (there are: {', '.join(LIMITS)})")
    wanted = {name: number_of(value, name) for name in value}
    for name in LIMITS:
        limit = wanted.get(name, -1)
        await ask.context.outcome(lambda done: vhost.set_limit(name, None if limit < 0 else limit, done))  # noqa: B023


async def delete(ask: Ask) -> web.Response:
    ask.require()
    vhost, shape = _one(ask)
    if shape["component"] == OPERATOR_POLICY:
        await ask.context.outcome(lambda done: vhost.clear_policy(str(shape["name"]), done, operator=True))
    else:
        await _set_limits(ask, vhost, {})
    return nothing()


# Global ones.


async def globals_(ask: Ask) -> web.Response:
    ask.require(POLICYMAKER)
    shapes = global_parameters.shapes(ask.context.broker)
    return await ask.listed(shapes, lambda shape: str(shape["name"]), lambda shape: shape)


def _global(ask: Ask) -> str:
    name = ask.part("name")
    if not global_parameters.is_there(ask.context.broker, name):
        raise not_found(f"no global parameter '{name}'")
    return name


async def global_(ask: Ask) -> web.Response:
    ask.require(POLICYMAKER)
    name = _global(ask)
    return answer({"name": name, "value": global_parameters.value_of(ask.context.broker, name)})


async def put_global(ask: Ask) -> web.Response:
    ask.require()
    broker, body = ask.context.broker, await ask.body("value")
    name, value = global_parameters.check(ask.part("name"), body["value"])
    there = global_parameters.is_there(broker, name)
    await ask.context.outcome(lambda done: global_parameters.put(broker, name, value, done))
    return nothing(204 if there else 201)


async def delete_global(ask: Ask) -> web.Response:
    ask.require()
    broker, name = ask.context.broker, _global(ask)
    await ask.context.outcome(lambda done: global_parameters.delete(broker, name, done))
    return nothing()


PARAMETER, GLOBALS = "/api/parameters/{component}/{vhost}/{name}", "/api/global-parameters"
ROUTES: list[Route] = [
    ("GET", "/api/parameters", parameters),
    ("GET", "/api/parameters/{component}", parameters),
    ("GET", "/api/parameters/{component}/{vhost}", parameters),
    ("GET", PARAMETER, parameter),
    ("PUT", PARAMETER, put),
    ("DELETE", PARAMETER, delete),
    ("GET", GLOBALS, globals_),
    ("GET", f"{GLOBALS}/{{name}}", global_),
    ("PUT", f"{GLOBALS}/{{name}}", put_global),
    ("DELETE", f"{GLOBALS}/{{name}}", delete_global),
]
