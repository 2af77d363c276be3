"""FRAG: messages larger than a bundle.

Promises: a message of any size up to the limit is delivered whole, with the last of the bundles that carry it. Such a
bundle becomes a train: parts of at most `size` bytes, each numbered and paid for like any other bundle, so a large
message never overshoots the flow-control window. The stream below is FIFO, so parts of one stream come in order; when
it breaks off or is opened again elsewhere, what there is of a train is dropped, and a train without its start as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.group.bundle import OFFSET_SIZE
from coterie.group.events import Event, StreamEnded, StreamOpened
from coterie.group.members import Address
from coterie.group.packet import APP, MCAST, TRAIN, TRAIN_END, TRAIN_START, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flow import Flow
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.stack import Stack

StreamKey = tuple[Address, int, int]
"""Sender, carrier, connection."""
LONGEST_TABLE = 2 * OFFSET_SIZE
"""What a bundle adds to its only message."""


@dataclass(frozen=True, slots=True)
class FragmentSettings:
    size: int = setting(60_000, "Largest part of a train.", unit="B", minimum=16)
    message_max: int = setting(64 << 20, "Largest message that is sent, or taken from a peer.", unit="B", minimum=1024)


class Train:
    """The parts of one message that have come so far."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Packet] = []
        self.size = 0

    def add(self, packet: Packet) -> None:
        self.parts.append(packet)
        self.size += len(packet.body)

    def whole(self) -> Packet:
        last = self.parts[-1]
        whole = Packet(b"".join(part.body for part in self.parts), None, last.proto, last.carrier, last.flags)
        whole.sender, whole.seqno, whole.conn, whole.view = last.sender, last.seqno, last.conn, last.view
        whole.pos = last.pos
        whole.parts = tuple(self.parts)
        return whole


class Fragment(Protocol):
    """Cuts large bundles into trains and puts them together again."""

    name = "FRAG"
    id = 20
    role = "fragmentation"
    needs_below = ("reliable multicast",)
    Settings = FragmentSettings
    rules = {
        "frag.train": "A message larger than a bundle goes out as a train of bundles.",
        "frag.joined": "A train is delivered whole, with its last bundle.",
        "frag.dropped": "A train that cannot be completed is dropped.",
    }

    settings: FragmentSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._flow = stack.find(Flow) if stack.has(Flow) else None
        self._trains: dict[StreamKey, Train] = {}

    def down(self, packet: Packet) -> None:
        size = self.settings.size
        if len(packet.body) <= size or packet.proto != APP:
            self.pass_down(packet)
            return
        self.rule("frag.train")
        body = memoryview(packet.body)
        for at in range(0, len(body), size):
            flags = TRAIN | (0 if at else TRAIN_START) | (TRAIN_END if at + size >= len(body) else 0)
            self.pass_down(
                Packet(body[at : at + size], packet.dest, packet.proto, packet.carrier, packet.flags | flags)
            )

    def up(self, batch: list[Packet]) -> None:
        for packet in batch:
            if packet.flags & TRAIN:
                batch = [whole for packet in batch if (whole := self._collect(packet)) is not None]
                break
        if batch:
            self.pass_up(batch)

    def _collect(self, packet: Packet) -> Packet | None:
        """A packet that is no part of a train, or the whole train if this is its last part."""
        if not packet.flags & TRAIN:
            return packet
        key = (packet.sender, packet.carrier, packet.conn)
        if packet.flags & TRAIN_START:
            self._drop(key)
            self._trains[key] = Train()
        train = self._trains.get(key)
        if train is None:
            self.count("without_start")
        else:
            train.add(packet)
            if packet.flags & TRAIN_END:
                del self._trains[key]
                self.rule("frag.joined")
                return train.whole()
            if train.size > self.settings.message_max + LONGEST_TABLE:
                self.count("too_large")
                self._drop(key)
        if self._flow is not None:
            self._flow.taken(packet)  # now, or a message larger than the window could never arrive
        return None

    def up_event(self, event: Event) -> None:
        match event:
            case StreamOpened(sender, _):
                self._drop((sender, MCAST, 0))
            case StreamEnded(sender, carrier, conn):
                self._drop((sender, carrier, conn))
        super().up_event(event)

    def _drop(self, key: StreamKey) -> None:
        if self._trains.pop(key, None) is not None:
            self.rule("frag.dropped")
            self.count("dropped")

    def held(self) -> dict[str, int]:
        return {"trains": sum(sender in self.stack.view for sender, _, _ in self._trains)}
