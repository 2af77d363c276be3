"""Texts and tables that came as JSON, checked to be something that AMQP can carry."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.broker import validation
from coterie.broker.records import unpack
from coterie.errors import UserError


def checked_text(name: str, value: object) -> str:
    """Raises UserError if it is no text, or has half a character in it."""
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be a text")
    if validation.text(value):
        raise UserError(f"'{name}' is not Unicode")
    return value


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
