"""A campaign against one node: requests of a role, one after the other, and what each answer must be.

Whatever is asked: there is an answer; it is no failure of the node (5xx), but where a check says that something is not
well; it is one that the description names, and what is in it fits the description; what the description keeps from a
role is kept from it; a body that the description does not allow changes nothing.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from api_requests import MEDIA, METHODS, Described, Maker
from api_wire import NoAnswer, Reply, Request, Wire
from json_schema import Schemas, strictly

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ADMINISTRATOR: Final = "administrator"


@dataclass(frozen=True, slots=True)
class Role:
    """Who asks. No user: nobody; no tags: a user who is not let in."""

    name: str
    user: tuple[str, str] | None = None
    tags: tuple[str, ...] = ()

    def may(self, operation: Described) -> bool:
        security = operation["security"]
        if not security:
            return True
        (wanted,) = {tuple(each.get("basic", each.get("session", ()))) for each in security}
        return bool(self.tags) and (ADMINISTRATOR in self.tags or set(wanted) <= set(self.tags))


@dataclass(slots=True)
class Campaign:
    at: str
    document: Mapping[str, Any]
    role: Role
    maker: Maker
    statuses: Counter[int] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    """By operation: how many were answered with what they are there for."""
    problems: dict[str, str] = field(default_factory=dict)
    """The first of each operation and status."""
    _wire: Wire = field(init=False)
    _session: list[tuple[str, bytes]] = field(default_factory=list)
    _whole: Schemas = field(init=False)
    _reduced: Schemas = field(init=False)

    def __post_init__(self) -> None:
        self._wire = Wire(self.at)
        self._whole, self._reduced = Schemas(self.document, frozenset({"Columns"})), Schemas(self.document)

    def run(self, count: int) -> None:
        for number in range(count):
            request, operation = self.maker.next()
            proven = self._introduce(request)
            told = f"request {number} of {self.role.name}: {request.encoded()[:1500]!r}"
            try:
                reply = self._wire.ask(request)
            except NoAnswer as error:
                raise AssertionError(f"no answer ({error}): {told}") from None
            self.statuses[reply.status] += 1
            wrong = self._wrong(request, operation, reply, proven)
            if wrong:
                place = f"{request.method} {request.path} {reply.status}"
                self.problems.setdefault(place, f"{wrong}\n{told}\n{reply.status} {reply.body[:1000]!r}")
            if self._session and reply.status == 401:
                self._session = []
        self._wire.close()

    def _introduce(self, request: Request) -> bool:
        """Host and login; whether it may change something."""
        dice = self.maker.dice
        names = {name for name, _ in request.headers}
        request.headers.insert(0, ("Host", b"localhost"))
        if self.role.user is None or "Authorization" in names:
            return False
        if self.role.tags and "Cookie" not in names and "Origin" not in names and dice.random() < 0.3:
            if not self._session:
                self._session = self._log_in(*self.role.user)
            cookie, token = self._session
            request.headers.append(cookie)
            if dice.random() < 0.9 and "X-CSRF-Token" not in names:
                request.headers.append(token)
                return True
            return request.method in SAFE
        secret = base64.b64encode(":".join(self.role.user).encode())
        request.headers.append(("Authorization", b"Basic " + secret))
        return True

    def _log_in(self, name: str, password: str) -> list[tuple[str, bytes]]:
        body = json.dumps({"name": name, "password": password}).encode()
        reply = self._wire.ask(Request("POST", "", "/api/session", [("Host", b"localhost")], body))
        assert reply.status == 201, (reply.status, reply.body)
        cookie = reply.headers["Set-Cookie"].partition(";")[0]
        return [("Cookie", cookie.encode()), ("X-CSRF-Token", str(json.loads(reply.body)["token"]).encode())]

    # What is wrong with an answer.

    def _wrong(self, request: Request, operation: Described, reply: Reply, proven: bool) -> str:
        described = operation["responses"].get(str(reply.status))
        meant = request.clean and request.method == _method(self.document, request.path, operation)
        head = request.method == "HEAD"
        if head and reply.body:
            return "a head has a body"
        if reply.status >= 500 and (described is None or "$ref" in described):
            return "the node failed"
        if 200 <= reply.status < 300 and not head:
            if meant and not proven and operation["security"]:
                return "nobody was let in"
            if meant and not self.role.may(operation) and "itself" not in operation.get("description", ""):
                return f"{self.role.name} may not do that"
            if meant and self._refusable(request, operation):
                return f"a body was taken that is none: {self._refusable(request, operation)}"
        if meant and described is None:
            return f"{reply.status} is not described"
        if reply.status == 403 and self.role.may(operation) and meant and b"needs the tag" in reply.body:
            return f"{self.role.name} should have the tag for that"
        if head or reply.status in (204, 304):
            return "" if not reply.body else "something is in it"
        if reply.status >= 400:
            return self._wrong_error(request, reply, described if meant or reply.status == 503 else None)
        return self._wrong_content(request, reply, described) if meant and described is not None else ""

    def _wrong_error(self, request: Request, reply: Reply, described: Described | None) -> str:
        if reply.status == 400 and reply.media.startswith("text/plain"):
            return "" if not _is_http(request) else "an error that is not JSON"
        schema: Described = {"$ref": "#/components/schemas/Error"}
        if described is not None and "content" in described:
            schema = described["content"]["application/json"]["schema"]
        try:
            return self._reduced.wrong(schema, strictly(reply.body))
        except ValueError as error:
            return f"the error is no JSON: {error}"

    def _wrong_content(self, request: Request, reply: Reply, described: Described) -> str:
        self.asked[f"{request.method} {request.path}"] += 1
        content = described.get("content")
        if content is None:
            return "something is in it" if reply.body else ""
        ((media, found),) = content.items()
        if media != "application/json":
            return "" if media == "*/*" or reply.media.split(";")[0] == media.split(";")[0] else f"it is {reply.media}"
        schemas = self._reduced if any(name == "columns" for name, _ in request.query) else self._whole
        try:
            return schemas.wrong(found["schema"], strictly(reply.body))
        except ValueError as error:
            return f"the answer is no JSON: {error}"

    def _refusable(self, request: Request, operation: Described) -> str:
        """What is wrong with the body, as the description has it."""
        if "requestBody" not in operation or ("Content-Type", MEDIA[0]) not in request.headers:
            return ""
        body = request.body or b""
        try:
            value = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            return "it is no JSON"
        return self._whole.wrong(operation["requestBody"]["content"]["application/json"]["schema"], value)


def _method(document: Mapping[str, Any], path: str, operation: Described) -> str:
    return next(str(method).upper() for method, each in document["paths"][path].items() if each is operation)


def _is_http(request: Request) -> bool:
    """Whether a server can read it at all."""
    raw = [value for _, value in request.headers]
    return request.method in METHODS[:-2] and not any(letter < 32 or letter > 126 for value in raw for letter in value)
