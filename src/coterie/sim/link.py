"""Links: how what one node sends reaches another, in one direction, under the faults of the moment.

A link is always there; faults change its numbers for a while, and several may overlap. A blocked link lets nothing
through: datagrams are lost, streams wait (TCP sends again) until it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

from coterie.sim.clock import World


@dataclass(slots=True)
class Conditions:
    """The numbers of a link; probabilities are per datagram."""

    latency: float = 0.001
    """Seconds that everything takes at least."""
    jitter: float = 0.0005
    """Mean of the exponential part of the latency, in seconds."""
    bandwidth: float = 0.0
    """Bytes per second; 0 means that size costs no time."""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    chop: float = 0.0
    """Probability that a piece of a stream arrives in two."""


_QUEUE_MAX = 0.5
"""Seconds of backlog that a link of limited bandwidth keeps for datagrams; what comes on top is lost."""
_RETRANSMIT = 0.2
"""Seconds after which TCP sends a lost segment again."""

FIELDS = ("latency", "jitter", "bandwidth", "loss", "duplicate", "reorder", "corrupt", "chop")


class Link:
    """One direction between two nodes."""

    __slots__ = (*FIELDS, "_base", "_busy", "_changes", "_waiting", "_world", "blocked", "random", "rng")

    latency: float
    jitter: float
    bandwidth: float
    loss: float
    duplicate: float
    reorder: float
    corrupt: float
    chop: float

    def __init__(self, world: World, name: str, base: Conditions) -> None:
        self._world = world
        self._base = base
        self._changes: dict[int, dict[str, float]] = {}
        self._busy = 0.0
        self._waiting: list[Callable[[], object]] = []
        self.blocked = 0
        self.rng = world.rng(f"link/{name}")
        self.random = self.rng.random
        self._apply()

    # Faults.

    def change(self, fault: int, values: dict[str, float]) -> None:
        """Fault number `fault` sets some of the numbers until it ends."""
        self._changes[fault] = values
        self._apply()

    def restore(self, fault: int) -> None:
        self._changes.pop(fault, None)
        self._apply()

    def _apply(self) -> None:
        for field in FIELDS:
            setattr(self, field, getattr(self._base, field))
        for values in self._changes.values():
            for field, value in values.items():
                setattr(self, field, value)

    def block(self) -> None:
        self.blocked += 1

    def unblock(self) -> None:
        self.blocked -= 1
        if not self.blocked:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                self._world.after(self.delay(0) + self.random() * _RETRANSMIT, self._world.nature, call)

    def when_open(self, call: Callable[[], object]) -> None:
        """Call some time after the link has opened again."""
        self._waiting.append(call)

    # Traffic.

    def delay(self, size: int) -> float:
        """How long this takes to arrive, behind what was sent before if bandwidth is scarce."""
        delay = self.latency - self.jitter * log(1.0 - self.random())
        if self.bandwidth:
            now = self._world.time
            start = self._busy if self._busy > now else now
            self._busy = start + size / self.bandwidth
            delay += self._busy - now
        return delay

    def stream_delay(self, size: int) -> float:
        """The same for a piece of a stream: what is lost or corrupted on the way costs time only."""
        delay = self.delay(size)
        hurt = self.loss + self.corrupt
        if hurt and self.random() < hurt:
            delay += _RETRANSMIT
        return delay

    def carry(self, data: bytes, arrive: Callable[[float, bytes], None], count: Callable[[str], None]) -> None:
        """Send a datagram: `arrive(delay, data)` not at all, once or twice."""
        if self.blocked:
            return
        random = self.random
        if self.loss and random() < self.loss:
            count("loss")
            return
        if self.bandwidth and self._busy - self._world.time > _QUEUE_MAX:
            count("overflow")
            return
        delay = self.delay(len(data))
        if self.reorder and random() < self.reorder:
            count("reorder")
            delay += random() * 20 * (self.latency + self.jitter)
        if self.corrupt and random() < self.corrupt:
            count("corrupt")
            data = self._damage(data)
        arrive(delay, data)
        if self.duplicate and random() < self.duplicate:
            count("duplicate")
            arrive(delay + random() * 10 * (self.latency + self.jitter), data)

    def _damage(self, data: bytes) -> bytes:
        """Flip a bit, cut off the end, or append something."""
        rng = self.rng
        choice = rng.random()
        if choice < 0.7 and data:
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(damaged)
        if choice < 0.9:
            return data[: rng.randrange(len(data) + 1)]
        return data + rng.randbytes(rng.randint(1, 20))
