"""A node from its configuration: what it is made of, in which order it starts, in which order it stops.

Start: the store recovers, the broker has its queues, the users are there, then the front doors open, and a clustered
node joins the others. Stop: the front doors shut, connections are told so and closed, the others are told, what is not
on disk is written, then the node is gone. Whatever fails on the way up is one clear error, and nothing is left open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coterie.addresses import AllowList
from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.auditlog.files import AuditFiles
from coterie.auditlog.log import AuditLog
from coterie.auditlog.settings import AuditSettings
from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage import NullStore, Store
from coterie.broker.trace_exchange import EventStream
from coterie.broker.users import USER, Users, UserSettings
from coterie.cluster.member import Member
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.start import make_channel
from coterie.console.settings import ConsoleSettings
from coterie.errors import CoterieError, UserError
from coterie.group.members import Address
from coterie.logs import Log
from coterie.node.audit_exchange import AuditExchange
from coterie.node.group_port import GroupPort
from coterie.node.naming import keep_name
from coterie.node.security_checks import UNSAFE, findings, report
from coterie.node.security_facts import Facts, facts_of, of_running, with_guesses
from coterie.node.settings import ListenSettings, endpoint, hosts_of
from coterie.oauth.settings import OauthSettings
from coterie.runtime.aio import AioRuntime, FileTracer, Segments, open_trace
from coterie.runtime.aio.certificates import CertificateWatch
from coterie.runtime.aio.tls import Tls
from coterie.runtime.base import Endpoint, TlsConfig, resolve
from coterie.site_replication.links import Links
from coterie.site_replication.settings import ReplicationSettings
from coterie.trace import Tracer

if TYPE_CHECKING:
    from coterie.console.context import Context
    from coterie.console.probes import Probes
    from coterie.console.server import Console

log = Log(__name__)
T = TypeVar("T")

LOCK = "node.lock"
AUDIT_FOLDER = "audit"
"""In the data folder."""
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
    audit: AuditSettings = field(default_factory=AuditSettings)
    group_port: GroupPort = field(default_factory=lambda: GroupPort("127.0.0.1:7800"))
    """Where it listens for the others of its cluster, where they are, and how that is protected."""
    group: str = "coterie"
    trace: Path | None = None
    """Folder that traces are written to; None: none are."""
    segments: Segments | None = None
    """Whether a trace is written in pieces, as streams need it."""
    trace_publish: str = "never"
    """Whether trace events are published: never, later or now."""
    trace_hold: int = 8 << 20
    secret_file: str = ""
    """Where the secret came from; empty: not from a file."""
    guest: bool = True
    """It is not the only thing in its process, so that the process's memory says nothing about it."""
    oauth: OauthSettings = field(default_factory=OauthSettings)

    def check(self) -> None:
        """Whether its settings make sense together, without looking at anything else. Raises UserError."""
        self.listen.check()
        self.oauth.on()


