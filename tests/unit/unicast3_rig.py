"""UNICAST3 alone, and two of it joined by a network: what its tests share."""

from __future__ import annotations

from harness import A, B, Script

from coterie.group.members import Address
from coterie.group.packet import TRAIN, Packet
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.protocols.unicast3_messages import Unicast3Settings

RUN = 0.5
"""Seconds between two runs of the retransmission task, as in the document."""


def script(**settings: float) -> Script:
    return Script(
        Unicast3(Unicast3Settings(**{"ack_interval": 0.05, "retransmit_interval": RUN} | settings))  # type: ignore[arg-type]
    )


def layer(s: Script) -> Unicast3:
    return s.stack.find(Unicast3)


class Pair:
    """Two members joined by a network that does what it is told."""

    def __init__(self, **settings: float) -> None:
        self.a, self.b = (self._member(address, settings) for address in (A, B))

    @staticmethod
    def _member(address: Address, settings: dict[str, float]) -> Script:
        numbers = {"ack_interval": 0.05, "retransmit_interval": RUN} | settings
        return Script(Unicast3(Unicast3Settings(**numbers)), local=address)  # type: ignore[arg-type]

    def carry(self, lose: object = lambda packet: False) -> None:
        """Bring everything across, both ways, until nothing moves; `lose` says what gets lost."""
        moved = True
        while moved:
            moved = False
            for here, there in ((self.a, self.b), (self.b, self.a)):
                out, here.floor.out = here.floor.out, []
                for packet in out:
                    packet.sender = here.stack.local
                    moved = True
                    if not lose(packet):  # type: ignore[operator]
                        there.up(packet.copy(packet.dest))

    def run(self, seconds: float, lose: object = lambda packet: False) -> None:
        """Time passes in small steps, and the network carries."""
        for _ in range(round(seconds / 0.01)):
            self.a.run(0.01)
            self.b.run(0.01)
            self.carry(lose)


def part_of_a_train(packet: Packet) -> Packet:
    packet.flags |= TRAIN
    return packet
