"""Values for requests: such as a client would send, those at the edge of what is allowed, and those beyond it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

WORDS: Final = ("app.q1", "app.q2", "app.q3", "app.x", "app.y", "other", "other.x", "amq.topic", "a", "")
"""Names that the world has, or may have."""
STRANGE: Final = (
    "", " ", ".", "..", "a" * 255, "a" * 256, "app." + "b" * 251, "app." + "b" * 252, "é" * 128, "app.é☃🦆", "app.\x00",
    "app.a/b", "app.%2f", "app.{x}", "app.a b+c&d=e#f?g", "app.~", "amq.gen-x", "amq.default", "username", "*", "-1",
    "null", "9" * 30, "app.\r\nX-Injected: 1", "app.\ufeff", "app.\u202e", "(", "(a+)+$", "[" * 300, "x{1000}" * 5,
)  # fmt: skip
BEYOND_TEXT: Final = ("\ud800", "app.\udcff", "a" * 70_000)
NUMBERS: Final = (
    0, 1, -1, 2, 10, 255, 256, 65_535, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1,
    10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
)  # fmt: skip
TEXT_NUMBERS: Final = ("0", "-1", "1", "007", "99999999999999999999", "1e3", " 1", "1_0", "٣", "")
TABLES: Final[Sequence[dict[str, Any]]] = (
    {}, {"x-max-length": 5}, {"x-message-ttl": 60_000}, {"x-queue-type": "quorum"}, {"x-max-priority": 5},
    {"x-dead-letter-exchange": "other.x"}, {"x-dead-letter-exchange": "app.x", "x-dead-letter-routing-key": "k"},
    {"alternate-exchange": "other.x"}, {"x-single-active-consumer": True}, {"x-overflow": "reject-publish"},
    {"x-max-length-bytes": 2**63}, {"x-expires": 0}, {"x-message-ttl": -1}, {"x-queue-type": 7}, {"max-length": 10},
    {"max-length": 2, "overflow": "drop-head"}, {"message-ttl": 3_600_000}, {"dead-letter-exchange": "app.x"},
    {"max-queues": 5}, {"max-connections": -1}, {"a": {"!bytes": "AAE="}}, {"a": {"!bytes": "!"}}, {"!": 1},
    {"a": {"!time": 10**30}}, {"a": {"!decimal": "NaN"}}, {"a": {"!decimal": "1E+5"}}, {"a": {"!far": 2**63}},
    {"a": {"!raw": "//8="}}, {"a": {"!far": -1}}, {"a": float("nan")}, {"a": None}, {"a" * 256: 1}, {"CC": "x"},
    {"CC": ["app.q1"]}, {"x-match": "all", "k": [1, {"b": True}]}, {"pattern": "^app", "definition": {"max-length": 9}},
)  # fmt: skip
"""Arguments, headers, definitions of policies."""
PATTERNS: Final = (".*", "^app\\.", "", "^$", "(", "(a+)+$", "a" * 1025, "(?i)app", "\\1", "[[:alpha:]]")
HINTS: Final[Mapping[str, Sequence[Any]]] = {
    "tags": ("management", "monitoring,policymaker", "", ["management"], [], ["x" * 300], [""]),
    "password": ("secret", "é", "p" * 300), "password_hash": ("", "AAAAAAAA", "!", "A" * 64),
    "hashing_algorithm": ("coterie.scrypt", "rabbit_password_hashing_sha256", "md5", None, 7, [], {}),
    "pattern": PATTERNS, "configure": PATTERNS, "write": PATTERNS, "read": PATTERNS,
    "type": ("direct", "fanout", "topic", "headers", "x-replication", "x", ""), "session": ("s1", "s2", ""),
    "routing_key": ("app.q1", "k", "", "é" * 128, "a" * 255, "#"), "payload": ("", "hello", "aGk=", "\x00é"),
    "vhost": ("/", "/a", "/b", "/new"), "user": ("bystander", "somebody", "nobody"), "component": (
        "operator_policy", "vhost-limits", "federation", ""
    ), "rows": (0, 1, 2), "upto": (0, 1, 2**63 - 1), "expiration": ("60000", "-1", "x"), "user_id": ("guest", ""),
    "id": (1, 2**62), "incarnation": (1, 2**62), "count": (0, 1, 2, "2", 10_000, 10_001),
}  # fmt: skip
"""By the name of a property."""


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def anything(dice: random.Random) -> Any:
    """Of any type."""
    kind = dice.randrange(8)
    if kind == 0:
        return dice.choice(NUMBERS)
    if kind == 1:
        return dice.choice((*STRANGE, *BEYOND_TEXT, *TEXT_NUMBERS))
    if kind == 2:
        return dice.choice((None, True, False))
    if kind == 3:
        return dice.choice(TABLES)
    if kind == 4:
        return deep(dice.choice((1, 31, 32, 33, 100, 300)))
    if kind == 5:
        return [0] * dice.choice((1, 100, 10_001))
    if kind == 6:
        return {str(number): number for number in range(dice.choice((1, 100, 10_001)))}
    return [dice.choice(WORDS), dice.choice(NUMBERS), None]


def fitting(dice: random.Random, schema: Mapping[str, Any], name: str = "") -> Any:
    """A value that a schema allows, more or less: hints win, and may be beyond it."""
    if name in HINTS and dice.random() < 0.8:
        return dice.choice(HINTS[name])
    if "anyOf" in schema:
        options = schema["anyOf"]
        return fitting(dice, options[0] if dice.random() < 0.8 else dice.choice(options), name)
    if "enum" in schema:
        return dice.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return _object(dice, schema)
    if kind == "array":
        count = min(dice.choice((0, 1, 1, 2, 5)), schema.get("maxItems", 5))
        return [fitting(dice, schema.get("items", {}), name) for _ in range(count)]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
        return dice.choice((low, high, min(max(low, 1), high), min(max(low, dice.randrange(20)), high)))
    if kind == "boolean":
        return dice.random() < 0.5
    if kind == "null":
        return None
    if kind == "string":
        return dice.choice(WORDS if dice.random() < 0.8 else STRANGE)
    return anything(dice)


def _object(dice: random.Random, schema: Mapping[str, Any]) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not properties:
        return dict(dice.choice(TABLES))
    needed = schema.get("required", ())
    return {
        name: fitting(dice, each, name) for name, each in properties.items() if name in needed or dice.random() < 0.3
    }
