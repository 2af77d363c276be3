"""FLOW: credit-based flow control, in bytes per receiver.

Promises: a sender is never more than a window ahead of the slowest application that must take its bundles; a slow
receiver slows the senders, and memory stays bounded on both sides. A receiver says up to which number its application
has taken a stream; the sender knows how many bytes that is. What is said is cumulative, so a lost credit message
costs nothing but time: a sender that waits asks for it. Only application bundles cost credit; control traffic passes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from coterie.group.events import Event, StreamOpened, ViewChange, Writable
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, RAW, TRAIN, TRAIN_START, UCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.nakack import Nakack
from coterie.group.wire import Codec
from coterie.runtime.base import Timer
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.protocols.flush_base import FlushProtocol
    from coterie.group.stack import Stack


@dataclass(frozen=True, slots=True)
class Taken:
    """My application has taken your stream up to this number."""

    conn: int
    """0 for multicasts, else the unicast connection."""
    seqno: int


@dataclass(frozen=True, slots=True)
class HowFar:
    """I am out of credit: how far have you come?"""

    multicast: bool


@dataclass(frozen=True, slots=True)
class FlowSettings:
    window: int = setting(4 << 20, "Bytes a sender may be ahead of its slowest receiver.", unit="B", minimum=1)
    report_after: float = setting(0.25, "Credit is returned after this part of the window was taken.", minimum=0.001)
    ask_interval: float = setting(0.2, "How often a sender without credit asks for it.", unit="s", minimum=0.001)


class Ledger:
    """One outgoing stream: what was sent and not yet taken by everybody it was for."""

    __slots__ = ("_outstanding", "marks", "queue", "sent", "taken_bytes", "window")

    def __init__(self, window: int, receivers: tuple[Address, ...], upto: tuple[int, int]) -> None:
        self.window = window
        self.sent = 0
        self.taken_bytes = 0
        """Bytes that the slowest receiver has taken."""
        self._outstanding: deque[tuple[Packet, int]] = deque()
        """Bundles not taken by all, each with the bytes sent up to and including it. Numbers are read from the packet
        itself: a layer below may stamp it later."""
        self.marks: dict[Address, tuple[int, int]] = dict.fromkeys(receivers, upto)
        """Per receiver: (connection, number) up to which it has taken."""
        self.queue: deque[Packet] = deque()

    @property
    def open(self) -> bool:
        return self.sent - self.taken_bytes < self.window

    def spend(self, packet: Packet) -> None:
        self.sent += len(packet.body)
        self._outstanding.append((packet, self.sent))

    def settle(self) -> None:
        """Some receiver moved or left: what is taken by all now?"""
        slowest = min(self.marks.values(), default=(UNLIMITED, UNLIMITED))
        outstanding = self._outstanding
        while outstanding:
            packet, sent = outstanding[0]
            if not packet.seqno or (packet.conn, packet.seqno) > slowest:
                break
            self.taken_bytes = sent
            outstanding.popleft()


FLOW_ID = 21
UNLIMITED = 2**63


class Account:
    """One incoming stream: what our application has taken of it."""

    __slots__ = ("conn", "early", "seqno", "unreported", "waiting")

    def __init__(self) -> None:
        self.conn = 0
        self.seqno = 0
        """Everything up to here was taken."""
        self.unreported = 0
        """Bytes taken since that was last told."""
        self.waiting: deque[Packet] = deque()
        """Bundles that went up and were not taken yet, in order."""
        self.early: set[Packet] = set()
        """Those of them that were taken before their turn: parts of trains, while the application is at work."""

    def take(self, packet: Packet) -> None:
        """A bundle was taken. Credit is for what is taken without a hole: a slow application must slow its senders."""
        waiting, early = self.waiting, self.early
        if not waiting or waiting[0] is not packet:
            early.add(packet)
            return
        self._settle(waiting.popleft())
        while early and waiting and waiting[0] in early:
            early.remove(waiting[0])
            self._settle(waiting.popleft())

    def _settle(self, packet: Packet) -> None:
        self.unreported += len(packet.body)
        if (packet.conn, packet.seqno) > (self.conn, self.seqno):
            self.conn, self.seqno = packet.conn, packet.seqno


class Flow(Protocol):
    """Keeps senders from running ahead of the slowest receiver."""

    name = "FLOW"
    id = FLOW_ID
    role = "flow control"
    needs_below = ("reliable multicast", "membership")
    Settings = FlowSettings
    codec = Codec({1: Taken, 2: HowFar})
    rules = {
        "flow.waits": "A sender without credit waits.",
        "flow.goes_on": "Credit lets waiting bundles go, in order.",
        "flow.asks": "A sender that waits too long asks how far its receivers are.",
        "flow.receiver_left": "A receiver that leaves no longer holds up the sender.",
    }

    settings: FlowSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._nakack = stack.find(Nakack)
        self._gate = cast("FlushProtocol | None", stack.by_role("flush"))
        self._report = max(1, int(self.settings.window * self.settings.report_after))
        self._all = Ledger(self.settings.window, (stack.local,), (0, 0))
        self._to: dict[Address, Ledger] = {}
        self._from: tuple[dict[Address, Account], ...] = ({}, {}, {})
        """By carrier, then by sender."""
        self._timer: Timer | None = None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # Down: spend credit, or wait.

    def ready(self, dest: Address | None) -> bool:
        """Would a bundle for `dest` go out at once? If not, `Writable` comes up when it would."""
        ledger = self._all if dest is None else self._to.get(dest)
        if ledger is None or self._has_room(ledger):
            return True
        self._wait()
        return False

    def _has_room(self, ledger: Ledger) -> bool:
        return not ledger.queue and self._may_go(ledger)

    def _may_go(self, ledger: Ledger) -> bool:
        """Credit, then the window, then the gate: what waits at the gate lacks nothing else."""
        if ledger.sent - ledger.taken_bytes >= ledger.window:
            return False
        if ledger is not self._all:
            return True
        gate = self._gate
        return not self._nakack.full and not (gate is not None and gate.shut and gate.holds_back())

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.runtime.call_later(self.settings.ask_interval, self._ask)

    def down(self, packet: Packet) -> None:
        ledger = None if packet.proto != APP or packet.carrier == RAW else self._ledger(packet.dest)
        if ledger is None:
            self.pass_down(packet)
        elif self._has_room(ledger):
            ledger.spend(packet)
            self.pass_down(packet)
        else:
            self.rule("flow.waits")
            self.count("waited")
            ledger.queue.append(packet)
            self._wait()

    def _ledger(self, dest: Address | None) -> Ledger | None:
        """None for a destination outside the view: nobody there returns credit, and the layer below bounds it."""
        if dest is None:
            return self._all
        ledger = self._to.get(dest)
        if ledger is None and dest in self.stack.view:
            ledger = self._to[dest] = Ledger(self.settings.window, (dest,), (0, 0))
        return ledger

    def _go_on(self, ledger: Ledger) -> None:
        ledger.settle()
        queue = ledger.queue
        while queue and self._may_go(ledger):
            self.rule("flow.goes_on")
            packet = queue.popleft()
            ledger.spend(packet)
            self.pass_down(packet)
        if not queue and ledger.open and not (ledger is self._all and self._gate is not None and self._gate.shut):
            self.stack.above(self).up_event(Writable())

    def finish_train(self) -> None:
        """The gate is about to shut: a message that is half sent must not end in another view. Its rest is not much,
        and goes without credit."""
        queue = self._all.queue
        while queue and queue[0].flags & (TRAIN | TRAIN_START) == TRAIN:
            packet = queue.popleft()
            self._all.spend(packet)
            self.pass_down(packet)

    def _ask(self) -> None:
        self._timer = None
        waits = False
        if not self._has_room(self._all):
            waits = True
            if self._gate is None or not self._gate.shut:  # nobody's credit would help
                self.rule("flow.asks")
                self.send(HowFar(True), None)
        for dest, ledger in self._to.items():
            if not self._has_room(ledger):
                waits = True
                self.rule("flow.asks")
                self.send(HowFar(False), dest)
        if waits:
            self._timer = self.runtime.call_later(self.settings.ask_interval, self._ask)

    # Up: what our application took, and what others' applications took of ours.

    def taken(self, packet: Packet) -> None:
        """The application (or the reassembly of a train) has taken this bundle."""
        if packet.parts:
            packet = packet.parts[-1]  # the others were taken when they came
        account = self._from[packet.carrier].get(packet.sender)
        if account is None:
            return  # its sender was replaced by a new incarnation meanwhile
        account.take(packet)
        if packet.sender == self.stack.local:
            self._moved(packet.sender, account.conn, account.seqno)
        elif account.unreported >= self._report:
            self._tell(packet.sender, account)

    def _tell(self, sender: Address, account: Account) -> None:
        account.unreported = 0
        self.count("credits")
        self.send(Taken(account.conn, account.seqno), sender)

    def up(self, batch: list[Packet]) -> None:
        own = False
        for packet in batch:
            if packet.proto == APP:
                account = self._from[packet.carrier].get(packet.sender)
                if account is None:
                    account = self._account(packet.carrier, packet.sender)
                account.waiting.append(packet)
            elif packet.proto == FLOW_ID:
                own = True
                self._handle(packet.sender, self.decode(packet))
        if own:
            batch = [packet for packet in batch if packet.proto != FLOW_ID]
        if batch:
            self.pass_up(batch)

    def _account(self, carrier: int, sender: Address) -> Account:
        account = self._from[carrier].get(sender)
        if account is None:
            account = self._from[carrier][sender] = Account()
        return account

    def _handle(self, peer: Address, message: object) -> None:
        match message:
            case Taken(conn, seqno):
                self._moved(peer, conn, seqno)
            case HowFar(multicast):
                account = self._from[MCAST if multicast else UCAST].get(peer)
                if account is not None:
                    self._tell(peer, account)

    def _moved(self, receiver: Address, conn: int, seqno: int) -> None:
        ledger = self._to.get(receiver) if conn else self._all
        if ledger is not None and ledger.marks.get(receiver, (UNLIMITED, 0)) < (conn, seqno):
            was_open = ledger.open and not ledger.queue
            ledger.marks[receiver] = (conn, seqno)
            if was_open:
                ledger.settle()
            else:
                self._go_on(ledger)

    # Events.

    def up_event(self, event: Event) -> None:
        match event:
            case ViewChange(view, waiting):
                upto = (0, self._nakack.sent)
                marks = self._all.marks
                if any(m not in view for m in marks):
                    self.rule("flow.receiver_left")
                self._all.marks = {m: marks.get(m, upto) for m in view.members if m not in waiting}
                self._forget_departed(view)
                self._go_on(self._all)
            case StreamOpened(sender, start):
                account = self._account(MCAST, sender)
                account.seqno = max(account.seqno, start - 1)
                self._tell(sender, account)
            case Writable():
                self._go_on(self._all)
                return
        super().up_event(event)

    def _forget_departed(self, view: View) -> None:
        for dest in [d for d in self._to if d not in view]:
            # Whether a departed member still gets it is for the layer below to decide. All of it: what waits may be
            # the tail of a train, and the member may return.
            for packet in self._to.pop(dest).queue:
                self.pass_down(packet)
            self.stack.above(self).up_event(Writable())
        # A sender that we suspected in error still waits for our word: only a new incarnation ends an account.
        for accounts in self._from:
            for sender in [sender for sender in accounts if view.replaces(sender)]:
                del accounts[sender]

    def held(self) -> dict[str, int]:
        return {"waiting": len(self._all.queue) + sum(len(ledger.queue) for ledger in self._to.values())}
