"""A broker in a thread of this process: where it listens, what is in its queues, and what tests do to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from coterie.amqp.wire.properties import Properties
from coterie.broker.broker import DEFAULT_VHOST
from coterie.broker.message import make_message
from coterie.broker.publish import Publish
from coterie.broker.rows import Row
from coterie.broker.vhost import Vhost
from coterie.config import SECTIONS
from coterie.errors import CoterieError, UserError
from coterie.group.protocols.tcp import Tcp
from coterie.node.group_port import GroupPort
from coterie.node.node import Node, NodeConfig
from coterie.settings import load, suggest
from coterie.testing.clearing import asked, clear, hang_up, purge
from coterie.testing.looking import QueuedMessage, QueueState, Watch, message_of, state_of
from coterie.testing.looping import PATIENCE, LoopThread

T = TypeVar("T")
Settings = Mapping[str, Mapping[str, object]]
"""By section and name, as in a node's TOML file: {"amqp": {"heartbeat": 5}}."""
ALL = 2**63 - 1


class EmbeddedBroker:
    """`start` it, and `close` it in the end; `stop` or `kill` and `start` again as often as a test likes."""

    def __init__(
        self,
        name: str = "broker",
        *,
        settings: Settings | None = None,
        data: Path | None = None,
        port: int = 0,
        console: bool = False,
        loop: LoopThread | None = None,
    ) -> None:
        """`loop`: that of other brokers, instead of one of its own."""
        self.name = name
        self.host = "127.0.0.1"
        self.port = port
        """Where AMQP clients reach it; the same after a restart."""
        self.console: str | None = None
        """The URL of its HTTP API, if it has one."""
        self.probes: str | None = None
        """And of its probes and metrics."""
        self._config = _configured(name, data, settings or {})
        self._doors = console
        self._own_loop = loop is None
        self._loop = loop or LoopThread(name)
        self._node: Node | None = None
        self._address = ""
        self._watch: Watch | None = None

    # Where it is.

    @property
    def url(self) -> str:
        """For the vhost `/`, as the user guest."""
        return self.url_of(DEFAULT_VHOST)

    def url_of(self, vhost: str) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/{quote(vhost, safe='')}"

    # Its life.

    @property
    def running(self) -> bool:
        return self._node is not None

    @property
    def address(self) -> str:
        """Where other brokers of its cluster reach it; empty if it never ran in one."""
        return self._address

    def start(self, peers: Sequence[str] = ()) -> None:
        """Returns when clients can connect; in a cluster, when it looks for the others (`wait_until_it_serves`).
        `peers`: their addresses, if they are not those of its last life."""
        if self._node is None:
            if self._config.data is not None:
                self._config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            if peers:
                self._config = replace(self._config, group_port=replace(self._config.group_port, peers=tuple(peers)))
            self._do(self._start())

    async def _start(self) -> None:
        console = f"{self.host}:0" if self._doors else ""
        listen = replace(
            self._config.listen,
            amqp=f"{self.host}:{self.port}",
            console=console,
            probes=f"{self.host}:0" if console else "",
        )
        node = Node(replace(self._config, listen=listen))
        watch = Watch(node.runtime)
        node.broker.observers.append(watch)
        try:
            await node.start()
            if self._doors and node.console is None:
                raise UserError("console=True needs aiohttp: pip install 'coterie[console]'")
        except BaseException:
            await node.stop()
            raise
        self._node, self._watch = node, watch
        self.port = node.endpoints[0].port
        self.console = f"http://{node.console.endpoint}" if node.console is not None else None
        self.probes = f"http://{node.probes.endpoint}" if node.probes is not None else None
        if node.member is not None:
            node.member.changed.append(watch.changed)
            self._address = str(node.member.channel.stack.find(Tcp).endpoint)
            self._config = replace(self._config, group_port=replace(self._config.group_port, bind=self._address))

    def stop(self) -> None:
        """In good order, as SIGTERM would. Without a data folder everything that it had is gone."""
        node, self._node = self._node, None
        if node is not None:
            self._do(_stop(node))

    def kill(self) -> None:
        """Without a word to anybody, as kill -9 would look from outside."""
        node, self._node = self._node, None
        if node is not None:
            self._do(node.kill())

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it for good. A second call does nothing."""
        try:
            self.stop()
        finally:
            if self._own_loop:
                self._loop.close()

    # What is in it.

    def queues(self, vhost: str = DEFAULT_VHOST) -> dict[str, QueueState]:
        """Every queue by its name."""
        return self._call(lambda: {name: state_of(name, queue) for name, queue in self._vhost(vhost).queues.items()})

    def queue(self, name: str, vhost: str = DEFAULT_VHOST) -> QueueState:
        return self._call(lambda: self._state(name, vhost))

    def messages(self, name: str, vhost: str = DEFAULT_VHOST) -> list[QueuedMessage]:
        """What is in a queue, in its order: what waits, and what consumers hold. Nothing changes."""
        found = self._do(self._read(name, vhost))
        return [message_of(row) for row in found]

    async def _read(self, name: str, vhost: str) -> list[Row]:
        queue = self._vhost(vhost).queue(name)
        future: asyncio.Future[list[Row] | Exception] = asked(partial(queue.read, 1, ALL, queue.count))
        found = await future
        if isinstance(found, Exception):
            raise found
        return found

    def wait_for(
        self,
        name: str,
        *,
        ready: int | None = None,
        held: int | None = None,
        messages: int | None = None,
        consumers: int | None = None,
        vhost: str = DEFAULT_VHOST,
        timeout: float = 10.0,
    ) -> QueueState:
        """Wait until the queue is there and has exactly so many. Raises TimeoutError, with what it has instead.

        A publisher without confirms, and a consumer that acknowledges, are done before the broker is: wait, and look
        then. Inside a running event loop `await` its twin, `until`: this one would stop that loop."""
        wanted = _wanted(ready=ready, held=held, messages=messages, consumers=consumers)
        return self._do(self._reached(name, vhost, wanted, timeout), timeout + PATIENCE)

    async def until(
        self,
        name: str,
        *,
        ready: int | None = None,
        held: int | None = None,
        messages: int | None = None,
        consumers: int | None = None,
        vhost: str = DEFAULT_VHOST,
        timeout: float = 10.0,
    ) -> QueueState:
        """`wait_for` in any event loop."""
        wanted = _wanted(ready=ready, held=held, messages=messages, consumers=consumers)
        return await asyncio.wrap_future(self._loop.begin(self._reached(name, vhost, wanted, timeout)))

    async def _reached(self, name: str, vhost: str, wanted: Mapping[str, int], timeout: float) -> QueueState:
        watch = self._watch
        assert watch is not None

        def is_so() -> bool:
            state = self._state(name, vhost)
            return state.exists and all(getattr(state, what) == count for what, count in wanted.items())

        try:
            async with asyncio.timeout(timeout):
                await watch.until(is_so)
        except TimeoutError:
            hoped = ", ".join(f"{what}={count}" for what, count in wanted.items()) or "the queue"
            raise TimeoutError(f"{self._state(name, vhost)} after {timeout:g} s of waiting for {hoped}") from None
        return self._state(name, vhost)

    def wait_until_it_serves(self, timeout: float = 30.0) -> None:
        """A broker that stands alone does; one of a cluster must have found a majority, and be in step with it."""
        self._do(self._serves(True, timeout), timeout + PATIENCE)

    def wait_until_it_serves_no_more(self, timeout: float = 30.0) -> None:
        """One of a cluster that has lost its majority: publishers are blocked, and new clients turned away."""
        self._do(self._serves(False, timeout), timeout + PATIENCE)

    async def _serves(self, wanted: bool, timeout: float) -> None:
        node, watch = self._running(), self._watch
        member = node.member
        if member is None or watch is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await watch.until(lambda: member.replica.serves is wanted)
        except TimeoutError:
            what = f"does not serve: {member.replica.why}" if wanted else "still serves"
            raise TimeoutError(f"after {timeout:g} s {self.name} {what}") from None

    # What is done to it.

    def publish(
        self,
        routing_key: str,
        body: bytes | str,
        *,
        exchange: str = "",
        properties: Properties | None = None,
        vhost: str = DEFAULT_VHOST,
    ) -> bool:
        """As a client would, and wait until it is confirmed. Whether it came into any queue."""
        content = body.encode() if isinstance(body, str) else body
        one = Publish(make_message(exchange, routing_key, content, properties))

        async def published() -> bool:
            where = self._vhost(vhost)
            where.check_publish(exchange, None)
            future: asyncio.Future[None] = asked(lambda done: where.publish([one], lambda: done(None)))
            await future
            return not (one.unroutable or one.refused)

        return self._do(published())

    def purge(self) -> None:
        """Every queue is emptied of what is ready; what consumers hold is theirs. Queues, exchanges, bindings and
        connections stay."""
        self._do(purge(self._running()))

    def reset(self) -> None:
        """Every connection is cut, and everything that was declared is gone: queues, exchanges, bindings, policies and
        vhosts but `/`. Users stay."""
        self._do(clear(self._running()))

    def disconnect(self) -> int:
        """Cut every client's connection, without a word. How many there were."""
        return self._do(hang_up(self._running()))

    # Inside the loop.

    def _running(self) -> Node:
        if self._node is None:
            raise CoterieError(f"{self.name} is not running: start it")
        return self._node

    def _vhost(self, name: str) -> Vhost:
        return self._running().broker.vhost(name)

    def _state(self, name: str, vhost: str) -> QueueState:
        return state_of(name, self._vhost(vhost).queues.get(name))

    def _call(self, call: Callable[[], T]) -> T:
        return self._loop.call(call)

    def _do(self, coroutine: Coroutine[Any, Any, T], patience: float = PATIENCE) -> T:
        try:
            return self._loop.run(coroutine, patience)
        except concurrent.futures.CancelledError:
            raise CoterieError(f"{self.name} was closed meanwhile") from None

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.name} {self.host}:{self.port}{'' if self.running else ', not running'}>"


async def _stop(node: Node) -> None:
    await hang_up(node)  # clients in this process may be in the very thread that waits for this: they cannot answer
    await node.stop()


def _wanted(**given: int | None) -> dict[str, int]:
    return {what: count for what, count in given.items() if count is not None}


def _configured(name: str, data: Path | None, settings: Settings) -> NodeConfig:
    sections: dict[str, Any] = {}
    for section, values in settings.items():
        if section not in SECTIONS or section == "node":
            known = [each for each in SECTIONS if each != "node"]
            raise UserError(f"there is no section '{section}' to set here{suggest(section, known)}")
        sections[section] = load(SECTIONS[section], values, f"settings of {name}, {section}")
    return NodeConfig(name, data, group_port=GroupPort("127.0.0.1:0"), **sections)
