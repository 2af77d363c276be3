"""Probes and metrics on a listener of their own: for orchestrators, before they send clients or restart a node, and for
Prometheus. No user is needed, and no name of a queue or client is told.

    GET /health/live    whoever answers lives
    GET /health/ready   200 while AMQP clients can come in, else 503
    GET /metrics        totals of the node

Promises: nothing that happens at the other front doors takes a place here. A visit is one request and one answer, and
ends within `probe_timeout`; when all places are taken, the oldest visitor of the address with most goes, one that has
not asked yet first. Metrics are collected once at a time, at most once a second, whoever asks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

from coterie.console import metrics
from coterie.console.context import Context
from coterie.crowd import Crowd
from coterie.errors import UserError
from coterie.logs import Log
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Listener, Stream, StreamHandler, Timer

log = Log(__name__)

HEAD_MAX: Final = 8192
"""Bytes of a request."""
FRESH: Final = 1.0
"""Seconds that metrics are told again as they are."""
REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip
JSON: Final = "application/json"


def why_not_ready(context: Context) -> str:
    """Why AMQP clients cannot come in now; nothing: they can. An alarm is no reason: consumers go on, and end it."""
    if not context.amqp.listeners:
        return "the node does not listen for AMQP: it is stopping, or was drained"
    return context.amqp.unavailable()


class Probes:
    """Of one node; `start` once, `stop` once."""

    endpoint: Endpoint
    """Where it listens; the first, if it does so in more than one place."""

    def __init__(self, context: Context) -> None:
        self.context = context
        most = context.settings.probe_connections_max
        self.visits: Crowd[Visit] = Crowd(most, max(1, most // 2))
        self.turned_away = 0
        self._listeners: list[Listener] = []
        self._collecting: asyncio.Task[bytes] | None = None
        self._collected = 0.0

    def start(self, endpoints: Sequence[Endpoint], admits: Callable[[str], bool] | None = None) -> None:
        """On all of them, and on one port. Raises UserError if one cannot be had. `admits`: whether a visitor may come
        from that host."""
        port = 0
        for at in endpoints:
            try:
                listener = self.context.runtime.net.listen(
                    Endpoint(at.host, at.port or port), lambda: Visit(self), None, admits
                )
            except UserError as error:
                if not at.port and port:
                    log.info("a port that was free is not free there", host=at.host, port=port)
                    continue
                raise UserError(f"listen.probes: {error}") from None
            if not port:
                self.endpoint = listener.endpoint
            port = listener.endpoint.port
            self._listeners.append(listener)
            log.info("listening for probes", at=listener.endpoint)

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        for visit in self.visits:
            visit.leave()
        if self._collecting is not None:
            self._collecting.cancel()

    async def metrics(self) -> bytes:
        now = self.context.runtime.now()
        if self._collecting is None or (self._collecting.done() and now > self._collected + FRESH):
            self._collected = now
            self._collecting = asyncio.get_running_loop().create_task(self._collect())
        return await asyncio.shield(self._collecting)

    async def _collect(self) -> bytes:
        return (await metrics.collect(self.context, per_object=False)).encode("utf-8", "replace")


class Visit(StreamHandler):
    """One connection: a request, its answer, and the end."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._context = probes.context
        self._stream: Stream | None = None
        self._head = bytearray()
        self._asked = False
        self._answering: asyncio.Task[None] | None = None
        self._patience: Timer | None = None

    def connected(self, stream: Stream) -> None:
        self._stream = stream
        visits, host = self._probes.visits, stream.peer.host
        if visits.crowded(host):
            self._probes.turned_away += 1
            # Who has asked goes too: it may never read the answer, or never hang up.
            oldest = visits.who_goes(host, lambda visit: not visit._asked) or visits.who_goes(host)
            if oldest is not None:
                oldest.leave()
        visits.add(self, host)
        self._patience = self._context.runtime.call_later(self._context.settings.probe_timeout, self.leave)

    def received(self, data: Buffer) -> None:
        if self._asked:
            return
        self._head += data
        if b"\r\n\r\n" not in self._head and b"\n\n" not in self._head:
            if len(self._head) > HEAD_MAX:
                self.answer(400, JSON, _error("bad_request", f"a request has up to {HEAD_MAX} bytes here"))
            return
        self._asked = True
        words = bytes(self._head[:HEAD_MAX]).split(b"\n", 1)[0].split()
        self._head.clear()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self.answer(400, JSON, _error("bad_request", "this is not HTTP/1.1"))
            return
        method, path = words[0], words[1].split(b"?", 1)[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            self.answer(405, JSON, _error("method_not_allowed", "GET or HEAD"))
            return
        self._find(path, alone=method == b"HEAD")

    def _find(self, path: str, alone: bool) -> None:
        """`alone`: the headers alone."""
        if path == "/health/live":
            self.answer(200, JSON, b'{"status": "ok"}', alone)
        elif path == "/health/ready":
            why = why_not_ready(self._context)
            said: dict[str, str] = {"status": "failed", "reason": why} if why else {"status": "ok"}
            self.answer(503 if why else 200, JSON, json.dumps(said).encode(), alone)
        elif path == "/metrics":
            self._answering = asyncio.get_running_loop().create_task(self._metrics(alone))
        else:
            text = "here are /health/live, /health/ready and /metrics; metrics of each object are at the console"
            self.answer(404, JSON, _error("not_found", text), alone)

    async def _metrics(self, alone: bool) -> None:
        try:
            text = await self._probes.metrics()
        except Exception as error:
            log.error("no metrics could be collected", why=repr(error))
            self.answer(500, JSON, _error("internal_error", "the node's log says what happened"), alone)
        else:
            self.answer(200, metrics.CONTENT_TYPE, text, alone)

    def answer(self, status: int, kind: str, body: bytes, alone: bool = False) -> None:
        self._asked = True
        if self._stream is None:
            return
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        self._stream.write([head.encode(), b"" if alone else body])
        self._stream.close()

    def leave(self) -> None:
        if self._stream is not None:
            self._stream.abort()
        self._gone()

    def closed(self, reason: CloseReason) -> None:
        self._stream = None
        self._gone()

    def _gone(self) -> None:
        self._probes.visits.remove(self)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._answering is not None:
            self._answering.cancel()
            self._answering = None


def _error(error: str, reason: str) -> bytes:
    return json.dumps({"error": error, "reason": reason}).encode()
