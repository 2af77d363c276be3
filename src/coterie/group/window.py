"""The numbered slots behind reliable delivery: what arrived, what is missing, what may be handed on in order."""

from __future__ import annotations

from coterie.group.packet import Packet

Ranges = tuple[tuple[int, int], ...]


class Window:
    """The stream of one sender, numbered from `delivered + 1` on.

    Invariant: forgotten <= delivered <= received; every number up to `delivered` has been taken, in order, once.
    """

    __slots__ = ("delivered", "forgotten", "limit", "received", "slots")

    def __init__(self, delivered: int, limit: int) -> None:
        self.delivered = delivered
        self.received = delivered
        """Highest number that is known to exist: it arrived, or someone told of it."""
        self.forgotten = delivered
        self.limit = limit
        """How far ahead of `delivered` a packet may be."""
        self.slots: dict[int, Packet] = {}

    def add(self, packet: Packet) -> bool:
        """Keep a packet. False if it is here already, was delivered, or is too far ahead."""
        seqno = packet.seqno
        if seqno <= self.delivered or seqno in self.slots:
            return False
        if seqno > self.delivered + self.limit:
            self.told(seqno)  # we cannot keep it, but now we know what to ask for
            return False
        self.slots[seqno] = packet
        if seqno > self.received:
            self.received = seqno
        return True

    def take(self, out: list[Packet]) -> None:
        """Append what can be delivered now, in order. The packets stay here until they are forgotten."""
        seqno = self.delivered + 1
        slots = self.slots
        while (packet := slots.get(seqno)) is not None:
            out.append(packet)
            seqno += 1
        self.delivered = seqno - 1

    def take_upto(self, out: list[Packet], last: int) -> None:
        """As `take`, but nothing beyond a number."""
        seqno = self.delivered + 1
        while seqno <= last and (packet := self.slots.get(seqno)) is not None:
            out.append(packet)
            seqno += 1
        self.delivered = seqno - 1

    def forget(self, upto: int) -> bool:
        """Drop delivered packets up to a number. True if there were any."""
        upto = min(upto, self.delivered)
        if upto <= self.forgotten:
            return False
        pop = self.slots.pop
        for seqno in range(self.forgotten + 1, upto + 1):
            pop(seqno, None)
        self.forgotten = upto
        return True

    def cut_off(self) -> None:
        """What has not been delivered by now never will be."""
        for seqno in [seqno for seqno in self.slots if seqno > self.delivered]:
            del self.slots[seqno]
        self.received = self.delivered

    def told(self, highest: int) -> None:
        """Someone says that numbers up to `highest` exist."""
        if highest > self.received:
            self.received = highest

    @property
    def complete(self) -> bool:
        return self.delivered == self.received

    def missing(self, most: int) -> Ranges:
        """The first holes, at most `most` numbers of them."""
        ranges: list[tuple[int, int]] = []
        seqno, end = self.delivered + 1, min(self.received, self.delivered + self.limit)
        while seqno <= end and most > 0:
            if seqno in self.slots:
                seqno += 1
                continue
            first = seqno
            while seqno <= end and seqno not in self.slots and most > 0:
                seqno += 1
                most -= 1
            ranges.append((first, seqno - 1))
        return tuple(ranges)