class Node:
    """One of them, inside a running event loop."""

    def __init__(self, config: NodeConfig) -> None:
        config.check()
        self.config = config
        self._transport = config.group_port.tcp() if config.cluster.size else {}
        """What protects the port for the other brokers: first of all, for nothing may be open if it is not safe."""
        self._life = int(time.time() * 1000)
        """Its incarnation, in the group and in its trace."""
        wanted = config.trace_publish
        self.events = None if wanted == "never" else EventStream(config.trace_hold, wanted == "now")
        """Its trace as messages, if it may ever be."""
        self._trace = self._open_trace()
        self.runtime = AioRuntime(config.name, disk_dir=config.data, trace=self._trace, guest=config.guest)
        store: Store = NullStore() if config.data is None else LogStore(self.runtime, config.store)
        self.store = store
        us = Address(config.name, self._life)
        self.member = Member(self.runtime, config.cluster, us) if config.cluster.size else None
        """None: it stands alone."""
        self.audit = AuditLog(config.group, config.name, self._life, self.runtime.now, self.runtime.wall, config.audit)
        self._audit_files = self._open_audit_files()
        self._audit_exchange = AuditExchange(config.audit.hold) if config.audit.publish else None
        self.audit.sinks += [sink for sink in (self._audit_files, self._audit_exchange) if sink is not None]
        self.broker = Broker(self.runtime, config.broker, store, self.member.proposer if self.member else None)
        self.broker.audit = self.audit
        self.users = Users(self.runtime, store, config.users)
        self.amqp = Server(self.runtime, self.broker, self.users, config.amqp)
        self.links = Links(self.broker, config.replication)
        _check_certificates(self.links, config.replication)
        if self.member is not None:
            self._join_up(self.member)
        self.console: Console | None = None
        """None: it is shut, or aiohttp is not installed."""
        self.probes: Probes | None = None
        """None: it is shut."""
        self.certificates = CertificateWatch(self.runtime, self.runtime.net.tls, config.listen.tls_reload)
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

    def _open_audit_files(self) -> AuditFiles | None:
        settings, data = self.config.audit, self.config.data
        folder = Path(settings.folder) if settings.folder else None if data is None else data / AUDIT_FOLDER
        if folder is None:
            return None
        return AuditFiles(folder, self.config.name, self._life, settings.segment_bytes, settings.segments_kept)

    def _take_tokens(self) -> None:
        """Logins with tokens, if there is an issuer. What they need is an extra."""
        if not self.config.oauth.on():
            return
        try:
            from coterie.oauth.fetching import check_ca
            from coterie.oauth.logins import TokenLogins
        except ModuleNotFoundError as error:
            if error.name != "jwt":
                raise
            raise UserError("[oauth] needs PyJWT: pip install 'coterie[secure]', or leave the section out") from None
        check_ca(self.config.oauth.ca)
        tokens = self.users.tokens = TokenLogins(self.runtime, self.config.oauth)
        tokens.start()

    def _join_up(self, member: Member) -> None:
        config, port = self.config, self.config.group_port
        channel = make_channel(
            self.runtime, member, port.bind, port.peers, config.cluster, config.group,
            tcp={"advertised_host": port.advertise, **self._transport},
        )  # fmt: skip
        member.attach(self.broker, channel)
        member.replica.beginning = {"users.guest": config.users.guest}
        member.cut_off.append(self.amqp.close_all)
        member.head_counts.attach(self.amqp)
        self.amqp.unavailable = member.why_closed

    async def start(self) -> None:
        """Raises CoterieError if it cannot."""
        self._take_tokens()
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
        if self.member is not None:
            await self.member.load()
        self.broker.deleting_vhost.append(lambda vhost: self.users.forget_vhost(vhost.name))
        listen = self.config.listen
        allowed = {door: listen.allowed(door) for door in ("amqp", "amqps", "console", "probes")}
        # Loading them takes a moment: before clients come.
        console = self._make_console() if listen.console else None
        probes = self._make_probes(console) if listen.probes else None
        if listen.amqp:
            self._listen(listen.amqp, "listen.amqp", allowed["amqp"])
        tls = listen.tls()
        if tls is not None:
            self._listen(listen.amqps, "listen.amqps", allowed["amqps"], tls)
        if console is not None:
            secure, at = listen.console_config(), endpoint(listen.console, "listen.console")
            context = None if secure is None else self._context_of(secure)
            await console.start([Endpoint(host, at.port) for host in hosts_of(at)], context, allowed["console"].admits)
            self.closing.append(console.stop)
            self.console = console
            self._tell_where(console)
        if probes is not None:
            at = endpoint(listen.probes, "listen.probes")
            probes.start([Endpoint(host, at.port) for host in hosts_of(at)], allowed["probes"].admits)
            self.closing.append(probes.stop)
            self.probes = probes
        self.certificates.start()
        if self.member is not None:
            await self.member.connect()
        self.links.start()
        if self.events is not None:
            member = self.member
            self.events.attach(self.runtime, self.broker, lambda: member is None or member.replica.serves)
            self.events.start()
        if self._audit_exchange is not None:
            member = self.member
            self._audit_exchange.start(self.runtime, self.broker, lambda: member is None or member.replica.serves)
        self.audit.start(self.runtime)
        self.audit.record("node.started", "", "", "node")
        for found in findings(await self.security()):
            if found.severity == UNSAFE:
                log.warning("unsafe", check=found.check, what=found.text, mend=found.mend)
        log.info("the node is up", name=self.config.name, data=self.config.data or "none")

    def _context_of(self, secure: TlsConfig) -> Callable[[], ssl.SSLContext]:
        """The TLS context of that moment. Raises UserError at once if its files are no good."""
        tls = self.runtime.net.tls
        tls.context(secure, server=True)
        return lambda: tls.context(secure, server=True)

    def _listen(self, where: str, name: str, allowed: AllowList, tls: TlsConfig | None = None) -> None:
        at = endpoint(where, name)
        first, *others = hosts_of(at)
        port = self.amqp.listen(Endpoint(first, at.port), tls, allowed.admits).endpoint.port
        for host in others:
            try:
                self.amqp.listen(Endpoint(host, port), tls, allowed.admits)
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
        return Console(self._make_context())

    def _make_probes(self, console: Console | None) -> Probes:
        from coterie.console.probes import Probes

        return Probes(self._make_context() if console is None else console.context)

    def _make_context(self) -> Context:
        from coterie.console.context import Context

        name, data, settings, listen = self.config.name, self.config.data, self.config.console, self.config.listen
        parts = (self.runtime, self.broker, self.users, self.amqp, self.store)
        more = {
            "member": self.member, "drain": self.drain, "links": self.links, "events": self.events,
            "security_report": self.security_report,
        }  # fmt: skip
        group_cert, _, group_ca = self.config.group_port.certificates
        files = tuple(filter(None, (listen.tls_cert, listen.tls_ca, group_cert, group_ca)))
        return Context(name, data, *parts, settings, certificates=files, **more)  # type: ignore[arg-type]

    def _tell_where(self, console: Console) -> None:
        """Readers of streams are sent to this console, too."""
        at, port = console.endpoint, self.config.group_port
        host = at.host
        if at.host in ("0.0.0.0", "::"):
            host = port.advertise or port.bind.rpartition(":")[0]
        scheme = "https" if self.config.listen.console_tls else "http"
        url = self.config.console.advertise or f"{scheme}://{f'[{host}]' if ':' in host else host}:{at.port}"
        console.context.url = url
        if self.member is not None:
            self.member.console_addresses.here(url)

    async def security(self) -> Facts:
        """What the checks of its security are made on."""
        now = datetime.fromtimestamp(self.runtime.wall(), UTC)
        facts = await asyncio.get_running_loop().run_in_executor(None, facts_of, self.config, now)
        return of_running(facts, self.users, self.broker.vhosts.values())

    async def security_report(self) -> dict[str, object]:
        """What is unsafe, for operators: with passwords that anybody would guess."""
        facts = await self.security()
        # Hashing takes its time: users are noted now, and passwords tried off the loop.
        users = [*self.users]
        guessed = await asyncio.get_running_loop().run_in_executor(None, with_guesses, facts, users)
        return report(findings(guessed))

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where AMQP clients reach it."""
        return [listener.endpoint for listener in self.amqp.listeners]

    async def drain(self) -> None:
        """Let the clients go, hand over what they held, and leave the cluster; the process stays. Whoever comes later
        waits for the same, and who waits no longer stops nothing. `cluster.drain.why_not` is to be asked before."""
        if self._draining is None:
            assert self.member is not None
            self._draining = asyncio.get_running_loop().create_task(self._drain(self.member))
        await asyncio.shield(self._draining)

    async def _drain(self, member: Member) -> None:
        log.warning("the node is drained: its clients are to go to others")
        draining = member.drain()
        self.amqp.hold_back()
        await draining.answers()
        gone = _ended(lambda done: self.amqp.stop(done, member.why_closed()))
        await draining.hand_over()
        await gone
        log.warning("the node is drained: it can be stopped")

    async def stop(self) -> None:
        """In good order. A step that takes too long is left and named in the log; the next ones are taken."""
        log.info("the node stops")
        if self._draining is not None:
            self._draining.cancel()
        self.links.stop()
        self.certificates.stop()
        if self.events is not None:
            self.events.stop()
        self.audit.record("node.stopped", "", "", "node")
        if self._audit_exchange is not None:
            self._audit_exchange.stop()
        for close in reversed(self.closing):
            await _within("shut the console", STEP_TIMEOUT, close())
        await _within("close clients", STEP_TIMEOUT, _ended(self.amqp.stop))
        if self.member is not None:
            await _within("leave the cluster", STEP_TIMEOUT, self.member.close())
        if self._recovered:
            await _within("close the store", STEP_TIMEOUT, _ended(self.broker.stop))
        await self._end()
        log.info("the node has stopped", name=self.config.name)

    async def kill(self) -> None:
        """At once, and without a word to anybody: as the death of its process would look from outside. For tests."""
        self.links.stop()
        self.certificates.stop()
        if self.member is not None:
            self.member.lease.stop()
            self.member.channel.stack.stop()
        self.broker.stop_timers()
        for close in reversed(self.closing):
            await close()
        await self._end()

    async def _end(self) -> None:
        await _within("close sockets and files", END_TIMEOUT, self.runtime.close())
        if isinstance(self._trace, FileTracer):
            self._trace.close()
        self.audit.close()
        if self._audit_files is not None:
            self._audit_files.close()
        if self._lock is not None:
            os.close(self._lock)


def _check_certificates(links: Links, settings: ReplicationSettings) -> None:
    """Files that are no good are told now, and not whenever a link is tried. Raises UserError."""
    if any(link.destination.secure for link in links.links):
        try:
            Tls().context(settings.tls("localhost"), server=False)
        except UserError as error:
            raise UserError(f"section replication: {error}") from None


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
    call(partial(resolve, future))
    return future


def _ended(call: Callable[[Callable[[], None]], None]) -> asyncio.Future[None]:
    """The same for one that has no result."""
    return _done(lambda done: call(lambda: done(None)))
