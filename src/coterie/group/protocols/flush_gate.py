"""The gate of a flush: application multicasts pass, or wait.

    OPEN --(close)--> CLOSING: block() runs; what it sends still passes
    CLOSING --(block() is done, or has had its time)--> SHUT: a begun train was finished, the sequencer has stopped
    CLOSING, SHUT --(open)--> OPEN: unblock(), deliveries go on, what waited is sent

Unicasts pass at all times. What waits has no number yet, so it belongs to whatever view the gate opens in. With flow
control in the stack it waits there and in the channel, where it is bounded; only without it does it wait here. Before
its first view a member's multicasts wait, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, cast
from typing import Protocol as Interface

from coterie.group.events import Block, Unblock, Writable
from coterie.group.packet import MCAST, Packet
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.nakack import Nakack
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.protocols.flush_common import Flushing


class State(Enum):
    OPEN = 1
    CLOSING = 2
    SHUT = 3


class Order(Interface):
    """What a layer for total order lets a flush do with its sequencer."""

    def pause(self) -> None: ...
    def go_on(self) -> None: ...
    def promise(self) -> None: ...
    def release(self) -> None: ...


class Gate:
    def __init__(self, flush: Flushing) -> None:
        self.flush = flush
        stack = flush.stack
        self.state = State.OPEN
        self._untold = False
        """The application does not know yet that the gate is shut."""
        self.nakack = stack.find(Nakack)
        self._flow = stack.find(Flow) if stack.has(Flow) else None
        self.order = cast("Order | None", stack.by_role("total order"))
        self._turn = 0
        """Counts closings and openings: an answer of the application to an earlier block() is none to this one."""
        self._opening = False
        self._close_follows = False
        self._block_timer: Timer | None = None
        self._limit_timer: Timer | None = None
        self._waiting: deque[Packet] = deque()

    def stop(self) -> None:
        for timer in (self._block_timer, self._limit_timer):
            if timer is not None:
                timer.cancel()
        self._block_timer = self._limit_timer = None

    # Shutting.

    def close(self) -> None:
        """Ask the application to stop; the gate shuts when it has. Nothing happens unless the gate is open."""
        if self.state is not State.OPEN:
            return
        if self._opening:  # a flush that an application starts when it is told that it may send: one after the other
            self._close_follows = True
            return
        turn = self._begin()
        self._ask_application(partial(self._blocked, turn))
        if turn == self._turn and self.flush.closing:
            self._block_timer = self.flush.runtime.call_later(
                self.flush.settings.block_timeout, self._block_too_long, turn
            )
            self.flush.block_runs()

    def close_before_view(self) -> None:
        """A joiner's gate shuts before its application can have sent anything."""
        if self.state is State.OPEN:
            self._begin()
            self._untold = True
            self._shut()

    def first_view(self) -> None:
        """Until now there was nobody to send anything to. Unicasts go at once: later ones must not overtake them."""
        unicasts = [packet for packet in self._waiting if packet.carrier != MCAST]
        self._waiting = deque(packet for packet in self._waiting if packet.carrier == MCAST)
        for packet in unicasts:
            self.flush.pass_down(packet)
        if self.state is State.OPEN:
            self.flush.shut = False
            self._let_go()

    def tell_blocked(self) -> None:
        """Now that it knows the view, the joiner's application is told that it has to wait."""
        if self._untold:
            self._untold = False
            self._ask_application(lambda: None)

    def _begin(self) -> int:
        self.state = State.CLOSING
        self.flush.closing = True
        self._turn += 1
        self._limit_timer = self.flush.runtime.call_later(self.flush.settings.hold_max, self.flush.held_too_long)
        return self._turn

    def _ask_application(self, done: Callable[[], None]) -> None:
        self.flush.stack.above(self.flush).up_event(Block(done))

    def _blocked(self, turn: int) -> None:
        if turn == self._turn and self.state is State.CLOSING:
            self._shut()

    def _block_too_long(self, turn: int) -> None:
        self._block_timer = None
        self.flush.note("block_timeout")
        self.flush.count("block_timeouts")
        self._blocked(turn)

    def _shut(self) -> None:
        if self._block_timer is not None:
            self._block_timer.cancel()
            self._block_timer = None
        if self._flow is not None:
            self._flow.finish_train()
        if self.order is not None:
            self.order.pause()
        self.state = State.SHUT
        flush = self.flush
        flush.shut, flush.closing = True, False
        if flush.stack.trace.on:
            flush.stack.trace.emit("block", view=flush.stack.view.id, limit=flush.settings.hold_max)
        flush.gate_shut()

    # Passing, and opening.

    def wait(self, packet: Packet) -> None:
        """The gate is shut, and no flow control has held this bundle back."""
        self._waiting.append(packet)

    def open(self) -> None:
        self._close_follows = False
        if self.state is State.OPEN:
            return
        was_shut = self.state is State.SHUT
        self.state = State.OPEN
        self._turn += 1
        self.stop()
        flush = self.flush
        flush.shut = flush.closing = self._untold = False
        self._opening = True
        if was_shut:
            if flush.stack.trace.on:
                flush.stack.trace.emit("unblock", view=flush.stack.view.id)
            if self.order is not None:
                self.order.go_on()
        flush.stack.above(flush).up_event(Unblock())
        if was_shut:
            if self.nakack.frozen:
                self.nakack.thaw()
            self._let_go()
        self._opening = False
        if self._close_follows:
            self._close_follows = False
            self.close()

    def _let_go(self) -> None:
        while self._waiting:
            self.flush.pass_down(self._waiting.popleft())
        self.flush.stack.above(self.flush).up_event(Writable())

    def held(self) -> int:
        return len(self._waiting)
