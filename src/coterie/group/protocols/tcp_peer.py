"""One TCP connection of the mesh: its handshake, and packets cut from the stream.

The first packet in each direction is a HELLO: the dialler's at once, the other side's in answer to it. With a secret
both prove before it that they know it (auth.py). What arrives is parsed a chunk at a time and goes up as one batch;
packets are slices of the chunk, and only one that straddles chunks is joined, once. Whatever makes no sense ends this
connection and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from coterie.errors import WireError
from coterie.group.members import Address
from coterie.group.packet import NOBODY, VERSION, Decoder, Packet, encode_header
from coterie.group.protocols.auth import Challenge, Handshake, Message, Proof, Refused
from coterie.group.protocols.contacts import Contact
from coterie.group.wire import Codec
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler, Timer

HELLO_MAX = 64 * 1024
"""Bytes of a packet from somebody who has not said who it is."""
_PREFIX = 8
"""Bytes that tell how long a packet is."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first packet in each direction; the packet's header says who sends it and of which group it is."""

    token: int
    """Drawn at start: tells a connection to oneself from somebody else with the same address."""
    number: int
    """Counts this process's HELLOs: tells which of two connections was made in knowledge of the other."""
    host: str
    """Where the sender is reached; empty for 'where this connection comes from'."""
    port: int
    lowest: int
    """Lowest version of the wire format that the sender speaks."""
    highest: int
    """Highest one."""
    peers: tuple[Endpoint, ...]
    """Endpoints of those that the sender is connected to, so that a mesh grows from a few known endpoints."""


CODEC = Codec({1: Hello, 2: Challenge, 3: Proof, 4: Refused})
_TLS_RECORDS = (0x15, 0x16)
"""First byte of what TLS says first: an alert, or a handshake."""


class Mesh(ABC):
    """What a link asks of the transport that it belongs to."""

    decoder: Decoder
    hello_decoder: Decoder

    @abstractmethod
    def link_connected(self, link: Link) -> None:
        """The stream is open; nothing has been said."""

    @abstractmethod
    def link_proven(self, link: Link) -> None:
        """The other side of a dialled link has proven that it knows the secret."""

    @abstractmethod
    def link_hello(self, link: Link, sender: Address, hello: Hello) -> None:
        """The other side said who it is. The link is either used from now on (`link.peer` is set) or ended."""

    @abstractmethod
    def link_batch(self, link: Link, batch: list[Packet], size: int) -> None:
        """Packets arrived, and `size` bytes in all."""

    @abstractmethod
    def link_heard(self, link: Link) -> None:
        """Bytes arrived, but no whole packet yet."""

    @abstractmethod
    def link_malformed(self, link: Link, problem: WireError) -> None:
        """The other side sent what makes no sense. The transport ends the link."""

    @abstractmethod
    def link_closed(self, link: Link, reason: CloseReason) -> None:
        """The link is over. Called once for each."""


