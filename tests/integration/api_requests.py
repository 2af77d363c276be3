"""Requests made from the OpenAPI description: right ones, and ones that are wrong in one way or another.

The same seed gives the same requests. `Maker.next()` picks an operation, so that each has its turn, and what to do to
it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from api_values import BEYOND_TEXT, NUMBERS, STRANGE, TEXT_NUMBERS, WORDS, anything, fitting
from api_wire import Request

Described = Mapping[str, Any]
RAW_PARTS: Final = (
    "%00",
    "%2f",
    "%2F%2e%2e",
    "%ff%fe",
    "%",
    "%zz",
    "..",
    "%2e%2e",
    ".",
    "",
    "%c0%ae",
    ";x=1",
    "a%0d%0ab",
    "%u0041",
)
"""Parts of a path as no good client writes them."""
METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "get", "X" * 200)
MEDIA: Final = (
    b"application/json", b"application/json; charset=utf-8", b"application/json; charset=utf-16",
    b"application/json; charset=nonsense", b"application/json; charset=rot13", b"text/plain; charset=latin-1",
    b"multipart/form-data; boundary=x", b"application/x-www-form-urlencoded", b"", b"\xff\xfe",
    b"application/json; charset=",
    b"application/json; charset=base64", b"application/json; charset=idna",
)  # fmt: skip
RAW_BODIES: Final = (
    b"", b" ", b"null", b"[]", b'"x"', b"7", b"{", b"{}}", b'{"a":1,}', b"\xff\xfe\x00", b'{"name":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"value":NaN}', b'{"value":-Infinity}', b'{"value":1,"value":[]}', b'{"tags":"","tags":{}}', b"[" * 100_000,
    b'{"a":' * 20_000, b'{"value":' + b"9" * 5_000 + b"}", b"\x00" * 64, b"{}" * 1_000, b'{"value":1e999999}',
    b'{"value":"\\ud800"}', b'{"\\ud800":1}',
)  # fmt: skip
STRANGE_HEADERS: Final = (
    ("X-Reason", b"\xff" * 300), ("X-Reason", b"because"), ("Accept", b"text/html"),
    ("Accept-Encoding", b"gzip, deflate, br"),
    ("Cookie", b"coterie-x=" + b"a" * 4_000), ("Cookie", b'"; \xff=\xfe'), ("Range", b"bytes=5-1"),
    ("Expect", b"100-continue"),
    ("If-None-Match", b"*"), ("Content-Encoding", b"gzip"), ("Origin", b"https://elsewhere.example"),
    ("Origin", b"null"),
    ("Sec-Fetch-Site", b"cross-site"), ("X-HTTP-Method-Override", b"DELETE"), ("Authorization", b"Basic !!!"),
    ("Authorization", b"Basic Og=="), ("Authorization", b"Bearer x.y.z"), ("Authorization", b"\xff"),
    ("X-CSRF-Token", b"\xff"), ("Upgrade", b"websocket"), ("Content-Language", b"a" * 7_000),
)  # fmt: skip


class Maker:
    """`names`: what stands in paths, by the parameter's name, or by the path's beginning and the name."""

    def __init__(self, document: Described, seed: object, names: Mapping[str, Sequence[str]]) -> None:
        self.dice = random.Random(str(seed))
        self._names = names
        self.operations: list[tuple[str, str, Described]] = [
            (method.upper(), path, operation)
            for path, found in document["paths"].items()
            for method, operation in found.items()
        ]
        self._turns: list[int] = []

    def next(self) -> tuple[Request, Described]:
        """And the operation that it is meant to be."""
        if not self._turns:
            self._turns = list(range(len(self.operations)))
            self.dice.shuffle(self._turns)
        method, path, operation = self.operations[self._turns.pop()]
        request = Request(method, path, "")
        self._address(request, operation)
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            request.body = self._body(schema)
            request.headers.append(("Content-Type", MEDIA[0]))
        elif method != "GET" and self.dice.random() < 0.1:
            request.body = self.dice.choice(RAW_BODIES)
        if self.dice.random() < 0.15:
            self._spoil(request)
        return request, operation

    # The address.

    def _address(self, request: Request, operation: Described) -> None:
        dice = self.dice
        parts: dict[str, str] = {}
        for parameter in operation.get("parameters", ()):
            name, schema = parameter["name"], parameter["schema"]
            if parameter["in"] == "path":
                parts[name] = self._part(request, name, schema)
            elif dice.random() < 0.25:
                request.query += [(name, self._asked(schema)) for _ in range(1 if dice.random() < 0.95 else 2)]
        request.target = re.sub(r"\{(\w+)\}", lambda part: parts[part[1]], request.path)
        if request.path.startswith("/api/") and dice.random() < 0.08:
            request.target += "/"
        if dice.random() < 0.02:
            request.query.append((dice.choice(STRANGE), dice.choice(STRANGE)))

    def _part(self, request: Request, name: str, schema: Described) -> str:
        dice = self.dice
        if dice.random() < 0.04:
            request.clean = False
            return dice.choice(RAW_PARTS)
        known = self._known(request.path, name)
        value = dice.choice(known)
        if dice.random() < 0.12:
            value = dice.choice((*STRANGE, *TEXT_NUMBERS, "a" * 3_000))
        elif dice.random() < 0.1:
            value = str(fitting(dice, schema, name))
        if value in ("", ".", "..") or (any(letter in value for letter in "/{}") and name == "path"):
            request.clean = False
        if "enum" in schema and value not in schema["enum"]:
            request.clean = False
        return quote(value.encode("utf-8", "surrogatepass"), safe="")

    def _known(self, path: str, name: str) -> Sequence[str]:
        by_path = next(
            (
                found
                for key, found in self._names.items()
                if key.endswith(f" {name}") and path.startswith(key.split()[0])
            ),
            None,
        )
        return by_path or self._names.get(name, WORDS[:-1])

    def _asked(self, schema: Described) -> str:
        dice = self.dice
        if dice.random() < 0.3:
            return str(dice.choice((*STRANGE, *TEXT_NUMBERS, *map(_short, NUMBERS))))
        value = fitting(dice, schema)
        return str(value).lower() if isinstance(value, bool) else _short(value)

    # The body.

    def _body(self, schema: Described) -> bytes:
        dice = self.dice
        if dice.random() < 0.08:
            return dice.choice(RAW_BODIES)
        value = fitting(dice, schema)
        if isinstance(value, dict) and dice.random() < 0.3:
            self._twist(value)
        try:
            return json.dumps(value, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):  # what Python itself cannot write
            return b'{"value":' + b"9" * 5_000 + b"}"

    def _twist(self, value: dict[str, Any]) -> None:
        dice = self.dice
        if value and dice.random() < 0.4:
            value.pop(dice.choice(list(value)))
        if value and dice.random() < 0.7:
            value[dice.choice(list(value))] = anything(dice)
        if dice.random() < 0.2:
            value[dice.choice((*STRANGE, *BEYOND_TEXT))] = anything(dice)

    # The rest.

    def _spoil(self, request: Request) -> None:
        dice = self.dice
        way = dice.randrange(6)
        if way == 0:
            request.method = dice.choice(METHODS)
        elif way == 1:
            request.headers = [("Content-Type", dice.choice(MEDIA))]
        elif way == 2:
            request.headers.append(dice.choice(STRANGE_HEADERS))
        elif way == 3:
            request.chunked = request.body is not None
        elif way == 4:
            request.target += dice.choice(("/x", "//", "/%2e%2e", ";a=b", "%20", ".json"))
            request.clean = False
        else:
            request.body = dice.choice(RAW_BODIES)


def _short(value: object) -> str:
    """As text; the longest numbers Python does not write."""
    if isinstance(value, int) and value.bit_length() > 1_000:
        return "1" + "0" * 400
    return str(value)
