"""What UNICAST3 says on the wire, what can be set about it, and the rules of its design document."""

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


RULES = {
    "unicast3.ack_batch": "one cumulative ack for a whole batch",
    "unicast3.ack_delayed": "an ack that would come too soon after the last one is delayed and merged",
    "unicast3.acked": "an ack removes everything up to it from the sender",
    "unicast3.resend_highest": "only the highest unit is resent, on the second run in which nothing moved",
    "unicast3.ask": "the receiver asks for exactly what it misses",
    "unicast3.answer": "the sender answers with exactly what was asked for",
    "unicast3.first_creates": "the unit with the first flag creates the receiver's entry",
    "unicast3.first_in_batch": "in a batch the first unit is taken first, wherever it stands",
    "unicast3.first_wanted": "a unit of an unknown connection sets a flag; the task sends SEND_FIRST_SEQNO",
    "unicast3.first_sent": "SEND_FIRST_SEQNO is answered with the first unit only",
    "unicast3.duplicate": "a unit that came twice is delivered once, and acked again",
    "unicast3.old_connection": "a unit or message of an old connection is ignored",
    "unicast3.new_connection": "a newer connection replaces the older one",
    "unicast3.revived": "a connection that was reaped here while its sender kept it goes on where it was",
    "unicast3.expired": "an idle connection becomes CLOSING",
    "unicast3.closing_flushes": "a CLOSING connection goes on resending until everything is acked",
    "unicast3.reopened": "a send on a CLOSING connection makes it OPEN again",
    "unicast3.closed": "a CLOSING connection becomes CLOSED after its time-out, and is removed",
    "unicast3.train_kept": "a connection in the middle of a message is not reaped: its sender is asked about it",
    "unicast3.close_sent": "the sender of a removed connection tells the receiver",
    "unicast3.close_received": "CLOSE removes the receiver's entry",
    "unicast3.to_self": "a unit to oneself takes the same way",
}
