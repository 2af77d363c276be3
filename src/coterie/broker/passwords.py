"""Passwords as they are kept: hashed with scrypt and a salt of their own, never as they are.

Hashes that RabbitMQ's definitions carry (salted SHA-256 and SHA-512) are understood too, so that users can be brought
along with their passwords. Hashing takes its time on purpose: it is for `runtime.offload`, never for the loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from coterie.errors import UserError
from coterie.runtime.base import Runtime

SCRYPT: Final = "scrypt"
FOREIGN: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}
"""By the name that definitions give it: the hash of Python's."""
SALT_SIZE: Final = 16
_FOREIGN_SALT: Final = 4
COST: Final = Runtime.hash_cost
"""The logarithm of scrypt's N: 16 MiB and some 40 ms for each guess."""


@dataclass(frozen=True, slots=True)
class Hash:
    """What is kept of a password."""

    algorithm: str
    text: str
    """Salt and hash, in base64."""

    def fits(self, password: bytes, cost: int = COST) -> bool:
        """Whether that is the password. Slow."""
        raw = base64.b64decode(self.text)
        if self.algorithm == SCRYPT:
            salt, wanted = raw[:SALT_SIZE], raw[SALT_SIZE:]
            found = _scrypt(password, salt, cost)
        else:
            salt, wanted = raw[:_FOREIGN_SALT], raw[_FOREIGN_SALT:]
            found = hashlib.new(FOREIGN[self.algorithm], salt + password).digest()
        return hmac.compare_digest(found, wanted)


NOTHING: Final = Hash(SCRYPT, "")
"""No password fits, and finding that out takes as long as with any other."""


def fits_slowly(kept: Hash, password: bytes, cost: int = COST) -> bool:
    """As `fits`, and as slow for a hash that another program made as for ours: else how long it takes would tell which
    users came from there, and that they exist."""
    if kept.algorithm != SCRYPT:
        NOTHING.fits(password, cost)
    return kept.fits(password, cost)


def hashed(password: bytes, salt: bytes, cost: int = COST) -> Hash:
    """Slow."""
    return Hash(SCRYPT, base64.b64encode(salt + _scrypt(password, salt, cost)).decode())


def given(algorithm: str, text: str) -> Hash:
    """A hash that somebody else made. Raises UserError if it is none."""
    if algorithm != SCRYPT and algorithm not in FOREIGN:
        raise UserError(f"hashing_algorithm '{algorithm}' is not known: {', '.join((SCRYPT, *FOREIGN))} are")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("password_hash is not base64") from None
    return Hash(algorithm, text)


def _scrypt(password: bytes, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=1 << cost, r=8, p=1, maxmem=64 << 20, dklen=32)
