"""Sealed datagrams: encrypted and authenticated with a key that is made of the cluster's secret.

It promises that what is opened was sealed by a process that knows the secret, for this group and this purpose, is
unaltered, and is opened only once. Each process draws an id and seals with a key of its own, derived from the secret
and that id; so a plain counter serves as nonce and none is ever used twice. Of each sender the last `WINDOW` numbers
are kept in mind: what was seen, or is too old to tell, is dropped. Form (little-endian):

    0 magic "Cs"   2 version   3 zero   4 group   8 id of the sender   24 number   32 ciphertext   tag (16 bytes)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coterie.errors import ForeignError, UnprovenError, WireError
from coterie.group.packet import MAGIC, group_tag
from coterie.group.protocols.auth import REMEDY, derive
from coterie.runtime.base import Buffer

SEALED: Final = b"Cs"
VERSION: Final = 1
ID_SIZE: Final = 16
TAG_SIZE: Final = 16
WINDOW: Final = 8192
"""Numbers of one sender that are told apart: more than a socket's buffer holds, for two sockets are read in turn."""
_HEADER: Final = struct.Struct(f"<2sBBI{ID_SIZE}sQ")
_NONCE: Final = struct.Struct("<IQ")
OVERHEAD: Final = _HEADER.size + TAG_SIZE


class ReplayedError(WireError):
    """A sound datagram, but it was opened before, or is too old to tell."""


def refuse_sealed(data: Buffer) -> None:
    """For a member without a secret: say so if a datagram makes no sense because it is sealed."""
    if bytes(data[:2]) == SEALED:
        raise UnprovenError(f"it has a secret and this member has none: {REMEDY}")


class Seal:
    """Seals what this process sends, and opens what others sent. `where` is the layer that has the secret."""

    def __init__(self, secret: str, group: str, where: str, own_id: bytes, senders_max: int) -> None:
        self._tag = group_tag(group)
        self._key = derive(secret.encode(), f"seal {where}", group.encode())
        self._own_id = own_id
        self._own = self._key_of(own_id)
        self._number = 0
        self._opened = 0
        self._senders: dict[bytes, _Sender] = {}
        self._senders_max = senders_max

    def seal(self, buffers: Sequence[Buffer]) -> tuple[bytes, bytes]:
        """One datagram, as two buffers."""
        self._number = number = self._number + 1
        header = _HEADER.pack(SEALED, VERSION, 0, self._tag, self._own_id, number)
        return header, self._own.encrypt(_NONCE.pack(0, number), b"".join(buffers), header)

    def open(self, data: memoryview) -> memoryview:
        """What was sealed. Raises a WireError of the kind that tells why not."""
        if len(data) < OVERHEAD:
            if bytes(data[:2]) == MAGIC:
                raise UnprovenError(f"it has no secret: {REMEDY}")
            raise WireError("truncated")
        magic, version, zero, group, sender_id, number = _HEADER.unpack_from(data)
        if magic != SEALED or version != VERSION or zero:
            if magic == MAGIC:
                raise UnprovenError(f"it has no secret: {REMEDY}")
            raise WireError("not a sealed datagram of this version")
        if group != self._tag:
            raise ForeignError("a datagram of another group")
        sender = self._senders.get(sender_id)
        if sender is not None and not sender.is_new(number):
            raise ReplayedError("it was opened before, or is too old to tell")
        key = sender.key if sender is not None else self._key_of(sender_id)
        try:
            body = key.decrypt(_NONCE.pack(0, number), data[_HEADER.size :], data[: _HEADER.size])
        except Exception:  # InvalidTag; and whatever else a cipher may find wrong with what a stranger sent
            if sender is None:
                raise UnprovenError(f"it has another secret, or was altered on the way: {REMEDY}") from None
            raise WireError("altered on the way") from None
        if sender is None:  # only now: nobody without the secret makes us remember anything
            sender = self._remember(sender_id, key)
        self._opened += 1
        sender.saw(number, self._opened)
        return memoryview(body)

    def _key_of(self, sender_id: bytes) -> AESGCM:
        return AESGCM(derive(self._key, "sender", sender_id))

    def _remember(self, sender_id: bytes, key: AESGCM) -> _Sender:
        if len(self._senders) >= self._senders_max:
            quietest = min(self._senders, key=lambda known: self._senders[known].heard)
            del self._senders[quietest]
        sender = self._senders[sender_id] = _Sender(key)
        return sender


class _Sender:
    """A process that has sealed something: its key, and which of its numbers were seen."""

    __slots__ = ("_highest", "_seen", "heard", "key")

    def __init__(self, key: AESGCM) -> None:
        self.key = key
        self.heard = 0
        """When it was heard last, counted in datagrams of all senders: the quietest is forgotten first."""
        self._highest = 0
        self._seen = 0
        """Bit n: the number `_highest` - n was seen."""

    def is_new(self, number: int) -> bool:
        behind = self._highest - number
        return behind < 0 or (behind < WINDOW and not self._seen >> behind & 1)

    def saw(self, number: int, now: int) -> None:
        self.heard = now
        ahead = number - self._highest
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & _ALL if ahead < WINDOW else 1
            self._highest = number
        else:
            self._seen |= 1 << -ahead


_ALL: Final = (1 << WINDOW) - 1
