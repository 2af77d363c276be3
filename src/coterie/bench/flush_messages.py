"""How many messages one flush costs, by the size of the group: counted in the simulator, with the stack that ships.

Members are in one view and at rest; one of them flushes all and releases them. Whatever the transports send from then
until all are at rest again counts, a message to n others n times. Timers that send without being asked (heartbeats,
announcements) are turned off for it. Acks of UNICAST3 are counted apart.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import median

from coterie.errors import CoterieError
from coterie.group.channel import Channel
from coterie.group.presets import preset
from coterie.group.stack import Layer
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Json

SIZES = (2, 4, 8, 16, 32, 64, 128, 200)
PORT = 7800
NEVER = 1e6
"""Seconds: longer than any run."""
PROBE = 200.0
"""Seconds between two announcements of a member's view, give or take a quarter: the first ones make the group, and
between those and the next ones there is time for all flushes."""
CALM = 2.0
"""Seconds after which the last ack of a flush is out."""
STEPS_MAX = 200_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the flushes of one group."""

    members: int
    messages: list[int]
    """Per flush, without acks."""
    packets: list[int]
    """Per flush, with acks."""

    @property
    def least(self) -> int:
        """What nobody can do without: ask everybody, hear everybody, tell everybody that it is over."""
        return 3 * (self.members - 1)

    def to_json(self) -> dict[str, Json]:
        found = median(self.messages)
        return {
            "median": found,
            "min": min(self.messages),
            "max": max(self.messages),
            "baseline": self.least,
            "ratio": round(found / self.least, 3),
            "packets": median(self.packets),
            "unit": "messages per flush",
        }


class Simulated:
    """A group in one view."""

    def __init__(self, members: int, flush: str) -> None:
        self._world = World(f"flush-messages/{members}")
        fabric = Fabric(self._world)
        self._nodes = [Node(self._world, fabric, f"m{number:03}") for number in range(members)]
        self.channels = [self._start(node, flush) for node in self._nodes]

    def _start(self, node: Node, flush: str) -> Channel:
        layers = preset(
            "virtual-synchrony",
            TCP={"bind_host": node.ports.ip, "bind_port": PORT},
            STATIC={"peers": [f"{self._nodes[0].ports.ip}:{PORT}"], "interval": PROBE / 4},
            FAILURE={"heartbeat_interval": NEVER, "heartbeat_timeout": 3 * NEVER},
            MERGE={"interval": PROBE},
            GMS={"alone_after": 0.0},
        )
        layers = [Layer(flush, {}) if layer.protocol == "FLUSH2" else layer for layer in layers]
        return Channel(node.boot(), layers, group="flush", name=node.name, incarnation=1)

    def form(self) -> None:
        """Each begins a group of its own; then they find each other, and merge: that is one view change, not n."""
        for channel in self.channels:
            channel.runtime.spawn(channel.connect())
        self._run(1.3 * PROBE)
        sizes = sorted({len(channel.view.members) for channel in self.channels})
        if sizes != [len(self.channels)]:
            raise CoterieError(f"the simulated group did not form: members see {', '.join(map(str, sizes))}")

    def _run(self, seconds: float) -> None:
        self._world.run(self._world.time + seconds, STEPS_MAX)

    def flush(self, leader: int) -> tuple[int, int]:
        """One flush; what it cost: messages, and packets."""
        before = self._sent()
        self._run(CALM)
        if self._sent() != before:
            raise CoterieError("the simulated group is not at rest: what it sends would be counted")
        held = self.channels[leader].runtime.spawn(self._flush(self.channels[leader]))
        self._run(CALM)
        if not held.done():
            raise CoterieError("the simulated flush did not come to its end")
        packets, acks = (after - earlier for after, earlier in zip(self._sent(), before, strict=True))
        return packets - acks, packets

    @staticmethod
    async def _flush(channel: Channel) -> None:
        async with channel.flush():
            pass

    def _sent(self) -> tuple[int, int]:
        """Packets, and how many of them were acks."""
        stats = [channel.stats() for channel in self.channels]
        return sum(s["TCP"]["packets_out"] for s in stats), sum(
            s.get("UNICAST3", {}).get("acks_sent", 0) for s in stats
        )


def count(members: int, flush: str) -> Cost:
    """Flushes by the first member, one in the middle, and the last."""
    group = Simulated(members, flush)
    group.form()
    costs = [group.flush(leader) for leader in (0, members // 2, members - 1)]
    return Cost(members, [messages for messages, _ in costs], [packets for _, packets in costs])


def measure(sizes: Sequence[int], flushes: Sequence[str], done: Callable[[int], None]) -> dict[str, list[Cost]]:
    """By flush protocol: the costs for every size. Groups are simulated side by side, the largest first."""
    found: dict[str, list[Cost]] = {}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        costs = {
            (size, flush): pool.submit(count, size, flush) for size in sorted(sizes, reverse=True) for flush in flushes
        }
        for number, _ in enumerate(as_completed(costs.values()), 1):
            done(number)
    for flush in flushes:
        found[flush] = [costs[size, flush].result() for size in sizes]
    return found
