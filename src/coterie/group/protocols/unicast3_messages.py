"""What UNICAST3 says on the wire, and what can be set about it."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.group.window import Ranges
from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class Ack:
    """I have delivered everything up to here."""

    conn: int
    upto: int


@dataclass(frozen=True, slots=True)
class Ask:
    """I miss these."""

    conn: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class SendFirstSeqno:
    """I do not know where this connection starts."""

    conn: int


@dataclass(frozen=True, slots=True)
class Close:
    """This connection is over."""

    conn: int


@dataclass(frozen=True, slots=True)
class Unicast3Settings:
    ack_interval: float = setting(0.02, "least time between two acks on a connection", unit="s", minimum=0)
    retransmit_interval: float = setting(0.1, "how often the retransmission task runs", unit="s", minimum=0.001)
    window: int = setting(16384, "how far ahead of the last delivered a unit may be", unit="bundles", minimum=1)
    ask_most: int = setting(64, "units asked for at a time", unit="bundles", minimum=1)
    conn_expiry_timeout: float = setting(120.0, "idle time until a connection is closed; 0: never", unit="s", minimum=0)
    conn_close_timeout: float = setting(60.0, "time from CLOSING to CLOSED", unit="s", minimum=0)
