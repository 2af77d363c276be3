"""Injecting the faults of a plan, and ending them.

Each fault and its end is in the trace; a fault that finds nobody to hurt (its node is dead already) does nothing and is
not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.sim.plan import LINK_KINDS, NETWORK_KINDS, Fault
from coterie.trace import Event, Json

if TYPE_CHECKING:
    from coterie.sim.simulation import Member, Simulation

End = Callable[[], None]


class Injector:
    """Carries out the faults of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._fabric = simulation.fabric
        self._number = 0
        self._quiet_at = 0.0
        self._waiting: dict[tuple[str, ...], list[Fault]] = {}
        """By node, kind and mode or reason of an event: what happens with it."""

    def schedule(self, faults: Sequence[Fault], quiet_at: float) -> None:
        world, self._quiet_at = self._world, quiet_at
        for fault in faults:
            world.at(fault.at, world.nature, self._wait if fault.on else self._inject, fault, quiet_at)
        world.at(quiet_at, world.nature, world.after, 0.0, world.nature, self._quiet)  # after the last one has ended

    def _wait(self, fault: Fault, quiet_at: float) -> None:
        self._waiting.setdefault(tuple(fault.on.split()), []).append(fault)

    def happened(self, event: Event) -> None:
        """What waits for this: links change before whoever did it says another word, nodes when it has done with it."""
        if self._waiting and event.t < self._quiet_at:
            what = event.data.get("mode") or event.data.get("reason") or ""
            for fault in self._waiting.pop((event.node, event.kind, str(what)), ()):
                now = replace(fault, at=event.t)
                if fault.kind in LINK_KINDS:
                    self._inject(now, self._quiet_at)
                else:
                    self._world.at(event.t, self._world.nature, self._inject, now, self._quiet_at)

    def _quiet(self) -> None:
        self._world.emit("heal", fault="all", last=True)

    def _inject(self, fault: Fault, quiet_at: float) -> None:
        self._number += 1
        end = self._begin(fault, self._number)
        if end is None:
            return
        if fault.kind not in NETWORK_KINDS[:4]:  # of those, each datagram that is hurt is counted
            self._simulation.result.faults[fault.kind] += 1
        links: list[Json] = [list(link) for link in fault.links]
        values: dict[str, Json] = {**fault.values}
        self._world.emit(
            "fault", fault=fault.kind, number=self._number, duration=fault.duration, nodes=list(fault.nodes),
            links=links, values=values,
        )  # fmt: skip
        if fault.duration:
            at = min(fault.at + fault.duration, quiet_at)
            self._world.at(at, self._world.nature, self._heal, fault.kind, self._number, end)

    def _heal(self, kind: str, number: int, end: End) -> None:
        end()
        self._world.emit("heal", fault=kind, number=number)

    # Each of these begins a fault and gives what ends it, or None if there was nobody to hurt.

    def _begin(self, fault: Fault, number: int) -> End | None:
        if fault.kind in LINK_KINDS:
            return self._links(fault, number)
        members = [self._simulation.members.get(name) for name in fault.nodes]
        present = [member for member in members if member is not None]
        if not present or len(present) < len(members):
            return None
        if fault.kind == "start":
            return self._start(present[0])
        if fault.kind == "reset":
            return self._reset(fault)
        if fault.kind == "close":
            self._simulation.close_connection(*fault.nodes)
            return _nothing
        if fault.kind.startswith("disk_"):
            return self._disk(fault, present[0])
        return self._process(fault, present[0]) if present[0].node.alive else None

    def _links(self, fault: Fault, number: int) -> End | None:
        names = self._simulation.members
        links = [self._fabric.link(a, b) for a, b in fault.links if a in names and b in names]
        if not links:
            return None
        for link in links:
            if fault.kind in NETWORK_KINDS:
                link.change(number, fault.values)
            else:
                link.block()

        def end() -> None:
            for link in links:
                if fault.kind in NETWORK_KINDS:
                    link.restore(number)
                else:
                    link.unblock()

        return end

    def _start(self, member: Member) -> End | None:
        if member.node.alive or member.node.incarnation:
            return None
        self._simulation.start(member)
        return _nothing

    def _reset(self, fault: Fault) -> End | None:
        streams = self._fabric.streams_between(*fault.nodes)
        for stream in streams:
            stream.reset()
            stream.other.reset()
        return _nothing if streams else None

    def _process(self, fault: Fault, member: Member) -> End | None:
        node, values = member.node, fault.values
        process = node.process
        assert process is not None
        incarnation = process.incarnation

        def restart() -> None:
            if node.incarnation == incarnation:
                node.crash()  # it did not leave in time
                self._simulation.start(member)

        match fault.kind:
            case "crash":
                node.crash(silent=bool(values.get("silent")))
                return restart if values.get("restart", 1.0) else _nothing
            case "leave":
                if member.channel is None or not member.running:
                    return None
                process.spawn(member.channel.close()).add_done_callback(lambda _: node.exit(incarnation))
                return restart
            case "pause":
                node.pause(frozen=bool(values.get("frozen")))
                return lambda: node.resume(incarnation)
            case "clock":
                process.set_rate(values["rate"])
                return lambda: process.set_rate(1.0)
            case "slow_receiver":
                app = member.app
                assert app is not None
                app.delay = values["delay"]

                def recover() -> None:
                    app.delay = 0.0

                return recover
        raise ValueError(f"a fault of an unknown kind: {fault.kind}")

    def _disk(self, fault: Fault, member: Member) -> End | None:
        platter = member.node.platter
        match fault.kind:
            case "disk_full":
                platter.capacity = int(fault.values["capacity"])

                def free() -> None:
                    platter.capacity = None

                return free
            case "disk_flip":
                return _nothing if platter.flip() else None
            case "disk_tear":
                platter.tear = True

                def mend() -> None:
                    platter.tear = False

                return mend
        raise ValueError(f"a fault of an unknown kind: {fault.kind}")


def _nothing() -> None:
    """A fault that is over at once, or never."""
