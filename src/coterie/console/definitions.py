"""Definitions: users, vhosts, permissions, policies, limits and wiring as one JSON document, in RabbitMQ's format.

An import is checked whole before anything is done: every problem is found and told, and with one of them nothing
happens. What is there already and the same stays as it is; what is there and different is a problem. What the document
has and this broker does not know is ignored, and a note says so.
"""

from __future__ import annotations

from typing import Final

from coterie import __version__
from coterie.broker.passwords import FOREIGN, SCRYPT
from coterie.broker.records import pack
from coterie.broker.specs import Binding
from coterie.broker.switchboard import kept
from coterie.broker.users import User
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import RESERVED
from coterie.console import global_parameters
from coterie.console.context import Context
from coterie.console.import_check import Checker
from coterie.console.import_plan import Plan
from coterie.console.listing import Shape
from coterie.console.shapes import parameter_shapes, permission_shapes, policy_shape, topic_shapes
from coterie.errors import UserError

OUR_HASH: Final = "coterie.scrypt"
RABBIT_DEFAULT: Final = next(iter(FOREIGN))


def algorithm_of(body: Shape) -> str:
    """The hash that a user's `hashing_algorithm` names; without one it is RabbitMQ's default."""
    name = body.get("hashing_algorithm")
    if name is None:
        return RABBIT_DEFAULT
    if name == OUR_HASH:
        return SCRYPT
    if not isinstance(name, str) or name not in FOREIGN:
        known = ", ".join((OUR_HASH, *FOREIGN))
        raise UserError(f"hashing_algorithm {name!r} is not known: {known} are")
    return name


def check(context: Context, document: Shape, vhost: str | None = None) -> Plan:
    """What an import would do. With a vhost: a document about that one alone. Raises UserError with every problem."""
    checker = Checker(context.broker, context.users, vhost, algorithm_of)
    return checker.check(document)


def export(context: Context, vhost: Vhost | None = None) -> Shape:
    """Everything that survives a restart, or what of it is in one vhost (then objects do not name it)."""
    head: Shape = {"product_name": "Coterie", "product_version": __version__}
    vhosts = [vhost] if vhost is not None else [context.broker.vhosts[name] for name in sorted(context.broker.vhosts)]
    wiring: dict[str, list[Shape]] = {"parameters": [], "policies": [], "queues": [], "exchanges": [], "bindings": []}
    for each in vhosts:
        for section, shapes in _of_vhost(each).items():
            wiring[section] += shapes
    if vhost is not None:
        for shapes in wiring.values():
            for shape in shapes:
                shape.pop("vhost", None)
        return head | {"original_vhost_name": vhost.name} | wiring
    users = sorted(context.users, key=lambda user: user.name)
    return head | {
        "users": [_user(user) for user in users],
        "vhosts": [{"name": each.name} for each in vhosts],
        "permissions": [shape for user in users for shape in permission_shapes(user)],
        "topic_permissions": [shape for user in users for shape in topic_shapes(user)],
        "global_parameters": global_parameters.shapes(context.broker),
        **wiring,
    }


def _user(user: User) -> Shape:
    password = user.password
    algorithm = OUR_HASH if password is None or password.algorithm == SCRYPT else password.algorithm
    return {
        "name": user.name, "password_hash": "" if password is None else password.text,
        "hashing_algorithm": algorithm, "tags": list(user.tags), "limits": dict(user.limits),
        **({"allow": user.allow.texts()} if user.allow else {}),
    }  # fmt: skip


def _of_vhost(vhost: Vhost) -> dict[str, list[Shape]]:
    name = vhost.name
    queues: list[Shape] = [
        {
            "name": queue.name, "vhost": name, "durable": True, "auto_delete": queue.spec.auto_delete,
            "arguments": pack(queue.spec.arguments),
        }
        for queue in vhost.queues.values()
        if kept(queue.spec)
    ]  # fmt: skip
    exchanges: list[Shape] = [
        {
            "name": spec.name, "vhost": name, "type": spec.kind, "durable": True, "auto_delete": spec.auto_delete,
            "internal": spec.internal, "arguments": pack(spec.arguments),
        }
        for spec in (exchange.spec for exchange in vhost.exchanges.values())
        if spec.durable and not spec.name.startswith(RESERVED)
    ]  # fmt: skip
    bindings: list[Shape] = [
        {
            "source": binding.source, "vhost": name, "destination": binding.destination,
            "destination_type": binding.kind, "routing_key": binding.key, "arguments": pack(binding.arguments),
        }
        for binding in vhost.bindings()
        if _durable(vhost, binding)
    ]  # fmt: skip
    policies = [policy_shape(vhost, policy) for policy in vhost.policies.values()]
    return {
        "parameters": parameter_shapes(vhost), "policies": policies, "queues": queues, "exchanges": exchanges,
        "bindings": bindings,
    }  # fmt: skip


def _durable(vhost: Vhost, binding: Binding) -> bool:
    if not vhost.exchanges[binding.source].spec.durable:
        return False
    if binding.kind == "queue":
        return kept(vhost.queues[binding.destination].spec)
    return vhost.exchanges[binding.destination].spec.durable
