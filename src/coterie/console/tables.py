"""Texts and tables that came as JSON, checked to be something that AMQP can carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from coterie.broker import validation
from coterie.broker.records import unpack
from coterie.errors import UserError

VALUE_MAX: Final = 65_536
DEPTH_MAX: Final = 32


def checked_text(name: str, value: object) -> str:
    """Raises UserError if it is no text, or has half a character in it."""
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be a text")
    if validation.text(value):
        raise UserError(f"'{name}' is not Unicode")
    return value


def checked_value(name: str, value: object) -> object:
    """Any JSON, but within bounds: it is kept, told to others and written again. Raises UserError."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        raise UserError(f"'{name}' has a number that is none, or is too deep") from None
    if len(text) > VALUE_MAX:
        raise UserError(f"'{name}' may have {VALUE_MAX:,} characters as JSON")
    if not _is_flat(value, DEPTH_MAX):
        raise UserError(f"'{name}' may have {DEPTH_MAX} levels")
    return value


def _is_flat(value: object, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(each, levels - 1) for each in inner)


def checked_table(name: str, value: object) -> dict[str, object]:
    """The table of some JSON. What JSON has no type for is written as `coterie.broker.records` writes it."""
    if value is None or value == []:  # some tools write an empty table so
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"'{name}' must be an object")
    try:
        found = unpack(value)
    except (ValueError, RecursionError):
        raise UserError(f"'{name}' has a value that makes no sense") from None
    if not isinstance(found, dict):
        raise UserError(f"'{name}' must be an object")
    wrong = validation.table(found)
    if wrong:
        raise UserError(f"'{name}': {wrong}")
    return found
