"""What a token's scopes allow, as RabbitMQ reads them.

    PREFIXread:VHOST/NAME         also write and configure; VHOST and NAME may have any number of `*`
    PREFIXwrite:VHOST/NAME/KEY    the same, and for topic exchanges with such a routing key; without KEY there are none
    PREFIXtag:administrator       a tag of the HTTP API

All but `*` is percent-encoded, so `%2F` is the vhost `/`, and `%2A` an asterisk. A scope of any other form, or of
another prefix, is somebody else's and allows nothing. Patterns are matched without backtracking: in a time linear in
the text for each part of the pattern, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from coterie.broker.users import TAGS

SCOPES_MAX: Final = 2048
"""As in RabbitMQ; a token with more is refused."""
PERMISSIONS: Final = ("configure", "write", "read")
_TAG: Final = "tag"
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_DEPTH_MAX: Final = 8
"""Dots in the name of a claim that is followed."""


class Wildcard:
    """A pattern in which `*` stands for any text, also for none. Raises ValueError if it cannot be decoded."""

    __slots__ = ("_parts",)

    def __init__(self, pattern: str) -> None:
        self._parts = [_decoded(part) for part in pattern.split("*")]

    def fits(self, text: str) -> bool:
        first, *others = self._parts
        if not others:
            return text == first
        *middle, last = others
        at, end = len(first), len(text) - len(last)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in middle:  # the leftmost place for each leaves most for those that follow: nothing to try again
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


def _decoded(text: str) -> str:
    """As in the query of a URL: a plus is a space."""
    for at, letter in enumerate(text):
        if letter == "%" and not (len(text) >= at + 3 and _HEX.issuperset(text[at + 1 : at + 3])):
            raise ValueError("a percent sign without two hexadecimal digits")
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Grant:
    """One scope that allows something."""

    what: str
    vhost: Wildcard
    name: Wildcard
    key: Wildcard | None


@dataclass(frozen=True, slots=True)
class Grants:
    """Of one token."""

    grants: tuple[Grant, ...] = ()
    tags: tuple[str, ...] = ()

    def enters(self, vhost: str) -> bool:
        return any(grant.vhost.fits(vhost) for grant in self.grants)

    def allows(self, vhost: str, what: str, name: str) -> bool:
        return any(self._about(vhost, what, name))

    def allows_topic(self, vhost: str, what: str, exchange: str, key: str) -> bool:
        return any(grant.key is not None and grant.key.fits(key) for grant in self._about(vhost, what, exchange))

    def _about(self, vhost: str, what: str, name: str) -> Iterator[Grant]:
        return (
            grant for grant in self.grants if grant.what == what and grant.vhost.fits(vhost) and grant.name.fits(name)
        )


def granted(scopes: Iterable[str], prefix: str) -> Grants:
    """Raises ValueError if there are too many."""
    unique = dict.fromkeys(scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix))
    if len(unique) > SCOPES_MAX:
        raise ValueError(f"it has more than {SCOPES_MAX} scopes")
    grants: list[Grant] = []
    tags: list[str] = []
    for scope in unique:
        word, _, rest = scope.partition(":")
        parts = rest.split("/")
        if word == _TAG and rest in TAGS:
            tags.append(rest)
        elif word in PERMISSIONS and len(parts) in (2, 3):
            try:
                vhost, name, *key = map(Wildcard, parts)
            except ValueError:
                continue
            grants.append(Grant(word, vhost, name, key[0] if key else None))
    return Grants(tuple(grants), tuple(tags))


def scopes_of(claims: Mapping[str, object], additional: str, resource_server_id: str) -> list[str]:
    """All that a token names, in `scope` and in the claims of `additional`."""
    found = list(_listed(claims.get("scope"), resource_server_id))
    for path in additional.split():
        for value in _at(claims, path.split(".")[:_DEPTH_MAX]):
            found += _listed(value, resource_server_id)
    return found


def _at(value: object, path: list[str]) -> Iterator[object]:
    """What is there, in each element of lists on the way."""
    if not path:
        yield value
    elif isinstance(value, Mapping):
        if path[0] in value:
            yield from _at(value[path[0]], path[1:])
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, Mapping):
                yield from _at(each, path)


def _listed(value: object, resource_server_id: str) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split(" ")
    elif isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))
    elif isinstance(value, Mapping):  # by resource server, without its name
        for each in _listed(value.get(resource_server_id), ""):
            yield f"{resource_server_id}.{each}"
