"""How many connections and channels vhosts and users have, where there is a limit.

A limit counts over the whole cluster. Each broker knows its own clients exactly, and of those of others what they have
told last (`cluster.head_counts`). So two brokers may let somebody in at the same moment, each in the belief that there
is room for one more. When they hear of each other, the one whose name comes first keeps its connection, as far as the
old connections of all brokers leave room: those are never closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

VHOSTS, USERS, USERS_CHANNELS = "vhosts", "users", "channels"
OLD: Final = {VHOSTS: "old vhosts", USERS: "old users"}
"""Of the connections that are counted, those that are not closed to make room for others."""
KINDS: Final = (VHOSTS, USERS, USERS_CHANNELS, *OLD.values())
HeadCount = dict[str, dict[str, int]]
"""By kind, by name: of vhosts and users their connections, of users their channels, too."""


class Elsewhere:
    """What other brokers of the cluster have; of one that stands alone there are none."""

    def count(self, kind: str, name: str) -> int:
        return 0

    def changed(self) -> None:
        """This broker's own have changed."""


class Clients(Protocol):
    """Of this broker: its AMQP server."""

    elsewhere: Elsewhere

    def head_count(self) -> HeadCount:
        """Of vhosts and users that have limits. What is old is counted as such from now on, and never closed."""

    def shed(self, before: Callable[[str, str], int]) -> None:
        """Close what is too much, and not old, if so many of a kind and name come before ours."""
