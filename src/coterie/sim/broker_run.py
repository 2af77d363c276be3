"""One simulated run of a broker: a plan carried out, judged as it goes, and drained in the end.

The faults are over at a stated time. Then the trace says what everybody holds, clients accept everything that there is,
and what was confirmed must have been seen by somebody, unless a rule of its queue, or a client, did away with it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping

from coterie.audit import Checker, properties
from coterie.sim.broker_clients import Client, Memory
from coterie.sim.broker_faults import BrokerInjector
from coterie.sim.broker_node import BrokerHost
from coterie.sim.clock import World
from coterie.sim.hostile import complaints
from coterie.sim.hostile_client import HostileClient
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.plan import Fault, Plan
from coterie.sim.profile_broker import BROKER, DEAD, HOSTILE_NAME, SURE
from coterie.sim.result import CRASH, Result
from coterie.trace import Event

_SLICE = 0.2
"""Seconds between two looks at whether everything is consumed."""


class BrokerSimulation:
    """The run of one plan. Use it once."""

    def __init__(self, plan: Plan, sink: Callable[[Event], None] | None = None) -> None:
        self.plan = plan
        self.result = Result(plan.seed)
        self._checker = Checker(properties(causal=True))
        self._sink = sink
        self.world = World(plan.seed, f"{plan.profile}-{plan.seed}", self._record)
        self.fabric = Fabric(self.world, plan.network, plan.limits)
        self.hosts = self._make_hosts()
        for name, host in self.hosts.items():
            host.node.skew = plan.skews.get(name, 0.0)
        names = plan.channel.get("queues")
        queues = [str(name) for name in names] if isinstance(names, list) else []
        homes = plan.channel.get("homes")
        queues += [str(name) for name in homes] if isinstance(homes, list) else []
        self.memory = Memory(
            queues, bool(plan.channel.get("unbound")), starts=self._starts, own=bool(plan.channel.get("own")),
            mistaken=bool(plan.channel.get("mistakes")),
        )  # fmt: skip
        self.nodes = {name: host.node for name, host in self.hosts.items()}
        self.clients: dict[str, Client] = {}
        self._hostile: dict[str, HostileClient] = {}
        self._complained: set[str] = set()
        self._injector = BrokerInjector(self)

    def _make_hosts(self) -> Mapping[str, BrokerHost]:
        if BROKER not in self.plan.members:
            return {}
        return {BROKER: BrokerHost(Node(self.world, self.fabric, BROKER), dict(self.plan.stack))}

    @property
    def served(self) -> Mapping[str, BrokerHost]:
        """Those that clients know."""
        return self.hosts

    def known_to(self, client: str) -> list[str]:
        return [*self.served]

    def restart_otherwise(self, fault: Fault) -> Callable[[], None] | None:
        """With other settings than the rest of its cluster, if it is in one. Gives what ends that, or None if it could
        not be done."""
        return None

    def _starts(self) -> int:
        """What a transient message does not outlive: another start of the broker."""
        return self.hosts[BROKER].node.incarnation

    def run(self) -> Result:
        """Carry out the plan."""
        log = logging.getLogger("coterie")
        level = log.level
        log.setLevel(logging.CRITICAL + 1)
        try:
            return self._run()
        finally:
            log.setLevel(level)

    def _run(self) -> Result:
        world, result = self.world, self.result
        try:
            if self.hosts:
                self._play()
        except Exception as error:
            self._crashed(world.owner.name, error)
        for who, failure in world.unhandled.values():
            self._crashed(who, failure)
        result.violations += [(found.property, found.text) for found in self._checker.finish()]
        result.rules.update(self.memory.homely)
        result.events = self._checker.events
        result.sim_seconds = world.time
        for node in self.nodes.values():
            if node.process is not None:
                node.process.die()
        return result

    def _play(self) -> None:
        plan, world = self.plan, self.world
        for name, host in self.hosts.items():
            world.at(plan.starts.get(name, 0.0), world.nature, host.start)
        for name in plan.members:
            if name in self.hosts:
                continue
            node = self.nodes[name] = Node(world, self.fabric, name)
            if name.startswith(HOSTILE_NAME):
                self._hostile[name] = HostileClient(name, node.boot(), self.served, self.memory.queues)
            else:
                self.clients[name] = Client(name, node.boot(), self.memory, self.known_to(name))
        for burst in plan.bursts:
            if burst.node in self.clients:
                client = self.clients[burst.node]
                world.at(burst.at, client.runtime.owner, client.burst, burst, burst.bundles)
        actors: dict[str, Client | HostileClient] = {**self.clients, **self._hostile}
        for action in plan.actions:
            if action.node in actors:
                actor = actors[action.node]
                world.at(action.at, actor.runtime.owner, actor.act, action)
        self._injector.schedule(plan.faults, plan.quiet_at)
        for part in (0.5, 1.0):
            world.run(plan.quiet_at * part)
            self._rest()
        self._drain()
        self._rest()
        world.run(world.time + 0.01)
        self._emit_end()
        self._find_confirmed()

    def _rest(self) -> None:
        for host in self.hosts.values():
            host.rest()
            if host.broker is not None and host.server is not None:
                for text in complaints(host.broker):
                    self._complain_of_intrusion(text)

    def _complain_of_intrusion(self, text: str) -> None:
        if text not in self._complained:
            self._complained.add(text)
            self.result.violations.append(("B15", text))

    def _emit_end(self) -> None:
        self.world.emit("end", live=[], held={})

    def _drain(self) -> None:
        world, end = self.world, self.plan.quiet_at + self.plan.settle
        queues = [*self.memory.queues, DEAD]
        first = next(iter(self.clients), "")
        calm = 0
        while calm < 2 and world.time < end:
            for hostile in self._hostile.values():
                world.soon(hostile.runtime.owner, hostile.end)
            for client in self.clients.values():
                world.soon(client.runtime.owner, client.drain, queues if client.name == first else [])
            world.run(world.time + _SLICE)
            empty = all(host.empty for host in self.served.values())
            calm = calm + 1 if empty and not any(client.expects for client in self.clients.values()) else 0
        if calm < 2 and self.clients:
            self._complain_of_rest()

    def _complain_of_rest(self) -> None:
        self.result.violations.append(("B12", "the queues are not empty although everything is accepted"))

    def _find_confirmed(self) -> None:
        memory = self.memory
        last = memory.starts()
        for sent, start in memory.confirmed:
            sure = [queue for queue in sent.queues if queue in SURE and memory.is_sure(sent, queue)]
            kept = (sent.persistent and any(queue in SURE for queue in sure)) or start == last
            lettered = [queue for queue in sure if queue not in ("letters", "single") or not memory.unbound]
            if lettered and kept and sent.ttl is None and sent.name not in memory.seen:
                self.result.violations.append(("B1", f"{sent.name} was confirmed and never delivered to anybody"))
        for queue, name in memory.late:
            self.result.violations.append(("B19", f"{name} was delivered from {queue} long after it had expired"))
        for name in sorted(memory.refused & memory.seen):
            self.result.violations.append(
                ("B20", f"{name} was in the queue, and its publisher was told that it was not")
            )
        for queue, name in memory.came_back:
            self.result.violations.append(("B3", f"{name} came out of {queue} again, and a commit had accepted it"))

    def _crashed(self, who: str, error: BaseException) -> None:
        lines = traceback.format_exception(error)
        self.result.violations.append((CRASH, f"{who} raised {''.join(lines)}"))

    # Events.

    def _record(self, event: Event) -> None:
        self._checker.feed(event)
        if event.kind == "recovered" and event.data.get("damage"):  # no crash leaves any
            self.result.violations.append(("B11", f"{event.node}#{event.inc} found damage on a sound disk"))
        if event.kind == "dead_letter" and "unwritable" in event.data:
            self._complain_of_intrusion(f"a dead letter of {event.queue} could not be written")
        for rule in _rules(event):
            self.result.rules[rule] += 1
        if self._sink is not None:
            self._sink(event)


def _rules(event: Event) -> list[str]:
    """What an event shows to have been reached."""
    kind, data = event.kind, event.data
    match kind:
        case "accept" | "reject" | "unsettled" | "void" | "strays":
            return [kind]
        case "confirm":
            return [kind, "confirm.refused"] if "refused" in data else [kind]
        case "publish":
            return ["publish.unroutable"] if "unroutable" in data else []
        case "acquire":
            lease = str(data.get("holder")).startswith("lease")
            found = {"redelivered": "redelivered" in data, "no_ack": "no_ack" in data, "lease": lease}
            return [f"acquire.{name}" for name, reached in found.items() if reached]
        case "release":
            return ["release.flagged" if "redelivered" in data else "release.unflagged"]
        case "dequeue":
            return [f"dequeue.{data['reason']}"]
        case "dead_letter":
            return ["dead_letter.sent" if "to" in data else "dead_letter.dropped"]
        case "tx":
            parts = [f"tx.{name}" for name in ("enqueues", "accepts", "rejects", "requeues") if data.get(name)]
            return [f"tx.{data['state']}", *parts]
        case "recovered" if event.queue is None:
            return ["recovered.clean" if data.get("clean") else "recovered.unclean"]
        case "recovered":
            return [f"recovered.{name}" for name in ("entries", "redelivered") if data.get(name) or event.count]
        case "queue" | "client" | "serving":
            return [f"{kind}.{data['state']}"]
        case "given":
            return [kind, "given.redelivered"] if "redelivered" in data else [kind]
        case "promise":
            return [kind, "promise.disk"] if "number" in data else [kind]
        case "replica":
            return [kind, "replica.updated"] if "updated" in data else [kind]
    return []
