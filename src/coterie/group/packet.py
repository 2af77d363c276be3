"""The packet: what layers hand each other and what goes on the wire, with one versioned header for everything.

Header (little-endian, 52 bytes, then the sender's name, then the body):
    0 magic "Ct"    2 version     3 carrier       4 length of the whole packet
    8 checksum      12 group      16 incarnation of the sender
    24 view tag     32 sequence number    40 connection id    44 destination tag
    48 protocol     49 flags      50 length of the name

The checksum covers the header from byte 12 on and, if the transport wants it, the body (flag CHECKED). The destination
tag is 0 for packets to all: what was meant for an earlier incarnation of a member does not reach the present one.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Final

from coterie.errors import ForeignError, StrayError, WireError
from coterie.group.members import Address
from coterie.runtime.base import Buffer

MAGIC: Final = b"Ct"
VERSION: Final = 1
HEADER: Final = struct.Struct("<2sBBIIIQQQIIBBH")
HEADER_SIZE: Final = HEADER.size
assert HEADER_SIZE == 52
NAME_MAX: Final = 255

# Carriers: which layer numbers the packet.
RAW: Final = 0  # none: it may be lost, doubled and reordered
MCAST: Final = 1  # NAKACK
UCAST: Final = 2  # UNICAST3

# Protocols: whose message it is. The application's is 0; each protocol class has its own `id`.
APP: Final = 0

# Flags.
FIRST: Final = 1  # UNICAST3: first of its connection
TRAIN: Final = 2  # part of a message that is larger than a bundle
TRAIN_END: Final = 4  # its last part
CHECKED: Final = 8  # the checksum covers the body too
AGAIN: Final = 16  # sent again
TRAIN_START: Final = 32  # the first part of a train


class Packet:
    """One bundle, or one message of a protocol. Fields are filled in on the way down and read on the way up."""

    __slots__ = ("body", "carrier", "conn", "dest", "flags", "parts", "pos", "proto", "sender", "seqno", "view")

    def __init__(
        self,
        body: Buffer,
        dest: Address | None = None,
        proto: int = APP,
        carrier: int = RAW,
        flags: int = 0,
    ) -> None:
        self.body = body
        self.dest = dest
        """One member, or None for all of the view."""
        self.proto = proto
        self.carrier = carrier
        self.flags = flags
        self.sender: Address = NOBODY
        self.view = 0
        self.seqno = 0
        self.conn = 0
        self.pos = 0
        """Its place in the total order of its view, from 1; 0 without total order."""
        self.parts: tuple[Packet, ...] = ()
        """The bundles of a train, on the packet that fragmentation makes of them."""

    def copy(self, dest: Address | None, flags: int = 0) -> Packet:
        """The same bundle, with the same number, for one member perhaps and with more flags."""
        copy = Packet(self.body, dest, self.proto, self.carrier, self.flags | flags)
        copy.sender, copy.seqno, copy.view, copy.conn = self.sender, self.seqno, self.view, self.conn
        return copy

    def __repr__(self) -> str:
        to = "all" if self.dest is None else str(self.dest)
        name = ("raw", "mcast", "ucast")[self.carrier]
        return f"<{name} {self.sender}->{to} proto={self.proto} seq={self.seqno} conn={self.conn} {len(self.body)}B>"


NOBODY: Final = Address("", 0)


def group_tag(group: str) -> int:
    """The group's name as the header carries it."""
    return zlib.crc32(group.encode())


@lru_cache(4096)
def address_tag(address: Address | None) -> int:
    """A destination as the header carries it."""
    return 0 if address is None else zlib.crc32(str(address).encode()) or 1


def encode_header(packet: Packet, group: int, name: bytes, check_body: bool) -> bytes:
    """The header of a packet, its sender's name included: write it, then the body."""
    flags = packet.flags | CHECKED if check_body else packet.flags & ~CHECKED
    sender, body = packet.sender, packet.body
    tail = TAIL.pack(
        group, sender.incarnation, packet.view, packet.seqno, packet.conn, address_tag(packet.dest), packet.proto,
        flags, len(name),
    ) + name  # fmt: skip
    length = HEAD_SIZE + len(tail) + len(body)
    checksum = zlib.crc32(tail, length << 2 | packet.carrier)
    if check_body:
        checksum = zlib.crc32(body, checksum)
    return HEAD.pack(MAGIC, VERSION, packet.carrier, length, checksum) + tail


HEAD: Final = struct.Struct("<2sBBII")
TAIL: Final = struct.Struct("<IQQQIIBBH")
HEAD_SIZE: Final = HEAD.size


class Decoder:
    """Packets from bytes, for one member of one group. The senders' names, seen again and again, are decoded once."""

    def __init__(self, group: int, max_size: int, local: Address) -> None:
        self.group = group
        self._tags = (0, address_tag(local))
        self.max_size = max_size
        self._senders: dict[tuple[bytes, int], Address] = {}

    def length(self, data: Buffer, start: int = 0) -> int:
        """How long the packet that begins at `start` is, from its first 8 bytes. Raises WireError if it is none."""
        magic, version, _, length = _LENGTH.unpack_from(data, start)
        if magic != MAGIC:
            raise WireError("not a Coterie packet")
        if version != VERSION:
            raise WireError(f"version {version} of the wire format is not spoken here (only {VERSION})")
        if not HEADER_SIZE <= length <= self.max_size:
            raise WireError(f"a packet of {length} bytes: the limit is {self.max_size}")
        return int(length)

    def decode(self, data: memoryview) -> Packet:
        """One whole packet. Raises WireError if it is truncated, altered or foreign."""
        try:
            (
                magic, version, carrier, length, checksum,
                group, incarnation, view, seqno, conn, dest, proto, flags, name_size,
            ) = HEADER.unpack_from(data)  # fmt: skip
        except struct.error:
            raise WireError("truncated") from None
        start = 52 + name_size
        if magic != MAGIC or version != VERSION:
            raise WireError("not a Coterie packet of this version")
        if length != len(data) or start > length or carrier > UCAST:
            raise WireError("a header that makes no sense")
        if zlib.crc32(data[12:] if flags & CHECKED else data[12:start], length << 2 | carrier) != checksum:
            raise WireError("altered on the way")
        if group != self.group:
            raise ForeignError("a packet of another group")
        if dest not in self._tags:
            raise StrayError("a packet for another member, or an earlier incarnation")
        name = bytes(data[52:start])
        sender = self._senders.get((name, incarnation))
        if sender is None:
            sender = self._remember(name, incarnation)
        packet = Packet(data[start:], None, proto, carrier, flags)
        packet.sender = sender
        packet.view = view
        packet.seqno = seqno
        packet.conn = conn
        return packet

    def _remember(self, name: bytes, incarnation: int) -> Address:
        try:
            sender = Address(name.decode(), incarnation)
        except UnicodeDecodeError:
            raise WireError("a sender without a proper name") from None
        if len(self._senders) >= 4096:  # foreign names must not grow the cache for ever
            self._senders.clear()
        self._senders[name, incarnation] = sender
        return sender


_LENGTH: Final = struct.Struct("<2sBBI")
