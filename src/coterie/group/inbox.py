"""The top of a stack: hands what arrives to the application, in the order in which it came up.

Promises: batches, views, snapshots and states keep their places: a view never overtakes what was delivered before it, a
snapshot holds exactly what was, and what is delivered after a state's cut waits until that state is set. Credit goes
back when a batch was taken; what waits for a state is credited at once, up to a bound.
"""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coterie.errors import WireError
from coterie.group import bundle
from coterie.group.blocking import Blocking, Done
from coterie.group.events import (
    Block,
    Event,
    Held,
    OrderEnds,
    Replaced,
    SnapshotWanted,
    StateComes,
    StateOver,
    Unblock,
    ViewChange,
    Writable,
)
from coterie.group.members import View, ViewId
from coterie.group.packet import APP, MCAST, UCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flow import Flow
from coterie.group.receiver import Delivery, Receiver, StateInterrupted

__all__ = ["Delivery", "Inbox", "Receiver"]

log = logging.getLogger("coterie.channel")


@dataclass(frozen=True, slots=True, eq=False)
class Paid:
    """A batch that waits for a state and was credited to its senders already."""

    batch: list[Packet]
    size: int


Item = list[Packet] | Paid | View | Held | OrderEnds | SnapshotWanted | StateComes


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
        push_out: Callable[[Done, bool], None],
        replaced: Callable[[Replaced], None],
    ) -> None:
        super().__init__()
        self.receiver = receiver
        self._view_changed, self._writable, self._stopped, self._unsent = view_changed, writable, stopped, unsent
        self._replaced = replaced
        self._blocking = Blocking(receiver, push_out)
        self._waiting: deque[Item] = deque()
        """What the application gets next."""
        self._busy = False
        """The application is at work: what comes meanwhile, even out of its own call, waits."""
        self._awaited: StateComes | None = None
        """The state whose cut has come up, whether its turn has come or not."""
        self._setting: StateComes | None = None
        """The state whose turn it is."""
        self._set_running = False
        """The application's `set_state` has not returned."""
        self._paid = 0
        """Bytes that wait and were credited."""
        self._flow: Flow | None = None

    def start(self) -> None:
        self._flow = self.stack.find(Flow) if self.stack.has(Flow) else None

    def stop(self) -> None:
        self._stopped()

    # In their order: batches, views, snapshots, states.

    def up(self, batch: list[Packet]) -> None:
        for packet in batch:
            if packet.proto != APP:
                batch = self._ours(batch)
                break
        if self.stack.trace.on:
            for packet in batch:
                for part in packet.parts or (packet,):
                    self._trace_delivery(part)
        if not self._busy:
            self._hand_over(batch)
            if self._waiting:
                self._go_on()
        elif self._awaited is None:
            self._waiting.append(batch)
        else:
            self._keep(batch, self._awaited.buffer_max)

    def _ours(self, batch: list[Packet]) -> list[Packet]:
        """Without what is of a protocol that this stack does not have: no layer below has taken it for its own, nor
        will any account for it."""
        ours = [packet for packet in batch if packet.proto == APP]
        self.count("unclaimed", len(batch) - len(ours))
        return ours

    def _trace_delivery(self, packet: Packet) -> None:
        self.stack.trace.emit(
            "deliver", view=self.stack.view.id, sender=packet.sender, first=packet.seqno, last=packet.seqno,
            count=bundle.count(packet), sum=zlib.crc32(packet.body), app=True,
            conn=packet.conn if packet.carrier == UCAST else None, pos=packet.pos or None,
        )  # fmt: skip

    def up_event(self, event: Event) -> None:
        if isinstance(event, Held):  # by far the most frequent
            if self._busy or self._waiting:
                self._held(event)
            else:
                self._tell_held(event.view, event.position, event.everyone)
            return
        match event:
            case ViewChange(view):
                self._in_turn(view)
            case Writable():
                self._writable()
            case Block(done):
                self._blocking.block(self.runtime, self.stack.local, done)
            case Unblock():
                self._blocking.unblock(self.stack.local)
            case SnapshotWanted() | OrderEnds():
                self._in_turn(event)
            case StateComes():
                if self._awaited is not None:
                    self._replace()
                self._awaited = event
                self._in_turn(event)
            case StateOver():
                self._state_over()
            case Replaced():
                self._replaced(event)

    def _in_turn(self, item: Item) -> None:
        self._waiting.append(item)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._busy:
            match self._waiting.popleft():
                case View() as view:
                    self._accept(view)
                case Held(view_id, position, everyone):
                    self._tell_held(view_id, position, everyone)
                case OrderEnds():
                    self.receiver.order_ends()
                case SnapshotWanted() as wanted:
                    self._snapshot(wanted)
                case StateComes() as state:
                    self._set(state)
                case Paid(batch, size):
                    self._paid -= size
                    self._hand_over(batch, paid=True)
                case batch:
                    self._hand_over(batch)

    # Batches.

    def _hand_over(self, batch: list[Packet], paid: bool = False) -> None:
        deliveries = []
        for packet in batch:
            try:
                deliveries.append(
                    Delivery(packet.sender, bundle.split(packet.body), packet.carrier == MCAST, packet.pos)
                )
            except WireError:
                self.count("malformed")
        self._busy = True
        try:
            waits = self.receiver.receive(deliveries) if deliveries else None
        except Exception:
            log.exception("the receiver of %s failed on a batch", self.stack.local)
            waits = None
        owed = [] if paid else batch
        if waits is None:
            self._taken(owed)
            self._busy = False
        else:
            self.runtime.spawn(self._await_taken(waits, owed))

    async def _await_taken(self, waits: Awaitable[None], owed: list[Packet]) -> None:
        try:
            await waits
        except Exception:
            log.exception("the receiver of %s failed on a batch", self.stack.local)
        self._taken(owed)
        self._busy = False
        self._go_on()

    def _taken(self, batch: list[Packet]) -> None:
        if self._flow is not None:
            for packet in batch:
                self._flow.taken(packet)

    def _keep(self, batch: list[Packet], most: int) -> None:
        """A state is awaited, perhaps for long: its senders need not wait, as long as there is room."""
        size = sum(len(packet.body) for packet in batch)
        if self._paid + size > most:
            self._waiting.append(batch)
            return
        self._paid += size
        self._taken(batch)
        for packet in batch:
            packet.parts = ()
            packet.body = bytes(packet.body)  # a slice would keep alive the buffer, in which chunks of the state came
        self._waiting.append(Paid(batch, size))

    # Views, and what is held of their order.

    def _accept(self, view: View) -> None:
        self._busy = True
        try:
            self.receiver.view_accepted(view)
        except Exception:
            log.exception("the receiver of %s failed on a view", self.stack.local)
        self._view_changed(view)
        self._busy = False

    def _held(self, event: Held) -> None:
        """What is held is told behind what was delivered, and only the last word of several."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Held) and (last.view, last.everyone) == (event.view, event.everyone):
            self._waiting.pop()
        self._in_turn(event)

    def _tell_held(self, view: ViewId, position: int, everyone: bool) -> None:
        self._busy = True
        try:
            self.receiver.held(view, position, everyone)
        except Exception:
            log.exception("the receiver of %s failed on a held position", self.stack.local)
        self._busy = False

    # State transfer.

    def _snapshot(self, wanted: SnapshotWanted) -> None:
        if not wanted.needed():
            return
        self._busy = True
        try:
            state = self.receiver.get_state()
        except Exception as error:
            log.exception("get_state() of %s failed", self.stack.local)
            wanted.answer(error)
        else:
            wanted.answer(state)
        self._busy = False

    def _set(self, state: StateComes) -> None:
        self._busy = self._set_running = True
        self._setting = state
        self.runtime.spawn(self._await_set(state))

    async def _await_set(self, state: StateComes) -> None:
        failure = None
        try:
            await self.receiver.set_state(state.chunks)
        except Exception as error:
            failure = error
            if not isinstance(error, StateInterrupted):
                log.exception("set_state() of %s failed", self.stack.local)
        self._set_running = False
        state.ended(failure)
        self._leave_if_over()

    def _leave_if_over(self) -> None:
        """Go on, unless the state whose turn it is may still come from somewhere."""
        if self._setting is not None and self._setting is not self._awaited and not self._set_running:
            self._setting = None
            self._busy = False
            self._go_on()

    def _state_over(self) -> None:
        if self._awaited is not None:
            if self._awaited in self._waiting:  # its turn never came
                self._waiting.remove(self._awaited)
            self._awaited = None
            self._leave_if_over()

    def _replace(self) -> None:
        """Another cut comes, later than the one that is awaited: what was multicast between them is in its state."""
        behind = self._awaited is self._setting
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            if item is self._awaited:
                behind = True
            elif behind and isinstance(item, list | Paid):
                self._leave_out_multicasts(item)
            else:
                self._waiting.append(item)
        self._awaited = None
        self._leave_if_over()

    def _leave_out_multicasts(self, item: list[Packet] | Paid) -> None:
        """Unicasts were for this member alone: no state has them."""
        batch = item if isinstance(item, list) else item.batch
        dropped = [packet for packet in batch if packet.carrier == MCAST]
        kept = [packet for packet in batch if packet.carrier != MCAST]
        self.count("in_the_state", len(dropped))
        if isinstance(item, list):
            self._taken(dropped)
            if kept:
                self._waiting.append(kept)
            return
        self._paid -= item.size
        if kept:
            size = sum(len(packet.body) for packet in kept)
            self._paid += size
            self._waiting.append(Paid(kept, size))

    def held(self) -> dict[str, int]:
        return {
            "untaken": self._busy + len(self._waiting),
            "unsent": self._unsent(),
            "blocking": self._blocking.held(),
        }
