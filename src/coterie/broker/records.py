"""The records that the store keeps of the wiring: JSON objects by kind and key, and the way back.

What a table holds and JSON cannot is an object with one key that begins with `!`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from coterie.amqp.wire.tables import FarMoment, RawText
from coterie.broker.arguments import Arguments
from coterie.broker.policy import Policy
from coterie.broker.specs import Binding, ExchangeSpec, QueueSpec
from coterie.broker.storage import Record

VHOST: Final = "vhost"
EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
BINDING: Final = "binding"
POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator-policy"
LIMIT: Final = "vhost-limit"
REPLICA: Final = "replica"
SEEN: Final = "seen"
"""Message ids that a queue remembers."""
LEASE: Final = "lease"


def key_of(*parts: str) -> str:
    return json.dumps(parts)


def parts_of(key: str) -> list[str]:
    parts = json.loads(key)
    assert isinstance(parts, list)
    return [str(part) for part in parts]


def pack(value: object) -> object:
    """A table's value as JSON has it."""
    if isinstance(value, Mapping):
        return {f"!{name}" if name.startswith("!") else name: pack(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [pack(item) for item in value]
    if isinstance(value, RawText):
        return {"!raw": base64.b64encode(value).decode()}
    if isinstance(value, FarMoment):
        return {"!far": int(value)}
    if isinstance(value, bytes):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"!decimal": str(value)}
    if isinstance(value, datetime):
        return {"!time": int(value.timestamp())}
    if isinstance(value, float) and not isfinite(value):
        return {"!float": str(value)}
    return value


def unpack(value: object) -> object:
    """Raises ValueError for what `pack` never writes. The JSON is not nested deeply (`validation.depth_of`)."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, item),) = value.items()
        read = _READERS.get(name)
        if read is not None:
            try:
                return read(item)
            except (TypeError, ArithmeticError, OSError, ValueError) as error:
                raise ValueError(f"{name[1:]}: {error!r}") from None
    return {name[1:] if name.startswith("!") else name: unpack(item) for name, item in value.items()}


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


_READERS: Final[dict[str, Callable[[Any], object]]] = {
    "!bytes": _bytes,
    "!raw": lambda text: RawText(_bytes(text)),
    "!decimal": Decimal,
    "!time": _time,
    "!far": FarMoment,
    "!float": float,
}


def _arguments(record: Record) -> Arguments:
    arguments = unpack(record.get("arguments", {}))
    assert isinstance(arguments, dict)
    return arguments


def queue_record(spec: QueueSpec, incarnation: int) -> Record:
    return {"auto_delete": spec.auto_delete, "arguments": pack(spec.arguments), "incarnation": incarnation}


def queue_of(record: Record) -> tuple[QueueSpec, int]:
    incarnation = record["incarnation"]
    assert isinstance(incarnation, int)
    return QueueSpec(True, bool(record["auto_delete"]), False, _arguments(record)), incarnation


def exchange_record(spec: ExchangeSpec) -> Record:
    return {
        "kind": spec.kind, "auto_delete": spec.auto_delete, "internal": spec.internal, "arguments": pack(spec.arguments)
    }  # fmt: skip


def exchange_of(name: str, record: Record) -> ExchangeSpec:
    auto_delete, internal = bool(record["auto_delete"]), bool(record["internal"])
    return ExchangeSpec(name, str(record["kind"]), True, auto_delete, internal, _arguments(record))


def binding_key(vhost: str, binding: Binding) -> str:
    arguments = json.dumps(pack(binding.arguments), sort_keys=True)
    return key_of(vhost, binding.source, binding.kind, binding.destination, binding.key, arguments)


def binding_of(key: str) -> tuple[str, Binding]:
    vhost, source, kind, destination, routing_key, arguments = parts_of(key)
    table = unpack(json.loads(arguments))
    assert isinstance(table, dict)
    return vhost, Binding(source, "queue" if kind == "queue" else "exchange", destination, routing_key, table)


def policy_record(policy: Policy) -> Record:
    return {
        "pattern": policy.pattern, "definition": dict(policy.definition), "apply_to": policy.apply_to,
        "priority": policy.priority,
    }  # fmt: skip


def policy_of(name: str, record: Record) -> Policy:
    definition, priority = record["definition"], record["priority"]
    assert isinstance(definition, dict)
    assert isinstance(priority, int)
    return Policy(name, str(record["pattern"]), definition, str(record["apply_to"]), priority)
