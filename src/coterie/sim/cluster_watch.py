"""Looking at simulated brokers from outside, again and again: whether alarms are known, and what waits for disks.

Traces do not tell of these. What is not as it should be must stay so for a while, in which nothing stands in the way
of its being told: no process is stopped, and no link is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coterie.broker.broker import DISK, MEMORY
from coterie.cluster.quorum import majority
from coterie.sim.clock import PAUSED

if TYPE_CHECKING:
    from coterie.cluster.member import Member
    from coterie.sim.clock import World
    from coterie.sim.cluster_node import ClusterHost
    from coterie.sim.network import Fabric

_EVERY = 0.1
"""Seconds between two looks."""
_LASTS = 1.0
"""Seconds that something may last."""


class Watch:
    """Of one run."""

    def __init__(
        self, world: World, fabric: Fabric, hosts: Mapping[str, ClusterHost], complain: Callable[[str], None]
    ) -> None:
        self._world = world
        self._fabric = fabric
        self._hosts = hosts
        self._complain = complain
        self._since: dict[tuple[str, ...], float] = {}

    def look(self) -> None:
        now = self._world.time
        found: dict[tuple[str, ...], float] = {}
        alive = {name: host.member for name, host in self._hosts.items() if host.node.alive and host.member is not None}
        serving = {name: member for name, member in alive.items() if member.replica.serves and not self._stopped(name)}
        for name, member in serving.items():
            for what in (*self._too_much(member, serving), *self._unknown(member, serving)):
                found[(name, *what)] = self._since.get((name, *what), now)
        for what, since in found.items():
            if now - since > _LASTS:
                self._complain(" ".join(what))
                found[what] = float("inf")  # once
        self._since = found
        self._world.after(_EVERY, self._world.nature, self.look)

    def _stopped(self, name: str) -> bool:
        node = self._hosts[name].node
        others = (other for other in self._hosts if other != name)
        cut = any(self._fabric.link(a, b).blocked for other in others for a, b in ((name, other), (other, name)))
        return cut or node.process is None or node.process.owner.state == PAUSED

    def _too_much(self, member: Member, serving: Mapping[str, Member]) -> list[tuple[str, ...]]:
        """Of those that are in step nobody need stay so with a disk that lags behind, if the others suffice, and are
        there to agree."""
        replica = member.replica
        others = {each.name for each in replica.in_step if each != replica.us and each.name in serving}
        if replica.updating:
            return []
        if member.broker.store.unsynced() > member.settings.unsynced_max and majority(replica.voters, others):
            return [("keeps more for its disk than unsynced_max, and does not step back",)]
        return []

    def _unknown(self, member: Member, serving: Mapping[str, Member]) -> list[tuple[str, ...]]:
        low = [
            each.name
            for each in member.replica.servants
            if (other := serving.get(each.name)) is not None
            and other.replica.us == each
            and (other.broker.alarms[MEMORY] or other.broker.alarms[DISK])
            and each not in (member.replica.us, *member.replica.catching_up)
            and each.name not in member.broker.alarms_elsewhere
        ]
        return [("lets publishers go on, and serves with", name, "which has an alarm") for name in low]
