"""Injecting the faults of a broker's plan, and ending them. Each fault and its end is in the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coterie.broker.broker import MEMORY
from coterie.sim.disk import Platter
from coterie.sim.plan import Fault
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.sim.broker_run import BrokerSimulation

End = Callable[[], None]


class BrokerInjector:
    """Carries out the faults of one run."""

    def __init__(self, simulation: BrokerSimulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._number = 0
        platters = [host.node.platter for host in simulation.hosts.values()]
        self._speed = (platters[0].latency, platters[0].sync_latency) if platters else (0.0, 0.0)

    def schedule(self, faults: Sequence[Fault], quiet_at: float) -> None:
        world = self._world
        for fault in faults:
            world.at(fault.at, world.nature, self._inject, fault, quiet_at)
        world.at(quiet_at, world.nature, world.after, 0.0, world.nature, self._quiet)

    def _quiet(self) -> None:
        self._world.emit("heal", fault="all", last=True)

    def _inject(self, fault: Fault, quiet_at: float) -> None:
        self._number += 1
        number = self._number
        end = self._begin(fault, number)
        if end is None:
            return
        self._simulation.result.faults[fault.kind] += 1
        links: list[Json] = [list(link) for link in fault.links]
        values: dict[str, Json] = {**fault.values}
        self._world.emit(
            "fault", fault=fault.kind, number=number, duration=fault.duration, nodes=list(fault.nodes), links=links,
            values=values,
        )  # fmt: skip
        if fault.duration:
            at = min(fault.at + fault.duration, quiet_at)
            self._world.at(at, self._world.nature, self._heal, fault.kind, number, end)

    def _heal(self, kind: str, number: int, end: End) -> None:
        end()
        self._world.emit("heal", fault=kind, number=number)

    def _begin(self, fault: Fault, number: int) -> End | None:
        """Begin a fault; gives what ends it, or None if there was nobody to hurt."""
        simulation = self._simulation
        if not all(name in simulation.nodes for name in (*fault.nodes, *(n for link in fault.links for n in link))):
            return None
        match fault.kind:
            case "latency" | "slow_link":
                return self._links(fault, number)
            case "partition" | "one_way":
                return self._cut(fault)
            case "reset":
                return self._reset(fault)
            case "slow_receiver":
                client = simulation.clients[fault.nodes[0]]
                client.delay = fault.values["delay"]
                return lambda: setattr(client, "delay", 0.0)
            case "pause":
                return self._pause(fault)
            case "crash" | "stop":
                return self._end_process(fault)
            case "hostile":
                return self._simulation.hosts[fault.nodes[0]].send_nonsense(int(fault.values["number"]))
            case "other_state":
                return self._simulation.hosts[fault.nodes[0]].go_astray()
            case "memory_alarm":
                return self._alarm(fault)
            case "otherwise":
                return self._simulation.restart_otherwise(fault)
        return self._disk(fault)

    def _links(self, fault: Fault, number: int) -> End:
        links = [self._simulation.fabric.link(a, b) for a, b in fault.links]
        for link in links:
            link.change(number, fault.values)

        def end() -> None:
            for link in links:
                link.restore(number)

        return end

    def _cut(self, fault: Fault) -> End:
        links = [self._simulation.fabric.link(a, b) for a, b in fault.links]
        for link in links:
            link.block()

        def end() -> None:
            for link in links:
                link.unblock()

        return end

    def _reset(self, fault: Fault) -> End | None:
        streams = self._simulation.fabric.streams_between(*fault.nodes)
        for stream in streams:
            stream.reset()
            stream.other.reset()
        return _nothing if streams else None

    def _pause(self, fault: Fault) -> End | None:
        node = self._simulation.nodes[fault.nodes[0]]
        if not node.alive or node.process is None:
            return None
        incarnation = node.process.incarnation
        node.pause()
        return lambda: node.resume(incarnation)

    def _alarm(self, fault: Fault) -> End | None:
        """A broker is low on memory, in this life of it."""
        host, world = self._simulation.hosts[fault.nodes[0]], self._world
        broker, process = host.broker, host.node.process
        if broker is None or process is None or not host.node.alive:
            return None
        world.soon(process.owner, broker.set_alarm, MEMORY, True)
        return lambda: world.soon(process.owner, broker.set_alarm, MEMORY, False)

    def _end_process(self, fault: Fault) -> End | None:
        host, values = self._simulation.hosts[fault.nodes[0]], fault.values
        if not host.node.alive or host.node.process is None:
            return None
        incarnation = host.node.process.incarnation
        if fault.kind == "crash":
            host.crash(bool(values.get("silent")), bool(values.get("power", 1.0)))
        elif not host.stop(_nothing):
            return None

        def restart() -> None:
            if host.node.incarnation == incarnation:
                host.crash(silent=False, power=True)  # it did not stop in time
                host.start()

        return restart

    def _disk(self, fault: Fault) -> End:
        platter, values = self._simulation.hosts[fault.nodes[0]].node.platter, fault.values
        match fault.kind:
            case "disk_full":
                platter.capacity = platter.used() + int(values["room"])
                return lambda: setattr(platter, "capacity", None)
            case "disk_tear":
                platter.tear = True
                return lambda: setattr(platter, "tear", False)
            case "disk_error":
                platter.failing, platter.sticking = values["chance"], values.get("sticking", values["chance"])
                return lambda: self._sound_again(platter)
            case "hung_sync":
                platter.hangs_until = self._world.time + fault.duration
                return lambda: setattr(platter, "hangs_until", 0.0)
            case "slow_disk":
                platter.latency, platter.sync_latency = (each * values["factor"] for each in self._speed)
                return lambda: self._quick_again(platter)
        raise ValueError(f"a fault of an unknown kind: {fault.kind}")

    def _sound_again(self, platter: Platter) -> None:
        platter.failing = platter.sticking = 0.0

    def _quick_again(self, platter: Platter) -> None:
        platter.latency, platter.sync_latency = self._speed


def _nothing() -> None:
    """A fault that is over at once."""
