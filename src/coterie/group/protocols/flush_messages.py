"""What FLUSH and FLUSH2 say on the wire, and what can be set about both. Names are those of the design documents.

All of it goes by UNICAST3: reliable, in order, tied to no view. A flush is named by its leader and a number that the
leader never uses again; a `round` counts how often it had to start over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from coterie.group.members import Address, ViewId
from coterie.settings import setting

Digest = tuple[int, ...]
"""For each member of the view, in the order of the view: the number of its last multicast that was delivered."""
Units = tuple[tuple[int, int], ...]
"""For each member of the view: a unicast connection with it, and a number on that. Empty: nothing for anybody."""

INHERITED = 0
"""The number of a flush that a joiner was told of: it holds, but nobody has said more."""


@dataclass(frozen=True, slots=True)
class StartFlush:
    """Stop multicasting, and say so."""

    number: int
    round: int
    view: ViewId
    """The view that is flushed. Digests are in its order."""
    kind: int
    targets: tuple[Address, ...]
    """Nobody: all of the view."""


@dataclass(frozen=True, slots=True)
class StartFlushOk:
    """FLUSH2: my gate is shut, and I deliver nothing beyond this."""

    number: int
    round: int
    digest: Digest
    sent: Units
    """The last of the application's unicasts that may not have arrived yet."""
    received: Units
    """The last unicast delivered."""


@dataclass(frozen=True, slots=True)
class StartFlushFail:
    """Another flush holds here that yours cannot run beside."""

    number: int
    round: int


@dataclass(frozen=True, slots=True)
class AbortFlush:
    """The flush has failed: as if it had never been."""

    number: int
    view: ViewId
    """The view that its leader is in."""


@dataclass(frozen=True, slots=True)
class StopFlush:
    """The flush is over. Number 0: you take part in none of mine, whatever you were told."""

    number: int
    view: ViewId
    """The view that its leader is in."""


@dataclass(frozen=True, slots=True)
class Cut:
    """REBROADCAST_MSGS: deliver up to here and not beyond."""

    number: int
    round: int
    cut: Digest
    holders: dict[Address, Address]
    """By sender of which someone misses something: a member that has it all."""
    waits: Units
    """Unicasts that were sent to you before the flush, and have not come yet."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """I have delivered up to the cut, and this is how far I am."""

    number: int
    round: int
    digest: Digest


class Why(IntEnum):
    """Why a member leaves an application's flush that its holder has not stopped."""

    SUSPECT = 1
    """It suspects the holder. Its gate stays shut until the holder knows, or is out of its view, or time is up."""
    TIMEOUT = 2
    """Its gate was shut for as long as it may be, by its own clock."""


@dataclass(frozen=True, slots=True)
class LeftFlush:
    """I do not go on with your exclusive flush, whether it holds or not."""

    number: int
    """0: the one that holds in the view that I came to."""
    round: int
    why: int


@dataclass(frozen=True, slots=True)
class Sent:
    """FLUSH2: my block() still runs, and I have multicast up to here. Deliver it: I may be waiting for an answer."""

    view: ViewId
    upto: int


@dataclass(frozen=True, slots=True)
class FlushOk:
    """FLUSH: I have multicast up to here, and nothing more follows."""

    leader: Address
    number: int
    round: int
    upto: int


@dataclass(frozen=True, slots=True)
class FlushCompleted:
    """FLUSH: I have every FLUSH_OK, and everything that was sent before them."""

    number: int
    round: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class StopFlushOk:
    """FLUSH: my gate is open again."""

    leader: Address
    number: int
    view: ViewId
    """The view that I am in."""


@dataclass(frozen=True, slots=True)
class FlushSettings:
    timeout: float = setting(
        5.0,
        "How long a leader waits for answers; then a view goes on without whoever has not answered, and any other "
        "flush fails. Longer than block_timeout.",
        unit="s",
        minimum=0.001,
    )
    block_timeout: float = setting(
        3.0, "Longest time that the application's block() is waited for.", unit="s", minimum=0
    )
    hold_max: float = setting(
        30.0,
        "Longest time that the gate stays shut, whatever happens. Longer than timeout.",
        unit="s",
        minimum=0.001,
    )
    exclusive_max: float = setting(
        10.0,
        "Longest time that a flush of an application holds; then every member releases it by itself.",
        unit="s",
        minimum=0.001,
    )
    waiting_max: int = setting(64, "Flushes of this member that may wait until another of its own is over.", minimum=0)


@dataclass(frozen=True, slots=True)
class Flush2Settings(FlushSettings):
    unicasts: bool = setting(
        True, "A flush also waits until the unicasts that were sent before it have been delivered."
    )


COMMON_RULES = {
    "gate": "While the gate is shut multicasts wait; unicasts pass at all times.",
    "reconcile": "Digests differ: the reconciliation phase runs.",
    "new_round": "Somebody is gone, or not at the cut, during reconciliation: the flush starts over.",
    "waits": "The second flush on the same member waits until the first is over.",
    "joins": "A flush begins where another holds already: several leaders hold it.",
    "fail": "A flush that cannot run beside the one that holds is answered with START-FLUSH-FAIL.",
    "abort": "One START-FLUSH-FAIL: the leader sends ABORT-FLUSH to everybody, and its flush has failed.",
    "aborted": "ABORT-FLUSH: the flush is rolled back.",
    "deferred": "A flush that begins while one for a view holds waits for the end of that.",
    "preempted": "A flush for a view breaks off what another has under way; that starts over afterwards.",
    "timeout": "Somebody has not answered in time: a flush that is not for a view fails.",
    "left_out": "Somebody has not answered in time: a view goes on without it.",
    "block_timeout": "A block() that takes too long is not waited for any longer.",
    "exclusive_max": "An application's flush that holds for too long is released by every member by itself.",
    "stop_before_view": "STOP-FLUSH before the view that came of the flush: the gate opens when that is there.",
    "later_view": "START-FLUSH of a view that is not installed here yet is kept until it is.",
    "older_view": "START-FLUSH of a view that is over here is ignored, and membership told.",
    "inherited": "A joiner's gate is shut while somebody holds a flush in the view that it comes to.",
    "suspect_holder": "The holder of an exclusive flush is suspected: the gate stays shut until it knows of that.",
    "left": "A member that leaves an exclusive flush by itself tells its holder.",
    "lost": "A member has left an exclusive flush that holds: its holder is told, and everybody released.",
    "newcomers": "Members come whom an exclusive flush that holds does not block: its holder is told.",
    "orphaned": "The leader of a flush for a view is suspected: the gate stays shut for its successor.",
}
"""What is settled for both protocols alike."""
