"""A request of somebody who has logged in: who it is, what it may see and change, what it sent, and how it is answered.

What a tag allows is as in RabbitMQ: `management` its own vhosts and connections, `policymaker` policies too,
`monitoring` to look at everything, `administrator` everything. Queues and exchanges are changed with the permissions
that a client of the same user would have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeVar

from aiohttp import web

from coterie.amqp import access
from coterie.amqp.connection import Connection
from coterie.broker.users import ADMINISTRATOR, MONITORING, User
from coterie.broker.vhost import Vhost
from coterie.console import bodies, listing
from coterie.console.context import Context, in_turns
from coterie.console.listing import Shape
from coterie.console.refusals import Refused, bad, not_found
from coterie.console.sessions import Session
from coterie.console.shapes import DEFAULT_EXCHANGE
from coterie.console.tables import checked_text

T = TypeVar("T")
U = TypeVar("U")
POLICYMAKER: Final = "policymaker"
_SLICE: Final = 200
"""Objects of a list that are described in one turn of the loop."""
_LONG: Final = 2000
"""Lists longer than this are turned into text away from the loop."""


def answer(value: object, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(value), status=status, content_type="application/json")


def nothing(status: int = 204) -> web.Response:
    return web.Response(status=status)


@dataclass(slots=True, eq=False)
class Ask:
    """One request; to a queue it is a holder, like a channel."""

    context: Context
    request: web.Request
    user: User
    session: Session | None = None
    """None: it came with a name and a password."""
    host: str = ""
    """Where it came from."""
    said: Shape = field(default_factory=dict)
    """What its body said, once that was read."""

    # What it may.

    def has(self, *tags: str) -> bool:
        return self.user.administrator or any(tag in self.user.tags for tag in tags)

    def require(self, *tags: str) -> None:
        """One of these tags, or administrator. Raises Refused."""
        if not self.has(*tags):
            wanted = " or ".join((*tags, ADMINISTRATOR))
            raise Refused(403, "access_refused", f"user '{self.user.name}' needs the tag {wanted}")

    def sees(self, vhost: str) -> bool:
        return self.has(MONITORING) or self.user.may_enter(vhost)

    def visible(self) -> list[Vhost]:
        """The vhosts that it may look at, by name; one of them if the path names it."""
        if "vhost" in self.request.match_info:
            return [self.vhost()]
        return [vhost for name, vhost in sorted(self.context.broker.vhosts.items()) if self.sees(name)]

    def vhost(self) -> Vhost:
        """The one in the path, to look at."""
        name = self.part("vhost")
        vhost = self.context.broker.vhosts.get(name)
        if vhost is None:
            raise not_found(f"no vhost '{name}'")
        if not self.sees(name):
            raise Refused(403, "access_refused", f"access to vhost '{name}' refused for user '{self.user.name}'")
        return vhost

    def entered(self) -> Vhost:
        """The one in the path, to change something in it."""
        vhost = self.vhost()
        if not self.user.may_enter(vhost.name):
            raise Refused(403, "access_refused", f"user '{self.user.name}' has no permissions in vhost '{vhost.name}'")
        return vhost

    def permit(self, vhost: Vhost, what: access.Permission, kind: access.Resource, name: str) -> None:
        """Raises ProtocolError 403."""
        access.check(self.user, vhost.name, what, kind, name)

    def permit_topic(self, vhost: Vhost, what: access.Permission, exchange: str, key: str) -> None:
        access.check_topic(self.user, vhost, what, exchange, key)

    def connections(self) -> list[Connection]:
        """Those that it may look at."""
        found = self.context.connections()
        return found if self.has(MONITORING) else [each for each in found if each.user.name == self.user.name]

    # What it says.

    def part(self, name: str) -> str:
        """Of the path."""
        return self.request.match_info[name]

    def exchange_name(self, name: str = "name") -> str:
        found = self.part(name)
        return "" if found == DEFAULT_EXCHANGE else found

    def flag(self, name: str) -> bool:
        return self.request.query.get(name) == "true"

    def number(self, name: str) -> int | None:
        """Of the query; None: it is not there."""
        text = self.request.query.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise bad(f"'{name}' must be a whole number")
        return int(text)

    async def body(self, *keys: str, long: bool = False) -> Shape:
        """A JSON object, or nothing at all, which is an empty one; these keys must be in it. `long`: it may have as
        much as a body can."""
        settings = self.context.settings
        most = settings.body_max if long else min(settings.body_max, bodies.USUAL_MAX)
        data = await bodies.read(self.request, most, settings.body_timeout, packed=True)
        self.said = await bodies.parse(data)
        return required(self.said, *keys)

    # What it is answered.

    async def listed(
        self,
        things: Sequence[T],
        name: Callable[[T], str],
        shape: Callable[[T], Shape],
        keys: Mapping[str, Callable[[T], float]] | None = None,
    ) -> web.Response:
        """A list of things, which come in their order. Only those that are shown are described, if that is possible;
        while many are, others have their turns. `keys`: columns that a thing can be sorted by without being described.
        """
        wanted = listing.parse(self.request.query, self.context.settings.page_max)
        found = list(things)
        if wanted.name:
            found = [thing async for thing in in_turns(things) if wanted.matches(name(thing))]
        key = None if keys is None else keys.get(wanted.sort)
        rows: Sequence[Shape]
        if key is not None:
            # As `arrange` would: those that are equal stay in their order.
            ranked = list(zip(await self._described(found, key), found, strict=True))
            ranked.sort(key=itemgetter(0), reverse=wanted.reverse)
            rows = await self._described([thing for _, thing in listing.cut(ranked, wanted)], shape)
        elif wanted.sort:
            rows = listing.cut(listing.arrange(await self._described(found, shape), wanted), wanted)
        else:
            if wanted.reverse:
                found.reverse()
            rows = await self._described(listing.cut(found, wanted), shape)
        framed = listing.framed(rows, len(things), len(found), wanted)
        if len(rows) <= _LONG:
            return answer(framed)
        text = await asyncio.get_running_loop().run_in_executor(None, json.dumps, framed)
        return web.Response(text=text, content_type="application/json")

    async def _described(self, things: Sequence[T], shape: Callable[[T], U]) -> list[U]:
        rows: list[U] = []
        for count, thing in enumerate(things, 1):
            rows.append(shape(thing))
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return rows


__all__ = [
    "MONITORING", "POLICYMAKER", "Ask", "Handler", "Refused", "Route", "answer", "bad", "flag_of", "not_found",
    "nothing", "number_of", "required", "table_of", "text_of",
]  # fmt: skip

Handler = Callable[[Ask], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Handler]
"""Method, path, what answers it."""


def required(body: Shape, *keys: str) -> Shape:
    """These keys must be in it."""
    missing = [key for key in keys if key not in body]
    if missing:
        raise bad(f"the body lacks {', '.join(map(repr, missing))}")
    return body


def text_of(body: Shape, key: str, default: str | None = None) -> str:
    """A text in a body. Raises UserError."""
    return checked_text(key, body.get(key, default))


def flag_of(body: Shape, key: str) -> bool:
    value = body.get(key, False)
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise bad(f"'{key}' must be true or false")
    return value


def number_of(body: Shape, key: str, default: int | None = None) -> int:
    """A whole number; tools that know no types write it as a text."""
    value = body.get(key, default)
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.removeprefix("-").isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(f"'{key}' must be a whole number")
    return value


def table_of(body: Shape, key: str) -> Shape:
    value = body.get(key)
    if value is None or value == []:  # some tools write an empty table so
        return {}
    if not isinstance(value, dict):
        raise bad(f"'{key}' must be an object")
    return value
