"""One simulated run of a cluster: as one broker's, with several that are one, and clients that go from one to the next.

When the faults are over, all brokers must come to serve again; then everything is consumed, wherever it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from coterie.sim.broker_run import BrokerSimulation
from coterie.sim.cluster_node import ClusterHost
from coterie.sim.cluster_watch import Watch
from coterie.sim.lease_readers import LeaseReader
from coterie.sim.node import Node
from coterie.sim.plan import Fault, Plan
from coterie.sim.profile_cluster import FOREIGN, OTHERWISE
from coterie.sim.result import Result
from coterie.trace import Event, Json

FROM_OUTSIDE = frozenset(("B19", "B20", "B21"))
"""Properties that no trace tells: clients, and whoever looks at the brokers, judge them."""
_READING = 1.0
"""Seconds after which readers of leases begin."""
_HUSH = 2.0
"""Seconds in which what is under way arrives."""
_MOMENT = 0.1
"""Seconds between two looks at what is still under way: owners of queues pass them on again and again."""


class ClusterSimulation(BrokerSimulation):
    """The run of one plan. Use it once."""

    hosts: Mapping[str, ClusterHost]

    def __init__(self, plan: Plan, sink: Callable[[Event], None] | None = None) -> None:
        self._count = itertools.count()
        self._readers: list[LeaseReader] = []
        super().__init__(plan, sink)

    def _make_hosts(self) -> Mapping[str, ClusterHost]:
        named = self.plan.channel.get("brokers")
        names = [str(name) for name in named if name in self.plan.members] if isinstance(named, list) else []
        nodes: list[Node] = []
        hosts = {}
        foreign = [name for name in names if name.startswith(FOREIGN)]
        for name in names:
            nodes.append(Node(self.world, self.fabric, name))
            size = len(foreign) if name in foreign else 0
            host = hosts[name] = ClusterHost(nodes[-1], dict(self.plan.stack), nodes, size)
            mistakes = self.plan.channel.get("mistakes")
            host.seed, host.mistakes = self.plan.seed, mistakes if isinstance(mistakes, float) else 0.0
        return hosts

    @property
    def served(self) -> Mapping[str, ClusterHost]:
        """Clients know those alone, and they must all serve in the end."""
        return {name: host for name, host in self.hosts.items() if not host.foreign}

    def known_to(self, client: str) -> list[str]:
        """All of them, unless the plan says that it knows one only."""
        only = self.plan.channel.get("only")
        found = only.get(client) if isinstance(only, dict) else None
        return [str(found)] if found in self.served else super().known_to(client)

    def _play(self) -> None:
        leased = self.plan.channel.get("leases")
        for queue in leased if isinstance(leased, list) else []:
            reader = LeaseReader(self.world, self.served, str(queue), self.memory, self._complain_of_lease)
            self._readers.append(reader)
            self.world.at(_READING, self.world.nature, reader.step)
        watch = Watch(self.world, self.fabric, self.hosts, self._complain_of_bounds)
        self.world.at(_READING, self.world.nature, watch.look)
        super()._play()

    def _complain_of_bounds(self, text: str) -> None:
        self.result.violations.append(("B21", text))

    def _complain_of_lease(self, text: str) -> None:
        self.result.violations.append(("B3", text))

    def _drain(self) -> None:
        for reader in self._readers:
            reader.ending = True
        super()._drain()

    def _starts(self) -> int:
        """A transient message is promised nothing once a majority may have been lost: so it is never asked for."""
        return next(self._count)

    def _run(self) -> Result:
        result = super()._run()
        result.faults.update(self.fabric.effects)
        return result

    def _complain_of_rest(self) -> None:
        away = [
            f"{name}: {host.member.replica.why}"
            for name, host in self.served.items()
            if host.member and not host.serves
        ]
        if away or not all(host.serves for host in self.served.values()):
            self.result.violations.append(("B10", f"the faults are over, and not all brokers serve: {'; '.join(away)}"))
        else:
            super()._complain_of_rest()

    def restart_otherwise(self, fault: Fault) -> Callable[[], None] | None:
        host = self.hosts[fault.nodes[0]]
        if not host.node.alive:
            return None
        name, value = OTHERWISE[int(fault.values["setting"])]
        host.otherwise = {name: value}
        host.crash(silent=False, power=bool(fault.values["power"]))
        host.start()

        def end() -> None:
            why = host.member.replica.why if host.member is not None else ""
            self.result.rules["otherwise.refused"] += f"its broker.{name} is {value}" in why
            if host.let_in:
                text = f"{host.node.name} was let in with another value of broker.{name}"
                self.result.violations.append(("B8", text))
            host.otherwise = {}
            if host.node.alive:  # else whatever ended it starts it again
                host.crash(silent=False, power=bool(fault.values["power"]))
                host.start()

        return end

    def _look_at_strangers(self) -> None:
        """Brokers of another cluster were neither taken in nor wiped."""
        for name, host in self.hosts.items():
            if host.foreign and host.member is not None and host.node.alive:
                self.result.rules["foreign.refused"] += "another cluster" in host.member.replica.why
                clusters = {other.member.replica.cluster for other in self.served.values() if other.member is not None}
                if host.member.replica.cluster in clusters:
                    self.result.violations.append(("B17", f"{name} of another cluster was taken in"))

    def _emit_end(self) -> None:
        """Brokers that serve ask each other again and again whether they still do: at the end nobody does."""
        for host in self.hosts.values():
            if host.member is not None:
                host.member.lease.stop()
        live = [
            host.member.channel
            for host in self.hosts.values()
            if host.member is not None and (host.serves or (host.foreign and host.node.alive))
        ]
        self._look_at_strangers()
        end = self.world.time + 2 * _HUSH
        self.world.run(self.world.time + _HUSH)
        while any(any(channel.stack.held().values()) for channel in live) and self.world.time < end:
            self.world.run(self.world.time + _MOMENT)
        for reader in self._readers:
            reader.look_back()
        held: dict[str, Json] = {str(channel.local): dict(channel.stack.held()) for channel in live}
        self.world.emit("end", live=[str(channel.local) for channel in live], held=held)
        for channel in live:
            self.result.rules.update(channel.stack.rules)
