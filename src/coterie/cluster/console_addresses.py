"""Where the consoles of the members are: each tells the others its address, whenever the members change.

It is for readers of streams, who ask any broker whom else they may ask. What is missing here is only not known yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.cluster.wire import LEASES

if TYPE_CHECKING:
    from coterie.cluster.peer_messages import PeerMessages
    from coterie.cluster.standing import Standing
    from coterie.group.members import Address

WHERE: Final = 11
"""The first byte of such a word."""
LENGTH_MAX: Final = 2000


class ConsoleAddresses:
    """As one broker knows them."""

    def __init__(self, standing: Standing, messages: PeerMessages) -> None:
        self._standing = standing
        self._messages = messages
        self._ours = ""
        self._others: dict[Address, str] = {}

    def here(self, url: str) -> None:
        """Our console is there."""
        self._ours = url
        self.tell()

    def of(self, member: Address) -> str:
        """Nothing: it has none, or it is not known."""
        return self._ours if member == self._standing.us else self._others.get(member, "")

    def tell(self) -> None:
        """Also when the members have changed."""
        standing = self._standing
        servants = standing.servants
        self._others = {member: url for member, url in self._others.items() if member in servants}
        if self._ours and standing.serves and standing.versions.spoken >= LEASES:
            for member in servants:
                if member != standing.us:
                    self._messages.send(member, bytes((WHERE,)) + self._ours.encode())

    def heard(self, member: Address, data: memoryview) -> None:
        if len(data) <= LENGTH_MAX:
            self._others[member] = bytes(data).decode("utf-8", "replace")
