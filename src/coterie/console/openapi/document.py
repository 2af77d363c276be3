"""The whole description, as OpenAPI 3.1 has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from coterie import __version__
from coterie.broker.leases import NAME_MAX
from coterie.console.api_wiring import BINDINGS
from coterie.console.openapi.answers import NODE_SCHEMAS, OBJECT_SCHEMAS
from coterie.console.openapi.operation import Operation
from coterie.console.openapi.schema import NAME, Schema, ref
from coterie.console.openapi.table_node import OPERATIONS
from coterie.console.sessions import TOKEN

_PART: Final = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
_WORDS: Final = re.compile(r"[\w-]+(?:\|[\w-]+)+")
"""A pattern of a path that is some words: each is a path of its own."""
_SAFE: Final = frozenset({"GET", "HEAD"})
DESCRIPTION: Final = """\
The management API of a Coterie broker, with the names of RabbitMQ's wherever the meaning is the same. Names in a path
are percent-encoded: the vhost / is %2F, the default exchange amq.default. A path below /api/ may end with a slash. What
can be got can be asked for with HEAD, but for bulk reads. Roles in `security` are the tags that a user needs; an
administrator may do everything, and permissions in the vhost decide the rest. Probes and metrics without a login are at
a listener of their own (listen.probes), which is not described here.
"""
ERRORS: Final = {
    400: ("BadRequest", "The request makes no sense."),
    401: ("NotLoggedIn", "Not logged in, or a user without any of the tags."),
    403: ("Forbidden", "Logged in, but not allowed; a page of another site; a strange Host."),
    404: ("NotFound", "There is no such thing."),
    408: ("TooSlow", "The body has not come within console.body_timeout."),
    409: ("Conflict", "Somebody's exclusive queue; a lease of another session; what cannot be done now."),
    410: ("Gone", "A queue or lease of that name is another one now."),
    413: ("TooLarge", "The body is larger than it may be: console.body_max, 1 MiB for most, 4 KiB for a login."),
    415: ("Packed", "The body has a Content-Encoding that is not taken: gzip and deflate are, after a login."),
    429: ("TooMany", "Too many requests of one user, or without a login from one address, are being answered."),
    503: ("Unavailable", "Not durable in time; a node that does not serve now; too many requests."),
}
"""By status: the name of the response, and what it means."""
PARTS: Final[dict[str, Schema]] = {
    "lease": {"type": "string", "minLength": 1, "maxLength": NAME_MAX},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "within": {"type": "integer", "minimum": 0, "maximum": 1000},
    "name": {"type": "string", "minLength": 1},
    "properties": {"type": "string", "minLength": 1},
    "path": {"type": "string", "minLength": 1, "description": "May have slashes in it."},
}
"""What stands in a path, by its name; others are names of at most 255 bytes."""


def operations() -> Iterator[tuple[str, str, str, Operation]]:
    """Tag, method, path as a client writes it, and the operation."""
    for tag, table in OPERATIONS.items():
        for (method, path), found in table.items():
            if isinstance(found, Operation):
                yield tag, method, written(path), found
            else:
                for word, operation in found.items():
                    yield tag, method, written(path, word), operation


def written(path: str, word: str = "") -> str:
    """Without the patterns that the router needs; `word`: in place of a part that is one of some."""
    return _PART.sub(lambda part: word if word and _WORDS.fullmatch(part[2] or "") else f"{{{part[1]}}}", path)


def routes_of(path: str) -> list[str]:
    """The paths of the description that a route is."""
    words = next((part[2] for part in _PART.finditer(path) if _WORDS.fullmatch(part[2] or "")), "")
    return [written(path, word) for word in words.split("|")] if words else [written(path)]


def document(cookie: str = "coterie-NODE") -> dict[str, Any]:
    """`cookie`: the name of the one that a login on the page sets; each node has its own."""
    paths: dict[str, dict[str, Any]] = {}
    for tag, method, path, operation in operations():
        paths.setdefault(path, {})[method.lower()] = _described(tag, method, path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Coterie HTTP API", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/", "description": "The node that was asked."}],
        "tags": [{"name": tag} for tag in OPERATIONS],
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {
            "schemas": NODE_SCHEMAS | OBJECT_SCHEMAS,
            "responses": {name: _error(text) for name, text in ERRORS.values()},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "session": {"type": "apiKey", "in": "cookie", "name": cookie},
                "token": {
                    "type": "apiKey", "in": "header", "name": TOKEN,
                    "description": "The token that the login told: with the cookie, for whatever changes something.",
                },
            },
        },
    }  # fmt: skip


@lru_cache(maxsize=1)
def as_text(cookie: str = "coterie-NODE") -> str:
    return json.dumps(document(cookie))


def _error(text: str) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": ref("Error")}}}


def _described(tag: str, method: str, path: str, operation: Operation) -> Schema:
    found: Schema = {
        "operationId": _identity(method, path), "summary": operation.summary, "tags": [tag],
        "security": _security(method, operation), "responses": _responses(method, path, operation),
    }  # fmt: skip
    if operation.own:
        found["description"] = "A user may ask for itself without that tag."
    parameters = [
        {"name": part[1], "in": "path", "required": True, "schema": _part(path, part[1])}
        for part in _PART.finditer(path)
    ] + [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        found["requestBody"] = {"required": operation.needed, "content": content}
    return found


def _identity(method: str, path: str) -> str:
    words = [word for word in re.split(r"[^\w]+", path.removeprefix("/api")) if word]
    return "_".join([method.lower(), *words]) or method.lower()


def _part(path: str, name: str) -> Schema:
    if name == "kind" and path.startswith(written(BINDINGS)):
        return {"enum": ["e", "q"]}
    return PARTS.get(name, NAME)


def _security(method: str, operation: Operation) -> list[dict[str, list[str]]]:
    """One of these is enough; the roles are tags."""
    if operation.public:
        return []
    roles = [operation.tag] if operation.tag else []
    token: dict[str, list[str]] = {} if method in _SAFE else {"token": []}
    return [{"basic": roles}, {"session": roles} | token]


def _responses(method: str, path: str, operation: Operation) -> Schema:
    found: Schema = {}
    for status, schema in operation.answers.items():
        found[str(status)] = {"description": "Nothing in it." if schema is None else operation.summary + "."}
        if schema is not None:
            found[str(status)]["content"] = {operation.media: {"schema": schema}}
    for status in sorted(_errors(path, operation)):
        found[str(status)] = {"$ref": f"#/components/responses/{ERRORS[status][0]}"}
    if operation.check:
        content = {"application/json": {"schema": {"anyOf": [ref("Failed"), ref("Error")]}}}
        found["503"] = {"description": "The check failed.", "content": content}
    if operation.waits:
        found["503"] = _error("This node has not come so far yet: ask again, or another one.")
    return found


def _errors(path: str, operation: Operation) -> set[int]:
    """Of every operation: who is not let in, and a node that cannot."""
    found = {400, 403, 429, 503, *operation.errors}
    if not operation.public or operation.body is not None:
        found.add(401)
    if "{" in path:
        found.add(404)
    if operation.body is not None:
        found |= {408, 413, 415}
    return found
