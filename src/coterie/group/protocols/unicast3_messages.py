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
    ack_interval: float = setting(0.02, "Least time between two acks on a connection.", unit="s", minimum=0)
    retransmit_interval: float = setting(0.1, "How often the retransmission task runs.", unit="s", minimum=0.001)
    window: int = setting(16384, "How far ahead of the last delivered a unit may be.", unit="bundles", minimum=1)
    ask_most: int = setting(64, "Units asked for at a time.", unit="bundles", minimum=1)
    conn_expiry_timeout: float = setting(
        120.0, "Idle time until a connection is closed; 0: never.", unit="s", minimum=0
    )
    conn_close_timeout: float = setting(60.0, "Time from CLOSING to CLOSED.", unit="s", minimum=0)


RULES = {
    "unicast3.ack_batch": "One cumulative ack for a whole batch.",
    "unicast3.ack_delayed": "An ack that would come too soon after the last one is delayed and merged.",
    "unicast3.acked": "An ack removes everything up to it from the sender.",
    "unicast3.resend_highest": "Only the highest unit is resent, on the second run in which nothing moved.",
    "unicast3.ask": "The receiver asks for exactly what it misses.",
    "unicast3.answer": "The sender answers with exactly what was asked for.",
    "unicast3.first_creates": "The unit with the first flag creates the receiver's entry.",
    "unicast3.first_in_batch": "Units that stand before the first one, in a batch or earlier, are taken after it.",
    "unicast3.first_wanted": "A unit of an unknown connection sets a flag; the task sends SEND_FIRST_SEQNO.",
    "unicast3.first_sent": "SEND_FIRST_SEQNO is answered with the first unit only.",
    "unicast3.duplicate": "A unit that came twice is delivered once, and acked again.",
    "unicast3.old_connection": "A unit or message of an old connection is ignored.",
    "unicast3.new_connection": "A newer connection replaces the older one.",
    "unicast3.revived": "A connection that was reaped here while its sender kept it goes on where it was.",
    "unicast3.expired": "An idle connection becomes CLOSING.",
    "unicast3.closing_flushes": "A CLOSING connection goes on resending until everything is acked.",
    "unicast3.outsider": "A connection with one that is not in the view is CLOSING from the start, and stays so.",
    "unicast3.reopened": "A send on a CLOSING connection makes it OPEN again.",
    "unicast3.closed": "A CLOSING connection becomes CLOSED after its time-out, and is removed.",
    "unicast3.train_kept": "A connection in the middle of a message is not reaped: its sender is asked about it.",
    "unicast3.close_sent": "The sender of a removed connection tells the receiver.",
    "unicast3.close_received": "CLOSE removes the receiver's entry.",
    "unicast3.to_self": "A unit to oneself takes the same way.",
}
