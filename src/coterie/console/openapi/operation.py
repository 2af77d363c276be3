"""One operation of the API as it is described, and the words that make one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from coterie.console.openapi.schema import FLAG, TEXT, Schema, list_of, ref

LIST_QUERY: Final[dict[str, Schema]] = {
    "page": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "page_size": {"type": "integer", "minimum": 1, "maximum": 500},
    "name": TEXT, "use_regex": FLAG, "sort": TEXT, "sort_reverse": FLAG, "columns": TEXT,
}  # fmt: skip
"""Of everything that is a list. How large a page may be, a setting says (`console.page_max`)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a route does. Errors that every route may answer with are not named here."""

    summary: str
    answers: dict[int, Schema | None]
    """By status; None: nothing in it."""
    tag: str = ""
    """That a user needs (administrators may everything); nothing: any of them."""
    own: bool = False
    """A user may ask for itself without the tag."""
    body: Schema | None = None
    needed: bool = False
    """There must be a body."""
    query: dict[str, Schema] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    check: bool = False
    """A health check: 503 is an answer."""
    waits: bool = False
    """503 is what a broker says that has not come as far as it was asked for, too."""
    public: bool = False
    """It asks for no login."""
    media: str = "application/json"


def shown(summary: str, schema: Schema | str, tag: str = "", own: bool = False, **query: Schema) -> Operation:
    return Operation(summary, {200: ref(schema) if isinstance(schema, str) else schema}, tag, own, query=query)


def listed(summary: str, name: str, tag: str = "", own: bool = False, **query: Schema) -> Operation:
    """All of them, or a page of them, whole or reduced to some columns."""
    each = {"anyOf": [ref(name), ref("Columns")]}
    return Operation(summary, {200: {"anyOf": [list_of(each), _page(each)]}}, tag, own, query=LIST_QUERY | query)


def _page(each: Schema) -> Schema:
    counts = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
    properties: dict[str, Schema] = {name: {"type": "integer", "minimum": 0} for name in counts}
    properties["items"] = list_of(each)
    return {
        "type": "object", "properties": properties, "required": [*counts, "items"], "additionalProperties": False,
    }  # fmt: skip


def put(summary: str, body: Schema | None = None, tag: str = "", *errors: int) -> Operation:
    """201 if it made something, 204 if it was there."""
    needed = body is not None and bool(body.get("required"))
    return Operation(summary, {201: None, 204: None}, tag, body=body, needed=needed, errors=errors)


def set_to(summary: str, body: Schema | None, tag: str) -> Operation:
    return Operation(summary, {204: None}, tag, body=body, needed=body is not None)


def deleted(summary: str, tag: str = "", *errors: int, **query: Schema) -> Operation:
    return Operation(summary, {204: None}, tag, query=query, errors=errors)


def done(summary: str, body: Schema | None, answer: Schema | str, tag: str = "", *errors: int) -> Operation:
    needed = body is not None and bool(body.get("required"))
    schema = ref(answer) if isinstance(answer, str) else answer
    return Operation(summary, {200: schema}, tag, body=body, needed=needed, errors=errors)


def checked(summary: str, **query: Schema) -> Operation:
    return Operation(summary, {200: ref("Healthy")}, query=query, check=True)


def waiting(operation: Operation) -> Operation:
    return replace(operation, waits=True)


def openly(operation: Operation, media: str = "application/json") -> Operation:
    return replace(operation, public=True, media=media)