class Link(StreamHandler):
    """A connection that was dialled (it has a contact) or accepted (it has none)."""

    def __init__(self, mesh: Mesh, contact: Contact | None) -> None:
        self._mesh = mesh
        self._decoder = mesh.hello_decoder
        self._parts: list[Buffer] = []  # the beginning of a packet that has not arrived whole
        self._have = 0
        self._need = _PREFIX
        self._deaf = False
        self.spoke = False
        """A packet has come: whatever is wrong, the other side can say it."""
        self.contact = contact
        self.auth = Handshake(None, b"", dialled=contact is not None)
        """Replaced when it is connected, if there is a secret."""
        self.stream: Stream | None = None
        self.peer: Address = NOBODY
        """Who is at the other end, once it said so."""
        self.endpoint = Endpoint("", 0)
        """Where the peer says that it can be reached."""
        self.said = 0
        """Number of our HELLO on this link."""
        self.heard = 0
        """Number of the peer's."""
        self.version = VERSION
        self.up_since = 0.0
        self.over = False
        self.timer: Timer | None = None

    @property
    def identified(self) -> bool:
        return self.peer is not NOBODY

    def identify(self, peer: Address, endpoint: Endpoint, heard: int) -> None:
        """The handshake is done: from now on packets of full size are taken."""
        self.peer, self.endpoint, self.heard = peer, endpoint, heard
        self._decoder = self._mesh.decoder

    def end(self, reason: CloseReason = CloseReason.LOCAL, *, flush: bool = False) -> None:
        """Close the stream, and tell the mesh now rather than when the operating system has done so."""
        if self.over:
            return
        stream, self.stream = self.stream, None
        self._finish(reason)
        if stream is not None:
            if flush:
                stream.close()
            else:
                stream.abort()

    def say(self, message: Message) -> None:
        """Send a message of the handshake. It comes from nobody: who we are is for those who have proven the secret."""
        assert self.stream is not None
        packet = Packet(CODEC.encode(message), None, TCP_ID)
        self.stream.write((encode_header(packet, self._decoder.group, b"", True), packet.body))

    def deafen(self) -> None:
        """Nothing that comes is of interest any more."""
        self._deaf = True
        self._parts.clear()

    # The stream's side.

    def connected(self, stream: Stream) -> None:
        if self.over:  # given up while it was being dialled
            stream.abort()
            return
        self.stream = stream
        self._mesh.link_connected(self)

    def closed(self, reason: CloseReason) -> None:
        if not self.over:
            self.stream = None
            self._finish(reason)

    def received(self, data: Buffer) -> None:
        if self.over or self._deaf:
            return
        chunk = memoryview(data)
        batch: list[Packet] = []
        problem = None
        try:
            self._cut(chunk, self._complete(chunk, batch) if self._parts else 0, batch)
        except WireError as error:
            problem = error
            if self.peer is NOBODY and chunk[0] in _TLS_RECORDS:
                problem = WireError(
                    "it speaks TLS and this member does not: set the same `encrypt`, or certificates, on all"
                )
        if batch:
            self._mesh.link_batch(self, batch, len(chunk))
        elif self.peer is not NOBODY:
            self._mesh.link_heard(self)
        if problem is not None and not self.over:
            self._mesh.link_malformed(self, problem)

    def _finish(self, reason: CloseReason) -> None:
        self.over = True
        self._parts.clear()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._mesh.link_closed(self, reason)

    def _complete(self, chunk: memoryview, batch: list[Packet]) -> int:
        """Add to the packet that began in an earlier chunk; gives the place where the next one begins."""
        at, end, parts = 0, len(chunk), self._parts
        while True:
            take = self._need - self._have
            if end - at < take:
                if at < end:
                    parts.append(self._kept(chunk[at:]))
                    self._have += end - at
                return end
            parts.append(chunk[at : at + take])
            at += take
            self._have = self._need
            whole = b"".join(parts)
            if self._need > _PREFIX:
                parts.clear()
                self._cut(memoryview(whole), 0, batch)
                return end if self.over else at
            self._need = self._decoder.length(whole)  # more than the prefix, always: a header is longer
            parts[:] = (whole,)

    def _cut(self, chunk: memoryview, at: int, batch: list[Packet]) -> None:
        """Take all packets that are whole, and keep the beginning of the last."""
        end = len(chunk)
        need = _PREFIX
        while end - at >= _PREFIX:
            need = self._decoder.length(chunk, at)
            if need > end - at:
                break
            packet = self._decoder.decode(chunk[at : at + need])
            at += need
            need = _PREFIX
            if packet.proto != TCP_ID and self.peer is not NOBODY:
                batch.append(packet)
            else:
                self._greeted(packet)
                if self.over:
                    return
        if at < end:
            self._parts.append(self._kept(chunk[at:]))
            self._have, self._need = end - at, need

    def _kept(self, piece: memoryview) -> Buffer:
        """Until the rest comes. A slice keeps the whole chunk in memory, with what all others have sent: of somebody
        who has not said who it is a copy is kept."""
        return bytes(piece) if self.peer is NOBODY else piece

    def _greeted(self, packet: Packet) -> None:
        """The first packet of the connection, or another HELLO."""
        self.spoke = True
        if self.peer is not NOBODY:
            raise WireError("a second HELLO")
        message = CODEC.decode(packet.body) if packet.proto == TCP_ID else None
        if message is None:
            raise WireError("the first packet is no HELLO")
        if isinstance(message, Hello):
            self.auth.check_proven()
            self._mesh.link_hello(self, packet.sender, message)
            return
        answer = self.auth.received(message)
        if answer is not None:
            self.say(answer)
        elif self.contact is not None:
            self._mesh.link_proven(self)


TCP_ID = 1
"""The protocol's number in packet headers."""
