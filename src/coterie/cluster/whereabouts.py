"""Where the consoles of the members are: each tells the others its address, whenever the members change.

It is for readers of streams, who ask any broker whom else they may ask. What is missing here is only not known yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.cluster.wire import LEASES

if TYPE_CHECKING:
    from coterie.cluster.core import Core
    from coterie.group.members import Address

WHERE: Final = 11
"""The first byte of such a word."""
LENGTH_MAX: Final = 2000


class Whereabouts:
    """As one broker knows them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ours = ""
        self._others: dict[Address, str] = {}
        core.changed.append(self._tell)

    def here(self, url: str) -> None:
        """Our console is there."""
        self._ours = url
        self._tell()

    def of(self, member: Address) -> str:
        """Nothing: it has none, or it is not known."""
        return self._ours if member == self._core.us else self._others.get(member, "")

    def _tell(self) -> None:
        core = self._core
        servants = core.servants
        self._others = {member: url for member, url in self._others.items() if member in servants}
        if self._ours and core.serves and core.versions.spoken >= LEASES:
            for member in servants:
                if member != core.us:
                    core.words.send(member, bytes((WHERE,)) + self._ours.encode())

    def heard(self, member: Address, data: memoryview) -> None:
        if len(data) <= LENGTH_MAX:
            self._others[member] = bytes(data).decode("utf-8", "replace")
