"""A client for queues as streams, with nothing but Python: leases, tails, and ranges of messages from any broker.

It is given several URLs. Who does not answer, or says that it cannot now, is passed over for the next; every request
may be made again without harm, and a read that is cut off goes on at another broker behind the last row that came. It
blocks, and is for one thread at a time. docs/streams.md is the contract.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from coterie.errors import CoterieError, UserError
from coterie.streams.columns import BATCH, FAILED, Batch, NoFrame, batch_of, read_frame

FIRST_PAUSE: Final = 0.02
LAST_PAUSE: Final = 0.5
"""Seconds between two rounds in which nobody could answer."""
PORT: Final = 15672
_TOO_MANY: Final = 429
Json = dict[str, Any]


class StreamError(CoterieError):
    """A request that failed."""


class Refused(StreamError):
    """Who asks may not (401, 403), or what is asked for makes no sense (400)."""


class NotFound(StreamError):
    """There is no such vhost, queue or lease."""


class Conflict(StreamError):
    """The lease is with another session."""


class Gone(StreamError):
    """What was asked about was there, and will never be again."""


class Unavailable(StreamError):
    """Nobody could answer, for as long as the client's patience lasts."""


_ERRORS: Final[dict[int, type[StreamError]]] = {404: NotFound, 409: Conflict, 410: Gone}


class _NotNow(Exception):
    """Another broker, or the same one later."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker that is in step."""

    name: str
    url: str | None
    """Of its console; None: it has none, or it is not known yet."""
    this: bool
    """It is the one that was asked."""


@dataclass(frozen=True, slots=True)
class Tail:
    """How far a queue has come, as of one place of the log."""

    vhost: str
    name: str
    incarnation: int
    first: int
    """The lowest position in it; `next` if it is empty."""
    next: int
    """The position that the next message gets."""
    ready: int
    ready_bytes: int
    messages: int
    bytes: int
    leased: int
    at: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbours: the message at `position` has `offset`, the next position the next offset."""

    offset: int
    position: int
    last: int
    redelivered: bool

    @property
    def stop(self) -> int:
        return self.offset + self.last - self.position + 1


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease was when a broker told."""

    vhost: str
    queue: str
    incarnation: int
    name: str
    id: int
    user: str
    session: str
    since: int
    first: int
    next: int
    count: int
    bytes: int
    first_position: int | None
    last_position: int | None
    at: str = "0.0"
    lag: int = 0
    """Messages that its reader has not retired: those that it holds, and those that are ready."""
    idle: int = 0
    """Seconds since a step of it was taken."""
    expires_after: float = 0.0
    """Seconds without a step after which it ends; 0: never."""
    pieces: tuple[Piece, ...] = ()
    """Empty in lists."""
    acquired: int = 0
    """By the call that gave this."""
    more: bool = False
    """There may be more for the taking."""

    @staticmethod
    def of(said: Json) -> Lease:
        known = {key: value for key, value in said.items() if key in _LEASE_FIELDS}
        return Lease(**{**known, "pieces": tuple(Piece(*each) for each in said.get("pieces", ()))})


_LEASE_FIELDS: Final = frozenset(each.name for each in fields(Lease))
"""A newer broker may tell more."""


@dataclass(slots=True)
class _Server:
    """One URL."""

    secure: bool
    host: str
    port: int
    base: str
    connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.base}"


