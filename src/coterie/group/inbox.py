"""The top of a stack: hands what arrives to the application in batches; credit goes back when it was taken."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from coterie.errors import WireError
from coterie.group import bundle
from coterie.group.events import Event, ViewChange, Writable
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, UCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flow import Flow

log = logging.getLogger("coterie.channel")


class Delivery(NamedTuple):
    """The messages of one bundle, in the order in which they were sent."""

    sender: Address
    messages: list[memoryview]
    multicast: bool


class Receiver:
    """What a group tells the application. Override what you need."""

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        """Messages arrived. A returned awaitable holds back further batches, in the end the senders, until done."""

    def view_accepted(self, view: View) -> None:
        """A new view is in force."""


class Inbox(Protocol):
    """The top layer: from the stack to the application."""

    name = "CHANNEL"
    id = APP

    def __init__(
        self,
        receiver: Receiver,
        *,
        view_changed: Callable[[View], None],
        writable: Callable[[], None],
        stopped: Callable[[], None],
        unsent: Callable[[], int],
    ) -> None:
        super().__init__()
        self.receiver = receiver
        self._view_changed, self._writable, self._stopped, self._unsent = view_changed, writable, stopped, unsent
        self._waiting: deque[list[Packet] | View] = deque()
        """What the application gets next: a view never overtakes what was delivered before it."""
        self._taking: list[Packet] = []
        """The batch that the application has not finished with."""
        self._flow: Flow | None = None

    def start(self) -> None:
        self._flow = self.stack.find(Flow) if self.stack.has(Flow) else None

    def stop(self) -> None:
        self._stopped()

    def up(self, batch: list[Packet]) -> None:
        if self.stack.trace.on:
            for packet in batch:
                for part in packet.parts or (packet,):
                    self._trace_delivery(part)
        if self._taking:
            self._waiting.append(batch)
        else:
            self._hand_over(batch)

    def _hand_over(self, batch: list[Packet]) -> None:
        deliveries = []
        for packet in batch:
            try:
                deliveries.append(Delivery(packet.sender, bundle.split(packet.body), packet.carrier == MCAST))
            except WireError:
                self.count("malformed")
        try:
            waits = self.receiver.receive(deliveries) if deliveries else None
        except Exception:
            log.exception("the receiver of %s failed on a batch", self.stack.local)
            waits = None
        if waits is None:
            self._taken(batch)
        else:
            self._taking = batch
            self.runtime.spawn(self._await_taken(waits))

    async def _await_taken(self, waits: Awaitable[None]) -> None:
        try:
            await waits
        except Exception:
            log.exception("the receiver of %s failed on a batch", self.stack.local)
        batch, self._taking = self._taking, []
        self._taken(batch)
        while self._waiting and not self._taking:
            match self._waiting.popleft():
                case View() as view:
                    self._accept(view)
                case batch:
                    self._hand_over(batch)

    def _taken(self, batch: list[Packet]) -> None:
        if self._flow is not None:
            for packet in batch:
                self._flow.taken(packet)

    def _trace_delivery(self, packet: Packet) -> None:
        self.stack.trace.emit(
            "deliver", view=self.stack.view.id, sender=packet.sender, first=packet.seqno, last=packet.seqno,
            count=bundle.count(packet), sum=zlib.crc32(packet.body), app=True,
            conn=packet.conn if packet.carrier == UCAST else None,
        )  # fmt: skip

    def up_event(self, event: Event) -> None:
        match event:
            case ViewChange(view):
                if self._taking:
                    self._waiting.append(view)
                else:
                    self._accept(view)
            case Writable():
                self._writable()

    def _accept(self, view: View) -> None:
        try:
            self.receiver.view_accepted(view)
        except Exception:
            log.exception("the receiver of %s failed on a view", self.stack.local)
        self._view_changed(view)

    def held(self) -> dict[str, int]:
        return {"untaken": bool(self._taking) + len(self._waiting), "unsent": self._unsent()}
