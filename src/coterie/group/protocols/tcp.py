"""TCP: a mesh of streams, one between any two members.

It promises that a peer which said HELLO is reached for as long as PeerConnected stands, that at most one connection per
pair of addresses is used, that a lost connection is told at once (PeerClosed) and dialled again for ever, and that
death is called proven only when the peer's own host refuses the redial or another incarnation answers. What waits in a
write buffer is bounded: beyond the bound packets are dropped and counted, and the reliable layers send them again. With
a secret nobody is told anything who has not proven that it knows it; with `encrypt`, or with certificates, every
connection is TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.crowd import Crowd
from coterie.errors import UserError, WireError
from coterie.group.events import Event, PeerClosed, PeerConnected, PeerHeard, Replaced, Suspect
from coterie.group.members import Address, View
from coterie.group.packet import AGAIN, VERSION, Decoder, Packet, encode_header
from coterie.group.protocols.auth import NONCE_SIZE, Handshake, RefusedError, check_secret, derive
from coterie.group.protocols.contacts import Contact, Contacts
from coterie.group.protocols.tcp_peer import CODEC, HELLO_MAX, TCP_ID, Hello, Link, Mesh
from coterie.group.protocols.transport import WILDCARDS, Transport, counter_of, is_reachable
from coterie.group.stack import Stack
from coterie.runtime.base import Buffer, CloseReason, Endpoint, KeyTls, Listener, Stream, StreamTls, TlsConfig
from coterie.settings import setting

GOSSIP_MAX = 256
"""Endpoints of others in a HELLO."""


@dataclass(frozen=True, slots=True)
class TcpSettings:
    bind_host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all of this host's")
    bind_port: int = setting(7800, "port to listen on; 0 lets the operating system choose", minimum=0)
    advertised_host: str = setting(
        "", "host that others are told to dial; empty for bind_host, or for where our connections come from"
    )
    connect_timeout: float = setting(
        2.0, "how long a dial, and then the handshake, may take before it counts as failed", unit="s", minimum=0.001
    )
    reconnect_min: float = setting(0.1, "pause after the first failed dial; doubled for each", unit="s", minimum=0.001)
    reconnect_max: float = setting(5.0, "longest pause between two dials of one endpoint", unit="s", minimum=0.001)
    linger: float = setting(
        1.0, "how long the loser of two connections to one peer is still read from", unit="s", minimum=0.0
    )
    buffer_max: int = setting(
        16 * 2**20, "bytes that may wait for one peer; beyond it data is dropped, beyond twice that control too",
        unit="bytes", minimum=0,
    )  # fmt: skip
    max_packet: int = setting(2**20, "largest packet, header included", unit="bytes", minimum=1024)
    checksum: str = setting(
        "header", "what the checksum covers: 'full' adds the body, for networks whose own is not trusted",
        choices=("header", "full"),
    )  # fmt: skip
    contacts_max: int = setting(1024, "endpoints that are kept in mind", minimum=1)
    forget_after: float = setting(
        3600.0, "how long an endpoint that only a peer told us is dialled without an answer", unit="s", minimum=0.0
    )
    handshakes_max: int = setting(
        256, "accepted connections without a HELLO; one more closes the oldest of the address with most", minimum=1
    )
    secret: str = setting(
        "", "what every member must know to be let in, at least 16 characters; empty lets everybody in", hidden=True
    )
    encrypt: bool = setting(
        False, "connections are TLS 1.3, by certificates that each member makes itself of the secret, which it needs"
    )
    tls_cert: str = setting("", "file with this member's certificate; with tls_key and tls_ca, connections are TLS")
    tls_key: str = setting("", "file with the certificate's private key")
    tls_ca: str = setting("", "file with the cluster's certificate authority: only certificates that it signed count")


HANG_UPS = 3
"""Attempts after which it is worth a line that a peer hangs up without a word: once, it may have stopped just then."""
AGAIN_LIMIT = 64 << 10
"""Bytes waiting for a peer beyond which nothing is sent to it again."""


def _tls_of(settings: TcpSettings) -> TlsConfig | None:
    """By the operator's own certificates. Raises UserError for what contradicts itself."""
    files = (settings.tls_cert, settings.tls_key, settings.tls_ca)
    if settings.encrypt and not settings.secret:
        raise UserError("TCP: encrypt needs a secret, of which the keys are made")
    if settings.encrypt and any(files):
        raise UserError("TCP: encrypt makes certificates of the secret: leave it out, or tls_cert, tls_key and tls_ca")
    if not any(files):
        return None
    if not all(files):
        raise UserError("TCP: tls_cert, tls_key and tls_ca belong together: set all three, or none")
    return TlsConfig(*files, timeout=settings.connect_timeout, handshakes_max=settings.handshakes_max)


