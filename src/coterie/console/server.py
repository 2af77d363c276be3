"""The console's front door: aiohttp, inside the node's own loop.

Promises: nobody is answered without logging in, but for metrics, probes and the page's own files; a browser's request
that another site made changes nothing; bodies and requests are bounded; every error is JSON, {"error", "reason"}, and
no error takes the node along.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import ssl
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from coterie.amqp.codes import ACCESS_REFUSED, NAMES, NOT_FOUND, RESOURCE_LOCKED
from coterie.broker.leases import Gone
from coterie.broker.users import TAGS, User, is_loopback
from coterie.console import (
    api_access,
    api_broker,
    api_clients,
    api_cluster,
    api_features,
    api_health,
    api_leases,
    api_live,
    api_log,
    api_messages,
    api_parameters,
    api_policies,
    api_replication,
    api_session,
    api_streams,
    api_tracing,
    api_wiring,
    metrics,
)
from coterie.console.ask import Ask, Handler, Refused, answer, text_of
from coterie.console.assets import Assets
from coterie.console.context import Context, Late
from coterie.console.probes import PROBES
from coterie.console.sessions import TOKEN, Session, proves
from coterie.errors import CoterieError, ProtocolError, UserError
from coterie.log import Log
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
SHUTDOWN: Final = 5.0
"""Seconds that requests have to end when the node stops."""
Plain = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Console:
    """Of one node; `start` once, `stop` once."""

    endpoint: Endpoint
    """Where it listens; the first, if it does so in more than one place."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._answering = 0
        self._watching: asyncio.Task[None] | None = None
        self._listeners: list[asyncio.Server] = []

        @web.middleware
        async def guard(request: web.Request, handler: Plain) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(client_max_size=context.settings.body_max, middlewares=[guard])
        routes = [
            *api_broker.ROUTES, *api_wiring.ROUTES, *api_messages.ROUTES, *api_clients.ROUTES, *api_access.ROUTES,
            *api_policies.ROUTES, *api_replication.ROUTES, *api_leases.ROUTES, *api_streams.ROUTES, *api_log.ROUTES,
            *api_tracing.ROUTES, *api_health.ROUTES, *api_parameters.ROUTES, *api_features.ROUTES,
        ]  # fmt: skip
        for method, path, handler in (*routes, *api_live.routes(routes)):
            _add(app, method, path, self._logged_in(handler))
        for method, path, handler in (*api_cluster.ROUTES, *api_session.ROUTES):
            _add(app, method, path, self._logged_in(handler, always=True))
        _add(app, "POST", "/api/session", self._begin_session)
        assets = Assets()
        _add(app, "GET", "/", assets.page)
        _add(app, "GET", "/static/{path:.+}", assets.file)
        for path, per_object in (("/metrics", False), ("/metrics/per-object", True)):
            _add(app, "GET", path, self._metrics(per_object))
        for path, probe in PROBES:
            _add(app, "GET", path, self._probe(probe))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN, keepalive_timeout=75.0)

    async def start(self, endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None = None) -> None:
        """On all of them, and on one port: if that is to be a free one, the first decides. Raises UserError if one
        cannot be had."""
        await self._runner.setup()
        self.context.logbook.open()
        port = 0
        for at in endpoints:
            try:
                port = await self._listen(at.host, at.port or port, tls)
            except OSError as error:
                if not at.port and port:
                    log.info("a port that was free is not free there", host=at.host, port=port)
                    continue
                self.context.logbook.close()
                self._close_listeners()
                await self._runner.cleanup()
                why = error.strerror or str(error)
                raise UserError(f"listen.console: {at} cannot be had: {why.lower()}") from None
        self._watching = asyncio.get_running_loop().create_task(self.context.watch())

    async def _listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        listener = await asyncio.get_running_loop().create_server(self._accept, host, port, ssl=tls)
        bound = listener.sockets[0].getsockname()
        at = Endpoint(str(bound[0]), int(bound[1]))
        if not self._listeners:
            self.endpoint = at
        self._listeners.append(listener)
        log.info("listening for HTTP" if tls is None else "listening for HTTPS", at=at)
        return at.port

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self.context.settings.connections_max:
            return TurnedAway()
        return server()

    async def stop(self) -> None:
        """Requests that are being answered are, within a few seconds."""
        self._close_listeners()
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._runner.cleanup()
        self.context.logbook.close()

    # Every request.

    async def _guard(self, request: web.Request, handler: Plain) -> web.StreamResponse:
        self._answering += 1
        try:
            response = await self._answered(request, handler)
        finally:
            self._answering -= 1
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _answered(self, request: web.Request, handler: Plain) -> web.StreamResponse:
        try:
            if self._answering > self.context.settings.requests_max:
                raise Refused(503, "too_many_requests", "too many requests are being answered (requests_max)")
            self._check_origin(request)
            return await handler(request)
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
            why = "" if always or request.method in SAFE else self.context.amqp.unavailable()
            if why:
                raise Refused(503, "unavailable", f"this broker does not serve now: {why}")
            return await handler(Ask(self.context, request, user, session))

        return handle

    async def _who(self, request: web.Request) -> tuple[User, Session | None]:
        """By the page's cookie, or by name and password."""
        found = self.context.sessions.find(request.cookies, peer_of(request).host)
        if found is None:
            credentials = _credentials(request.headers.get("Authorization", ""))
            if credentials is None:
                raise Refused(401, "not_authorized", "log in with a user's name and password")
            return await self._login(request, credentials), None
        user, session = found
        if request.method not in SAFE and not proves(session, request.headers.get(TOKEN, "")):
            raise Refused(403, "access_refused", f"the header {TOKEN} is not the one of this login: load the page anew")
        _let_in(user)
        return user, session

    async def _begin_session(self, request: web.Request) -> web.StreamResponse:
        nobody = Ask(self.context, request, User("", None))
        body = await nobody.body("name", "password")
        name, password = text_of(body, "name"), text_of(body, "password")
        credentials = f"{name}\0{password}".encode("utf-8", "surrogateescape")
        user = await self._login(request, credentials)
        return api_session.begin(Ask(self.context, request, user), self.context.sessions, peer_of(request).host)

    async def _login(self, request: web.Request, credentials: bytes) -> User:
        future: asyncio.Future[User | ProtocolError] = asyncio.get_running_loop().create_future()

        def decided(result: User | ProtocolError) -> None:
            if not future.done():
                future.set_result(result)

        self.context.users.login("PLAIN", b"\0" + credentials, peer_of(request), None, decided)
        user = await future
        if isinstance(user, ProtocolError):
            raise Refused(401, "not_authorized", "Login failed")
        _let_in(user)
        return user

    def _metrics(self, per_object: bool) -> Plain:
        async def handle(request: web.Request) -> web.StreamResponse:
            text = await metrics.collect(self.context, per_object)
            return web.Response(body=text.encode("utf-8", "replace"), headers={"Content-Type": metrics.CONTENT_TYPE})

        return handle

    def _probe(self, probe: Callable[[Context], web.Response]) -> Plain:
        async def handle(request: web.Request) -> web.StreamResponse:
            return probe(self.context)

        return handle


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


class TurnedAway(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def peer_of(request: web.Request) -> Endpoint:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not peer:
        raise Refused(400, "bad_request", "the connection is gone")
    return Endpoint(str(peer[0]), int(peer[1]))


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
