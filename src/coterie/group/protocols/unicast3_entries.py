"""The two sides of a UNICAST3 connection.

States, on either side:

    OPEN --(idle for conn_expiry_timeout, closed by its owner, or the peer left)--> CLOSING
    CLOSING --(a unit is sent or received, and the peer is in the view)--> OPEN
    CLOSING --(conn_close_timeout passed; everything sent and acked, or the peer left)--> CLOSED, and it is removed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from coterie.group.members import Address, View
from coterie.group.packet import APP, FIRST, TRAIN, TRAIN_END, Packet
from coterie.group.window import Window


class State(Enum):
    OPEN = 1
    CLOSING = 2
    CLOSED = 3


class SenderEntry:
    """What we sent to `peer` on a connection and what of it is not acked yet.

    Invariant: acked <= sent, and `unacked` holds exactly the numbers from acked+1 to sent.
    """

    __slots__ = (
        "_last_run", "acked", "conn", "in_train", "left", "of_app", "peer", "sent", "state", "touched", "unacked",
    )  # fmt: skip

    def __init__(self, peer: Address, conn: int, now: float) -> None:
        self.peer = peer
        self.conn = conn
        self.state = State.OPEN
        self.sent = 0
        self.acked = 0
        self.unacked: dict[int, Packet] = {}
        self.touched = now
        self.left = False
        """The peer is not in the view."""
        self.in_train = False
        """The last unit was part of a message, and more of it follows."""
        self.of_app = 0
        """The last unit of the application."""
        self._last_run = (0, 0)

    def stamp(self, packet: Packet, local: Address) -> None:
        """Give a unit its number and keep it."""
        self.sent += 1
        packet.seqno = self.sent
        if packet.proto == APP:
            self.of_app = self.sent
        packet.conn = self.conn
        packet.sender = local
        if self.sent == 1:
            packet.flags |= FIRST
        self.in_train = packet.flags & (TRAIN | TRAIN_END) == TRAIN
        self.unacked[self.sent] = packet

    def acknowledge(self, upto: int) -> bool:
        """Drop everything up to a number. True if there was any."""
        if upto <= self.acked:
            return False
        for seqno in range(self.acked + 1, upto + 1):
            del self.unacked[seqno]
        self.acked = upto
        return True

    def stuck(self) -> bool:
        """Called once per run of the task: is something unacked, and did nothing move since the last run?"""
        now = (self.acked, self.sent)
        same, self._last_run = now == self._last_run, now
        return same and self.acked < self.sent


class ReceiverEntry:
    """What came from `peer` on a connection."""

    __slots__ = (
        "acked_at", "conn", "early", "in_train", "left", "peer", "state", "touched", "units", "want_first", "window",
    )  # fmt: skip

    def __init__(self, peer: Address, conn: int, now: float) -> None:
        self.peer = peer
        self.conn = conn
        self.state = State.OPEN
        self.window: Window | None = None
        """None until we know the first number of the connection."""
        self.early: dict[int, Packet] = {}
        """Units that came before the first."""
        self.want_first = False
        self.acked_at = float("-inf")
        self.units = 0
        """Units since the last ack."""
        self.touched = now
        self.left = False
        self.in_train = False
        """The last unit delivered was part of a message that is not whole yet."""

    def keep_early(self, packet: Packet, limit: int) -> None:
        if len(self.early) < limit:
            self.early[packet.seqno] = packet


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a receiver's entry, so that nothing of it is delivered again."""

    conn: int
    delivered: int
    closed: bool
    """Its sender closed it: nothing of it can come any more. Otherwise it may go on."""
    in_train: bool
    """The layers above keep the beginning of a message."""

    def admits(self, conn: int) -> bool:
        return conn > self.conn or (conn == self.conn and not self.closed)


class Graveyard:
    """The tombstones of removed receivers' entries, one per peer, and not too many. `ended` is told of a connection
    of which nothing more can come."""

    MOST = 1024

    def __init__(self, ended: Callable[[Address, int], None]) -> None:
        self.stones: dict[Address, Tombstone] = {}
        self._ended = ended

    def bury(self, entry: ReceiverEntry, closed: bool) -> None:
        """Remember how far it was: nothing of it may be delivered twice."""
        if entry.window is None and not closed:
            return  # nothing of it was delivered
        self._forget(entry.peer)
        delivered = 0 if entry.window is None else entry.window.delivered
        self.stones[entry.peer] = Tombstone(entry.conn, delivered, closed, entry.in_train)
        if closed:
            self._ended(entry.peer, entry.conn)
        if len(self.stones) > self.MOST:
            self._forget(next(iter(self.stones)))

    def revive(self, peer: Address) -> None:
        """The connection goes on."""
        del self.stones[peer]

    def close(self, peer: Address, conn: int) -> None:
        """Its sender closed it, or is gone."""
        stone = self.stones.get(peer)
        if stone is not None and stone.conn == conn and not stone.closed:
            self.stones[peer] = replace(stone, closed=True)
            self._ended(peer, conn)

    def close_replaced(self, view: View) -> None:
        """Nothing more comes of those of whom a newer incarnation is here."""
        for peer, stone in list(self.stones.items()):
            if view.replaces(peer):
                self.close(peer, stone.conn)

    def unfinished(self, view: View) -> list[tuple[Address, Tombstone]]:
        """Those in the view whose connection stopped in the middle of a message."""
        return [(p, s) for p, s in self.stones.items() if s.in_train and not s.closed and p in view]

    def _forget(self, peer: Address) -> None:
        stone = self.stones.pop(peer, None)
        if stone is not None and not stone.closed:
            self._ended(peer, stone.conn)
