"""The console's front door: aiohttp, inside the node's own loop.

Promises: nobody is answered without logging in, but for the page's own files; a browser's request that another site
made changes nothing; connections (`door`), requests (`seats`) and bodies (`bodies`) are bounded, and narrowly so before
a login; every error is JSON, {"error", "reason"}, and no error takes the node along.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import logging
import ssl
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from coterie.addresses import is_loopback
from coterie.amqp.wire.codes import ACCESS_REFUSED, NAMES, NOT_FOUND, RESOURCE_LOCKED
from coterie.auditlog.log import REFUSED
from coterie.broker.leases import Gone
from coterie.broker.users import TAGS, User, claimed_name
from coterie.console import api_session, api_streams, audited, bodies, metrics
from coterie.console.ask import MONITORING, Ask, Handler, Refused, answer, required, text_of
from coterie.console.assets import Assets
from coterie.console.context import Context, Late
from coterie.console.door import Door, Guest
from coterie.console.routes import ALWAYS, ROUTES
from coterie.console.seats import Seat, Seats
from coterie.console.sessions import TOKEN, Session, proves
from coterie.errors import CoterieError, ProtocolError, UserError
from coterie.logs import Log
from coterie.runtime.base import Endpoint

log = Log(__name__)

HEADERS: Final = {
    "Server": "coterie",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
STATUSES: Final = {ACCESS_REFUSED: 403, NOT_FOUND: 404, RESOURCE_LOCKED: 409}
"""By reply code; every other one is a bad request."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FIELD_MAX: Final = 8190
"""Bytes of a header, without a token."""
LOGIN_TOLD: Final = 3600.0
"""Seconds after which it is told again that a user logs in by HTTP from the same host."""
LOGINS_SEEN: Final = 10_000
SHUTDOWN: Final = 5.0
"""Seconds that requests have to end when the node stops."""
LINGER: Final = 2.0
"""Seconds that the rest of a body is read for after the answer, so that whoever sends it reads that."""
CONTINUE: Final = "100-continue"
SEAT: Final = web.RequestKey("seat", Seat)
_SILENT: Final = logging.getLogger("coterie.console.aiohttp")
"""A request that is no HTTP would be logged with a traceback, by anybody who can reach the port."""
_SILENT.setLevel(logging.CRITICAL + 1)
Decided = Callable[[User | ProtocolError], None]
Plain = Callable[[web.Request], Awaitable[web.StreamResponse]]
Raw = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""What aiohttp asks, whatever the path."""


class Console:
    """Of one node; `start` once, `stop` once."""

    endpoint: Endpoint
    """Where it listens; the first, if it does so in more than one place."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._watching: asyncio.Task[None] | None = None
        self.door = Door(context.settings)
        self._seats = Seats(context.settings)
        self._logins = RecentLogins()

        @web.middleware
        async def guard(request: web.Request, handler: Plain) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard])
        for method, path, handler in ROUTES:
            _add(app, method, path, self._logged_in(handler))
        for method, path, handler in ALWAYS:
            _add(app, method, path, self._logged_in(handler, always=True))
        _add(app, "POST", "/api/session", self._begin_session)
        _add(app, "GET", "/api/auth", self._how_to_log_in)
        assets = Assets()
        _add(app, "GET", "/", assets.page)
        _add(app, "GET", "/static/{path:.+}", assets.file)
        for path, show in (("/metrics", _metrics), ("/metrics/per-object", _metrics_per_object)):
            _add(app, "GET", path, self._logged_in(show))
        # Packed bodies are unpacked by `bodies`, after a login; deadlines are the door's.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=SHUTDOWN, keepalive_timeout=context.settings.idle_timeout,
            lingering_time=LINGER, auto_decompress=False, logger=_SILENT,
            max_field_size=FIELD_MAX + 2 * context.users.token_max,  # also in base64, as a password
        )  # fmt: skip

    async def start(
        self,
        endpoints: Sequence[Endpoint],
        tls: Callable[[], ssl.SSLContext] | None = None,
        admits: Callable[[str], bool] = lambda host: True,
    ) -> None:
        """On all of them, and on one port: if that is to be a free one, the first decides. Raises UserError if one
        cannot be had. `tls`: the context of a connection that comes now; `admits`: whether one may come from there."""
        await self._runner.setup()
        self.context.logbook.open()
        server = self._runner.server
        assert server is not None
        server.request_handler = _expecting(server.request_handler)
        port = 0
        for at in endpoints:
            try:
                bound = self.door.listen(Endpoint(at.host, at.port or port), server, tls, admits)
            except UserError as error:
                if not at.port and port:
                    log.info("a port that was free is not free there", host=at.host, port=port)
                    continue
                self.context.logbook.close()
                self.door.close()
                await self._runner.cleanup()
                raise UserError(f"listen.console: {error}") from None
            if not port:
                self.endpoint = bound
            port = bound.port
            self.context.listens.append(bound)
            log.info("listening for HTTP" if tls is None else "listening for HTTPS", at=bound)
        self._watching = asyncio.get_running_loop().create_task(self.context.watch())

    async def stop(self) -> None:
        """Requests that are being answered are, within a few seconds."""
        self.door.close()
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._runner.cleanup()
        self.context.backups.close()
        self.context.logbook.close()

    # Every request.

    async def _guard(self, request: web.Request, handler: Plain) -> web.StreamResponse:
        guest = self.door.guest(request)
        if guest is not None:
            guest.began()
        try:
            response = await self._answered(request, handler, guest)
        finally:
            if guest is not None:
                guest.ended()
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _answered(self, request: web.Request, handler: Plain, guest: Guest | None) -> web.StreamResponse:
        try:
            self._check_origin(request)
            give_up = _nothing if guest is None else guest.end
            seat = request[SEAT] = self._seats.take(peer_of(request).host, give_up)
            try:
                return await handler(request)
            finally:
                self._seats.leave(seat)
        except Refused as refused:
            response = _error(refused.status, refused.error, refused.reason)
            if refused.status == 401 and not _from_script(request):
                response.headers["WWW-Authenticate"] = 'Basic realm="Coterie", charset="UTF-8"'
            return response
        except Gone as error:
            return _error(410, "gone", str(error))
        except ProtocolError as error:
            status = STATUSES.get(error.reply_code, 400)
            word = "bad_request" if status == 400 else NAMES[error.reply_code].lower()
            return _error(status, word, str(error))
        except UserError as error:
            return _error(400, "bad_request", str(error))
        except Late as error:
            return _error(503, "timeout", str(error))
        except web.HTTPException as error:
            response = _error(error.status, error.reason.lower().replace(" ", "_"), error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except CoterieError as error:
            return _error(500, "internal_error", str(error))
        except Exception:
            log.error("a request failed", path=request.path, traceback=traceback.format_exc())
            return _error(500, "internal_error", "the node's log says what happened")

    def _check_origin(self, request: web.Request) -> None:
        """A browser sends along what its user logged in with, whoever made it send the request. So what changes
        something must come from a page of ours. And a name that somebody else made lead to this host is not ours."""
        host = request.headers.get("Host", "")
        if is_loopback(peer_of(request).host) and not self._is_ours(host):
            raise Refused(
                403, "access_refused", f"'{host[:100]}' is no name of this node: see the setting console.hosts"
            )
        if request.method in SAFE:
            return
        origin = request.headers.get("Origin")
        if origin is not None:
            same = origin.partition("://")[2] == host
        else:
            same = request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        if not same:
            raise Refused(403, "access_refused", "a page of another site may not change anything here")

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        hosts = self.context.settings.hosts
        if name in ("localhost", "") or "*" in hosts or name in hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    # Logging in.

    def _logged_in(self, handler: Handler, always: bool = False) -> Plain:
        """`always`: it looks itself whether the broker serves."""

        async def handle(request: web.Request) -> web.StreamResponse:
            user, session = await self._who(request)
            self._take_place(request, user)
            why = "" if always or request.method in SAFE else self.context.amqp.unavailable()
            if why:
                raise Refused(503, "unavailable", f"this broker does not serve now: {why}")
            ask = Ask(self.context, request, user, session, peer_of(request).host)
            try:
                response = await handler(ask)
            except Exception as error:
                audited.failed(ask, error)
                raise
            audited.succeeded(ask, response.status)
            return response

        return handle

    async def _who(self, request: web.Request) -> tuple[User, Session | None]:
        """By the page's cookie, by a token, or by name and password."""
        found = self.context.sessions.find(request.cookies, peer_of(request).host)
        if found is None:
            header = request.headers.get("Authorization", "")
            token, credentials = _token(header), _credentials(header)
            if token is not None:
                return await self._login_token(request, token), None
            if credentials is None:
                raise Refused(401, "not_authorized", "log in with a user's name and password, or with a token")
            return await self._login(request, credentials), None
        user, session = found
        if request.method not in SAFE and not proves(session, request.headers.get(TOKEN, "")):
            text = f"{request.method} {request.path}: no token of this login"
            self.context.broker.audit.record("access.refused", user.name, peer_of(request).host, "http", REFUSED, text)
            raise Refused(403, "access_refused", f"the header {TOKEN} is not the one of this login: load the page anew")
        _let_in(user)
        return user, session

    async def _begin_session(self, request: web.Request) -> web.StreamResponse:
        seconds = self.context.settings.body_timeout / 2
        most = bodies.LOGIN_MAX + self.context.users.token_max
        body = bodies.parsed(await bodies.read(request, most, seconds, packed=False))
        if "token" in body:
            user = await self._login_token(request, text_of(body, "token").strip().encode("utf-8", "replace"))
        else:
            required(body, "name", "password")
            name, password = text_of(body, "name"), text_of(body, "password")
            user = await self._login(request, f"{name}\0{password}".encode("utf-8", "surrogateescape"))
        self._take_place(request, user)
        return api_session.begin(Ask(self.context, request, user), self.context.sessions, peer_of(request).host)

    def _take_place(self, request: web.Request, user: User) -> None:
        """Among those who have logged in. Raises Refused."""
        self._seats.logged_in(request[SEAT], user.name)
        guest = self.door.guest(request)
        if guest is not None:
            self.door.logged_in(guest)

    async def _how_to_log_in(self, request: web.Request) -> web.StreamResponse:
        """For the page, before anybody has logged in; RabbitMQ's tools ask for it too."""
        tokens = self.context.users.tokens
        shown = {} if tokens is None else {f"oauth_{name}": value for name, value in tokens.shown.items()}
        return answer({"oauth_enabled": tokens is not None, **shown})

    async def _login(self, request: web.Request, credentials: bytes) -> User:
        users, peer, response = self.context.users, peer_of(request), b"\0" + credentials
        claimed = claimed_name("PLAIN", response, None)
        return await self._decided(peer, claimed, lambda done: users.login("PLAIN", response, peer, None, done))

    async def _login_token(self, request: web.Request, token: bytes) -> User:
        users, peer = self.context.users, peer_of(request)
        return await self._decided(peer, "", lambda done: users.login_token(token, peer, done), token=True)

    async def _decided(
        self, peer: Endpoint, claimed: str, login: Callable[[Decided], None], token: bool = False
    ) -> User:
        """Who it is that logs in. Raises Refused."""
        future: asyncio.Future[User | ProtocolError] = asyncio.get_running_loop().create_future()
        login(lambda result: None if future.done() else future.set_result(result))
        user, audit = await future, self.context.broker.audit
        if isinstance(user, ProtocolError):
            audit.record("login.refused", claimed, peer.host, "http", REFUSED, token=token or None)
            raise Refused(401, "not_authorized", "Login failed")
        try:
            _let_in(user)
        except Refused as error:
            audit.record("login.refused", user.name, peer.host, "http", REFUSED, error.reason, token=user.token)
            raise
        if self._logins.is_new(user, peer.host, self.context.runtime.now()):
            audit.record("login.accepted", user.name, peer.host, "http", token=user.token)
        return user


def _expecting(handle: Raw) -> Raw:
    """What a request expects is looked at before anything else, and by aiohttp: which fails if it is no text."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if (request.headers.get("Expect") or CONTINUE).lower() == CONTINUE:
            return await handle(request)
        response = _error(417, "expectation_failed", f"Expect: {CONTINUE}, or nothing")
        response.headers.update(HEADERS)
        response.force_close()
        return response

    return handler


def _nothing() -> None:
    """The connection is gone."""


async def _metrics(ask: Ask) -> web.Response:
    return await _measured(ask, per_object=False)


async def _metrics_per_object(ask: Ask) -> web.Response:
    """With names of queues and clients."""
    return await _measured(ask, per_object=True)


async def _measured(ask: Ask, per_object: bool) -> web.Response:
    ask.require(MONITORING)
    text = await metrics.collect(ask.context, per_object)
    return web.Response(body=text.encode("utf-8", "replace"), headers={"Content-Type": metrics.CONTENT_TYPE})


def _add(app: web.Application, method: str, path: str, handler: Plain) -> None:
    """What can be got can be asked for its headers alone; and a path of the API may end with a slash."""
    for each in (path, f"{path}/") if path.startswith("/api/") else (path,):
        app.router.add_route(method, each, handler)
        if method == "GET" and path not in api_streams.LONG:
            app.router.add_route("HEAD", each, handler)


def _let_in(user: User) -> None:
    if not any(tag in TAGS for tag in user.tags):
        raise Refused(401, "not_authorized", f"Not management user: '{user.name}' has no tag that lets it in here")


def _from_script(request: web.Request) -> bool:
    """A page's own requests: a browser is not to ask for a password by itself, the page does."""
    return request.headers.get("Sec-Fetch-Dest") == "empty" or "X-Requested-With" in request.headers


class RecentLogins:
    """Who comes with name and password, or a token, logs in with every request: that is told once in a while."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bool | None, str], float] = {}

    def is_new(self, user: User, host: str, now: float) -> bool:
        key = user.name, user.token, host
        last = self._seen.pop(key, None)
        self._seen[key] = now if last is None or now - last >= LOGIN_TOLD else last
        while len(self._seen) > LOGINS_SEEN:
            del self._seen[next(iter(self._seen))]
        return self._seen[key] == now


def peer_of(request: web.Request) -> Endpoint:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not peer:
        raise Refused(400, "bad_request", "the connection is gone")
    return Endpoint(str(peer[0]), int(peer[1]))


def _token(header: str) -> bytes | None:
    scheme, _, text = header.partition(" ")
    return text.strip().encode("utf-8", "replace") if scheme.lower() == "bearer" else None


def _credentials(header: str) -> bytes | None:
    """Name, zero, password."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    name, colon, password = raw.partition(b":")
    return name + b"\0" + password if colon else None


def _error(status: int, error: str, reason: str) -> web.Response:
    return answer({"error": error, "reason": reason}, status)
