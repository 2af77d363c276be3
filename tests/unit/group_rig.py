"""Whole groups for tests: real channels on a simulated network, in which a test decides what gets lost, and when.

group = Group("a b c d")                      # hosts; no process runs yet
group.grow("a b c")                           # boots them one by one: a coordinates, b is next in line
group.boot("d"); group.settle("a b c d")      # until exactly these are in one view
group.lose(NewView, to="c")                   # what is lost on its way to c, until `heal` or for ever
group.when(Ack, source="b", do=lambda: group.crash("a"))
group.part("a b", "c"); group.heal()          # partitions
group["b"].views; group["b"].got              # what the application of b was told

Everything is traced, and `close` judges the trace by every property of the audit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from coterie.audit import Checker, properties
from coterie.errors import CoterieError
from coterie.group.channel import Channel
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, Packet
from coterie.group.presets import REGISTRY
from coterie.group.protocols.gms.gms import Gms
from coterie.group.protocols.transport import Transport
from coterie.group.receiver import Delivery, Receiver
from coterie.group.stack import Layer
from coterie.runtime.base import Buffer
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event

PORT = 7800
STACK = (
    "TCP", "STATIC", "MERGE", "FAILURE", "NAKACK", "UNICAST3", "STABLE", "GMS", "STATE", "FLUSH2", "FLOW", "FRAG",
)  # fmt: skip
QUICK: Mapping[str, Mapping[str, object]] = {
    "UDP": {"reconnect_min": 0.02, "reconnect_max": 0.2},
    "TCP": {"connect_timeout": 0.5, "reconnect_min": 0.02, "reconnect_max": 0.2},
    "MERGE": {"interval": 0.2},
    "FAILURE": {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.5, "verify_timeout": 0.15},
    "STABLE": {"interval": 0.05},
    "GMS": {"alone_after": 0.1, "join_retry": 0.1, "resend_interval": 0.05, "ack_timeout": 0.6, "merge_timeout": 0.4,
            "behind_after": 0.3, "resumer_timeout": 3.0},
    "FLUSH2": {"timeout": 0.5, "block_timeout": 0.2, "hold_max": 5.0},
    "FLUSH": {"timeout": 0.5, "block_timeout": 0.2, "hold_max": 5.0},
}  # fmt: skip
"""Settings under which what takes seconds by default takes tenths of them."""
STEP = 0.005
"""Seconds between two looks at whether something has happened."""
Settings = Mapping[str, Mapping[str, object]]


class Application(Receiver):
    """Notes what it is told. Its state is all that it has received."""

    def __init__(self) -> None:
        self.told: list[View | tuple[str, str]] = []
        """Views, and messages with the name of their sender, in order."""
        self.blocked: list[str] = []

    def receive(self, batch: list[Delivery]) -> None:
        self.told += [(d.sender.name, bytes(m).decode()) for d in batch for m in d.messages]

    def view_accepted(self, view: View) -> None:
        self.told.append(view)

    def block(self) -> None:
        self.blocked.append("block")

    def unblock(self) -> None:
        self.blocked.append("unblock")

    def get_state(self) -> Iterable[Buffer]:
        return [" ".join(entry[1] for entry in self.told if isinstance(entry, tuple)).encode()]

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        state = b"".join([bytes(chunk) async for chunk in chunks]).decode()
        self.told.append(("state", state))


@dataclass(eq=False)
class Member:
    """One incarnation of one member."""

    node: Node
    channel: Channel
    app: Application
    failed: list[CoterieError] = field(default_factory=list)
    closed: bool = False

    @property
    def local(self) -> Address:
        return self.channel.local

    @property
    def gms(self) -> Gms:
        return self.channel.stack.find(Gms)

    @property
    def view(self) -> View:
        return self.channel.view

    @property
    def names(self) -> str:
        """The members of its view, in order."""
        return " ".join(member.name for member in self.view.members) if self.gms.joined else ""

    @property
    def views(self) -> list[View]:
        return [entry for entry in self.app.told if isinstance(entry, View)]

    @property
    def got(self) -> list[tuple[str, str]]:
        return [entry for entry in self.app.told if isinstance(entry, tuple)]

    def got_in(self, view: View) -> list[tuple[str, str]]:
        """The messages that came between that view and the next one."""
        start = self.app.told.index(view) + 1
        end = next((i for i in range(start, len(self.app.told)) if isinstance(self.app.told[i], View)), None)
        return [entry for entry in self.app.told[start:end] if isinstance(entry, tuple)]

    def rule(self, name: str) -> int:
        return self.channel.stack.rules.get(name, 0)

    def stats(self, layer: str) -> dict[str, int]:
        return self.channel.stats().get(layer, {})

    @property
    def running(self) -> bool:
        return self.node.alive and self.channel.stack.running

    def send(self, text: str) -> None:
        """Multicast one message."""
        self.call(self.channel.send_nowait, text.encode())

    def call(self, call: Callable[..., object], *args: object) -> None:
        """Have its process do something: soon, as everything in a process."""
        assert self.node.process is not None
        self.node.process.call_soon(call, *args)


@dataclass(frozen=True)
class Bundle:
    """What stands for a bundle of the application's among the kinds of messages."""

    multicast: bool


