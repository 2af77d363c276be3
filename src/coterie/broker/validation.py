"""Validation: what a client, a peer, another broker's link or an old store brings is looked at where it comes in.

Here is what every door asks: is a text one that AMQP can write as a name, is a number one of 64 bits, is a table one
that can be written again, is a text of JSON not nested too deeply to be read. `arguments`, `policy`, `leases` and the
steps of links say what else each of their values may be, in the same form: a check gives what is wrong, in words, and
nothing if a value is fine. It never raises, whatever it is given.

What passes can be kept, told to other brokers, and made into a dead letter without harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.amqp.wire.tables import NESTING_MAX, FarMoment
from coterie.errors import ProtocolError

NAME_MAX: Final = 255
"""Bytes of a short string: names, routing keys."""
VALUES_MAX: Final = 10_000
"""In one table, those of nested ones included."""
WHOLE_MIN: Final = -(2**63)
WHOLE_MAX: Final = 2**63 - 1
COPIES: Final = ("CC", "BCC")
"""Headers with further routing keys."""
_SHOWN: Final = 40
_SIGNS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
"""Texts of JSON, in which brackets mean nothing, and brackets."""
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")

Check = Callable[[object], str]
"""What is wrong with a value; nothing if it is fine."""


def type_name(value: object) -> str:
    """The type of a table's value as RabbitMQ calls it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "void")


_TYPE_NAMES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (str, "longstr"),
    (bytes, "binary"),
    (float, "double"),
    (Decimal, "decimal"),
    (datetime, "timestamp"),
    (dict, "table"),
    ((list, tuple), "array"),
)


@dataclass(frozen=True, slots=True)
class Whole:
    """A check: a whole number from one to another."""

    minimum: int = WHOLE_MIN
    maximum: int = WHOLE_MAX

    def __call__(self, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"a whole number is due, not a {type_name(value)}"
        if self.minimum <= value <= self.maximum:
            return ""
        return f"{_number(value)} is not between {self.minimum} and {self.maximum}"

    def nearest(self, value: int) -> int:
        return min(max(value, self.minimum), self.maximum)


def _number(value: int) -> str:
    """Python refuses to write out the longest ones."""
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def flag(value: object) -> str:
    return "" if isinstance(value, bool) else f"true or false is due, not a {type_name(value)}"


def text(value: object) -> str:
    if not isinstance(value, str):
        return f"a text is due, not a {type_name(value)}"
    return "" if _size(value) is not None else "the text is not Unicode"


def short_text(value: object) -> str:
    """What is written as a short string: a name, a routing key."""
    wrong = text(value)
    if wrong or not isinstance(value, str):
        return wrong
    size = _size(value)
    if size is not None and size > NAME_MAX:
        return f"it may have {NAME_MAX} bytes, and has {size}: {value[:_SHOWN]!r}..."
    return ""


def name(value: object) -> str:
    """As a short text, and there is something in it."""
    return "it must not be empty" if value == "" else short_text(value)


def _size(value: str) -> int | None:
    """In bytes; None: half a character is in it. Bytes that are no UTF-8 stay what they were (`tables.read_short`)."""
    try:
        return len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return None


def table(value: object) -> str:
    """Whether AMQP can carry it."""
    if not isinstance(value, Mapping):
        return f"a table is due, not a {type_name(value)}"
    return _Walk().table(value, 0)


class _Walk:
    """Through one table. What follows the first thing that is wrong is not looked at."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def table(self, value: Mapping[object, object], depth: int) -> str:
        if depth > NESTING_MAX:
            return f"a table may be nested {NESTING_MAX} deep"
        for key, item in value.items():
            wrong = short_text(key) or self.value(item, depth)
            if wrong:
                return wrong
        return ""

    def value(self, value: object, depth: int) -> str:
        self._left -= 1
        if self._left < 0:
            return f"a table may hold {VALUES_MAX} values"
        if value is None or isinstance(value, bool | bytes | bytearray | memoryview | float | datetime):
            return ""
        if isinstance(value, str):
            return text(value)
        if isinstance(value, FarMoment):
            return "" if 0 <= value < 2**64 else f"{_number(value)} is no time"
        if isinstance(value, int):
            return "" if WHOLE_MIN <= value <= WHOLE_MAX else f"{_number(value)} does not fit into 64 bits"
        if isinstance(value, Decimal):
            return _decimal(value)
        if isinstance(value, Mapping):
            return self.table(value, depth + 1)
        if isinstance(value, list | tuple):
            if depth >= NESTING_MAX:
                return f"a table may be nested {NESTING_MAX} deep"
            return next((wrong for item in value if (wrong := self.value(item, depth + 1))), "")
        return f"no table can hold a {type(value).__name__}"


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    small = len(digits) <= 10 and -(2**31) <= int("".join(map(str, digits)) or "0") * (-1 if sign else 1) < 2**31
    fits = isinstance(exponent, int) and -255 <= exponent <= 0 and small
    return "" if fits else "a decimal has 32 bits and at most 255 places"


def copies(headers: Mapping[str, object]) -> str:
    """Of a message: further routing keys are lists. What in them is no text counts for nothing, as in RabbitMQ."""
    for key in COPIES:
        if key in headers and not isinstance(headers[key], list | tuple):
            return f"header '{key}' must be an array, not a {type_name(headers[key])}"
    return ""


def depth_of(data: bytes) -> int:
    """How deep a text of JSON is nested: what is too deep is refused before anybody reads it, because how much is too
    much for Python's own reader depends on who calls it."""
    depth = deepest = 0
    for sign in _SIGNS.finditer(data):
        found = sign[0]
        if found in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif found in _CLOSING:
            depth -= 1
    return deepest


def refuse(wrong: str, what: str) -> None:
    """Raises ProtocolError 406 if there is something wrong with what `what` names."""
    if wrong:
        raise ProtocolError(PRECONDITION_FAILED, f"invalid {what}: {wrong}")
