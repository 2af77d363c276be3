"""The part of JSON Schema that the OpenAPI description uses, as a check: what is wrong with a value, or nothing.

A keyword that it does not know fails: nothing is passed over in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
_NOTES: Final = frozenset({"description", "format"})
_KNOWN: Final = _NOTES | {
    "$ref", "anyOf", "type", "enum", "const", "minLength", "maxLength", "pattern", "items", "maxItems", "required",
    "properties", "additionalProperties", "minimum", "maximum",
}  # fmt: skip


class Schemas:
    """`$ref`s are looked up in one document. `without`: names of components that nothing fits."""

    def __init__(self, document: Mapping[str, Any], without: frozenset[str] = frozenset()) -> None:
        self._components: Mapping[str, Any] = document["components"]["schemas"]
        self._without = without

    def wrong(self, schema: Mapping[str, Any], value: object, at: str = "$") -> str:
        """What, and where; empty: it fits."""
        for keyword, wanted in schema.items():
            found = self._check(keyword, wanted, schema, value, at)
            if found:
                return found
        return ""

    def _check(self, keyword: str, wanted: Any, schema: Mapping[str, Any], value: object, at: str) -> str:
        assert keyword in _KNOWN, f"JSON Schema's {keyword} is not known here"
        if keyword in _NOTES:
            return ""
        if keyword == "$ref":
            name = wanted.rpartition("/")[2]
            return (
                f"{at}: {name} is not meant here" if name in self._without else self.wrong(self.named(name), value, at)
            )
        if keyword == "anyOf":
            reasons = [self.wrong(each, value, at) for each in wanted]
            return "" if "" in reasons else f"{at}: none of {len(reasons)} fits: {'; '.join(reasons)}"
        if keyword == "type":
            is_flag = isinstance(value, bool) and wanted != "boolean"
            return "" if isinstance(value, _TYPES[wanted]) and not is_flag else f"{at}: {_short(value)} is no {wanted}"
        if keyword == "enum":
            same = any(value == each and type(value) is type(each) for each in wanted)
            return "" if same else f"{at}: {_short(value)} is none of {wanted}"
        if keyword == "const":
            return "" if value == wanted else f"{at}: {_short(value)} is not {wanted}"
        if isinstance(value, str):
            return self._text(keyword, wanted, value, at)
        if isinstance(value, list):
            return self._list(keyword, wanted, value, at)
        if isinstance(value, dict):
            return self._object(keyword, wanted, schema, value, at)
        if isinstance(value, int | float):
            low, high = keyword == "minimum" and value < wanted, keyword == "maximum" and value > wanted
            return f"{at}: {keyword} {wanted}, and it is {_short(value)}" if low or high else ""
        return ""

    def named(self, name: str) -> Mapping[str, Any]:
        found = self._components[name]
        assert isinstance(found, Mapping)
        return found

    def _text(self, keyword: str, wanted: Any, value: str, at: str) -> str:
        bad = (
            (keyword == "minLength" and len(value) < wanted)
            or (keyword == "maxLength" and len(value) > wanted)
            or (keyword == "pattern" and re.search(wanted, value) is None)
        )
        return f"{at}: {keyword} {wanted}, and it is {_short(value)}" if bad else ""

    def _list(self, keyword: str, wanted: Any, value: list[Any], at: str) -> str:
        if keyword == "items":
            found = (self.wrong(wanted, each, f"{at}[{index}]") for index, each in enumerate(value))
            return next((reason for reason in found if reason), "")
        return f"{at}: {len(value)} items" if keyword == "maxItems" and len(value) > wanted else ""

    def _object(self, keyword: str, wanted: Any, schema: Mapping[str, Any], value: dict[str, Any], at: str) -> str:
        if keyword == "required":
            missing = [name for name in wanted if name not in value]
            return f"{at}: {missing} missing" if missing else ""
        if keyword == "properties":
            inner = ((name, wanted[name]) for name in value if name in wanted)
        elif keyword == "additionalProperties":
            others = [name for name in value if name not in schema.get("properties", {})]
            if wanted is False:
                return f"{at}: {others} not described" if others else ""
            inner = ((name, wanted) for name in others)
        else:
            return ""
        found = (self.wrong(each, value[name], f"{at}.{name}") for name, each in inner)
        return next((reason for reason in found if reason), "")


def _short(value: object) -> str:
    return repr(value)[:80]


def strictly(text: bytes) -> Any:
    """JSON as everybody reads it: no NaN, no name twice. Raises ValueError."""

    def constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise ValueError(f"a name stands there twice: {[name for name, _ in found]}")
        return dict(found)

    return json.loads(text.decode("utf-8"), parse_constant=constant, object_pairs_hook=pairs)
