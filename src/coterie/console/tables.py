"""Texts and tables that came as JSON, checked to be something that AMQP can carry."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from coterie.amqp.tables import encode_table, skip_table
from coterie.broker.records import unpack
from coterie.errors import ProtocolError, UserError


def checked_text(name: str, value: object) -> str:
    """Raises UserError if it is no text, or has half a character in it."""
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be a text")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UserError(f"'{name}' is not Unicode") from None
    return value


def checked_table(name: str, value: object) -> dict[str, object]:
    """The table of some JSON. What JSON has no type for is written as `coterie.broker.records` writes it."""
    if value is None or value == []:  # some tools write an empty table so
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"'{name}' must be an object")
    try:
        found = unpack(value)
        assert isinstance(found, dict)
        skip_table(encode_table(found), 0)
    except ProtocolError as error:
        raise UserError(f"'{name}': {error}") from None
    except (ValueError, TypeError, ArithmeticError, RecursionError, OSError, struct.error):
        raise UserError(f"'{name}' has a value that makes no sense") from None
    return found
