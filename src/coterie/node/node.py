"""A node from its configuration: what it is made of, in which order it starts, in which order it stops.

Start: the store recovers, the broker has its queues, the users are there, then the front doors open, and a clustered
node joins the others. Stop: the front doors shut, connections are told so and closed, the others are told, what is not
on disk is written, then the node is gone. Whatever fails on the way up is one clear error, and nothing is left open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.broker.broker import Broker
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage import NullStore, Store
from coterie.broker.store import LogStore, StoreSettings
from coterie.broker.users import USER, Users, UserSettings
from coterie.cluster.core import Core
from coterie.cluster.drain import Drain
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.start import load_everything, make_channel
from coterie.cluster.status import why_closed
from coterie.console.settings import ConsoleSettings
from coterie.errors import CoterieError, UserError
from coterie.log import Log
from coterie.node.events import EventStream
from coterie.node.naming import keep_name
from coterie.node.settings import ListenSettings, endpoint, hosts_of
from coterie.replication.links import Links
from coterie.replication.settings import ReplicationSettings
from coterie.runtime.aio import AioRuntime, FileTracer, Segments, open_trace
from coterie.runtime.aio.tls import Tls
from coterie.runtime.base import Endpoint, TlsConfig
from coterie.trace import Tracer

if TYPE_CHECKING:
    from coterie.console.server import Console

log = Log(__name__)
T = TypeVar("T")

LOCK = "node.lock"
STEP_TIMEOUT = 8.0
"""Seconds for each step of stopping: shut the console, close clients, leave the cluster, write what is not on disk."""
END_TIMEOUT = 5.0
"""Seconds to close sockets and files after that."""


@dataclass(slots=True)
class NodeConfig:
    """Everything that a node is told."""

    name: str
    data: Path | None = None
    """Folder of what must survive a restart; None: nothing does."""
    listen: ListenSettings = field(default_factory=ListenSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    users: UserSettings = field(default_factory=UserSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    bind: str = "127.0.0.1:7800"
    """Where it listens for the others of its cluster."""
    advertise: str = ""
    """The host by which they reach it there; empty: that of `bind`."""
    peers: tuple[str, ...] = ()
    group: str = "coterie"
    secret: str = ""
    trace: Path | None = None
    """Folder that traces are written to; None: none are."""
    segments: Segments | None = None
    """Whether a trace is written in pieces, as streams need it."""
    trace_publish: str = "never"
    """Whether trace events are published: never, later or now."""
    trace_hold: int = 8 << 20


class Node:
    """One of them, inside a running event loop."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._life = int(time.time() * 1000)
        """Its incarnation, in the group and in its trace."""
        wanted = config.trace_publish
        self.events = None if wanted == "never" else EventStream(config.trace_hold, wanted == "now")
        """Its trace as messages, if it may ever be."""
        self._trace = self._open_trace()
        self.runtime = AioRuntime(config.name, disk_dir=config.data, trace=self._trace)
        store: Store = NullStore() if config.data is None else LogStore(self.runtime, config.store)
        self.store = store
        self.core = Core(self.runtime, config.cluster) if config.cluster.size else None
        """None: it stands alone."""
        self.broker = Broker(self.runtime, config.broker, store, self.core.interface if self.core else None)
        self.users = Users(self.runtime, store, config.users)
        self.amqp = Server(self.runtime, self.broker, self.users, config.amqp)
        self.links = Links(self.broker, config.replication)
        if self.core is not None:
            self._join_up(self.core)
        self.console: Console | None = None
        """None: it is shut, or aiohttp is not installed."""
        self._lock: int | None = None
        self._recovered = False
        self._draining: asyncio.Task[None] | None = None
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """Other front doors: what to await, newest first, when the node stops."""

    def _open_trace(self) -> Tracer | None:
        config, events = self.config, self.events
        clocks = time.monotonic, time.time
        if config.trace is not None:
            return open_trace(config.trace, config.group, config.name, self._life, *clocks, config.segments, events)
        if events is not None:
            return Tracer(config.group, config.name, self._life, events, *clocks)
        return None

    def _join_up(self, core: Core) -> None:
        config = self.config
        channel = make_channel(
            self.runtime, core, config.name, config.bind, config.peers, config.cluster, config.group, config.secret,
            incarnation=self._life, advertise=config.advertise,
        )  # fmt: skip
        core.attach(self.broker, channel)
        core.cut_off.append(self.amqp.close_all)
        self.amqp.unavailable = lambda: why_closed(core)

    async def start(self) -> None:
        """Raises CoterieError if it cannot."""
        if self.config.data is not None:
            self._lock = lock(self.config.data)
            keep_name(self.config.data, self.config.name)
        failed = await _done(self.broker.start)
        if failed is not None:
            raise failed if isinstance(failed, CoterieError) else CoterieError(f"the store cannot be read: {failed}")
        self._recovered = True
        kept = [(key, record) for (kind, key), record in self.broker.records.items() if kind == USER]
        self.users.restore(kept)
        self.users.share(self.broker)
        if self.core is not None:
            await load_everything(self.core)
        self.broker.deleting_vhost.append(lambda vhost: self.users.forget_vhost(vhost.name))
        listen = self.config.listen
        if not (listen.amqp or listen.amqps):
            raise UserError("listen.amqp and listen.amqps are both empty: no client could reach the node")
        console = self._make_console() if listen.console else None  # loading it takes a moment: before clients come
        if listen.amqp:
            self._listen(listen.amqp, "listen.amqp")
        tls = listen.tls()
        if tls is not None:
            self._listen(listen.amqps, "listen.amqps", tls)
        if console is not None:
            secure = listen.console_config()
            context = None if secure is None else Tls().context(secure, server=True)
            at = endpoint(listen.console, "listen.console")
            await console.start([Endpoint(host, at.port) for host in hosts_of(at)], context)
            self.closing.append(console.stop)
            self.console = console
            self._tell_where(console)
        if self.core is not None:
            await self.core.connect()
        self.links.start()
        if self.events is not None:
            core = self.core
            self.events.attach(self.runtime, self.broker, lambda: core is None or core.serves)
            self.events.start()
        log.info("the node is up", name=self.config.name, data=self.config.data or "none")

    def _listen(self, where: str, name: str, tls: TlsConfig | None = None) -> None:
        at = endpoint(where, name)
        first, *others = hosts_of(at)
        port = self.amqp.listen(Endpoint(first, at.port), tls).endpoint.port
        for host in others:
            try:
                self.amqp.listen(Endpoint(host, port), tls)
            except UserError:
                if at.port:
                    raise
                log.info("a port that was free is not free there", host=host, port=port)

    def _make_console(self) -> Console | None:
        """The one part that needs more than Python; a node without it is a whole broker."""
        try:
            from coterie.console.server import Console
        except ModuleNotFoundError as error:
            if error.name != "aiohttp":
                raise
            log.warning("no console: aiohttp is not installed", install="pip install 'coterie[console]'")
            return None
        from coterie.console.context import Context

        name, data, settings, listen = self.config.name, self.config.data, self.config.console, self.config.listen
        parts = (self.runtime, self.broker, self.users, self.amqp, self.store)
        more = {"core": self.core, "drain": self.drain, "links": self.links, "events": self.events}
        files = tuple(filter(None, (listen.tls_cert, listen.tls_ca)))
        return Console(Context(name, data, *parts, settings, certificates=files, **more))  # type: ignore[arg-type]

    def _tell_where(self, console: Console) -> None:
        """Readers of streams are sent to this console, too."""
        at, advertise = console.endpoint, self.config.advertise
        host = at.host
        if at.host in ("0.0.0.0", "::"):
            host = advertise or self.config.bind.rpartition(":")[0]
        scheme = "https" if self.config.listen.console_tls else "http"
        url = self.config.console.advertise or f"{scheme}://{f'[{host}]' if ':' in host else host}:{at.port}"
        console.context.url = url
        if self.core is not None:
            self.core.whereabouts.here(url)

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where AMQP clients reach it."""
        return [listener.endpoint for listener in self.amqp.listeners]

    async def drain(self) -> None:
        """Let the clients go, hand over what they held, and leave the cluster; the process stays. Whoever comes later
        waits for the same, and who waits no longer stops nothing. `cluster.drain.why_not` is to be asked before."""
        if self._draining is None:
            assert self.core is not None
            self._draining = asyncio.get_running_loop().create_task(self._drain(self.core))
        await asyncio.shield(self._draining)

    async def _drain(self, core: Core) -> None:
        log.warning("the node is drained: its clients are to go to others")
        core.draining = draining = Drain(core)
        self.amqp.hold_back()
        await draining.answers()
        gone = _ended(lambda done: self.amqp.stop(done, why_closed(core)))
        await draining.hand_over()
        await gone
        log.warning("the node is drained: it can be stopped")

    async def stop(self) -> None:
        """In good order. A step that takes too long is left and named in the log; the next ones are taken."""
        log.info("the node stops")
        if self._draining is not None:
            self._draining.cancel()
        self.links.stop()
        if self.events is not None:
            self.events.stop()
        for close in reversed(self.closing):
            await _within("shut the console", STEP_TIMEOUT, close())
        await _within("close clients", STEP_TIMEOUT, _ended(self.amqp.stop))
        if self.core is not None:
            await _within("leave the cluster", STEP_TIMEOUT, self.core.close())
        if self._recovered:
            await _within("close the store", STEP_TIMEOUT, _ended(self.broker.stop))
        await self._end()
        log.info("the node has stopped", name=self.config.name)

    async def kill(self) -> None:
        """At once, and without a word to anybody: as the death of its process would look from outside. For tests."""
        self.links.stop()
        if self.core is not None:
            self.core.lease.stop()
            self.core.channel.stack.stop()
        self.broker.stop_timers()
        for close in reversed(self.closing):
            await close()
        await self._end()

    async def _end(self) -> None:
        await _within("close sockets and files", END_TIMEOUT, self.runtime.close())
        if isinstance(self._trace, FileTracer):
            self._trace.close()
        if self._lock is not None:
            os.close(self._lock)


def lock(folder: Path) -> int:
    """Two nodes would ruin one folder: UserError if another has it, else what to close in the end."""
    file = folder / LOCK
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"{folder}: another node is using that folder: stop it, or choose another") from None
    return descriptor


async def _within(what: str, seconds: float, step: Awaitable[None]) -> None:
    """Wait for a step of stopping, but not for ever."""
    try:
        async with asyncio.timeout(seconds):
            await step
    except TimeoutError:
        log.warning("a step of stopping took too long and is left", step=what, seconds=seconds)


def _done(call: Callable[[Callable[[T], None]], None]) -> asyncio.Future[T]:
    """A call with a completion, to be awaited."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    call(lambda result: None if future.done() else future.set_result(result))
    return future


def _ended(call: Callable[[Callable[[], None]], None]) -> asyncio.Future[None]:
    """The same for one that has no result."""
    return _done(lambda done: call(lambda: done(None)))
