"""Point-to-point messages between brokers, outside the replicated log. The first byte says what it is.

Of some it does not matter if one is lost, as it is told again before long: how far a broker and its disk have come, its
alarms, questions and answers of the lease. Parts of an update and direct replies wait until there is room for them.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from coterie.broker.journal import NO_VERDICT, Broken
from coterie.cluster import chain
from coterie.cluster.membership import Progress
from coterie.cluster.wire import encode_json
from coterie.group.channel import BufferFull, ChannelClosed
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.cluster.chain import Link
    from coterie.cluster.standing import Standing
    from coterie.group.channel import Channel, Delivery
    from coterie.group.members import Address
    from coterie.runtime.base import Runtime

log = Log(__name__)
DISK, PING, PONG, APPLIED, REFUSED, ALARMS, DISK_AT, APPLIED_AT = 1, 2, 3, 10, 12, 13, 15, 16
_SHORT = struct.Struct(">BQQ")
"""What, a number, and of a report the life that it is of."""
_AT = struct.Struct(">QQQ17s")
"""The life that a report is of, epoch, index, and the chain there."""
_AT_SIZE = 1 + _AT.size
Short = Callable[["Address", int, int], None]
"""Takes who has said it, the number, and the life."""
Long = Callable[["Address", memoryview], None]
"""Takes who has said it, and what follows the first byte."""


class PeerMessages:
    """Of one broker: those that it sends, and who takes those that it gets."""

    def __init__(self, runtime: Runtime, standing: Standing, channel: Channel) -> None:
        self._runtime = runtime
        self._standing = standing
        self._channel = channel
        self.short: dict[int, Short] = {PING: self._asked}
        self.long: dict[int, Long] = {}

    # Sending.

    def ping(self, number: int, to: Iterable[Address]) -> None:
        self._tell(PING, number, 0, to)

    def _asked(self, sender: Address, number: int, life: int) -> None:
        if self._standing.serves_with(sender):
            self._tell(PONG, number, 0, (sender,))

    def disk(self, there: Link, to: Iterable[Address]) -> None:
        self._report(DISK, DISK_AT, there, to)

    def applied(self, there: Link, to: Iterable[Address]) -> None:
        self._report(APPLIED, APPLIED_AT, there, to)

    def _report(self, what: int, with_chain: int, there: Link, to: Iterable[Address]) -> None:
        """Of the present life. Until the log has said where that began nobody could tell it from a former one; then all
        hear it in any case."""
        life = self._standing.life()
        if not life:
            return
        place = there.place
        if chain.covers_effects(there.chain):
            self._send(bytes((with_chain,)) + _AT.pack(life, place.epoch, place.index, there.chain), to)
        else:
            self._tell(what, place.index, life, to)

    def alarms(self, bits: int, to: Iterable[Address]) -> None:
        self._tell(ALARMS, bits, 0, to)

    def _tell(self, what: int, number: int, life: int, to: Iterable[Address]) -> None:
        self._send(_SHORT.pack(what, number, life), to)

    def _send(self, data: bytes, to: Iterable[Address]) -> None:
        """If there is no room for it, it is lost."""
        standing = self._standing
        for member in to:
            if member != standing.us and standing.serves_with(member):
                try:
                    self._channel.send_nowait(data, member)
                except (BufferFull, ChannelClosed):
                    pass

    def send(self, member: Address, data: bytes) -> None:
        """As soon as there is room for it."""
        channel = self._channel

        async def send() -> None:
            try:
                await channel.send(data, member)
            except ChannelClosed:
                pass

        self._runtime.spawn(send())

    def refuse(self, member: Address, why: str) -> None:
        """It wants to join, and may not."""
        told = {"cluster": self._standing.cluster, "why": why}
        self.send(member, bytes((REFUSED,)) + encode_json(told))

    # Hearing.

    def is_report(self, delivery: Delivery) -> bool:
        """Whether it says how far a broker has come, and no more: neither the log nor the store is touched by that."""
        first = delivery.messages[0] if len(delivery.messages) == 1 else b""
        return not delivery.multicast and len(first) == _AT_SIZE and first[0] in (DISK_AT, APPLIED_AT)

    def heard(self, sender: Address, data: memoryview) -> None:
        """What cannot be read is nobody's trouble but its sender's."""
        what = data[0] if len(data) else 0
        try:
            taker = self.long.get(what)
            if taker is not None:
                taker(sender, data[1:])
                return
            what, number, life = _SHORT.unpack(data)
            known = self.short.get(what)
            if known is not None:
                known(sender, number, life)
        except (*NO_VERDICT, Broken):
            raise
        except Exception:
            log.error("a message of a peer that cannot be read", sender=sender, error=traceback.format_exc())


def read_report(data: memoryview) -> tuple[chain.Link, int]:
    """Of DISK_AT and APPLIED_AT: the place with its chain, and the life. Raises struct.error."""
    life, epoch, index, found = _AT.unpack(data)
    return chain.Link(Progress(epoch, index), found), life


def read_short(index: int) -> chain.Link:
    """Of DISK and APPLIED."""
    return chain.Link(Progress(0, index), chain.UNKNOWN)
