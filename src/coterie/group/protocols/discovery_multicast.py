"""MULTICAST: peers that answer a call over UDP multicast.

It promises that processes which hear each other's multicasts find each other within an interval, also when only one of
the two directions is open to multicasts: a call is answered by unicast. It has a small socket of its own, so it serves
TCP as well as UDP. Who was not heard for `expiry` is not told to the transport any more. If the transport has a secret,
calls and answers are sealed with it, and only those who know it are heard and answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.errors import UnprovenError, WireError
from coterie.group.packet import CHECKED, Decoder, Packet, encode_header
from coterie.group.protocols.discovery_base import FOUND_MAX, Discovery
from coterie.group.protocols.seal import ID_SIZE, OVERHEAD, ReplayedError, Seal, refuse_sealed
from coterie.group.protocols.transport import WILDCARDS, counter_of, is_reachable, parse_endpoint
from coterie.group.stack import Stack
from coterie.group.wire import Codec
from coterie.logs import Log
from coterie.runtime.base import Buffer, DatagramHandler, Datagrams, Endpoint
from coterie.settings import setting

log = Log(__name__)

MULTICAST_ID = 4
_LARGEST = 1024
"""Bytes of a call or an answer, generously."""


@dataclass(frozen=True, slots=True)
class Here:
    """A process of the group is there."""

    host: str
    """Where its transport is reached; empty for 'where this comes from'."""
    port: int
    call: bool
    """To everybody: answer me. False in an answer."""


@dataclass(frozen=True, slots=True)
class MulticastSettings:
    group: str = setting("239.192.0.78:7878", "multicast group to call, as 239.x.y.z:port")
    bind_host: str = setting("127.0.0.1", "address of the interface to call on; multicasts leave through it")
    ttl: int = setting(0, "how many routers calls pass: 0 stays on this host, 1 on this network", minimum=0)
    interval: float = setting(1.0, "time between calls", unit="s", minimum=0.001)
    expiry: float = setting(
        30.0, "how long a process is kept in mind that is not heard any more", unit="s", minimum=0.0
    )


class Multicast(Discovery, DatagramHandler):
    """Peers that answer a call over UDP multicast."""

    name = "MULTICAST"
    id = MULTICAST_ID
    Settings = MulticastSettings
    codec = Codec({1: Here})

    settings: MulticastSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self._group = parse_endpoint(self.settings.group, "MULTICAST: group")
        self._socket: Datagrams | None = None
        self._heard: dict[Endpoint, float] = {}
        self._seal: Seal | None = None

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._decoder = Decoder(stack.group_tag, _LARGEST, stack.local)

    def start(self) -> None:
        if self.transport.secret:
            own_id = self.runtime.entropy(ID_SIZE)
            self._seal = Seal(self.transport.secret, self.stack.group, self.name, own_id, FOUND_MAX)
        bind = Endpoint(self.settings.bind_host, 0)
        self._socket = self.runtime.net.datagrams(bind, self, self._group, self.settings.ttl)
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def look(self) -> None:
        oldest = self.runtime.now() - self.settings.expiry
        self._heard = {endpoint: heard for endpoint, heard in self._heard.items() if heard >= oldest}
        self.keep(self._heard)
        self._say(self._group, call=True)

    def _say(self, to: Endpoint, *, call: bool) -> None:
        if self._socket is None:
            return
        host, port = self.transport.endpoint
        packet = Packet(self.codec.encode(Here("" if host in WILDCARDS else host, port, call)), None, MULTICAST_ID)
        packet.sender = self.stack.local
        header = encode_header(packet, self.stack.group_tag, packet.sender.name.encode(), True)
        buffers = (header, packet.body)
        self._socket.send(buffers if self._seal is None else self._seal.seal(buffers), to)

    def _decode(self, data: memoryview) -> Packet:
        if len(data) > _LARGEST + OVERHEAD:
            raise WireError("too long for a call")
        if self._seal is not None:
            data = self._seal.open(data)
        else:
            refuse_sealed(data)
        packet = self._decoder.decode(data)
        if packet.proto != MULTICAST_ID or not packet.flags & CHECKED or len(data) > _LARGEST:
            raise WireError("no call")
        return packet

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        if self._socket is None:
            return
        try:
            packet = self._decode(memoryview(data))
            here: Here = self.codec.decode(packet.body)
        except ReplayedError:
            self.count("replayed")
            return
        except WireError as problem:  # perhaps only of another group, which calls here, too
            counter = counter_of(problem)
            if isinstance(problem, UnprovenError) and counter not in self.stats:
                log.warning("call refused", local=self.stack.local, peer=source.host, why=problem)
            self.count(counter)
            return
        if packet.sender == self.stack.local:
            return
        endpoint = Endpoint(here.host or source.host, here.port)
        if not is_reachable(endpoint):
            self.count("malformed")
            return
        if endpoint not in self._heard and len(self._heard) >= FOUND_MAX:
            self._heard.pop(next(iter(self._heard)))
        self._heard[endpoint] = self.runtime.now()
        if here.call:
            self._say(source, call=False)
        self.find([endpoint])
