"""What requests that change something bring along. What a handler refuses because of its type is refused here, too;
what it refuses because of its meaning (a pattern that is none, a name that is taken) no schema can say."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from coterie.amqp.wire.properties import Properties
from coterie.broker.leases import ACQUIRE, NAME_MAX, RELEASE, RETIRE, TAKE
from coterie.broker.passwords import FOREIGN
from coterie.broker.policy import APPLY_TO
from coterie.broker.wiring import LIMITS
from coterie.console.api_leases import KEYS as LEASE_KEYS
from coterie.console.api_messages import MODES, NUMBERS
from coterie.console.definitions import OUR_HASH
from coterie.console.import_check import KEYS, OF_VHOSTS, USER_LIMITS
from coterie.console.openapi.schema import (
    ANY,
    FLAG,
    FLAG_GIVEN,
    NAME,
    SHORT,
    TABLE_GIVEN,
    TEXT,
    WHOLE,
    WHOLE_GIVEN,
    Schema,
    given,
    list_of,
    nullable,
    one_of,
    optional,
)

_TAGS: Final[Schema] = {"anyOf": [TEXT, list_of(TEXT)]}
_ALGORITHM: Final = nullable(one_of((OUR_HASH, *FOREIGN, "")))
_POSITION: Final = nullable({"type": "integer", "minimum": 0, "maximum": 2**63 - 1})

LOGIN: Final[Schema] = {"anyOf": [given(name=TEXT, password=TEXT), given(token=TEXT)]}
EXCHANGE: Final = given(
    type=optional(TEXT), durable=optional(FLAG_GIVEN), auto_delete=optional(FLAG_GIVEN),
    internal=optional(FLAG_GIVEN), arguments=optional(TABLE_GIVEN),
)  # fmt: skip
QUEUE: Final = given(
    durable=optional(FLAG_GIVEN), auto_delete=optional(FLAG_GIVEN),
    exclusive=optional({"enum": [False, "false"]}), arguments=optional(TABLE_GIVEN),
)  # fmt: skip
BINDING: Final = given(routing_key=optional(SHORT), arguments=optional(TABLE_GIVEN))
PROPERTIES: Final = given(**{
    field.name: optional(
        TABLE_GIVEN if field.name == "headers"
        else {"type": "integer", "minimum": 0, "maximum": NUMBERS[field.name]} if field.name in NUMBERS
        else TEXT
    )
    for field in fields(Properties)
}) | {"additionalProperties": False}  # fmt: skip
PUBLISH: Final = given(
    routing_key=SHORT, payload=TEXT, payload_encoding=optional(one_of(("string", "base64"))),
    properties=optional({"anyOf": [PROPERTIES, {"type": "null"}, {"type": "array", "maxItems": 0}]}),
)  # fmt: skip
GET: Final = given(
    count=optional(WHOLE_GIVEN), ackmode=optional(one_of(MODES)), encoding=optional(one_of(("auto", "base64"))),
    truncate=optional(WHOLE_GIVEN),
)  # fmt: skip
MOVE: Final = given(destination=TEXT, count=optional(WHOLE_GIVEN))
USER: Final = given(
    tags=_TAGS, password=optional(TEXT), password_hash=optional(TEXT), hashing_algorithm=optional(ANY)
)  # fmt: skip
USERS: Final = given(users=list_of(TEXT))
PERMISSION: Final = given(configure=TEXT, write=TEXT, read=TEXT)
TOPICS: Final = given(exchange=TEXT, write=TEXT, read=TEXT)
LIMIT: Final = given(value=WHOLE_GIVEN)
ADDRESSES: Final = given(value=list_of(TEXT))
_POLICY: Final[dict[str, Schema]] = {
    "pattern": TEXT, "definition": TABLE_GIVEN, "apply-to": optional(one_of(APPLY_TO)),
    "priority": optional(WHOLE_GIVEN),
}  # fmt: skip
POLICY: Final = given(**_POLICY)
PARAMETER: Final = given(value=TABLE_GIVEN)
GLOBAL_PARAMETER: Final = given(value=ANY)
TRACING: Final = given(publishing=FLAG)
FORGET: Final = given(name=TEXT)


def lease(step: str) -> Schema:
    """These keys alone."""
    kinds = dict.fromkeys(LEASE_KEYS[step], optional(_POSITION))
    session: Schema = {"type": "string", "maxLength": NAME_MAX}
    kinds["session"] = optional(nullable(session))
    if step == RETIRE:
        kinds["upto"] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    return given(**kinds) | {"additionalProperties": False}


LEASE_STEPS: Final = {step: lease(step) for step in (ACQUIRE, RETIRE, RELEASE, TAKE)}

# Definitions: an object with other sections is taken, and a note says that they are ignored.

_ARGUMENTS: Final = optional(TABLE_GIVEN)
_SECTIONS: Final[dict[str, dict[str, Schema]]] = {
    "users": {
        "name": NAME, "password": optional(TEXT), "password_hash": optional(TEXT),
        "hashing_algorithm": optional(_ALGORITHM), "tags": optional(_TAGS),
        "limits": optional({
            "anyOf": [
                {"type": "object", "properties": dict.fromkeys(USER_LIMITS, WHOLE), "additionalProperties": False},
                {"type": "null"}, {"type": "array", "maxItems": 0},
            ]
        }),
        "allow": optional(list_of(TEXT)),
    },
    "vhosts": {"name": NAME},
    "permissions": {"user": TEXT, "vhost": TEXT, "configure": TEXT, "write": TEXT, "read": TEXT},
    "topic_permissions": {"user": TEXT, "vhost": TEXT, "exchange": TEXT, "write": TEXT, "read": TEXT},
    "parameters": {"component": TEXT},
    "policies": {
        "vhost": TEXT, "name": NAME, "pattern": TEXT, "definition": TABLE_GIVEN, "apply-to": optional(one_of(APPLY_TO)),
        "priority": optional(WHOLE),
    },
    "global_parameters": {"name": NAME},
    "queues": {
        "vhost": TEXT, "name": NAME, "durable": optional(FLAG), "auto_delete": optional(FLAG), "arguments": _ARGUMENTS,
    },
    "exchanges": {
        "vhost": TEXT, "name": SHORT, "type": optional(TEXT), "durable": optional(FLAG), "auto_delete": optional(FLAG),
        "internal": optional(FLAG), "arguments": _ARGUMENTS,
    },
    "bindings": {
        "vhost": TEXT, "source": TEXT, "destination": TEXT,
        "destination_type": optional(one_of(("queue", "exchange"))), "routing_key": optional(SHORT),
        "arguments": _ARGUMENTS,
    },
}  # fmt: skip


def _section(name: str, of_vhost: bool) -> Schema:
    known = dict(_SECTIONS[name])
    if of_vhost and "vhost" in known:
        known["vhost"] = optional(TEXT)
    others = {key: optional(ANY) for key in sorted(KEYS[name]) if key not in known}
    return list_of(given(**known, **others))


DEFINITIONS: Final = given(**{name: optional(_section(name, False)) for name in KEYS})
VHOST_DEFINITIONS: Final = given(**{name: optional(_section(name, True)) for name in KEYS if name in OF_VHOSTS})
VHOST_LIMIT_NAMES, USER_LIMIT_NAMES = LIMITS, USER_LIMITS
