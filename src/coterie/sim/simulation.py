"""One simulated run: a plan carried out, judged as it goes.

It boots the members, lets them send, injects the faults, waits until the group has settled, and says how it ended. What
product code raises ends the run and counts as a violation.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from coterie.audit import Checker, properties
from coterie.errors import CoterieError
from coterie.group.channel import BufferFull, Channel
from coterie.group.members import Address
from coterie.group.protocols.gms.gms import Gms
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.stack import Layer
from coterie.sim.clock import World
from coterie.sim.faults import Injector
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.plan import PEERS_NAME, Action, Burst, Plan
from coterie.sim.result import CRASH, Result
from coterie.sim.workload import Application
from coterie.trace import Event, Json

_PATIENCE = 10
"""How many times the settling time a group may take that still delivers."""
_SLICE = 0.5
"""Seconds between two looks at whether the group has settled."""
_RETRY = 0.03
"""Seconds after which a member tries again to send what its channel did not take."""
BUNDLES_MIN = 200
"""Bundles that a run sends at least, if it comes to its end."""


class Member:
    """A node with the channel and the application that run on it just now."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.channel: Channel | None = None
        self.app: Application | None = None

    @property
    def running(self) -> bool:
        return self.node.alive and self.channel is not None and self.channel.stack.running


