"""The simulated network: hosts, their ports, and the links between them.

`Fabric` is the whole of it, `Ports` what one host has open, `SimNetwork` the sockets as one process sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from coterie.errors import UserError
from coterie.runtime.base import (
    Buffer,
    CloseReason,
    DatagramHandler,
    Datagrams,
    Endpoint,
    Listener,
    Network,
    StreamHandler,
    StreamTls,
)
from coterie.sim.clock import DEAD, PAUSED, Owner, World
from coterie.sim.link import Conditions, Link
from coterie.sim.stream import Limits, SimStream

_FIRST_FREE_PORT = 49152
_DATAGRAM_MAX = 65507
_SOCKET_DATAGRAMS = 512
"""Datagrams that a host keeps for a process that does not take them."""
_SYN_RETRY = 0.25


class Fabric:
    """All hosts and links of a world."""

    def __init__(self, world: World, base: Conditions | None = None, limits: Limits | None = None) -> None:
        self.world = world
        self.base = base or Conditions()
        self.limits = limits or Limits()
        self.effects: Counter[str] = Counter()
        """What happened to traffic, by kind."""
        self.names: dict[str, tuple[str, ...]] = {}
        """DNS: name to addresses."""
        self.groups: dict[Endpoint, list[SimDatagrams]] = {}
        self._hosts: dict[str, Ports] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def add_host(self, name: str) -> Ports:
        ip = f"10.0.0.{len(self.names) + 1}"
        ports = Ports(self, name, ip)
        self._hosts[name] = self._hosts[ip] = ports
        self.names[name] = (ip,)
        return ports

    def host(self, host: str) -> Ports | None:
        return self._hosts.get(host)

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            base = self.base if source != target else Conditions(0.00002, 0.00001)
            link = self._links[source, target] = Link(self.world, f"{source}>{target}", base)
        return link

    def count(self, effect: str) -> None:
        self.effects[effect] += 1

    def streams_between(self, one: str, other: str) -> list[SimStream]:
        """One end of each stream that connects these two hosts."""
        ends = self._hosts[one].streams
        return [stream for stream in list(ends.values()) if stream.other.host == other]


class Ports:
    """What a host has open. It belongs to the host, so it can refuse when no process is there."""

    def __init__(self, fabric: Fabric, name: str, ip: str) -> None:
        self.fabric = fabric
        self.name = name
        self.ip = ip
        self.owner: Owner | None = None
        self.running = True
        """The host itself is up, so that it answers at all."""
        self.frozen = False
        self.listeners: dict[int, SimListener] = {}
        self.sockets: dict[int, SimDatagrams] = {}
        self.streams: dict[int, SimStream] = {}
        self._dangling: list[SimStream] = []
        self._next_port = _FIRST_FREE_PORT
        self._next_stream = 0

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def add(self, stream: SimStream) -> None:
        self._next_stream += 1
        stream.number = self._next_stream
        self.streams[stream.number] = stream

    def up(self, owner: Owner) -> None:
        """A new process. Peers of connections that a silent crash left behind are told now that nobody knows them."""
        self.owner = owner
        self.running = True
        self.frozen = False
        for stream in self._dangling:
            stream.other.reset_from_afar(extra=0.3)
        self._dangling = []

    def down(self, silent: bool, polite: bool) -> None:
        """The process is gone. Its host resets its connections or, if `polite`, ends them after what it still has."""
        self.owner = None
        self.frozen = False
        self.listeners.clear()
        for socket in list(self.sockets.values()):
            socket.close()
        streams = list(self.streams.values())
        self.streams.clear()
        self.running = not silent
        if silent:
            self._dangling += streams
        for stream in streams:
            stream.process_died(silent, polite)

    def answers(self) -> bool:
        return self.running and not self.frozen


class SimListener(Listener):
    def __init__(
        self, ports: Ports, port: int, accept: Callable[[], StreamHandler], admits: Callable[[str], bool] | None
    ) -> None:
        self.endpoint = Endpoint(ports.ip, port)
        self.accept = accept
        self.admits = admits
        self._ports = ports

    def close(self) -> None:
        self._ports.listeners.pop(self.endpoint.port, None)


class SimDatagrams(Datagrams):
    """A bound datagram socket."""

    def __init__(self, ports: Ports, owner: Owner, port: int, handler: DatagramHandler, group: Endpoint | None) -> None:
        self.endpoint = Endpoint(ports.ip, port)
        self._ports = ports
        self._fabric = ports.fabric
        self._owner = owner
        self._handler = handler
        self._group = group
        self._open = owner.state != DEAD
        if not self._open:
            return
        ports.sockets[port] = self
        if group is not None:
            self._fabric.groups.setdefault(group, []).append(self)

    def send(self, buffers: Sequence[Buffer], to: Endpoint) -> None:
        if not self._open:
            return
        data = b"".join(buffers)
        if len(data) > _DATAGRAM_MAX:
            self._fabric.count("oversized")
            return
        members = self._fabric.groups.get(to)
        if members is not None:
            for member in members:
                self._send_to(member, data)
            return
        host = self._fabric.host(to.host)
        socket = host.sockets.get(to.port) if host is not None else None
        if socket is not None:
            self._send_to(socket, data)

    def _send_to(self, socket: SimDatagrams, data: bytes) -> None:
        world, owner, source = self._fabric.world, socket._owner, self.endpoint
        if socket._ports.frozen or (owner.state == PAUSED and len(owner.held) > _SOCKET_DATAGRAMS):
            self._fabric.count("overflow")
            return
        link = self._fabric.link(self._ports.name, socket._ports.name)
        link.carry(
            data, lambda delay, data: world.after(delay, owner, socket._arrive, data, source), self._fabric.count
        )

    def _arrive(self, data: bytes, source: Endpoint) -> None:
        if self._open:
            self._handler.datagram(data, source)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ports.sockets.pop(self.endpoint.port, None)
            if self._group is not None:
                self._fabric.groups[self._group].remove(self)


class _Dial:
    """A connection attempt: SYNs until someone answers or the time is over."""

    def __init__(
        self, fabric: Fabric, source: Ports, owner: Owner, target: Ports, port: int, handler: StreamHandler
    ) -> None:
        self._fabric, self._source, self._owner, self._target = fabric, source, owner, target
        self._port, self._handler = port, handler
        self._there = fabric.link(source.name, target.name)
        self._back = fabric.link(target.name, source.name)
        self._over = False

    def start(self, timeout: float) -> None:
        world = self._fabric.world
        world.after(timeout, self._owner, self._fail, CloseReason.TIMEOUT)
        world.after(self._there.delay(64), world.nature, self._knock)

    def _fail(self, reason: CloseReason) -> None:
        if not self._over:
            self._over = True
            self._handler.closed(reason)

    def _knock(self) -> None:
        if self._over or self._owner.state == DEAD:
            return
        world, target = self._fabric.world, self._target
        if self._there.blocked or self._back.blocked or not target.answers():
            world.after(_SYN_RETRY, world.nature, self._knock)
            return
        listener = target.listeners.get(self._port)
        answer = self._back.delay(64)
        if listener is None or target.owner is None:
            world.after(answer, self._owner, self._fail, CloseReason.REFUSED)
            return
        near, far = SimStream.pair(self._fabric, self._source, self._owner, target, target.owner, self._port)
        accepted = answer + self._there.delay(64)
        near.not_before(world.time + accepted)
        far.not_before(world.time + answer)
        self._over = True
        self._source.add(near)
        target.add(far)
        world.after(answer, self._owner, near.begin, self._handler)
        world.after(accepted, target.owner, self._accept, listener, far)

    def _accept(self, listener: SimListener, far: SimStream) -> None:
        admits = listener.admits
        if self._target.listeners.get(self._port) is listener and (admits is None or admits(far.peer.host)):
            far.begin(listener.accept())
        else:  # closed while the handshake was under way, or from an address that is not allowed
            far.abort()


def _refuse_tls(tls: StreamTls | None) -> None:
    """There is nobody to listen in to a simulated network, and real certificates have dates, which it has not."""
    if tls is not None:
        raise UserError("the simulator has no TLS: leave encrypt, tls_cert, tls_key and tls_ca out")


class SimNetwork(Network):
    """The sockets of one process."""

    owner: Owner

    def __init__(self, fabric: Fabric, ports: Ports) -> None:
        self._fabric = fabric
        self._ports = ports

    def listen(
        self,
        endpoint: Endpoint,
        accept: Callable[[], StreamHandler],
        tls: StreamTls | None = None,
        admits: Callable[[str], bool] | None = None,
    ) -> SimListener:
        _refuse_tls(tls)
        port = endpoint.port or self._ports.free_port()
        if port in self._ports.listeners:
            raise UserError(f"cannot listen on {endpoint}: the port is in use")
        listener = SimListener(self._ports, port, accept, admits)
        if self.owner.state != DEAD:
            self._ports.listeners[port] = listener
        return listener

    def connect(self, endpoint: Endpoint, handler: StreamHandler, timeout: float, tls: StreamTls | None = None) -> None:
        _refuse_tls(tls)
        world = self._fabric.world
        target = self._fabric.host(endpoint.host)
        if target is None:
            world.soon(self.owner, handler.closed, CloseReason.ERROR)
        elif self.owner.state != DEAD:
            _Dial(self._fabric, self._ports, self.owner, target, endpoint.port, handler).start(timeout)

    def datagrams(
        self, endpoint: Endpoint, handler: DatagramHandler, multicast: Endpoint | None = None, ttl: int = 0
    ) -> SimDatagrams:
        port = endpoint.port or self._ports.free_port()
        if port in self._ports.sockets:
            raise UserError(f"cannot bind {endpoint}: the port is in use")
        return SimDatagrams(self._ports, self.owner, port, handler, multicast)

    def resolve(self, host: str, done: Callable[[Sequence[str]], None]) -> None:
        world = self._fabric.world
        found = self._fabric.names.get(host, ())
        world.after(0.002, self.owner, done, sorted(found))
