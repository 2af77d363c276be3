"""UDP: datagrams, to each member by itself or to all of them by multicast.

It promises no more than datagrams do, and that what goes up is whole, unaltered (the checksum always covers the body)
and from a peer that said HELLO. A peer counts as connected once it answered our HELLO, so that both directions are
known to work; its endpoint is what it says there, never where some packet came from. A new incarnation of a name
replaces the old one, whose death is thereby proven; any other death is for failure detection to find. With a secret
every datagram is sealed (seal.py), and what is not, or was heard before, is dropped.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import StrayError, UserError, WireError
from coterie.group.events import Event, PeerClosed, PeerConnected, Replaced, Suspect
from coterie.group.members import Address
from coterie.group.packet import AGAIN, CHECKED, VERSION, Decoder, Packet, encode_header
from coterie.group.protocols.auth import check_secret
from coterie.group.protocols.contacts import Contact, Contacts
from coterie.group.protocols.seal import ID_SIZE, ReplayedError, Seal, refuse_sealed
from coterie.group.protocols.transport import WILDCARDS, Transport, counter_of, is_reachable, parse_endpoint
from coterie.group.stack import Stack
from coterie.group.wire import Codec
from coterie.runtime.base import Buffer, DatagramHandler, Datagrams, Endpoint, Timer
from coterie.settings import setting

UDP_ID = 2
LARGEST = 65000
"""Bytes of a datagram that every system takes."""
GOSSIP_MAX = 32
"""Endpoints of others in a HELLO, which should fit into one Ethernet frame."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who I am (the header says) and where; repeated until answered by a HELLO with our token as its `echo`."""

    token: int
    """Drawn at start."""
    echo: int
    """The token of whom this is sent to, as far as it is known: proves that its HELLO arrived."""
    ask: bool
    """Please answer."""
    host: str
    """Where the sender is reached; empty for 'where this comes from'."""
    port: int
    lowest: int
    """Lowest version of the wire format that the sender speaks."""
    highest: int
    """Highest one."""
    peers: tuple[Endpoint, ...]
    """Endpoints of those that the sender is connected to."""


