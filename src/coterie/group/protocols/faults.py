"""DROP, DELAY, DUPLICATE, SHUFFLE: faults on purpose, to be put anywhere into a stack.

Promises: nothing, which is the point. Each disturbs packets that pass it in the directions it is set to, with the
given probability, from the runtime's seeded random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ShuffleSettings:
    up: float = setting(0.0, "Probability for a packet on its way up.", minimum=0)


@dataclass(frozen=True, slots=True)
class FaultSettings(ShuffleSettings):
    down: float = setting(0.0, "Probability for a packet on its way down.", minimum=0)


class _Fault(Protocol):
    Settings: ClassVar[type] = FaultSettings
    settings: FaultSettings

    def hit(self, probability: float) -> bool:
        return probability > 0 and self.runtime.rng.random() < probability


class Drop(_Fault):
    """Loses packets."""

    name = "DROP"
    id = 32

    def down(self, packet: Packet) -> None:
        if self.hit(self.settings.down):
            self.count("dropped")
        else:
            self.pass_down(packet)

    def up(self, batch: list[Packet]) -> None:
        kept = [packet for packet in batch if not self.hit(self.settings.up)]
        self.count("dropped", len(batch) - len(kept))
        if kept:
            self.pass_up(kept)


class Duplicate(_Fault):
    """Passes packets on twice."""

    name = "DUPLICATE"
    id = 34

    def down(self, packet: Packet) -> None:
        self.pass_down(packet)
        if self.hit(self.settings.down):
            self.count("duplicated")
            self.pass_down(packet.copy(packet.dest))

    def up(self, batch: list[Packet]) -> None:
        twice = [packet for packet in batch if self.hit(self.settings.up)]
        self.count("duplicated", len(twice))
        self.pass_up(batch + twice)


@dataclass(frozen=True, slots=True)
class DelaySettings(FaultSettings):
    longest: float = setting(0.05, "Longest delay.", unit="s", minimum=0)


class Delay(_Fault):
    """Holds packets back for a random time; they overtake each other."""

    name = "DELAY"
    id = 33
    Settings = DelaySettings
    settings: DelaySettings

    def down(self, packet: Packet) -> None:
        if self.hit(self.settings.down):
            self.count("delayed")
            self._later(partial(self.pass_down, packet))
        else:
            self.pass_down(packet)

    def up(self, batch: list[Packet]) -> None:
        now = []
        for packet in batch:
            if self.hit(self.settings.up):
                self.count("delayed")
                self._later(partial(self.pass_up, [packet]))
            else:
                now.append(packet)
        if now:
            self.pass_up(now)

    def _later(self, call: Callable[[], None]) -> None:
        delay = self.runtime.rng.uniform(0, self.settings.longest)
        self.runtime.call_later(delay, self._unless_stopped, call)

    def _unless_stopped(self, call: Callable[[], None]) -> None:
        if self.stack.running:
            call()


class Shuffle(_Fault):
    """Changes the order of packets within a batch, and holds one back until the next batch comes."""

    name = "SHUFFLE"
    id = 35
    Settings = ShuffleSettings  # packets go down one at a time: there is no batch to shuffle

    def start(self) -> None:
        self._held: list[Packet] = []

    def up(self, batch: list[Packet]) -> None:
        batch = self._held + batch
        self._held = []
        if self.hit(self.settings.up):
            self.count("shuffled")
            self.runtime.rng.shuffle(batch)
            self._held = [batch.pop()]
            self.runtime.call_later(0.05, self._release)  # the last one must not wait for ever
        if batch:
            self.pass_up(batch)

    def _release(self) -> None:
        held, self._held = self._held, []
        if held and self.stack.running:
            self.pass_up(held)