class Heard(NamedTuple):
    """A message that arrived."""

    source: str
    target: str
    message: object

    def __str__(self) -> str:
        return f"{self.source}>{self.target} {type(self.message).__name__}"


@dataclass(eq=False)
class Trap:
    """What happens to some messages on arrival."""

    kinds: tuple[type, ...]
    source: str
    target: str
    keep: bool
    delay: float
    do: Callable[[], object] | None
    times: int
    seen: int = 0

    def catches(self, source: str, target: str, message: object) -> bool:
        return (
            self.seen < self.times
            and isinstance(message, self.kinds)
            and source in (self.source.split() or [source])
            and target in (self.target.split() or [target])
        )


class Group:
    """A world, its members, and what stands between them."""

    def __init__(
        self,
        names: str,
        stack: Iterable[str] = STACK,
        seed: int = 1,
        **settings: Mapping[str, object],
    ) -> None:
        self.traced: list[Event] = []
        self._checker = Checker(properties(causal=True))
        self.world = World(seed, "test", self._record)
        self.fabric = Fabric(self.world)
        self.nodes = {name: Node(self.world, self.fabric, name) for name in names.split()}
        self._settings = {name: {**QUICK.get(name, {}), **settings.get(name, {})} for name in (*QUICK, *settings)}
        self._stack = tuple(stack)
        self._codecs = {REGISTRY[name].id: REGISTRY[name].codec for name in self._stack}
        self._noted = {REGISTRY[name].id for name in self._stack if name in ("GMS", "FLUSH", "FLUSH2")}
        self.heard: list[Heard] = []
        """What members told each other about views and flushes, in the order of its arrival."""
        self._traps: list[Trap] = []
        self._parted: list[tuple[str, str]] = []
        self.members: dict[str, Member] = {}
        """By name: the present, or last, incarnation."""

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def _record(self, event: Event) -> None:
        self.traced.append(event)
        self._checker.feed(event)

    # Members.

    def boot(self, name: str, state: bool = False) -> Member:
        """Start a process, or the next incarnation of it, that joins the group."""
        node = self.nodes[name]
        runtime = node.boot()
        if runtime.incarnation > 1:
            runtime.trace.emit("restart")
        app = Application()
        channel = Channel(
            runtime, self._layers(node), group="test", name=name, incarnation=runtime.incarnation, receiver=app
        )
        member = self.members[name] = Member(node, channel, app)
        transport: Any = channel.stack.find(Transport)  # type: ignore[type-abstract]
        transport.pass_up = self._watch(name, transport.pass_up)
        runtime.spawn(self._connect(member, state))
        return member

    def grow(self, names: str) -> View:
        """Boot these one after the other, each when those before it are together. Returns their view."""
        grown = names.split()
        for count, name in enumerate(grown, 1):
            self.boot(name)
            self.settle(" ".join(grown[:count]))
        return self[grown[0]].view

    def _layers(self, node: Node) -> list[Layer]:
        peers = [f"{other.ports.ip}:{PORT}" for other in self.nodes.values()]
        own: Settings = {
            "TCP": {"bind_port": PORT, "bind_host": node.ports.ip},
            "UDP": {"bind_port": PORT, "bind_host": node.ports.ip},
            "STATIC": {"peers": peers, "interval": 0.1},
        }
        return [Layer(name, {**own.get(name, {}), **self._settings.get(name, {})}) for name in self._stack]

    @staticmethod
    async def _connect(member: Member, state: bool) -> None:
        try:
            await member.channel.connect(state=state)
        except CoterieError as error:
            member.failed.append(error)

    def crash(self, name: str, silent: bool = False) -> None:
        """Kill a process, at once. With `silent` nobody is told."""
        self.nodes[name].crash(silent)

    def leave(self, name: str) -> None:
        """Have a member leave in good order, and end."""
        member = self.members[name]
        assert member.node.process is not None
        member.node.process.spawn(self._close(member))

    @staticmethod
    async def _close(member: Member) -> None:
        await member.channel.close()
        member.closed = True

    # The network.

    def part(self, *sides: str) -> None:
        """Nothing gets from one side to another."""
        for side in sides:
            for other in sides:
                if side is not other:
                    self.block(side, other)

    def block(self, sources: str, targets: str) -> None:
        """Nothing gets from these to those; the other direction is open."""
        for source in sources.split():
            for target in targets.split():
                self.fabric.link(source, target).block()
                self._parted.append((source, target))

    def heal(self) -> None:
        """All links are open, and nothing is lost any more."""
        parted, self._parted = self._parted, []
        for source, target in parted:
            self.fabric.link(source, target).unblock()
        self._traps.clear()

    def lose(self, *kinds: type, source: str = "", to: str = "", times: int = 1 << 30) -> Trap:
        """Messages of these kinds are lost, all or the first `times` of them."""
        return self._trap(Trap(kinds, source, to, False, 0.0, None, times))

    def delay(self, *kinds: type, by: float, source: str = "", to: str = "", times: int = 1 << 30) -> Trap:
        return self._trap(Trap(kinds, source, to, True, by, None, times))

    def when(
        self, *kinds: type, do: Callable[[], object], source: str = "", to: str = "", lose: bool = False, times: int = 1
    ) -> Trap:
        """Do something as soon as such a message arrives; then it is taken, or lost."""
        return self._trap(Trap(kinds, source, to, not lose, 0.0, do, times))

    def _trap(self, trap: Trap) -> Trap:
        self._traps.append(trap)
        return trap

    def _watch(self, name: str, pass_up: Callable[[list[Packet]], None]) -> Callable[[list[Packet]], None]:
        process = self.nodes[name].process
        assert process is not None
        owner = process.owner

        def arrive(batch: list[Packet]) -> None:
            rest: list[Packet] = []
            for packet in batch:
                trap = self._caught(packet, name)
                if trap is None:
                    rest.append(packet)
                    continue
                trap.seen += 1
                if trap.do is not None:
                    trap.do()
                if trap.keep and not trap.delay:
                    rest.append(packet)
                elif trap.keep:
                    packet.body = bytes(packet.body)
                    self.world.after(trap.delay, owner, pass_up, [packet])
            if rest and self.nodes[name].alive:
                pass_up(rest)

        return arrive

    def _caught(self, packet: Packet, name: str) -> Trap | None:
        codec = self._codecs.get(packet.proto)
        message: object
        if packet.proto == APP:
            message = Bundle(packet.carrier == MCAST)
        elif codec is None:
            return None
        else:
            try:
                message = codec.decode(packet.body)
            except CoterieError:
                return None
        if packet.proto in self._noted:
            self.heard.append(Heard(packet.sender.name, name, message))
        return next((trap for trap in self._traps if trap.catches(packet.sender.name, name, message)), None)

    def story(self, *kinds: type) -> list[str]:
        """What was heard of these kinds, as `a>b NewView`; what was repeated is there once."""
        return list(dict.fromkeys(str(heard) for heard in self.heard if isinstance(heard.message, kinds)))

    def forget(self) -> None:
        """What was heard so far, and which rules were exercised, is of no interest."""
        self.heard.clear()
        for member in self.members.values():
            member.channel.stack.rules.clear()

    # Time.

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)

    def until(self, condition: Callable[[], object], limit: float = 10.0) -> float:
        """Let time pass until it holds. Returns how long that took."""
        began = self.world.time
        while not condition():
            assert self.world.time < began + limit, f"not within {limit:g} s; {self}"
            self.run(STEP)
        return self.world.time - began

    def settle(self, names: str, limit: float = 10.0) -> View:
        """Until exactly these are together in one view, and hold nothing back."""
        wanted = names.split()
        self.until(lambda: self.together(wanted) and not self.held(wanted), limit)
        return self[wanted[0]].view

    def together(self, names: list[str]) -> bool:
        members = [self.members[name] for name in names]
        addresses = {member.local for member in members}
        return (
            all(member.running and member.gms.joined for member in members)
            and len({member.view.id for member in members}) == 1
            and set(members[0].view.members) == addresses
        )

    def held(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """What is kept back, by member and layer."""
        held = {name: {k: n for k, n in self[name].channel.stack.held().items() if n} for name in names}
        return {name: amounts for name, amounts in held.items() if amounts}

    def __str__(self) -> str:
        return "; ".join(
            f"{m.local} {'in ' + str(m.view) if m.gms.joined else 'alone'}{'' if m.running else ' (gone)'}"
            f" {self.held([name]).get(name, '')}"
            for name, m in self.members.items()
        )

    # The end.

    def close(self) -> None:
        """Every property holds, and no code failed."""
        for _, failure in self.world.unhandled.values():
            raise failure
        live = [member for member in self.members.values() if member.running]
        for member in live:
            assert member.node.process is not None
            member.node.process.die()
        assert [str(violation) for violation in self._checker.finish()] == []


def everybody_gets(group: Group, names: str) -> None:
    """The group works: what each of them sends comes to all of them."""
    members = [group[name] for name in names.split()]
    for member in members:
        member.send(f"all is well at {group.world.time:.3f}, says {member.local}")
    group.run(0.5)
    last = [sorted(member.got[-len(members) :]) for member in members]
    assert [text.rpartition(" ")[2] for _, text in last[0]] == sorted(str(member.local) for member in members)
    assert last == [last[0]] * len(members)


def in_order(story: list[str], *steps: list[str]) -> None:
    """The story has these steps, each complete before the next one begins, and nothing else."""
    for step in steps:
        now, story = story[: len(step)], story[len(step) :]
        assert sorted(now) == sorted(step)
    assert story == []


@pytest.fixture
def make() -> Iterator[Callable[..., Group]]:
    """Makes groups, and judges each of them when the test is over."""
    groups: list[Group] = []

    def make(names: str, **settings: Any) -> Group:
        groups.append(Group(names, **settings))
        return groups[-1]

    yield make
    for group in groups:
        group.close()
