"""JSON Schema (draft 2020-12, which OpenAPI 3.1 speaks) in few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {}
TABLE: Final[Schema] = {"type": "object"}
"""Of AMQP: any keys."""

# What a request may say: tools that know no types write numbers and flags as texts, and an empty table as a list.
WHOLE_GIVEN: Final[Schema] = {"anyOf": [WHOLE, {"type": "string", "pattern": "^-?[0-9]{1,18}$"}]}
FLAG_GIVEN: Final[Schema] = {"anyOf": [FLAG, {"enum": ["true", "false"]}]}
TABLE_GIVEN: Final[Schema] = {"anyOf": [TABLE, {"type": "null"}, {"type": "array", "maxItems": 0}]}
LONGEST_NAME: Final = 255
"""Bytes of UTF-8; a schema can only count characters, of which there are no more."""
NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
SHORT: Final[Schema] = {"type": "string", "maxLength": LONGEST_NAME}


class Optional(dict[str, Any]):
    """A property that may be missing."""


def optional(schema: Schema) -> Schema:
    return Optional(schema)


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(words: Iterable[str]) -> Schema:
    return {"enum": list(words)}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def answered(**properties: Schema) -> Schema:
    """An object of an answer: these properties, and no others."""
    return keyed(properties)


def keyed(properties: dict[str, Schema]) -> Schema:
    required = [name for name, schema in properties.items() if not isinstance(schema, Optional)]
    plain = {name: dict(schema) for name, schema in properties.items()}
    return {"type": "object", "properties": plain, "required": required, "additionalProperties": False}


def given(**properties: Schema) -> Schema:
    """An object of a request: what else is in it is ignored."""
    return {name: value for name, value in keyed(properties).items() if name != "additionalProperties"}