class Simulation:
    """The run of one plan. Use it once."""

    def __init__(self, plan: Plan, sink: Callable[[Event], None] | None = None) -> None:
        self.plan = plan
        self.result = Result(plan.seed)
        self._checker = Checker(properties(causal=True))
        self._sink = sink
        self.world = World(plan.seed, f"{plan.profile}-{plan.seed}", self._record)
        self.fabric = Fabric(self.world, plan.network, plan.limits)
        self.members = {name: Member(Node(self.world, self.fabric, name)) for name in plan.members}
        self.fabric.names[PEERS_NAME] = tuple(member.node.ports.ip for member in self.members.values())
        self._apps: dict[str, Application] = {}
        """Every incarnation's application, by its address."""
        self._views: dict[str, list[str]] = {}
        self._bundles = 0
        self._injector = Injector(self)
        self._delivered = 0
        self._end = plan.quiet_at + plan.settle
        self._last_end = plan.quiet_at + _PATIENCE * plan.settle

    # The run.

    def run(self) -> Result:
        """Carry out the plan."""
        log = logging.getLogger("coterie")
        level = log.level
        log.setLevel(logging.CRITICAL + 1)  # what peers do wrong here is no news
        try:
            return self._run()
        finally:
            log.setLevel(level)

    def _run(self) -> Result:
        plan, world, result = self.plan, self.world, self.result
        for name, member in self.members.items():
            member.node.skew = plan.skews.get(name, 0.0)
            world.at(plan.starts.get(name, 0.0), world.nature, self.start, member)
        for burst in plan.bursts:
            if burst.node in self.members:
                world.at(burst.at, world.nature, self._burst, burst)
        for action in plan.actions:
            if action.node in self.members:
                world.at(action.at, world.nature, self._act, action)
        self._injector.schedule(plan.faults, plan.quiet_at)
        try:
            world.run(plan.quiet_at)
            if self._settled():  # and now that all is well, everybody once more to everybody
                self._round()
                self._settled()
            self._finish()
        except Exception as error:
            self._crashed(world.owner.name, error)
        for who, failure in world.unhandled.values():
            self._crashed(who, failure)
        result.violations += [(found.property, found.text) for found in self._checker.finish()]
        result.events = self._checker.events
        result.sim_seconds = world.time
        result.faults.update(self.fabric.effects)
        for member in self.members.values():
            self._collect(member)
            if member.node.process is not None:
                member.node.process.die()
        return result

    def _settled(self) -> bool:
        """Let time pass until everybody is together and holds nothing back, twice in a row. False if time is over."""
        calm = 0
        while calm < 2 and self.world.time < min(self._end, self._last_end):
            delivered = self._delivered
            self.world.run(min(self._end, self.world.time + _SLICE))
            calm = calm + 1 if self._calm() else 0
            if self._delivered > delivered:  # a tiny window makes much work: slow is not stuck
                self._end = self.world.time + self.plan.settle
        return calm == 2

    def _calm(self) -> bool:
        live = self.live()
        wanted = {channel.local for channel in live}
        agreed = len({c.view.id for c in live}) == 1 or not any(c.stack.has(Gms) for c in live)
        return agreed and all(set(c.view.members) == wanted and not any(c.stack.held().values()) for c in live)

    def live(self) -> list[Channel]:
        return [m.channel for m in self.members.values() if m.running and m.channel is not None]

    def _finish(self) -> None:
        live = self.live()
        held: dict[str, Json] = {str(c.local): dict(c.stack.held()) for c in live}
        self.world.emit("end", live=[str(c.local) for c in live], held=held)

    def _crashed(self, who: str, error: BaseException) -> None:
        lines = traceback.format_exception(error)
        self.result.violations.append((CRASH, f"{who} raised {''.join(lines)}"))

    # Members.

    def start(self, member: Member) -> None:
        """Start the next incarnation of a member."""
        if member.node.alive:
            return
        self._collect(member)
        runtime = member.node.boot()
        if runtime.incarnation > 1:
            runtime.trace.emit("restart")
        local = Address(runtime.node, runtime.incarnation)
        app = Application(runtime, local, self._complain)
        layers = [Layer(name, _own(settings, member.node.ports.ip)) for name, settings in self.plan.stack]
        channel = Channel(
            runtime, layers, group="sim", name=local.name, incarnation=local.incarnation, receiver=app,
            **self.plan.channel,
        )  # fmt: skip
        member.app, member.channel = app, channel
        app.channel, app.block_delay = channel, self.plan.blocks.get(local.name, 0.0)
        app.state_size, app.greets = self.plan.state_size, self.plan.greet
        app.farewells = local.name in self.plan.farewells
        self._apps[str(local)] = app
        runtime.spawn(self._connect(channel, local.name in self.plan.with_state))

    @staticmethod
    async def _connect(channel: Channel, state: bool) -> None:
        try:
            await channel.connect(state=state)
        except CoterieError:
            pass  # it was closed before it had its state, or there was nobody left to get it from

    def _collect(self, member: Member) -> None:
        """Take over the rule counters of an incarnation that is over."""
        if member.channel is not None:
            self.result.rules.update(member.channel.stack.rules)
            member.channel = None

    def _complain(self, name: str, text: str) -> None:
        if len(self.result.violations) < 50:
            self.result.violations.append((name, text))

    # What members ask of the group.

    def _act(self, action: Action) -> None:
        member = self.members[action.node]
        if member.running and member.channel is not None and member.node.process is not None:
            act = self._flush if action.kind == "flush" else self._get_state
            member.node.process.spawn(act(member, member.channel, action))

    async def _flush(self, member: Member, channel: Channel, action: Action) -> None:
        targets = [m for m in channel.view.members if m.name in action.targets] or None
        process = member.node.process
        assert process is not None
        try:
            async with channel.flush(targets) as flush:
                await process.sleep(action.hold)
                if flush.held and not _leads(channel):
                    self._complain("G12", f"{channel.local} was not told that its flush is over")
        except CoterieError:
            pass  # somebody else held one, or we were closed

    @staticmethod
    async def _get_state(member: Member, channel: Channel, action: Action) -> None:
        try:
            await channel.get_state()
        except CoterieError:
            pass

    # What members send.

    def _burst(self, burst: Burst) -> None:
        """Whoever should send it does, or the next one that runs."""
        names = list(self.members)
        first = names.index(burst.node)
        for name in names[first:] + names[:first]:
            member = self.members[name]
            if member.running and member.channel is not None and member.node.process is not None:
                owner = member.node.process.owner
                self.world.soon(owner, self._send_bundle, member, member.channel, burst, burst.bundles)
                return

    def _send_bundle(self, member: Member, channel: Channel, burst: Burst, left: int) -> None:
        app, process = member.app, member.node.process
        if app is None or process is None or not channel.stack.running or channel is not member.channel:
            return
        dest = self._destination(channel, burst.to)
        pause = burst.gap
        if dest is None and burst.to != "all":
            left -= 1  # the addressee is not there
        elif self._send_messages(channel, app, dest, burst):
            left -= 1
        elif self.world.time < self.plan.quiet_at:
            pause = _RETRY
        else:
            return
        if left:
            process.call_later(pause, self._send_bundle, member, channel, burst, left)

    @staticmethod
    def _send_messages(channel: Channel, app: Application, dest: Address | None, burst: Burst) -> bool:
        """One bundle's worth of messages. False if the channel's buffer is full."""
        to = "all" if dest is None else str(dest)
        if burst.wait:
            app.send_waiting(channel, to, dest, [burst.size] * burst.messages)
            return True
        for _ in range(burst.messages):
            try:
                channel.send_nowait(app.next_message(to, burst.size), dest)
            except BufferFull:
                return False
            app.was_sent(to)
        return True

    @staticmethod
    def _destination(channel: Channel, to: str) -> Address | None:
        return next((member for member in channel.view.members if member.name == to), None)

    def _round(self) -> None:
        """Everybody to everybody, and as much more as a run should send at least."""
        live = [name for name, member in self.members.items() if member.running]
        more = max(2, (BUNDLES_MIN - self._bundles) // len(live))
        for name in live:
            self._burst(Burst(self.world.time, name, "all", more, 2, gap=0.002))
            for other in live:
                self._burst(Burst(self.world.time, name, other))

    def close_connection(self, node: str, peer: str) -> None:
        """Close the unicast connection from one member to another, if there is one."""
        member = self.members[node]
        if member.running and member.channel is not None and member.node.process is not None:
            dest = self._destination(member.channel, peer)
            if dest is not None:
                unicast = member.channel.stack.find(Unicast3)
                self.world.soon(member.node.process.owner, unicast.close, dest)

    # Events.

    def _record(self, event: Event) -> None:
        self._checker.feed(event)
        if event.kind == "view":
            self._note_view(event)
        elif event.kind == "send":
            self._bundles += 1
        elif event.kind == "deliver":
            self._delivered += 1
        if self._sink is not None:
            self._sink(event)
        self._injector.happened(event)

    def _note_view(self, event: Event) -> None:
        """Whoever drops another from its view may miss what that one sends, and the other way round."""
        who = f"{event.node}#{event.inc}"
        members, start = event.data.get("members"), event.data.get("start")
        before, now = self._views.get(who, ()), _names(members)
        self._views[who] = now
        for other in before:
            if other not in now and other in self._apps:
                self._apps[who].lost_touch(other)
                self._apps[other].lost_touch(who)
        opened = _names(start)
        for other in now:
            if (other not in before or other in opened) and other != who and who in self._views.get(other, ()):
                self._apps[who].in_touch(self._apps[other])
                self._apps[other].in_touch(self._apps[who])


def _leads(channel: Channel) -> bool:
    """It leads a flush, as its stack sees it."""
    return any(amount for what, amount in channel.stack.held().items() if what.endswith(".leading"))


def _names(value: Json) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list | dict) else []


def _own(settings: dict[str, object], ip: str) -> dict[str, object]:
    """A layer's settings for one member: each binds to its own address."""
    return {name: ip if value == "{ip}" else value for name, value in settings.items()}
