"""Building blocks on a channel: request/response, a shared dictionary, a lock, a counter. See docs/blocks.md."""

from __future__ import annotations

from coterie.blocks.counter import SharedCounter
from coterie.blocks.hub import Hub, Port
from coterie.blocks.lock import Lease, LockLost, LockTimeout, SharedLock, Token
from coterie.blocks.machine import NoMajority
from coterie.blocks.rpc import CallError, CallTimeout, MemberLost, RemoteError, Rpc, TooFewAnswers
from coterie.blocks.shared_dict import SharedDict

__all__ = [
    "CallError", "CallTimeout", "Hub", "Lease", "LockLost", "LockTimeout", "MemberLost", "NoMajority", "Port",
    "RemoteError", "Rpc", "SharedCounter", "SharedDict", "SharedLock", "Token", "TooFewAnswers",
]  # fmt: skip
