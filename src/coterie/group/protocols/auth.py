"""The cluster's secret, and how the two ends of a TCP connection prove to each other that they know it.

It promises that a side says nothing of itself before the other has proven it: no name, no endpoint, no peer. Each draws
a nonce; the dialler proves first, since it is the one who wants in. A proof is an HMAC over both nonces and the role
of who proves, with a key of the secret and the group's name: a recorded one does not fit other nonces, a reflected one
not the other role. The secret never leaves the process. What follows the handshake is not protected: that is for TLS,
inside which the handshake is the same.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from coterie.errors import UnprovenError, UserError

SECRET_LEAST = 16
"""Characters of a secret. Whoever records a handshake may try guesses on it for as long as he likes."""
NONCE_SIZE = 32
REMEDY = "set the same secret on every member"


@dataclass(frozen=True, slots=True)
class Challenge:
    """Prove that you know the secret. The dialler's is the first packet of a connection, the other's answers it."""

    nonce: bytes
    """Drawn for this connection."""


@dataclass(frozen=True, slots=True)
class Proof:
    """I know it: the dialler's first, then the other's."""

    mac: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The last packet of a connection that came to nothing, so that both sides can log why."""

    why: int


NO_SECRET, NO_PROOF, WRONG_PROOF = 1, 2, 3
_SENT = {  # why, as who sends it logs it
    NO_SECRET: "it has a secret and this member has none",
    NO_PROOF: "it has no secret",
    WRONG_PROOF: "it has another secret",
}
_HEARD = {NO_SECRET: _SENT[NO_PROOF], NO_PROOF: _SENT[NO_SECRET], WRONG_PROOF: _SENT[WRONG_PROOF]}

Message = Challenge | Proof | Refused


class RefusedError(UnprovenError):
    """The handshake is over. `answer` is what the other side should be told, if anything."""

    def __init__(self, text: str, answer: Refused | None = None) -> None:
        super().__init__(f"{text}: {REMEDY}")
        self.answer = answer


def check_secret(secret: str, where: str) -> None:
    """Refuse one that can be guessed. None at all, which is empty, is allowed."""
    if secret and len(secret) < SECRET_LEAST:
        raise UserError(
            f"{where}: secret must have at least {SECRET_LEAST} characters: make one with `coterie cluster init`"
        )


def derive(secret: bytes, purpose: str, *context: bytes) -> bytes:
    """A key of 32 bytes for one purpose; keys for different purposes or contexts tell nothing of each other."""
    parts = (b"coterie 1", purpose.encode(), *context)
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "little") + part for part in parts), "sha256")


class Handshake:
    """One side's part in the proof of one connection. Without a key it is over at once, and refuses to be asked."""

    def __init__(self, key: bytes | None, nonce: bytes, *, dialled: bool) -> None:
        self._key = key
        self._ours = nonce
        self._theirs = b""
        self._dialled = dialled
        self.proven = key is None
        """The other side has proven that it knows the secret, or nobody asks it to."""

    def opening(self) -> Challenge | None:
        """What to say as soon as the connection stands."""
        return Challenge(self._ours) if self._dialled and self._key is not None else None

    def received(self, message: Message) -> Message | None:
        """Take the other side's next message; gives what to answer. Raises RefusedError when it has failed."""
        if isinstance(message, Refused):
            raise RefusedError(_HEARD.get(message.why, "it refused the handshake"))
        if self._key is None:
            raise _refusal(NO_SECRET)
        if isinstance(message, Challenge):
            return self._challenged(message.nonce)
        if not self._theirs or self.proven or not hmac.compare_digest(message.mac, self._mac(not self._dialled)):
            raise _refusal(WRONG_PROOF)
        self.proven = True
        return None if self._dialled else self._proof()

    def check_proven(self) -> None:
        """The other side says who it is: it must have proven by now that it may."""
        if not self.proven:
            raise _refusal(NO_PROOF)

    def _challenged(self, nonce: bytes) -> Message:
        if self._theirs or len(nonce) != NONCE_SIZE or nonce == self._ours:
            raise RefusedError("a second, a short or a reflected challenge")
        self._theirs = nonce
        return self._proof() if self._dialled else Challenge(self._ours)

    def _proof(self) -> Proof:
        return Proof(self._mac(self._dialled))

    def _mac(self, by_dialler: bool) -> bytes:
        assert self._key is not None
        dialler, other = (self._ours, self._theirs) if self._dialled else (self._theirs, self._ours)
        return derive(self._key, "proof", b"dialler" if by_dialler else b"listener", dialler, other)


def _refusal(why: int) -> RefusedError:
    return RefusedError(_SENT[why], Refused(why))
