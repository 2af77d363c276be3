"""How many connections and channels a vhost or a user has, where there is a limit; and the rule for what is too much.

A limit counts over the whole cluster. Each broker knows its own clients exactly, and of those of others what they have
told last (`cluster.head_counts`). So two brokers may let somebody in at the same moment, each in the belief that there
is room for one more. When they hear of each other, the one whose name comes first keeps its connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coterie.amqp.connection import Connection
    from coterie.broker.users import User
    from coterie.broker.vhost import Vhost

CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"
VHOSTS, USERS, USERS_CHANNELS = "vhosts", "users", "channels"
KINDS: Final = (VHOSTS, USERS, USERS_CHANNELS)
HeadCount = dict[str, dict[str, int]]
"""By kind, by name: of vhosts and users their connections, of users their channels, too."""


class Elsewhere:
    """What other brokers of the cluster have; of one that stands alone there are none."""

    def count(self, kind: str, name: str) -> int:
        return 0

    def changed(self) -> None:
        """This broker's own have changed."""


def counted(connections: Iterable[Connection]) -> HeadCount:
    """Of vhosts and users that have limits: for the others."""
    found: HeadCount = {kind: {} for kind in KINDS}
    for each in connections:
        if each.over:
            continue
        vhost, user = each.vhost, each.user
        if CONNECTIONS in vhost.limits:
            _add(found[VHOSTS], vhost.name, 1)
        if CONNECTIONS in user.limits:
            _add(found[USERS], user.name, 1)
        if CHANNELS in user.limits:
            _add(found[USERS_CHANNELS], user.name, len(each.channels))
    return found


def _add(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more


def of_vhost(connections: Iterable[Connection], vhost: Vhost) -> list[Connection]:
    return [each for each in connections if not each.over and each.vhost is vhost]


def of_user(connections: Iterable[Connection], user: User) -> list[Connection]:
    return [each for each in connections if not each.over and each.user.name == user.name]
