"""Changes of the wiring as JSON, and back: every broker takes the same decision from the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coterie.broker import records, wiring
from coterie.broker.following.followed_queue import Promote
from coterie.broker.message_codec import Malformed
from coterie.broker.specs import ExchangeSpec, QueueSpec

if TYPE_CHECKING:
    from coterie.broker.arguments import Arguments

Json = dict[str, Any]
Number = Callable[[object], int]
"""The number of a connection, for what belongs to it alone."""
Connection = Callable[[int], object]
"""And the way back: that connection, or what stands for it here."""


def _owner(owner: object | None, number: Number) -> int:
    return 0 if owner is None else number(owner)


def encode(change: wiring.Change[Any], number: Number) -> Json:
    """`number`: of a connection of ours."""
    match change:
        case wiring.DeclareExchange(spec):
            flags = [spec.durable, spec.auto_delete, spec.internal]
            said: Json = {"name": spec.name, "kind": spec.kind, "flags": flags, "args": records.pack(spec.arguments)}
        case wiring.DeleteExchange(name, if_unused):
            said = {"name": name, "if_unused": if_unused}
        case wiring.DeclareQueue(name, queue, owner, chosen):
            flags = [queue.durable, queue.auto_delete, queue.exclusive, chosen]
            said = {
                "name": name, "flags": flags, "args": records.pack(queue.arguments), "owner": _owner(owner, number)
            }  # fmt: skip
        case wiring.DeleteQueue(name, if_unused, if_empty, owner):
            said = {"name": name, "flags": [if_unused, if_empty], "owner": _owner(owner, number)}
        case wiring.EndQueue(name, incarnation, unused):
            said = {"name": name, "incarnation": incarnation, "unused": unused}
        case wiring.EndOwner(owner):
            said = {"owner": _owner(owner, number)}
        case wiring.Bind(binding, owner) | wiring.Unbind(binding, owner):
            said = {"binding": records.binding_key("", binding), "owner": _owner(owner, number)}
        case wiring.Purge(name, owner) | wiring.CountQueue(name, owner):
            said = {"name": name, "owner": _owner(owner, number)}
        case wiring.Move(source, destination, count):
            said = {"from": source, "to": destination, "count": count}
        case wiring.SetPolicy(policy, operator):
            said = {"name": policy.name, "policy": records.policy_record(policy), "operator": operator}
        case wiring.ClearPolicy(name, operator):
            said = {"name": name, "operator": operator}
        case wiring.SetLimit(name, value):
            said = {"name": name, "value": value}
        case Promote(name):
            said = {"name": name}
        case _:
            raise TypeError(f"{type(change).__name__} is no change that can be told")
    said["do"] = type(change).__name__
    return said


def _arguments(said: Json) -> Arguments:
    table = records.unpack(said["args"])
    if not isinstance(table, dict):
        raise Malformed("arguments that are no table")
    return table


def decode(said: Json, connection: Connection) -> wiring.Change[Any]:
    """`connection`: of the broker that said it."""
    try:
        owner = connection(said["owner"]) if said.get("owner") else None
        return _READERS[said["do"]](said, owner)
    except (KeyError, IndexError, ValueError, TypeError, AssertionError) as error:
        raise Malformed(f"no change of the wiring: {error!r}") from None


def _declare_exchange(said: Json, owner: object | None) -> wiring.Change[Any]:
    durable, auto_delete, internal = said["flags"]
    return wiring.DeclareExchange(
        ExchangeSpec(said["name"], said["kind"], durable, auto_delete, internal, _arguments(said))
    )


def _declare_queue(said: Json, owner: object | None) -> wiring.Change[Any]:
    durable, auto_delete, exclusive, chosen = said["flags"]
    return wiring.DeclareQueue(
        said["name"], QueueSpec(durable, auto_delete, exclusive, _arguments(said)), owner, chosen
    )


_READERS: dict[str, Callable[[Json, object | None], wiring.Change[Any]]] = {
    "DeclareExchange": _declare_exchange,
    "DeleteExchange": lambda said, owner: wiring.DeleteExchange(said["name"], said["if_unused"]),
    "DeclareQueue": _declare_queue,
    "DeleteQueue": lambda said, owner: wiring.DeleteQueue(said["name"], said["flags"][0], said["flags"][1], owner),
    "EndQueue": lambda said, owner: wiring.EndQueue(said["name"], said["incarnation"], said["unused"]),
    "EndOwner": lambda said, owner: wiring.EndOwner(owner),
    "Bind": lambda said, owner: wiring.Bind(records.binding_of(said["binding"])[1], owner),
    "Unbind": lambda said, owner: wiring.Unbind(records.binding_of(said["binding"])[1], owner),
    "Purge": lambda said, owner: wiring.Purge(said["name"], owner),
    "CountQueue": lambda said, owner: wiring.CountQueue(said["name"], owner),
    "Move": lambda said, owner: wiring.Move(said["from"], said["to"], said["count"]),
    "SetPolicy": lambda said, owner: wiring.SetPolicy(
        records.policy_of(said["name"], said["policy"]), said["operator"]
    ),
    "ClearPolicy": lambda said, owner: wiring.ClearPolicy(said["name"], said["operator"]),
    "SetLimit": lambda said, owner: wiring.SetLimit(said["name"], said["value"]),
    "Promote": lambda said, owner: Promote(said["name"]),
}