class Tcp(Transport, Mesh):
    """A mesh of TCP connections, one between any two members."""

    name = "TCP"
    id = TCP_ID
    Settings = TcpSettings
    codec = CODEC
    COUNTERS = (
        *Transport.COUNTERS, "dials", "reconnects", "dropped_full", "versions", "stale", "handshakes_failed",
    )  # fmt: skip
    rules = {
        "tcp.duplicate_connection": "Of two connections between the same two members, both sides keep the same one.",
        "tcp.new_incarnation": "A new incarnation of a name replaces the old one, whose death is thereby proven.",
        "tcp.redial_refused": "A redial refused after a loss proves that the process is gone.",
        "tcp.reconnected": "A lost connection to the same incarnation was made again.",
        "tcp.suspect_redialled": "A connection to a suspected member is dropped and made anew.",
        "tcp.connection_to_self": "One's own endpoint is recognised among those found, and never dialled again.",
        "tcp.buffer_full": "A peer's write buffer is full: packets to it are dropped.",
        "tcp.proven": "With a secret, both sides prove that they know it before either says HELLO.",
    }

    settings: TcpSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        if self.settings.reconnect_max < self.settings.reconnect_min:
            raise UserError("TCP: reconnect_max must be at least reconnect_min")
        check_secret(self.settings.secret, "TCP")
        self.secret = self.settings.secret
        self._key: bytes | None = None
        self._tls: StreamTls | None = _tls_of(self.settings)
        self._check_body = self.settings.checksum == "full"
        self._listener: Listener | None = None
        self._endpoint = Endpoint(self.settings.bind_host, self.settings.bind_port)
        self._links: dict[Address, Link] = {}  # in use, by peer
        most = self.settings.handshakes_max
        self._strangers: Crowd[Link] = Crowd(most, most)  # accepted, without a HELLO
        self._spare: dict[Link, None] = {}  # being dialled, or retired
        self._hellos = 0
        self._token = 0
        self._fan: list[Stream] = []  # the streams to all members of _fan_view
        self._fan_view: View | None = None
        self._corked: dict[Stream, list[Buffer]] | None = None

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        most = self.settings.buffer_max
        self._limits = (2 * most, most, most)  # by carrier: control traffic is dropped last
        # What seems to be lost may well be in the buffer still: sending it again would only make it longer.
        self._again_limit = min(most, AGAIN_LIMIT)
        if self.secret:
            self._key = derive(self.secret.encode(), "connection", stack.group.encode())
        if self.settings.encrypt:
            key = derive(self.secret.encode(), "authority", stack.group.encode())
            self._tls = KeyTls(key, self.settings.connect_timeout, self.settings.handshakes_max)
        self.decoder = Decoder(stack.group_tag, self.settings.max_packet, stack.local)
        self.hello_decoder = Decoder(stack.group_tag, min(HELLO_MAX, self.settings.max_packet), stack.local)
        self._contacts = Contacts(
            self.runtime,
            self._dial,
            self._links.__contains__,
            reconnect_min=self.settings.reconnect_min,
            reconnect_max=self.settings.reconnect_max,
            forget_after=self.settings.forget_after,
            contacts_max=self.settings.contacts_max,
        )

    def start(self) -> None:
        self._token = int.from_bytes(self.runtime.entropy(8), "little")
        bind = Endpoint(self.settings.bind_host, self.settings.bind_port)
        self._listener = self.runtime.net.listen(bind, self._accept, self._tls)
        bound = self._listener.endpoint
        self._endpoint = Endpoint(self.settings.advertised_host or bound.host, bound.port)
        self._contacts.is_self(bound)
        self._contacts.is_self(self._endpoint)

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()  # first, so that a peer which redials is refused: this process is as good as gone
            self._listener = None
        self._contacts.close()
        links = [*self._links.values(), *self._strangers, *self._spare]
        self._links.clear()
        self._fan_view = None
        for link in links:
            link.end(flush=True)

    # What others may ask.

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def peers(self) -> list[Address]:
        return sorted(self._links)

    def endpoint_of(self, peer: Address) -> Endpoint | None:
        link = self._links.get(peer)
        return None if link is None else link.endpoint

    def drop_connection(self, peer: Address) -> None:
        """Break the connection to a peer, as a fault in the network would."""
        link = self._links.get(peer)
        if link is not None:
            link.end(CloseReason.ERROR)

    # Packets.

    def down(self, packet: Packet) -> None:
        dest = packet.dest
        if dest is None:
            if self._fan_view is not self.stack.view:
                self._make_fan()
            streams: Sequence[Stream] = self._fan
        elif (link := self._links.get(dest)) is not None and link.stream is not None:
            streams = (link.stream,)
        elif dest == self.stack.local:
            self.loop_back(packet)
            return
        else:
            self.stats["unreachable"] += 1
            return
        header = self.header(packet) if streams else None
        if header is None:
            return
        if self.runtime.trace.on:
            self.runtime.trace.flush()
        buffers = (header, packet.body)
        limit = self._limits[packet.carrier] if not packet.flags & AGAIN else self._again_limit
        sent = 0
        for stream in streams:
            if stream.buffered > limit:
                self.stats["dropped_full"] += 1
                self.rule("tcp.buffer_full")
            elif self._corked is None:
                stream.write(buffers)
                sent += 1
            else:
                self._corked.setdefault(stream, []).extend(buffers)
                sent += 1
        self.stats["packets_out"] += sent
        self.stats["bytes_out"] += sent * (len(header) + len(packet.body))

    def cork(self) -> None:
        if self._corked is None:
            self._corked = {}

    def uncork(self) -> None:
        corked, self._corked = self._corked, None
        if corked:
            for stream, buffers in corked.items():
                stream.write(buffers)

    def link_heard(self, link: Link) -> None:
        if self._listener is not None:
            self.stack.above(self).up_event(PeerHeard(link.peer))

    def link_batch(self, link: Link, batch: list[Packet], size: int) -> None:
        if self._listener is not None:
            self.stats["packets_in"] += len(batch)
            self.stats["bytes_in"] += size
            self.pass_up(batch)

    def _make_fan(self) -> None:
        view = self.stack.view
        links = [self._links.get(member) for member in view.members if member != self.stack.local]
        self._fan = [link.stream for link in links if link is not None and link.stream is not None]
        missing = len(links) - len(self._fan)
        if missing:
            self.stats["unreachable"] += missing
        self._fan_view = None if missing else view  # looked up, and counted, again while somebody is missing

    # Events from above.

    def down_event(self, event: Event) -> None:
        if isinstance(event, Suspect):
            self._suspected(event)
        else:
            super().down_event(event)

    def found(self, endpoint: Endpoint) -> None:
        if self._listener is None:
            return
        contact = self._contacts.named(endpoint, found=True)
        if contact is None:
            self.rule("tcp.connection_to_self")
        elif contact.timer is None:
            self._contacts.now(contact)

    def _suspected(self, event: Suspect) -> None:
        """After a long silence the operating system resends ever more rarely: a new connection recovers sooner."""
        for member in event.members:
            link = self._links.get(member)
            if link is not None:
                self.rule("tcp.suspect_redialled")
                link.end(CloseReason.TIMEOUT)

    # Connections: how they begin.

    def _accept(self) -> Link:
        return Link(self, None)

    def _dial(self, contact: Contact) -> None:
        self.stats["dials"] += 1
        link = Link(self, contact)
        self._spare[link] = None
        self.runtime.net.connect(contact.endpoint, link, self.settings.connect_timeout, self._tls)

    def link_connected(self, link: Link) -> None:
        contact = link.contact
        if contact is None:
            if self._listener is None:
                link.end()
                return
            self._make_room(link)
        elif contact.address is not None and contact.address in self._links:
            link.end()  # it came to us in the meantime
            return
        link.timer = self.runtime.call_later(self.settings.connect_timeout, self._too_slow, link)
        if self._key is not None:
            link.auth = Handshake(self._key, self.runtime.entropy(NONCE_SIZE), dialled=contact is not None)
        opening = link.auth.opening()
        if opening is not None:
            link.say(opening)
        elif contact is not None:
            self._say_hello(link)

    def _make_room(self, link: Link) -> None:
        """Those who say nothing keep no member out: the oldest of the address with most of them goes."""
        assert link.stream is not None
        host = link.stream.peer.host
        oldest = self._strangers.who_goes(host) if self._strangers.crowded(host) else None
        if oldest is not None:
            oldest.end(CloseReason.TIMEOUT)
        self._strangers.add(link, host)

    def _too_slow(self, link: Link) -> None:
        if not link.auth.proven:
            self.stats["unproven"] += 1
        link.end(CloseReason.TIMEOUT)

    def link_proven(self, link: Link) -> None:
        assert link.contact is not None
        self.rule("tcp.proven")
        if link.contact.address in self._links:
            link.end()  # it came to us in the meantime
        else:
            self._say_hello(link)

    def _say_hello(self, link: Link) -> None:
        assert link.stream is not None
        self._hellos += 1
        link.said = self._hellos
        host = "" if self._endpoint.host in WILDCARDS else self._endpoint.host
        others = [other.endpoint for other in self._links.values()][-GOSSIP_MAX:]
        hello = Hello(self._token, link.said, host, self._endpoint.port, VERSION, VERSION, tuple(others))
        packet = Packet(CODEC.encode(hello), None, self.id)
        packet.sender = self.stack.local
        header = encode_header(packet, self.stack.group_tag, self._name, True)
        if self.runtime.trace.on:
            self.runtime.trace.flush()
        link.stream.write((header, packet.body))

    def link_hello(self, link: Link, sender: Address, hello: Hello) -> None:
        assert link.stream is not None
        endpoint = Endpoint(hello.host or link.stream.peer.host, hello.port)
        if not is_reachable(endpoint) or not sender.name:
            raise WireError(f"a HELLO from '{sender}' at {endpoint}, which cannot be")
        if hello.lowest > VERSION or hello.highest < VERSION:
            self._refuse(
                link, "versions",
                f"{sender} speaks versions {hello.lowest} to {hello.highest} of the wire format, we speak {VERSION}",
            )  # fmt: skip
            return
        if sender == self.stack.local and hello.token != self._token:
            self._refuse(link, "stale", f"a process at {endpoint} calls itself {sender}, as this one does: rename one")
            return
        if any(p.name == sender.name and p.incarnation > sender.incarnation for p in self._links):
            self._refuse(link, "stale", f"{sender} is an older incarnation of a connected peer")
            return
        if link.contact is None:
            self._say_hello(link)  # before anything that the layers above may send
        if sender == self.stack.local:
            self.rule("tcp.connection_to_self")
            if link.contact is not None:
                self._contacts.is_self(link.contact.endpoint)
                link.end()
            else:
                link.end(flush=True)
            return
        if sender.name == self.stack.local.name:
            self._namesake(link, sender, endpoint)
            return
        self._identified(link, sender, endpoint, hello)

    def _namesake(self, link: Link, sender: Address, endpoint: Endpoint) -> None:
        """Another process has our name, and both have said so, or will: the older one gives way."""
        if sender.incarnation > self.stack.local.incarnation:
            link.end()
            self.up_event(Replaced(sender, endpoint))
        else:
            self.refuse("stale", str(sender), f"it is an older process with our name, {self.stack.local}")
            link.end(flush=True)  # so that it reads our HELLO

    def _identified(self, link: Link, peer: Address, endpoint: Endpoint, hello: Hello) -> None:
        if link.timer is not None:
            link.timer.cancel()
            link.timer = None
        self._strangers.remove(link)
        self._spare.pop(link, None)
        if link.contact is not None:
            link.contact.dialling = False
        link.identify(peer, endpoint, hello.number)
        link.version = min(hello.highest, VERSION)
        link.up_since = self.runtime.now()
        again = any(contact.lost for contact in self._contacts.of(peer))
        self._bury_older(peer, endpoint)
        for contact in (link.contact, self._contacts.named(endpoint, found=False)):
            if contact is not None:
                self._contacts.answered(contact, peer)
        self._use(link, again)
        for other in hello.peers[:GOSSIP_MAX]:
            if is_reachable(other):
                contact = self._contacts.named(other, found=False)
                if contact is not None and contact.timer is None:
                    self._contacts.now(contact)

    def _bury_older(self, peer: Address, endpoint: Endpoint) -> None:
        """Tell the death of older incarnations of the same name."""
        dead = {other: None for other in self._links if other.name == peer.name and other != peer}
        for old in dead | self._contacts.former(peer):
            self.rule("tcp.new_incarnation")
            link = self._links.pop(old, None)
            self._fan_view = None
            if link is not None:
                link.end()
            self._contacts.replaced(old, endpoint)
            self.up_event(PeerClosed(old, True))

    def _use(self, link: Link, again: bool) -> None:
        peer = link.peer
        old = self._links.get(peer)
        if old is not None:
            self.rule("tcp.duplicate_connection")
            if not self._wins(link, old):
                self._retire(link)
                return
        self._links[peer] = link
        self._fan_view = None
        if old is not None:
            self._retire(old)
            return
        if again:
            self.stats["reconnects"] += 1
            self.rule("tcp.reconnected")
        self.up_event(PeerConnected(peer))

    def _wins(self, new: Link, old: Link) -> bool:
        """Which of two links to one peer stays: both sides compare the same four HELLO numbers, so they agree.

        One that was made in knowledge of the other replaces it (its maker had lost it); if neither was, two dials have
        crossed, and the smaller address's is kept.
        """
        if (new.contact is None) == (old.contact is None):
            return new.heard > old.heard if new.contact is None else new.said > old.said
        ours, theirs = (old, new) if new.contact is None else (new, old)
        if ours.said > theirs.said:
            return new is ours
        if theirs.heard > ours.heard:
            return new is theirs
        return (new is ours) == (self.stack.local < new.peer)

    def _retire(self, link: Link) -> None:
        """What the peer wrote to it before it knew is still on the way: read it before closing."""
        self._spare[link] = None
        link.timer = self.runtime.call_later(self.settings.linger, link.end)

    # Connections: how they end.

    def link_malformed(self, link: Link, problem: WireError) -> None:
        if isinstance(problem, RefusedError) and problem.answer is not None and link.stream is not None:
            # The other side should learn why, so close it only when it has read it; until then it counts as it did.
            self.refuse("unproven", link.stream.peer.host, str(problem))
            link.say(problem.answer)
            link.deafen()
            if link.timer is not None:
                link.timer.cancel()
            link.timer = self.runtime.call_later(self.settings.linger, link.end, CloseReason.ERROR)
            return
        self._refuse(link, counter_of(problem), str(problem))

    def _refuse(self, link: Link, counter: str, why: str) -> None:
        assert link.stream is not None
        self.refuse(counter, str(link.peer) if link.identified else link.stream.peer.host, why)
        link.end(CloseReason.ERROR)

    def link_closed(self, link: Link, reason: CloseReason) -> None:
        self._strangers.remove(link)
        self._spare.pop(link, None)
        if link.contact is not None and not link.identified:
            link.contact.dialling = False
        if self._listener is None:
            return
        if not link.identified:
            self._handshake_failed(link, reason)
        elif self._links.get(link.peer) is link:
            self._lost(link)

    def _handshake_failed(self, link: Link, reason: CloseReason) -> None:
        contact = link.contact
        if reason is CloseReason.UNTRUSTED:
            self.stats["unproven"] += 1
        if contact is None:
            self.stats["handshakes_failed"] += 1
            return
        hung_up = reason in (CloseReason.EOF, CloseReason.RESET) and not link.spoke
        known = self.complained_of(contact.endpoint.host, "unproven")  # a better reason was logged
        if hung_up and not known and (self._tls is not None or contact.failures >= HANG_UPS):
            hint = f"it hung up before its HELLO: if that goes on, see whether {self._doubt()}"
            self.refuse("handshakes_failed", contact.endpoint.host, hint)
        self._contacts.failed(contact)
        if reason is CloseReason.REFUSED and contact.lost and contact.address is not None:
            self._contacts.settled(contact.address)
            self.rule("tcp.redial_refused")
            self.up_event(PeerClosed(contact.address, True))

    def _doubt(self) -> str:
        """What may be wrong if a peer hangs up without a word."""
        if self._tls is None:
            return "it encrypts, and this member does not"
        if self.settings.encrypt:
            return "it encrypts too, and has the same secret"
        return "its tls_ca has signed our tls_cert"

    def _lost(self, link: Link) -> None:
        """Tell it now, and look at once whether the peer's host still knows the process."""
        peer = link.peer
        del self._links[peer]
        self._fan_view = None
        contact = self._contacts.named(link.endpoint, found=False)
        if contact is not None:
            contact.address = peer
        stayed = self.runtime.now() - link.up_since >= self.settings.reconnect_min
        self._contacts.lost(peer, stayed=stayed)
        self.up_event(PeerClosed(peer, False))
        if contact is not None and stayed and self._listener is not None:
            self._contacts.now(contact)
