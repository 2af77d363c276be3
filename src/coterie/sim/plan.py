"""Plans: everything that a run depends on, as data.

A plan is made from a seed, and from nothing else; it can be written down as JSON, changed by hand or shrunk, and run
again. Each run enables a random subset of the kinds of faults ("swarm"), because some bugs hide when everything
happens at once. All faults are over at a stated time, and the run goes on until the group has settled, or should have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from coterie.errors import UserError
from coterie.sim.link import Conditions
from coterie.sim.stream import Limits

FORMAT = 1
PEERS_NAME = "peers.test"
"""The DNS name that stands for all hosts of a run."""

KINDS: dict[str, str] = {
    "crash": "a process dies; its host says so, or is dead too; it restarts as a new incarnation, or not",
    "start": "a node that has not been started yet is",
    "leave": "a member closes its channel in good order, and comes back as a new incarnation",
    "pause": "a process, or its whole host, stops for a while and goes on",
    "clock": "a node's clock runs too fast or too slow",
    "partition": "two parts of the network cannot reach each other",
    "partial": "some pairs of nodes cannot reach each other",
    "one_way": "some nodes cannot reach others, which can reach them",
    "loss": "datagrams are lost; streams lose time",
    "duplicate": "datagrams arrive twice",
    "reorder": "datagrams overtake each other",
    "corrupt": "datagrams arrive altered",
    "slow_link": "bandwidth is scarce",
    "latency": "everything takes longer",
    "reset": "the streams between two nodes are reset",
    "slow_receiver": "an application takes its time",
    "close": "a unicast connection is closed while data is in flight",
    "stop": "a broker is stopped in good order, and started again",
    "slow_disk": "a disk takes its time",
    "disk_full": "a disk is full",
    "disk_flip": "a bit on a disk flips",
    "disk_tear": "a crash tears the last write",
    "disk_error": "a disk fails to sync, to cut off, to rename or to remove files",
}
NETWORK_KINDS = ("loss", "duplicate", "reorder", "corrupt", "slow_link", "latency")
FAULT_LAYERS = ("DROP", "DELAY", "DUPLICATE", "SHUFFLE")
"""Protocols that disturb what passes through them."""
LINK_KINDS = ("partition", "partial", "one_way", *NETWORK_KINDS)


@dataclass(slots=True)
class Fault:
    """Something goes wrong at a time, for a while."""

    at: float
    """Or when what `on` says happens, from then on."""
    kind: str
    nodes: list[str] = field(default_factory=list)
    """The nodes it concerns; for the network, see `links`."""
    duration: float = 0.0
    links: list[list[str]] = field(default_factory=list)
    """Directions [from, to] that it concerns."""
    values: dict[str, float] = field(default_factory=dict)
    """What else the kind needs."""
    on: str = ""
    """A moment: "n1 flush_held view" is the next event of that kind, with that mode or reason, at that node."""


@dataclass(slots=True)
class Burst:
    """Some bundles that one member sends, one after the other."""

    at: float
    node: str
    to: str
    """A node's name, its own included, or "all"."""
    bundles: int = 1
    messages: int = 1
    """Messages in each."""
    size: int = 20
    """Bytes of each message, about."""
    gap: float = 0.0
    """Seconds between two bundles."""
    ttl: int = 0
    """Of messages of a broker: milliseconds after which each expires; 0: chance decides whether it does at all."""
    wait: bool = False
    """Wait for credit rather than give up when the buffer is full."""


@dataclass(slots=True)
class Action:
    """Something that one member's application asks of the group."""

    at: float
    node: str
    kind: str
    """flush: stop everybody from sending for a while; state: get the state of another member."""
    hold: float = 0.0
    """How long a flush is held."""
    targets: list[str] = field(default_factory=list)
    """Whom it concerns, if not everybody."""


@dataclass(slots=True)
class Plan:
    """One run."""

    seed: int
    profile: str
    members: list[str]
    stack: list[tuple[str, dict[str, object]]]
    """Protocols with their settings, the lowest first."""
    channel: dict[str, object] = field(default_factory=dict)
    network: Conditions = field(default_factory=Conditions)
    limits: Limits = field(default_factory=Limits)
    skews: dict[str, float] = field(default_factory=dict)
    """By how many seconds each node's wall clock is wrong."""
    starts: dict[str, float] = field(default_factory=dict)
    """When each member starts; others at once."""
    bursts: list[Burst] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    with_state: list[str] = field(default_factory=list)
    """Members that join with state."""
    blocks: dict[str, float] = field(default_factory=dict)
    """How long the application of a member takes to stop sending."""
    greet: bool = False
    """Everybody sends everybody a word when its gate opens."""
    farewells: list[str] = field(default_factory=list)
    """Members whose applications say a word to those who left."""
    state_size: int = 0
    """Bytes of an application's state, about."""
    quiet_at: float = 4.0
    """All faults and bursts are over."""
    settle: float = 30.0
    """Seconds after that, or after the last delivery, within which the group must have settled."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Read a plan back. Raises UserError with what is wrong with it."""
        try:
            raw = json.loads(text)
            if raw.pop("format", None) != FORMAT:
                raise UserError(f"{where}: not a plan of format {FORMAT}: make a new one with `coterie sim shrink`")
            raw["stack"] = [(name, settings) for name, settings in raw["stack"]]
            raw["network"] = Conditions(**raw["network"])
            raw["limits"] = Limits(**raw["limits"])
            raw["bursts"] = [Burst(**burst) for burst in raw["bursts"]]
            raw["faults"] = [Fault(**fault) for fault in raw["faults"]]
            raw["actions"] = [Action(**action) for action in raw.get("actions", ())]
            return cls(**raw)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{where}: not a plan: {type(error).__name__}: {error}") from None

    @property
    def size(self) -> int:
        """How much there is to look at: for comparing a plan with a shrunk one."""
        return len(self.members) + len(self.faults) + len(self.actions) + sum(burst.bundles for burst in self.bursts)