class Client:
    """Of one cluster, or of a broker that stands alone."""

    def __init__(
        self,
        urls: Sequence[str] | str,
        user: str | None = None,
        password: str | None = None,
        vhost: str = "/",
        *,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        verify: bool = True,
        context: ssl.SSLContext | None = None,
        timeout: float = 30.0,
        patience: float = 60.0,
    ) -> None:
        """`timeout`: seconds without a byte after which a broker is passed over. `patience`: seconds after which nobody
        is asked any more. User and password may be in the first URL that has some. Raises UserError."""
        urls = [urls] if isinstance(urls, str) else [*urls]
        if not urls:
            raise UserError("a client needs the URL of a broker's console at least")
        self.vhost = vhost
        self._timeout = timeout
        self._patience = patience
        self._servers: list[_Server] = []
        for url in urls:
            server, name, secret = _parse(url)
            if user is None and name is not None:
                user, password = name, secret
            self._add(server)
        self._secure = any(server.secure for server in self._servers)
        credentials = f"{user or 'guest'}:{'guest' if user is None and password is None else password or ''}"
        self._authorization = "Basic " + base64.b64encode(credentials.encode()).decode()
        self._context = context
        if context is None and (self._secure or ca_file):
            self._context = _context(ca_file, cert_file, key_file, verify)
        self._turns = 0
        self.asked = ""
        """The URL of the broker that has answered last."""

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self.urls)}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def urls(self) -> list[str]:
        """In the order in which they are asked."""
        return [server.where for server in self._servers]

    def close(self) -> None:
        for server in self._servers:
            _drop(server)

    # Where, and up to where.

    def nodes(self) -> list[Node]:
        said = self._ask("GET", "/api/streams/nodes")
        return [Node(each["name"], each["url"], each["this"]) for each in said["nodes"]]

    def spread(self, first: int = 0) -> list[str]:
        """Also use the addresses of all brokers that are in step, and begin with the one of that number: so that
        several readers ask different ones. Gives the URLs in their order. If any URL that it was given is https, an
        address without TLS is left out, whoever tells it: the password would go there in the clear."""
        return self.prefer([node.url for node in self.nodes() if node.url is not None], first)

    def prefer(self, urls: Sequence[str], first: int = 0) -> list[str]:
        """Use these addresses, which a broker has told, beginning with the one of that number; the others after
        them. As `spread`, but nobody is asked."""
        known = {server.where: server for server in self._servers}
        found = [server for url in urls if (server := self._told(url)) is not None]
        for server in found:
            if server.where not in known:
                self._add(server)
                known[server.where] = server
        order = [known[server.where] for server in found]
        at = first % len(order) if order else 0
        order = order[at:] + order[:at]
        self._servers = order + [server for server in self._servers if server not in order]
        return self.urls

    def _told(self, url: str) -> _Server | None:
        """An address that a broker has told, if it may be asked."""
        try:
            server = _parse(url)[0]
        except UserError:
            return None
        return server if server.secure or not self._secure else None

    def tails(
        self, names: Sequence[str] = (), pattern: str | None = None, *, wait: float = 0.0, ready: int = 1
    ) -> list[Tail]:
        """Of queues by their names, or whose whole names match; those that there are not are left out. `wait`: seconds
        that the broker waits at most until they have `ready` messages together that nobody holds."""
        query = [("vhost", self.vhost), *(("name", name) for name in names)]
        if pattern is not None:
            query.append(("pattern", pattern))
        if wait:
            query += [("wait", str(int(wait * 1000))), ("ready", str(ready))]
        said = self._ask("GET", f"/api/streams/tails?{urlencode(query)}")
        return [Tail(**each, at=said["at"]) for each in said["queues"]]

    def cut(self, queue: str) -> Tail:
        """One queue as of one place of the log, to read it from."""
        return Tail(**self._ask("GET", self._path("streams/cut", queue)))

    # Leases.

    def leases(self) -> list[Lease]:
        return [Lease.of(each) for each in self._ask("GET", f"/api/leases/{quote(self.vhost, safe='')}")]

    def lease(self, queue: str, name: str) -> Lease | None:
        """None: there is none. Ask for nothing but what a broker knows that may be a moment behind."""
        try:
            return Lease.of(self._ask("GET", self._path("leases", queue, name)))
        except NotFound:
            return None

    def fits(self, lease: Lease, first: int, bytes: int) -> int:
        """The offset up to which what the lease holds, from `first` on, has so many bytes of bodies at most; one
        message always fits."""
        query = urlencode({"from": first, "bytes": bytes})
        path = self._path("leases", lease.queue, lease.name, vhost=lease.vhost)
        said = self._ask("GET", f"{path}?{query}")
        if said["id"] != lease.id:
            raise Gone(f"the lease '{lease.name}' of queue '{lease.queue}' has ended")
        return int(said.get("fits", said["next"]))  # an older broker does not tell

    def acquire(
        self,
        queue: str,
        name: str,
        session: str,
        rows: int | None = None,
        bytes: int | None = None,
        *,
        after: int | None = None,
        first: int = 0,
        last: int | None = None,
        incarnation: int | None = None,
        id: int | None = None,
    ) -> Lease:
        """Take up to so many messages, or so many bytes, or all that are ready, at positions from `first` to `last`.
        `after`: only if that is the lease's next offset; it makes the whole call safe to repeat."""
        body: Json = {"session": session, "from": first}
        for key, value in (("upto", last), ("incarnation", incarnation), ("id", id)):
            if value is not None:
                body[key] = value
        known = self.lease(queue, name) if after is None else None
        size = 0 if known is None else known.bytes
        at = (0 if known is None else known.next) if after is None else after
        taken, begun = 0, False
        while True:
            body["after"] = at
            if rows is not None:
                body["rows"] = rows - taken
            if bytes is not None:
                body["bytes"] = bytes
            lease = Lease.of(self._ask("POST", self._path("leases", queue, name, "acquire"), body))
            if lease.next != at + lease.acquired and not begun and after is None:
                # It had gone on before: whoever told of it was behind.
                begun, at, size = True, lease.next, lease.bytes
                continue
            begun = True
            taken += lease.next - at
            if bytes is not None:
                bytes -= max(lease.bytes - size, 0)
            at, size = lease.next, lease.bytes
            enough = (rows is not None and taken >= rows) or (bytes is not None and bytes <= 0)
            if enough or not lease.more or not lease.acquired:
                return replace(lease, acquired=taken)

    def retire(self, lease: Lease, upto: int) -> Lease:
        """What has an offset below is done with, for good."""
        return self._step(lease, "retire", {"upto": upto})

    def release(self, lease: Lease, from_offset: int = 0) -> Lease:
        """What has that offset, or a higher one, is ready again, flagged as redelivered."""
        return self._step(lease, "release", {"from": from_offset})

    def take(self, lease: Lease, session: str) -> Lease:
        """From now on that session may change it, and no other."""
        return self._step(replace(lease, session=session), "take", {})

    def renew(self, lease: Lease) -> Lease:
        """Nothing happens to it, but it is used: it does not end for being idle."""
        return self._step(lease, "retire", {"upto": 0})

    def _step(self, lease: Lease, do: str, body: Json) -> Lease:
        path = self._path("leases", lease.queue, lease.name, do, vhost=lease.vhost)
        while True:
            found = Lease.of(self._ask("POST", path, {"session": lease.session, "id": lease.id, **body}))
            if not found.more:
                return found

    def end(self, lease: Lease) -> None:
        """What it holds is ready again, and it is no more."""
        query = urlencode({"session": lease.session, "id": lease.id})
        path = self._path("leases", lease.queue, lease.name, vhost=lease.vhost)
        try:
            self._ask("DELETE", f"{path}?{query}")
        except NotFound:
            pass  # the answer to a first try was lost

    # Messages.

    def read_lease(self, lease: Lease, first: int, stop: int, missing: str = "error") -> Iterator[Batch]:
        """Those with offsets from `first` up to, and without, `stop`, in their order. `missing` = "skip": what was
        released or retired is left out instead of Gone."""
        path = self._path("streams/read", lease.queue, vhost=lease.vhost)
        query = {
            "incarnation": lease.incarnation, "at": lease.at, "lease": lease.name, "id": lease.id, "to": stop,
            "missing": missing,
        }  # fmt: skip
        return self._read(path, query, "from", first) if first < stop else iter(())

    def read_range(self, cut: Tail, first: int | None = None, last: int | None = None) -> Iterator[Batch]:
        """A browse: everything that is at positions from `first` to `last`; without them, all of the cut."""
        path = self._path("streams/read", cut.name, vhost=cut.vhost)
        last = cut.next - 1 if last is None else last
        query = {"incarnation": cut.incarnation, "at": cut.at, "last": last}
        first = cut.first if first is None else first
        return self._read(path, query, "first", first) if first <= last else iter(())

    def _read(self, path: str, query: Json, key: str, at: int) -> Iterator[Batch]:
        """`key`: of the query, where to begin."""
        patience = _Patience(self._patience)
        while True:
            try:
                for batch in self._stream(f"{path}?{urlencode({**query, key: at})}"):
                    at = (batch.offset or batch.position)[-1] + 1
                    yield batch
                    patience.begin()  # not counted: what whoever reads did with the batch, for however long
                return
            except _NotNow as error:
                patience.pause(error, self._next_server())

    def _stream(self, path: str) -> Iterator[Batch]:
        """From the broker whose turn it is. Raises _NotNow when that fails."""
        server = self._servers[0]
        try:
            response = self._request(server, "GET", path, None)
            if response.status != 200:
                self._refuse(response.status, response.read())

            def read(size: int) -> memoryview:
                data = memoryview(bytearray(size))
                got = 0
                while got < size:
                    some = response.readinto(data[got:])
                    if not some:
                        raise _NotNow(f"{server.where} ended in the middle")
                    got += some
                return data

            while True:
                kind, said, data = read_frame(read)
                if kind == BATCH:
                    yield batch_of(said, data)
                    continue
                if kind == FAILED:
                    text = f"{server.where}: {said.get('reason')}"
                    if said.get("error") == "gone":
                        raise Gone(text)
                    raise _NotNow(text)
                response.read()  # the end of it, so that the connection may be used again
                self.asked = server.where
                return
        except (OSError, http.client.HTTPException, NoFrame) as error:
            _drop(server)
            raise _NotNow(f"{server.where}: {_why(error)}") from None
        except GeneratorExit:
            _drop(server)  # the rest of the answer is on its way
            raise
        except (_NotNow, StreamError):
            _drop(server)
            raise

    # Requests.

    def _path(self, kind: str, *parts: str, vhost: str | None = None) -> str:
        names = (self.vhost if vhost is None else vhost, *parts)
        return f"/api/{kind}/" + "/".join(quote(part, safe="") for part in names)

    def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        """What the first one answers that can."""
        patience = _Patience(self._patience)
        while True:
            server = self._servers[0]
            try:
                response = self._request(server, method, path, body)
                text = response.read()
                if response.status >= 300:
                    self._refuse(response.status, text)
                self.asked = server.where
                return json.loads(text) if text else None
            except (OSError, http.client.HTTPException, ValueError) as error:
                _drop(server)
                patience.pause(_NotNow(f"{server.where}: {_why(error)}"), self._next_server())
            except _NotNow as error:
                patience.pause(error, self._next_server())

    def _request(self, server: _Server, method: str, path: str, body: Json | None) -> http.client.HTTPResponse:
        """Brokers close connections that are not used: then it is asked once more, on a new one."""
        if server.connection is not None:
            try:
                return self._request_on(server, method, path, body)
            except (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest):
                _drop(server)
        return self._request_on(server, method, path, body)

    def _request_on(self, server: _Server, method: str, path: str, body: Json | None) -> http.client.HTTPResponse:
        connection = server.connection
        if connection is None:
            if server.secure:
                context = self._context or _context(None, None, None, True)
                connection = http.client.HTTPSConnection(
                    server.host, server.port, timeout=self._timeout, context=context
                )
            else:
                connection = http.client.HTTPConnection(server.host, server.port, timeout=self._timeout)
            server.connection = connection
        headers = {"Authorization": self._authorization}
        data = None
        if body is not None:
            data = json.dumps(body)
            headers["Content-Type"] = "application/json"
        connection.request(method, server.base + path, data, headers)
        return connection.getresponse()

    def _refuse(self, status: int, text: bytes) -> None:
        """Raises what an answer with this status means."""
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        reason = said.get("reason") if isinstance(said, dict) else None
        shown = str(reason or f"the broker answers {status}")
        if status >= 500 or status == _TOO_MANY:
            raise _NotNow(shown)
        raise _ERRORS.get(status, Refused)(shown)

    def _next_server(self) -> bool:
        """Another one's turn; whether all have had theirs."""
        self._servers.append(self._servers.pop(0))
        self._turns = (self._turns + 1) % len(self._servers)
        return self._turns == 0

    def _add(self, server: _Server) -> None:
        if server.where not in (known.where for known in self._servers):
            self._servers.append(server)


class _Patience:
    """How long it is tried."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        self._until = time.monotonic() + self._seconds
        self._pause = FIRST_PAUSE

    def pause(self, why: _NotNow, all_asked: bool) -> None:
        """Before the next is asked; Raises Unavailable if it has been long enough."""
        if time.monotonic() >= self._until:
            raise Unavailable(f"nobody could answer for {self._seconds:g} s; the last one: {why}") from None
        if all_asked:
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, LAST_PAUSE)


def _parse(url: str) -> tuple[_Server, str | None, str | None]:
    """With the user and the password that are in it."""
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise UserError(f"{shown}: it should read http://host:{PORT}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{shown}: it should read http://host:{PORT}")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return _Server(parts.scheme == "https", parts.hostname, port or PORT, parts.path.rstrip("/")), user, password


def _context(ca_file: str | None, cert_file: str | None, key_file: str | None, verify: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"the certificates cannot be used: {_why(error)}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _drop(server: _Server) -> None:
    if server.connection is not None:
        server.connection.close()
        server.connection = None


def _why(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


__all__ = [
    "Client", "Conflict", "Gone", "Lease", "Node", "NotFound", "Piece", "Refused", "StreamError", "Tail",
    "Unavailable",
]  # fmt: skip
