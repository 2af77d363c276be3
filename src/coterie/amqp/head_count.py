"""The connections of this broker that count where a vhost or a user has a limit (`broker.head_count`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from coterie.broker.head_count import KINDS, OLD, USERS, USERS_CHANNELS, VHOSTS, HeadCount

if TYPE_CHECKING:
    from coterie.amqp.connection import Connection
    from coterie.broker.users import User
    from coterie.broker.vhost import Vhost

CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"


def counted(connections: Iterable[Connection]) -> HeadCount:
    """Of vhosts and users that have limits: for the others."""
    found: HeadCount = {kind: {} for kind in KINDS}
    for each in connections:
        if each.over:
            continue
        vhost, user = each.vhost, each.user
        for kind, owner in ((VHOSTS, vhost), (USERS, user)):
            if CONNECTIONS in owner.limits:
                _add(found[kind], owner.name, 1)
                if each.is_old:
                    _add(found[OLD[kind]], owner.name, 1)
        if CHANNELS in user.limits:
            _add(found[USERS_CHANNELS], user.name, len(each.channels))
    return found


def _add(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more


def of_vhost(connections: Iterable[Connection], vhost: Vhost) -> list[Connection]:
    return [each for each in connections if not each.over and each.vhost is vhost]


def of_user(connections: Iterable[Connection], user: User) -> list[Connection]:
    return [each for each in connections if not each.over and each.user.name == user.name]
