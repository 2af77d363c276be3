"""Draws what the protocols say to each other: docs/img/protocols/*.svg, one for each scene below.

Each scene is a small group in the simulator, with the stacks that ship: nobody draws these by hand, and whoever changes
a protocol runs this again. Members are vertical lines and time goes down. An arrow is a packet, from where it was
handed to the transport to where it came out; a cross is one that was lost; a box is a view that is installed; a thick
line is a member whose gate is shut. What goes on all the time (heartbeats, probes, acks of acks) is left out.

python scripts/diagrams.py [FOLDER]
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, cast

from coterie.group.channel import Channel, Receiver
from coterie.group.packet import AGAIN, APP, MCAST, Packet
from coterie.group.presets import REGISTRY, preset
from coterie.group.protocol import Protocol
from coterie.group.protocols.cut import Cut
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.stack import Layer
from coterie.runtime.base import Buffer
from coterie.sim.clock import World
from coterie.sim.link import Conditions
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event

FOLDER = Path(__file__).parents[1] / "docs" / "img" / "protocols"
PORT = 7800
NEVER = 1e6
LATENCY = Conditions(latency=0.001, jitter=0.0001)
QUIET = frozenset({"Heartbeat", "Info", "Digest", "Taken", "HowFar", "Hello", "Here"})
"""Messages that go on all the time, by class."""

Key = tuple[str, str, int, int, int, int, int, int]


@dataclass(slots=True)
class Sent:
    """A packet on its way to one member."""

    at: float
    sender: str
    to: str
    label: str
    proto: int
    arrived: float | None = None


@dataclass(slots=True)
class Log:
    """What the taps of one scene saw."""

    world: World
    packets: list[Sent] = field(default_factory=list)
    under_way: dict[Key, list[Sent]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    on: bool = False


class Tap(Protocol):
    """Right above the transport: writes down what passes."""

    name = "TAP"
    id = 63
    log: Log

    def down(self, packet: Packet) -> None:
        sender = self.stack.local.name
        others = [member.name for member in self.stack.view.members if member.name != sender]
        for to in others if packet.dest is None else [packet.dest.name]:
            if self.log.on and to != sender:
                sent = Sent(self.log.world.time, sender, to, _label(packet), packet.proto)
                self.log.packets.append(sent)
                self.log.under_way.setdefault(_key(packet, sender, to), []).append(sent)
        self.pass_down(packet)

    def up(self, batch: list[Packet]) -> None:
        local = self.stack.local.name
        for packet in batch:
            found = self.log.under_way.get(_key(packet, packet.sender.name, local))
            if found:
                found.pop(0).arrived = self.log.world.time
        self.pass_up(batch)


def _key(packet: Packet, sender: str, to: str) -> Key:
    again = packet.flags & AGAIN
    return sender, to, packet.proto, packet.carrier, packet.seqno, packet.conn, again, hash(bytes(packet.body))


def _label(packet: Packet) -> str:
    """The message's name as the documents spell it; of an application's bundle, its number."""
    again = " again" if packet.flags & AGAIN else ""
    if packet.proto == APP:
        return f"{'multicast' if packet.carrier == MCAST else 'unicast'} {packet.seqno}{again}"
    kind = next(kind for kind in REGISTRY.values() if kind.id == packet.proto)
    name = type(kind.codec.decode(packet.body)).__name__
    return name if name in QUIET else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).upper() + again


class Quiet(Receiver):
    """An application with a small state."""

    def get_state(self) -> Iterable[Buffer]:
        return (b"the state",)


class Scene:
    """A simulated group, and what is drawn of it."""

    def __init__(self, name: str, title: str, members: str, stack: str, flush: str = "FLUSH2") -> None:
        self.name, self.title = name, title
        self.world = World(f"diagram/{name}", sink=lambda event: self.log.events.append(event))
        self.log = Log(self.world)
        self.fabric = Fabric(self.world, LATENCY)
        self.nodes = {member: Node(self.world, self.fabric, member) for member in members}
        self.channels: dict[str, Channel] = {}
        self._stack, self._flush = stack, flush
        self.begin = 0.0

    def start(self, *names: str, state: bool = False) -> None:
        for name in names:
            node = self.nodes[name]
            first = next(iter(self.nodes.values()))
            transport = "UDP" if self._stack == "reliable-udp" else "TCP"
            settings: dict[str, dict[str, object]] = {
                transport: {"bind_host": node.ports.ip, "bind_port": PORT},
                "STATIC": {"peers": [f"{first.ports.ip}:{PORT}"], "interval": 0.2},
                "FAILURE": {"heartbeat_interval": 0.2, "heartbeat_timeout": 0.8},
            }
            layers = preset(self._stack, **settings)
            layers = [Layer(self._flush, {}) if layer.protocol == "FLUSH2" else layer for layer in layers]
            layers[1:1] = [Layer("TAP", {}), Layer("CUT", {})]
            channel = Channel(node.boot(), layers, group="g", name=name, incarnation=1, receiver=Quiet())
            channel.stack.find(Tap).log = self.log
            self.channels[name] = channel
            channel.runtime.spawn(channel.connect(state=state))

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)

    def together(self) -> None:
        """Let them become a group, one after the other."""
        for name in self.nodes:
            self.start(name)
            self.run(1.5)
        self.run(3)

    def record(self, seconds: float) -> None:
        """What is drawn begins here."""
        self.begin = self.world.time
        self.log.on = True
        self.run(seconds)
        self.log.on = False

    def send(self, name: str, data: bytes, to: str = "") -> None:
        channel = self.channels[name]
        channel.runtime.spawn(channel.send(data, self.channels[to].local if to else None))

    def cut(self, *parts: str) -> None:
        for name, channel in self.channels.items():
            channel.stack.find(Cut).cut(other for part in parts if name not in part for other in part)

    def heal(self) -> None:
        for channel in self.channels.values():
            channel.stack.find(Cut).heal()


# The scenes.


def join() -> Scene:
    scene = Scene("gms-join", "C joins A and B: everybody stops, the view, and on", "ABC", "virtual-synchrony")
    scene.start("A")
    scene.run(1.5)
    scene.start("B")
    scene.run(4)
    scene.start("C")
    scene.record(0.4)
    return scene


def crash() -> Scene:
    scene = Scene("gms-crash", "A, the coordinator, dies: B acts for it", "ABC", "virtual-synchrony")
    scene.together()
    scene.nodes["A"].crash()
    scene.record(0.2)
    return scene


def merge() -> Scene:
    scene = Scene("gms-merge", "A, B and C were cut off from D, and find it again", "ABCD", "virtual-synchrony")
    scene.together()
    scene.cut("ABC", "D")
    scene.run(4)
    scene.heal()
    while not any(sent.label == "MERGE-REQ" for sent in scene.log.packets):
        scene.log.packets.clear()
        scene.record(0.002)
    scene.begin -= 0.002
    begin = scene.begin
    scene.record(0.05)
    scene.begin = begin
    return scene


def flush(protocol: str) -> Scene:
    title = f"B flushes the group with {protocol}, and lets it go"
    scene = Scene(protocol.lower(), title, "ABC", "virtual-synchrony", protocol)
    scene.together()
    channel = scene.channels["B"]

    async def flushed() -> None:
        async with channel.flush():
            pass

    channel.runtime.spawn(flushed())
    scene.record(0.1)
    return scene


def nakack() -> Scene:
    scene = Scene("nakack", "A multicasts; the second one is lost on its way to C", "ABC", "reliable-udp")
    scene.together()
    link = scene.fabric.link("A", "C")
    scene.log.on = True
    scene.begin = scene.world.time
    scene.send("A", b"one")
    scene.run(0.004)
    link.block()
    scene.send("A", b"two")
    scene.run(0.004)
    link.unblock()
    scene.send("A", b"three")
    scene.run(0.06)
    scene.log.on = False
    return scene


def unicast() -> Scene:
    scene = Scene("unicast3", "A sends to B alone; the second one is lost", "AB", "reliable-udp")
    scene.together()
    link = scene.fabric.link("A", "B")
    scene.log.on = True
    scene.begin = scene.world.time
    for number, data in enumerate((b"one", b"two", b"three")):
        if number == 1:
            link.block()
        scene.send("A", data, "B")
        scene.run(0.004)
        if number == 1:
            link.unblock()
    scene.run(0.5)
    scene.log.on = False
    return scene


def total() -> Scene:
    scene = Scene("total", "B and C multicast at once; A says in which order they come", "ABC", "total-order")
    scene.together()
    scene.send("B", b"tea")
    scene.send("C", b"coffee")
    scene.record(0.02)
    return scene


def state() -> Scene:
    scene = Scene("state", "C joins with the state", "ABC", "virtual-synchrony")
    scene.start("A")
    scene.run(1.5)
    scene.start("B")
    scene.run(4)
    scene.start("C", state=True)
    scene.record(0.4)
    return scene


SCENES: dict[str, Callable[[], Scene]] = {
    "gms-join": join, "gms-crash": crash, "gms-merge": merge, "flush2": lambda: flush("FLUSH2"),
    "flush": lambda: flush("FLUSH"), "nakack": nakack, "unicast3": unicast, "total": total, "state": state,
}  # fmt: skip
ACKS = frozenset({"nakack", "unicast3"})
"""Scenes in which acknowledgements of UNICAST3 are what it is about."""

# Drawing.

MARGIN, APART, TOP, BOTTOM = 70, 190, 66, 24
STEP_MIN, STEP_MAX, SCALE = 15.0, 34.0, 9000.0
STYLE = """\
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .title { font-size: 14px; font-weight: 600 } .name { font-weight: 600; text-anchor: middle }
  .paper { fill: #fff } .life { stroke: #99a; stroke-width: 1.2 }
  .shut { stroke: #d9822b; stroke-width: 6; opacity: .55 }
  .mcast { stroke: #2563c9 } .control { stroke: #5b6475 } .lost { stroke: #d92d20 }
  .arrow { fill: none; stroke-width: 1.3 }
  .label { paint-order: stroke; stroke: #fff; stroke-width: 3px; font-size: 11px }
  .view { fill: #e7f0e4; stroke: #5b7f2b } .view-text { font-size: 10.5px; text-anchor: middle }
  .dead { fill: #d92d20; font-weight: 700; text-anchor: middle; font-size: 15px }
"""


def draw(scene: Scene) -> str:
    packets = [sent for sent in scene.log.packets if sent.label not in QUIET and _wanted(sent, scene.name)]
    end = max([sent.arrived or sent.at for sent in packets], default=scene.begin) + 1e-6
    events = [event for event in scene.log.events if scene.begin <= event.t <= end and event.node in scene.nodes]
    marks = [event for event in events if event.kind in ("view", "crash", "block", "unblock")]
    times = sorted({moment for sent in packets for moment in (sent.at, sent.arrived or sent.at)}
                   | {event.t for event in marks} | {scene.begin})  # fmt: skip
    places = dict(_places(times))
    height = places[times[-1]] + BOTTOM
    span = APART * (len(scene.nodes) - 1)
    width = max(MARGIN * 2 + span, 430)
    columns = {name: (width - span) // 2 + number * APART for number, name in enumerate(scene.nodes)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img">',
        f"<title>{escape(scene.title)}</title>",
        f"<style>\n{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#445"/></marker></defs>',
        f'<rect class="paper" width="{width}" height="{height:.0f}"/>',
        f'<text class="title" x="{width / 2:.0f}" y="20" text-anchor="middle">{escape(scene.title)}</text>',
    ]
    for name, x in columns.items():
        lines.append(f'<text class="name" x="{x}" y="44">{name}</text>')
        dead = next((event.t for event in scene.log.events if event.kind == "crash" and event.node == name), None)
        stop = places.get(dead, TOP - 12) if dead is not None else height - BOTTOM + 10
        lines.append(f'<line class="life" x1="{x}" y1="{TOP - 16}" x2="{x}" y2="{stop:.1f}"/>')
        if dead is not None:
            lines.append(f'<text class="dead" x="{x}" y="{stop + 5:.1f}">✕</text>')
        lines.extend(_gates(x, name, marks, places, height))
    boxes = {(event.node, event.t) for event in marks if event.kind == "view"}
    lines.extend(_arrows(packets, columns, places, boxes))
    lines.extend(_views(marks, columns, places))
    return "\n".join([*lines, "</svg>", ""])


def _wanted(sent: Sent, scene: str) -> bool:
    return sent.proto != Failure.id and (scene in ACKS or sent.proto != Unicast3.id)


def _places(times: list[float]) -> Iterator[tuple[float, float]]:
    """Where a moment is on the paper: a pause is cut short, and what is close together is pulled apart."""
    y, before = float(TOP), times[0]
    for moment in times:
        if moment > before:
            y += min(max((moment - before) * SCALE, STEP_MIN), STEP_MAX)
        before = moment
        yield moment, y


def _gates(x: int, name: str, marks: list[Event], places: dict[float, float], height: float) -> Iterator[str]:
    shut: float | None = None
    for event in marks:
        if event.node == name and event.kind == "block" and shut is None:
            shut = event.t
        elif event.node == name and event.kind == "unblock" and shut is not None:
            yield f'<line class="shut" x1="{x}" y1="{places[shut]:.1f}" x2="{x}" y2="{places[event.t]:.1f}"/>'
            shut = None
    if shut is not None:
        yield f'<line class="shut" x1="{x}" y1="{places[shut]:.1f}" x2="{x}" y2="{height - BOTTOM:.1f}"/>'


def _arrows(
    packets: list[Sent], columns: dict[str, int], places: dict[float, float], boxes: set[tuple[str, float]]
) -> Iterator[str]:
    labels: dict[tuple[str, float, bool], list[str]] = {}
    for sent in packets:
        x1, x2 = columns[sent.sender], columns[sent.to]
        y1 = places[sent.at]
        kind = "mcast" if sent.label.startswith(("multicast", "unicast")) else "control"
        if sent.arrived is None:
            x2, y2 = round(x1 + (x2 - x1) * 0.6), y1 + 12
            yield f'<path class="arrow lost" d="M{x1} {y1:.1f} {x2} {y2:.1f}"/>'
            yield f'<text class="dead" x="{x2}" y="{y2 + 5:.1f}">✕</text>'
        else:
            y2 = places[sent.arrived]
            yield f'<path class="arrow {kind}" marker-end="url(#head)" d="M{x1} {y1:.1f} {x2} {y2:.1f}"/>'
        right = x2 > x1
        said = labels.setdefault((sent.sender, sent.at, right), [])
        if sent.label not in said:
            said.append(sent.label)
    for (name, at, right), said in labels.items():
        away = 28 if (name, at) in boxes else 9
        x, anchor = (columns[name] + away, "start") if right else (columns[name] - away, "end")
        text = escape(" · ".join(said))
        yield f'<text class="label" x="{x}" y="{places[at] - 3:.1f}" text-anchor="{anchor}">{text}</text>'


def _views(marks: list[Event], columns: dict[str, int], places: dict[float, float]) -> Iterator[str]:
    for event in marks:
        if event.kind == "view":
            members = cast(list[Any], event.data["members"])
            text = "".join(str(member).partition("#")[0] for member in members)
            x, y, wide = columns[event.node], places[event.t], 14 + 8 * len(text)
            yield f'<rect class="view" x="{x - wide / 2:.0f}" y="{y - 8:.1f}" width="{wide}" height="16" rx="4"/>'
            yield f'<text class="view-text" x="{x}" y="{y + 4:.1f}">{text}</text>'


def render() -> dict[str, str]:
    """Every picture, by the name of its file."""
    logging.getLogger("coterie").setLevel(logging.CRITICAL + 1)
    cast(dict[str, type[Protocol]], REGISTRY)[Tap.name] = Tap
    try:
        return {f"{name}.svg": draw(scene()) for name, scene in SCENES.items()}
    finally:
        del cast(dict[str, type[Protocol]], REGISTRY)[Tap.name]
        logging.getLogger("coterie").setLevel(logging.NOTSET)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pictures = render()
    for name, picture in pictures.items():
        (folder / name).write_text(picture, encoding="utf-8")
    print(f"{len(pictures)} diagrams in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