@dataclass(frozen=True, slots=True)
class UdpSettings:
    bind_host: str = setting("127.0.0.1", "address to bind to; 0.0.0.0 for all of this host's")
    bind_port: int = setting(7900, "port to bind to; 0 lets the operating system choose", minimum=0)
    advertised_host: str = setting(
        "",
        "numeric address that others are told to send to; empty for bind_host, or for where our datagrams come from",
    )
    multicast: str = setting(
        "", "multicast group as 239.x.y.z:port, the same for all members; empty sends a copy to each member"
    )
    ttl: int = setting(0, "how many routers multicasts pass: 0 stays on this host, 1 on this network", minimum=0)
    max_packet: int = setting(
        LARGEST, f"largest packet, header included; at most {LARGEST}", unit="bytes", minimum=1024
    )
    reconnect_min: float = setting(
        0.1, "pause after the first unanswered HELLO; doubled for each", unit="s", minimum=0.001
    )
    reconnect_max: float = setting(2.0, "longest pause between two HELLOs to one endpoint", unit="s", minimum=0.001)
    contacts_max: int = setting(1024, "endpoints, and peers, that are kept in mind", minimum=1)
    forget_after: float = setting(
        3600.0, "how long an endpoint that only a peer told us is greeted without an answer", unit="s", minimum=0.0
    )
    secret: str = setting(
        "", "what every member must know to be heard, at least 16 characters: datagrams are encrypted; empty: in clear",
        hidden=True,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Peer:
    """Somebody who can be sent to."""

    address: Address
    endpoint: Endpoint
    source: Endpoint
    """Where its datagrams come from; differs from the endpoint if it advertises another host."""
    token: int


class Udp(Transport, DatagramHandler):
    """Datagrams, by unicast to each member or by multicast."""

    name = "UDP"
    id = UDP_ID
    Settings = UdpSettings
    codec = Codec({1: Hello})
    COUNTERS = (*Transport.COUNTERS, "hellos", "reconnects", "versions", "stale", "strangers", "strays", "replayed")
    rules = {
        "udp.hello_repeated": "A HELLO that is not answered is sent again.",
        "udp.new_incarnation": "A new incarnation of a name replaces the old one, whose death is thereby proven.",
        "udp.suspect_greeted": "A suspected member is not sent to until it answers a HELLO again.",
        "udp.reconnected": "A peer of the same incarnation answered again.",
        "udp.hello_to_self": "One's own endpoint is recognised among those found, and never greeted again.",
        "udp.stray": "A packet for an earlier incarnation of this member is dropped.",
        "udp.stranger": "A packet from somebody who has not said HELLO, or not any more, is dropped.",
        "udp.replayed": "With a secret, a datagram that was heard before, or is too old to tell, is dropped.",
    }

    settings: UdpSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        if self.settings.max_packet > LARGEST:
            raise UserError(f"UDP: max_packet must be at most {LARGEST}, not {self.settings.max_packet}")
        if self.settings.reconnect_max < self.settings.reconnect_min:
            raise UserError("UDP: reconnect_max must be at least reconnect_min")
        self.secret = self.settings.secret
        if self.secret:
            check_secret(self.secret, "UDP")
            self._check_body = False  # the seal does, and better
        self._seal: Seal | None = None
        group = self.settings.multicast
        self._group = parse_endpoint(group, "UDP: multicast") if group else None
        self._socket: Datagrams | None = None
        self._endpoint = Endpoint(self.settings.bind_host, self.settings.bind_port)
        self._peers: dict[Address, Peer] = {}
        self._sources: dict[Endpoint, Peer] = {}  # the same, by where their datagrams come from
        self._tokens: dict[Endpoint, int] = {}  # of whoever said HELLO from an endpoint and is not connected yet
        self._own_source: Endpoint | None = None  # where our own multicasts come from, as we hear them
        self._inbox: list[Packet] = []
        self._token = 0
        self._timers: list[Timer | None] = [None, None]  # of HELLOs to the group, and to a peer

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._decoder = Decoder(stack.group_tag, self.settings.max_packet, stack.local)
        self._contacts = Contacts(
            self.runtime,
            self._greet,
            self._peers.__contains__,
            reconnect_min=self.settings.reconnect_min,
            reconnect_max=self.settings.reconnect_max,
            forget_after=self.settings.forget_after,
            contacts_max=self.settings.contacts_max,
        )

    def start(self) -> None:
        self._token = int.from_bytes(self.runtime.entropy(8), "little") | 1  # never 0, which stands for 'not known'
        if self.secret:
            own_id = self.runtime.entropy(ID_SIZE)
            self._seal = Seal(self.secret, self.stack.group, self.name, own_id, self.settings.contacts_max)
        bind = Endpoint(self.settings.bind_host, self.settings.bind_port)
        self._socket = self.runtime.net.datagrams(bind, self, self._group, self.settings.ttl)
        bound = self._socket.endpoint
        self._endpoint = Endpoint(self.settings.advertised_host or bound.host, bound.port)
        self._contacts.is_self(bound)
        self._contacts.is_self(self._endpoint)
        if self._group is not None:
            self._greet_group()
        self._gossip()

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for timer in self._timers:
            if timer is not None:
                timer.cancel()
        self._contacts.close()
        self._peers.clear()
        self._sources.clear()
        self._inbox.clear()

    # What others may ask.

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def peers(self) -> list[Address]:
        return sorted(self._peers)

    def endpoint_of(self, peer: Address) -> Endpoint | None:
        known = self._peers.get(peer)
        return None if known is None else known.endpoint

    # Packets down.

    def down(self, packet: Packet) -> None:
        dest = packet.dest
        if dest is None:
            targets = self._everyone()
        elif (peer := self._peers.get(dest)) is not None:
            targets = [peer.endpoint]
        elif dest == self.stack.local:
            self.loop_back(packet)
            return
        else:
            self.stats["unreachable"] += 1
            return
        header = self.header(packet) if targets else None
        if header is None or self._socket is None:
            return
        if self.runtime.trace.on:
            self.runtime.trace.flush()
        buffers: tuple[Buffer, Buffer] = (header, packet.body)
        if self._seal is not None:
            buffers = self._seal.seal(buffers)
        for endpoint in targets:
            self._socket.send(buffers, endpoint)
        self.stats["packets_out"] += len(targets)
        self.stats["bytes_out"] += len(targets) * (len(buffers[0]) + len(buffers[1]))

    def _everyone(self) -> list[Endpoint]:
        """Where to send what is for all other members of the view."""
        local, members = self.stack.local, self.stack.view.members
        if self._group is not None:
            return [self._group] if len(members) > 1 else []
        known = [self._peers.get(member) for member in members if member != local]
        reachable = [peer.endpoint for peer in known if peer is not None]
        self.stats["unreachable"] += len(known) - len(reachable)
        return reachable

    # Packets up.

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        if self._socket is None:
            return
        try:
            packet = self._decode(memoryview(data))
            if packet.proto == UDP_ID:
                hello = self.codec.decode(packet.body)
                self._heard_hello(packet.sender, hello, source)
                return
        except StrayError:
            self.stats["strays"] += 1
            self.rule("udp.stray")
            return
        except ReplayedError:
            self.stats["replayed"] += 1
            self.rule("udp.replayed")
            return
        except WireError as problem:
            self.refuse(counter_of(problem), source.host, str(problem))
            return
        peer = self._sources.get(source)
        if peer is None or (packet.sender != peer.address and not packet.flags & AGAIN):
            if source != self._own_source and packet.sender != self.stack.local:  # our own multicasts come back to us
                self.stats["strangers"] += 1
                self.rule("udp.stranger")
            return
        self.stats["packets_in"] += 1
        self.stats["bytes_in"] += len(data)
        if not self._inbox:  # one batch for all that is read in this turn of the loop
            self.runtime.call_soon(self._deliver)
        self._inbox.append(packet)

    def _decode(self, data: memoryview) -> Packet:
        if self._seal is not None:
            return self._decoder.decode(self._seal.open(data))
        refuse_sealed(data)
        packet = self._decoder.decode(data)
        if not packet.flags & CHECKED:
            raise WireError("a datagram whose body is not covered by the checksum")
        return packet

    def _deliver(self) -> None:
        batch, self._inbox = self._inbox, []
        if batch and self._socket is not None:
            self.pass_up(batch)

    # Events from above.

    def down_event(self, event: Event) -> None:
        if isinstance(event, Suspect):
            self._suspected(event.members)
        else:
            super().down_event(event)

    def found(self, endpoint: Endpoint) -> None:
        if self._socket is None:
            return
        try:
            ipaddress.ip_address(endpoint.host.partition("%")[0])
        except ValueError:  # datagrams are sent to numbers: a name is looked up each time that it is found
            self.runtime.net.resolve(endpoint.host, lambda hosts: self._resolved(hosts, endpoint.port))
        else:
            self._resolved((endpoint.host,), endpoint.port)

    def _resolved(self, hosts: Sequence[str], port: int) -> None:
        for host in hosts:
            self._learn(Endpoint(host, port), found=True)

    def _learn(self, endpoint: Endpoint, *, found: bool) -> None:
        if self._socket is None:
            return
        contact = self._contacts.named(endpoint, found=found)
        if contact is None:
            self.rule("udp.hello_to_self")
        elif contact.timer is None:
            self._contacts.now(contact)

    def _suspected(self, members: Sequence[Address]) -> None:
        """Nobody closes a datagram connection: a suspicion is what ends it, and the next answer what makes it again."""
        for member in members:
            peer = self._remove(member)
            if peer is not None:
                self.rule("udp.suspect_greeted")
                self._contacts.lost(member, stayed=True)
                self.up_event(PeerClosed(member, False))

    # HELLO.

    def _greet(self, contact: Contact) -> None:
        """Say HELLO; and again after a while, unless it was answered."""
        if contact.failures:
            self.rule("udp.hello_repeated")
        contact.dialling = False
        self._contacts.failed(contact)
        self._say_hello(contact.endpoint, self._tokens.get(contact.endpoint, 0), ask=True)

    def _greet_group(self) -> None:
        assert self._group is not None
        alone = not self._peers
        pause = self.settings.reconnect_min if alone else self.settings.reconnect_max
        self._timers[0] = self.runtime.call_later(pause, self._greet_group)
        self._say_hello(self._group, 0, ask=True)

    def _gossip(self) -> None:
        """One peer at a time, by chance, is told who the others are: who knows one process gets to know all."""
        self._timers[1] = self.runtime.call_later(self.settings.reconnect_max, self._gossip)
        if len(self._peers) > 1:
            peer = self._peers[self.runtime.rng.choice(list(self._peers))]
            self._say_hello(peer.endpoint, peer.token, ask=False)

    def _say_hello(self, to: Endpoint, echo: int, *, ask: bool) -> None:
        if self._socket is None:
            return
        self.stats["hellos"] += 1
        host = "" if self._endpoint.host in WILDCARDS else self._endpoint.host
        others = tuple(peer.endpoint for peer in self._peers.values())[-GOSSIP_MAX:]
        hello = Hello(self._token, echo, ask, host, self._endpoint.port, VERSION, VERSION, others)
        packet = Packet(self.codec.encode(hello), None, UDP_ID)
        packet.sender = self.stack.local
        buffers: tuple[Buffer, Buffer] = (
            encode_header(packet, self.stack.group_tag, self._name, self._check_body), packet.body,
        )  # fmt: skip
        self._socket.send(buffers if self._seal is None else self._seal.seal(buffers), to)

    def _heard_hello(self, sender: Address, hello: Hello, source: Endpoint) -> None:
        endpoint = Endpoint(hello.host or source.host, hello.port)
        if not is_reachable(endpoint) or not sender.name or not hello.token:
            raise WireError(f"a HELLO from '{sender}' at {endpoint}, which cannot be")
        if sender == self.stack.local:
            if hello.token == self._token:
                self._own_source = source
                self._contacts.is_self(source)
            else:
                why = f"a process at {endpoint} calls itself {sender}, as this one does: rename one"
                self.refuse("stale", source.host, why)
            return
        if hello.lowest > VERSION or hello.highest < VERSION:
            spoken = f"versions {hello.lowest} to {hello.highest} of the wire format, we speak {VERSION}"
            self.refuse("versions", source.host, f"{sender} speaks {spoken}")
            return
        if any(peer.name == sender.name and peer.incarnation > sender.incarnation for peer in self._peers):
            self.refuse("stale", source.host, f"{sender} is an older incarnation of a connected peer")
            return
        if sender.name == self.stack.local.name and self._namesake(sender, endpoint, hello):
            return
        self._note_token(endpoint, hello.token)
        was_connected = sender in self._peers
        if hello.echo == self._token:
            self._answered(Peer(sender, endpoint, source, hello.token))
        connected = sender in self._peers
        if hello.ask or (connected and not was_connected):  # the latter to tell it who else is there
            self._say_hello(endpoint, hello.token, ask=not connected)
        if not connected:  # our answer may be lost: greet it ourselves until it answers
            contact = self._contacts.named(endpoint, found=False)
            if contact is not None:
                self._contacts.heard(contact, sender)
                self._contacts.later(contact)
        for other in hello.peers[:GOSSIP_MAX]:
            if is_reachable(other):
                self._learn(other, found=False)

    def _namesake(self, sender: Address, endpoint: Endpoint, hello: Hello) -> bool:
        """Another process has our name: the older one gives way. False if the newer one has not answered us yet."""
        if sender.incarnation < self.stack.local.incarnation:
            self.refuse("stale", str(sender), f"it is an older process with our name, {self.stack.local}")
            if hello.ask:
                self._say_hello(endpoint, hello.token, ask=False)
        elif hello.echo == self._token:  # it lives, and is no datagram that was long on its way
            self.up_event(Replaced(sender, endpoint))
        else:
            return False
        return True

    def _note_token(self, endpoint: Endpoint, token: int) -> None:
        if endpoint not in self._tokens and len(self._tokens) >= self.settings.contacts_max:
            self._tokens.pop(next(iter(self._tokens)))
        self._tokens[endpoint] = token

    def _answered(self, peer: Peer) -> None:
        known = self._peers.get(peer.address)
        if known is not None:
            if known.source != peer.source:
                self._sources.pop(known.source, None)
            self._peers[peer.address] = self._sources[peer.source] = peer
            return
        if len(self._peers) >= self.settings.contacts_max:
            self.stats["unreachable"] += 1
            return
        again = any(contact.lost for contact in self._contacts.of(peer.address))
        older = {other: None for other in self._peers if other.name == peer.address.name}
        for old in older | self._contacts.former(peer.address):
            self.rule("udp.new_incarnation")
            self._remove(old)
            self._contacts.replaced(old, peer.endpoint)
            self.up_event(PeerClosed(old, True))
        contact = self._contacts.named(peer.endpoint, found=False)
        if contact is not None:
            contact.failures = 0
            self._contacts.answered(contact, peer.address)
        self._peers[peer.address] = self._sources[peer.source] = peer
        if again:
            self.stats["reconnects"] += 1
            self.rule("udp.reconnected")
        self.up_event(PeerConnected(peer.address))

    def _remove(self, member: Address) -> Peer | None:
        peer = self._peers.pop(member, None)
        if peer is not None and self._sources.get(peer.source) is peer:
            del self._sources[peer.source]
        return peer
