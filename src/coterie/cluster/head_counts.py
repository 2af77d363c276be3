"""How many clients each broker has of a vhost, or of a user, that has a limit: told by each to all others.

It is told when it has changed, at most every `INTERVAL`, when members change, and again now and then, as a word may be
lost. What a broker has that does not serve any more counts no longer: its clients are gone, or will be. Of connections
that were let in at several brokers at the same moment, those that are too many beside the old ones of all brokers are
closed again, the newest first, at the broker whose name comes last. So the limit holds again: the last broker that has
a new connection has found room for it behind everything that stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.broker.head_count import KINDS, OLD, Clients, Elsewhere, HeadCount
from coterie.cluster.wire import LOG_TIME, decode_json, encode_json
from coterie.group.channel import BufferFull, ChannelClosed

if TYPE_CHECKING:
    from coterie.cluster.standing import Standing
    from coterie.group.channel import Channel
    from coterie.group.members import Address
    from coterie.runtime.base import Runtime, Timer

COUNTS: Final = 14
"""The first byte of such a word."""
INTERVAL: Final = 0.1
AGAIN: Final = 10.0
"""Seconds after which it is told again, though nothing has changed."""
SIZE_MAX: Final = 16 << 20
COUNT_MAX: Final = 1 << 31


class HeadCounts(Elsewhere):
    """As one broker knows them."""

    def __init__(self, runtime: Runtime, standing: Standing, channel: Channel) -> None:
        self._runtime = runtime
        self._standing = standing
        self._channel = channel
        self._clients: Clients | None = None
        self._told: HeadCount = {kind: {} for kind in KINDS}
        self._told_at = 0.0
        self._others: dict[Address, HeadCount] = {}
        self._soon: Timer | None = None

    def attach(self, clients: Clients) -> None:
        self._clients = clients
        clients.elsewhere = self

    def count(self, kind: str, name: str) -> int:
        return sum(each[kind].get(name, 0) for each in self._others.values())

    # Telling.

    def changed(self) -> None:
        """Told at once, or, if something was told a moment ago, soon."""
        if self._soon is None:
            self._soon = self._runtime.call_later(INTERVAL, self._later)
            self.look()

    def _later(self) -> None:
        self._soon = None
        self.look()

    def look(self) -> None:
        """Also now and then: limits may be new, a connection is old, or a word may have found no room."""
        if self._clients is not None and self._standing.serves:
            ours = self._clients.head_count()
            if ours != self._told or self._runtime.now() - self._told_at >= AGAIN:
                self._tell(ours)

    def _tell(self, ours: HeadCount) -> None:
        standing = self._standing
        self._told, self._told_at = ours, self._runtime.now()
        if standing.versions.spoken < LOG_TIME:  # an older broker would not understand it
            return
        data = bytes((COUNTS,)) + encode_json(ours)
        for member in standing.servants:
            if member != standing.us:
                try:
                    self._channel.send_nowait(data, member)
                except (BufferFull, ChannelClosed):
                    self._told = {}  # `look` tells it again

    def members_changed(self) -> None:
        standing = self._standing
        self._others = {
            member: counts
            for member, counts in self._others.items()
            if standing.serves and standing.serves_with(member)
        }
        if self._clients is not None and standing.serves:
            self._tell(self._clients.head_count())

    # Hearing.

    def heard(self, member: Address, data: memoryview) -> None:
        standing = self._standing
        if member == standing.us or not standing.serves_with(member) or len(data) > SIZE_MAX:
            return
        self._others[member] = _checked(decode_json(data))
        if self._clients is not None:
            self._clients.shed(self._before)

    def _before(self, kind: str, name: str) -> int:
        """All of the brokers that come before this one, and what is old at the others."""
        us = self._standing.us.name
        return sum(
            counts[kind if other.name < us else OLD[kind]].get(name, 0) for other, counts in self._others.items()
        )


def _checked(said: object) -> HeadCount:
    """Raises ValueError if it makes no sense."""
    if not isinstance(said, dict):
        raise ValueError("no head count")
    found: HeadCount = {}
    for kind in KINDS:
        counts = said.get(kind, {})
        if not isinstance(counts, dict) or not all(type(n) is int and 0 <= n < COUNT_MAX for n in counts.values()):
            raise ValueError(f"no head count of {kind}")
        found[kind] = counts
    return found
