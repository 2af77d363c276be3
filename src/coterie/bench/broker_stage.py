"""What `bench broker` plays, and where: its plan, the cases, the process of its clients, and what comes of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.bench.broker_figures import ALONE, CLUSTERS, ENCRYPTED, Measured
from coterie.bench.broker_nodes import Nodes
from coterie.errors import CoterieError
from coterie.workers import Message, Worker

PARTS = ("disk", "throughput", "latency", "memory", "join", "kill")
PATIENCE = 60.0
RATE = 500.0
"""Messages per second at which latency is measured, and during which brokers join and die."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to use a broker."""

    name: str
    publishers: int = 1
    consumers: int = 1
    persistent: bool = True
    rate: float = 0.0
    apart: bool = False
    """Consumers are on another node than publishers."""


FILL = Case("fill", consumers=0)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker, or cluster, on this host."""

    name: str
    ports: tuple[int, ...]
    protocol: str = "amqp"
    """What its clients speak: this, or `nats`."""

    @property
    def kind(self) -> str:
        """Of its queues: in a cluster replicated ones are wanted."""
        return "quorum" if len(self.ports) > 1 else ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played, and how much of it."""

    parts: tuple[str, ...] = PARTS
    nodes: int = 3
    size: int = 1024
    warmup: float = 0.7
    seconds: float = 2.0
    """Of each case."""
    rounds: int = 3
    queued: int = 100_000
    """Messages of the memory case."""
    joined: int = 200_000
    """Messages that a new node is sent."""
    joins: int = 2
    kills: int = 3
    """Of the oldest node, and of another one."""
    rest: float = 3.0
    """Seconds before somebody joins in which confirms are watched."""
    peers: tuple[Peer, ...] = ()
    data: Path | None = None
    """Where folders are made."""
    encrypt: bool = False
    """A cluster that encrypts is measured, too."""

    @property
    def clusters(self) -> tuple[str, ...]:
        if self.nodes == 1:
            return ()
        return (*CLUSTERS, ENCRYPTED) if self.encrypt else CLUSTERS

    def ours(self, name: str, size: int = 0, consoles: bool = False) -> Nodes:
        """The broker that stands alone, or a cluster."""
        count = 1 if name == ALONE else self.nodes
        dispatch = {ALONE: "", ENCRYPTED: CLUSTERS[0]}.get(name, name)
        return Nodes(name, count, dispatch, self.data, size, consoles, encrypt=name == ENCRYPTED)


class Target(Protocol):
    """What has ports and a name."""

    @property
    def name(self) -> str: ...

    @property
    def ports(self) -> list[int] | tuple[int, ...]: ...


@dataclass(slots=True)
class Stage:
    """Where it is played: the clients' process, and what comes of it."""

    plan: Plan
    load: Worker
    measured: Measured = field(default_factory=Measured)
    wrong: Counter[str] = field(default_factory=Counter)
    """How many messages each of them lost, or gave twice."""

    def fill(self, target: Target, queue: str, messages: int) -> int:
        """So many messages into a queue, at full rate and confirmed; how many there are."""
        return int(self.play(FILL, target, queue, messages)["sent"])

    def delete(self, target: Target, queue: str) -> None:
        order: Message = {"do": "delete", "queue": f"{queue}-{os.getpid()}", **_speech(target)}
        ask(self.load, {**order, "port": target.ports[0]})

    def play(self, case: Case, target: Target, queue: str, messages: int | None = None) -> Message:
        answer = ask(
            self.load,
            {
                "do": "play", "queue": f"{queue}-{os.getpid()}",
                **_speech(target),
                "size": self.plan.size, "persistent": case.persistent, "rate": case.rate,
                "publishers": case.publishers, "consumers": case.consumers, "messages": messages,
                "ports": list(target.ports), "apart": case.apart,
                "warmup": self.plan.warmup, "seconds": self.plan.seconds, "patience": patience(messages or 0),
            },
        )  # fmt: skip
        self.blame(target.name, answer)
        return answer

    def blame(self, name: str, answer: Message) -> None:
        faults = abs(int(answer["lost"])) + int(answer.get("wrong", 0))
        if faults:
            self.wrong[name] += faults

    def served(self, target: Nodes) -> None:
        """Wait until every node lets clients in."""
        ask(self.load, {"do": "serve", "ports": target.ports, "patience": PATIENCE})


def patience(messages: int) -> float:
    """Seconds that so many may take on a slow disk before they are taken for lost."""
    return max(PATIENCE, messages / 1000)


def _speech(target: Target) -> Message:
    """What its clients have to know: what they speak, and of which kind its queues are to be."""
    if isinstance(target, Peer):
        return {"protocol": target.protocol, "kind": target.kind}
    return {"protocol": "amqp", "kind": ""}


def ask(worker: Worker, order: Message) -> Message:
    worker.tell(order)
    return heard(worker)


def heard(worker: Worker) -> Message:
    answer = worker.hear()
    if "error" in answer:
        raise CoterieError(f"bench broker: {answer['error']}")
    return answer


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the run, as a progress line tells it."""

    what: str
    run: Callable[[], None]