def pick(rng: random.Random, table: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """Random settings: of each entry one of its values; None leaves the default."""
    chosen = {name: rng.choice(values) for name, values in table.items()}
    return {name: value for name, value in chosen.items() if value is not None}


class FaultMaker:
    """Makes the faults of one plan."""

    def __init__(self, rng: random.Random, members: Sequence[str], begin: float, end: float) -> None:
        self._rng = rng
        self._members = list(members)
        self._begin, self._end = begin, end
        self._lost: set[str] = set()
        """Members that crash for good."""

    def make(self, kinds: Sequence[str], intensity: float) -> list[Fault]:
        """Some faults of each kind, sorted by time."""
        faults: list[Fault] = []
        for kind in kinds:
            times = 1 + int(self._rng.random() * intensity)
            faults += [self.one(kind) for _ in range(times)]
        return sorted(faults, key=lambda fault: fault.at)

    def one(self, kind: str) -> Fault:
        rng = self._rng
        at = rng.uniform(self._begin, self._end - 0.1)
        longest = self._end - at
        duration = min(longest, rng.choice((0.05, 0.2, 0.6, 1.0, 2.0)) * (0.5 + rng.random()))
        fault = Fault(at, kind, duration=duration)
        if kind in LINK_KINDS:
            fault.links = self._links(kind)
            fault.values = self._conditions(kind)
        elif kind in ("reset", "close"):
            fault.nodes, fault.duration = rng.sample(self._members, 2), 0.0
            if kind == "close" and rng.random() < 0.2:
                fault.nodes[1] = fault.nodes[0]
        else:
            fault.nodes = [rng.choice(self._members)]
            self._complete(fault)
        return fault

    def _complete(self, fault: Fault) -> None:
        rng = self._rng
        match fault.kind:
            case "crash":
                fault.values = {"silent": float(rng.random() < 0.4), "restart": 1.0}
                if rng.random() < 0.25 and len(self._lost) < len(self._members) - 2:
                    self._lost.add(fault.nodes[0])
                    fault.values["restart"] = 0.0
            case "pause":
                fault.values = {"frozen": float(rng.random() < 0.3)}
            case "clock":
                fault.values = {"rate": rng.choice((0.5, 0.8, 0.95, 1.05, 1.3, 2.0))}
            case "slow_receiver":
                fault.values = {"delay": rng.choice((0.005, 0.05, 0.3))}
            case "disk_full":
                fault.values = {"capacity": float(rng.choice((0, 1000, 100_000)))}
            case "disk_flip":
                fault.duration = 0.0

    def _links(self, kind: str) -> list[list[str]]:
        rng, members = self._rng, self._members
        pairs = [[a, b] for a in members for b in members if a != b]
        if kind == "partition":
            part = rng.sample(members, rng.randint(1, max(1, len(members) // 2)))
            return [[a, b] for a, b in pairs if (a in part) != (b in part)]
        if kind == "partial":
            chosen = rng.sample([[a, b] for a, b in pairs if a < b], rng.randint(1, max(1, len(members) // 2)))
            return [link for a, b in chosen for link in ([a, b], [b, a])]
        if kind == "one_way":
            if rng.random() < 0.5:  # a node that hears nobody, or that nobody hears
                node, side = rng.choice(members), rng.randrange(2)
                return [link for link in pairs if link[side] == node]
            return rng.sample(pairs, rng.randint(1, len(members)))
        if rng.random() < 0.5:
            return pairs
        return rng.sample(pairs, rng.randint(1, len(pairs)))

    def _conditions(self, kind: str) -> dict[str, float]:
        rng = self._rng
        match kind:
            case "loss":
                return {"loss": rng.choice((0.01, 0.05, 0.2, 0.5))}
            case "duplicate":
                return {"duplicate": rng.choice((0.02, 0.1, 0.4))}
            case "reorder":
                return {"reorder": rng.choice((0.05, 0.2, 0.6))}
            case "corrupt":
                return {"corrupt": rng.choice((0.01, 0.05, 0.2))}
            case "slow_link":
                return {"bandwidth": rng.choice((3_000.0, 20_000.0, 100_000.0))}
            case "latency":
                latency = rng.choice((0.01, 0.05, 0.2))
                return {"latency": latency, "jitter": latency * rng.random()}
        return {}


def swarm(rng: random.Random, kinds: Sequence[str], share: float = 0.35) -> list[str]:
    """A random subset of the kinds; sometimes none, sometimes all."""
    choice = rng.random()
    if choice < 0.03:
        return []
    if choice < 0.06:
        return list(kinds)
    return [kind for kind in kinds if rng.random() < share]


def settings_of(kind: type) -> list[str]:
    """The names of a settings dataclass: tables of small settings are checked against it."""
    return [item.name for item in fields(kind)]
