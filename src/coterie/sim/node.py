"""A node of the simulation: a host with a name, an address, a disk, and one process at a time.

The process may be stopped and continued, killed, and started again as the next incarnation; the disk stays. When the
process dies its host closes its connections; when the host dies too, nobody says anything until it is back.
"""

from __future__ import annotations

from coterie.sim.clock import DEAD, PAUSED, World
from coterie.sim.disk import Platter, SimDisk
from coterie.sim.network import Fabric, SimNetwork
from coterie.sim.runtime import SimRuntime


class Node:
    """A host and the process on it."""

    def __init__(self, world: World, fabric: Fabric, name: str) -> None:
        self.world = world
        self.name = name
        self.ports = fabric.add_host(name)
        self.platter = Platter(world.rng(f"{name}/disk"))
        self.process: SimRuntime | None = None
        self.incarnation = 0
        self.skew = 0.0
        """Seconds by which the node's wall clock is wrong."""
        self._fabric = fabric
        self._chance = world.rng(f"{name}/host")
        self._stops = 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.owner.state != DEAD

    def boot(self) -> SimRuntime:
        """Start the next incarnation."""
        assert not self.alive, "one process at a time"
        self.incarnation += 1
        net = SimNetwork(self._fabric, self.ports)
        disk = SimDisk(self.world, self.platter)
        process = SimRuntime(self.world, self, self.incarnation, net, disk)
        net.owner = disk.owner = process.owner
        self.process = process
        self._stops = 0
        self.ports.up(process.owner)
        return process

    def crash(self, silent: bool = False, power: bool = True) -> None:
        """Kill the process. With `silent` its host is gone too, and its peers learn nothing. With `power` the host
        loses it: what was not synced may be lost."""
        process = self.process
        if process is None or process.dead:
            return
        process.trace.emit("crash", sender=process.owner.name, silent=silent)
        polite = self._chance.random() < 0.5
        process.die(lambda: self.ports.down(silent, polite=polite))
        if power:
            self.platter.crash()

    def exit(self, incarnation: int) -> None:
        """The process of that incarnation ends of its own accord."""
        process = self.process
        if process is not None and process.incarnation == incarnation and not process.dead:
            process.die(lambda: self.ports.down(silent=False, polite=True))

    def pause(self, frozen: bool = False) -> None:
        """Stop the process; `frozen` stops its host too, so that it accepts no connections."""
        if self.process is not None and not self.process.dead:
            self._stops += 1
            self.ports.frozen = self.ports.frozen or frozen
            self.world.pause(self.process.owner)

    def resume(self, incarnation: int) -> None:
        """Undo one `pause` of that incarnation."""
        process = self.process
        if process is not None and process.incarnation == incarnation and process.owner.state == PAUSED:
            self._stops -= 1
            if not self._stops:
                self.ports.frozen = False
                self.world.resume(process.owner)
