"""UNICAST3: reliable FIFO unicast.

Promises: what one member sends to another on a connection is delivered once, in order, without holes; closing a
connection loses nothing. Receivers ack cumulatively, once per batch and not more often than `ack_interval`; senders
drop what is acked. A receiver asks for exactly what it misses; a sender only ever resends its highest unit on its own
account, when nothing moved between two runs of the retransmission task. An ack is sent at most `ack_interval` after
it is due, and a resend at most two runs of the task after the last movement. The state of a connection is in
unicast3_entries.py.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from coterie.errors import UserError
from coterie.group import bundle
from coterie.group.events import Event, StreamEnded, ViewChange
from coterie.group.members import Address
from coterie.group.packet import AGAIN, APP, FIRST, TRAIN, TRAIN_END, TRAIN_START, UCAST, Packet
from coterie.group.protocols.unicast3_acks import Acks
from coterie.group.protocols.unicast3_digests import Digests
from coterie.group.protocols.unicast3_entries import Graveyard, ReceiverEntry, SenderEntry, State
from coterie.group.protocols.unicast3_messages import RULES, Ack, Ask, Close, SendFirstSeqno, Unicast3Settings
from coterie.group.window import Ranges, Window
from coterie.group.wire import Codec
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.stack import Stack


UNICAST3_ID = 17
FIRST_PATIENCE = 10
"""Runs of the task for which units without their first are kept."""
GIVEN_UP_MAX = 1024
"""Peers of whom is remembered that what was half sent to them was given up."""
OUTSIDERS_MAX = 256
"""Receivers' entries for peers that are not in the view."""
OUTSIDERS_WINDOW = 64
"""Units that are kept for each of those if they cannot be delivered yet."""


class Unicast3(Digests):
    """Reliable FIFO unicast with cumulative, delayed acks and receiver-driven retransmission."""

    name = "UNICAST3"
    id = UNICAST3_ID
    role = "reliable unicast"
    needs_below = ("transport",)
    Settings = Unicast3Settings
    codec = Codec({1: Ack, 2: Ask, 3: SendFirstSeqno, 4: Close})
    rules = RULES

    settings: Unicast3Settings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        if self.settings.ack_interval >= self.settings.retransmit_interval:
            raise UserError(
                "UNICAST3: ack_interval must be shorter than retransmit_interval: acks that come later than the "
                "retransmission task would make it resend what arrived"
            )
        self.senders, self.receivers = {}, {}
        self._graves = Graveyard(self._ended)
        self._given_up: dict[Address, None] = {}
        """Peers that left while a message was half sent, or too many: they get nothing of those any more."""
        self._next_conn = 0
        self._task_timer: Timer | None = None
        self._acks = Acks(self)
        self.await_units({}, None)

    def start(self) -> None:
        # Rises also over restarts of a process that keeps its address.
        self._next_conn = int(self.runtime.wall() * 10) & 0x7FFFFFFF

    def stop(self) -> None:
        self._acks.stop()
        if self._task_timer is not None:
            self._task_timer.cancel()

    # Sending.

    def down(self, packet: Packet) -> None:
        if packet.carrier != UCAST or packet.seqno or packet.dest is None:
            self.pass_down(packet)
            return
        dest = packet.dest
        entry = self._sender_for(dest, packet)
        if entry is None:
            self.count("undeliverable")
            return
        entry.touched = self.runtime.now()
        entry.stamp(packet, self.stack.local)
        packet.view = self.stack.view.tag
        if self.stack.trace.on:
            app = packet.proto == APP
            self.stack.trace.emit(
                "send", view=self.stack.view.id, sender=self.stack.local, first=entry.sent, last=entry.sent,
                count=bundle.count(packet), sum=zlib.crc32(packet.body),
                to=str(dest), conn=entry.conn, app=app,
            )  # fmt: skip
        if dest == self.stack.local:
            self.rule("unicast3.to_self")
        self.pass_down(packet)

    def _sender_for(self, dest: Address, packet: Packet) -> SenderEntry | None:
        """The connection for a unit, made if need be; None if the unit is for nobody or continues what was given up."""
        if dest in self._given_up:
            if dest not in self.stack.view or packet.flags & (TRAIN | TRAIN_START) == TRAIN:
                return None
            del self._given_up[dest]
        entry = self.senders.get(dest)
        if entry is None or entry.state is State.CLOSED:
            return self._open_sender(dest)
        if entry.left and len(entry.unacked) >= self.settings.window:
            self._end_sender(entry)  # nobody out there acks, and no flow control holds the sender back
            self._give_up(dest)
            return None
        if entry.state is State.CLOSING and not entry.left:
            self.rule("unicast3.reopened")
            self._set_state(entry, State.OPEN)
        return entry

    def _open_sender(self, dest: Address) -> SenderEntry:
        self._next_conn += 1
        entry = self.senders[dest] = SenderEntry(dest, self._next_conn, self.runtime.now())
        self._admit(entry)
        self._keep_task_running()
        return entry

    def _admit(self, entry: SenderEntry | ReceiverEntry) -> None:
        """A connection begins. With one that is not in the view it is CLOSING from the start, and stays so."""
        entry.left = entry.peer not in self.stack.view
        if entry.left:
            self.rule("unicast3.outsider")
            entry.state = State.CLOSING
        self._trace_state(entry)

    def _give_up(self, dest: Address) -> None:
        self._given_up[dest] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def close(self, dest: Address) -> None:
        """Close the connection to `dest`. What it has not acked is still sent again until it has."""
        entry = self.senders.get(dest)
        if entry is not None and entry.state is State.OPEN:
            entry.touched = self.runtime.now()
            self._set_state(entry, State.CLOSING)

    # Receiving.

    def up(self, batch: list[Packet]) -> None:
        for packet in batch:
            if packet.carrier == UCAST or packet.proto == UNICAST3_ID:
                self._up_own(batch)
                return
        self.pass_up(batch)

    def _up_own(self, batch: list[Packet]) -> None:
        out: list[Packet] = []
        touched: dict[Address, ReceiverEntry] = {}
        now = self.runtime.now()
        for packet in batch:
            if packet.carrier == UCAST:
                entry = self._entry_for(packet)
                if entry is not None:
                    entry.touched = now
                    if entry.state is State.CLOSING and not entry.left:
                        self._set_state(entry, State.OPEN)
                    if entry.window is not None:
                        self._take(entry, entry.window, packet, out)
                        touched[packet.sender] = entry
            elif packet.proto == self.id:
                self._handle(packet.sender, self.decode(packet))
            else:
                out.append(packet)
        if out:
            self._hand_up(out)
        for entry in touched.values():
            self._acks.due(entry, now)
        if self._on_awaited is not None:
            self._look_at_awaited()

    def _take(self, entry: ReceiverEntry, window: Window, packet: Packet, out: list[Packet]) -> None:
        if packet.seqno == window.delivered + 1 and not window.slots:
            window.delivered = window.forgotten = packet.seqno  # the common case: next in line, nothing waits
            if packet.seqno > window.received:
                window.received = packet.seqno
            out.append(packet)
        else:
            fresh = window.add(packet)
            window.take(out)  # also if it came before: what was early may be next now
            window.forget(window.delivered)
            if not fresh:
                self.rule("unicast3.duplicate")
                self.count("needless" if packet.flags & AGAIN else "duplicates")
                return
        entry.units += 1
        if self.stack.trace.on:
            self.stack.trace.emit(
                "receive", sender=packet.sender, first=packet.seqno, last=packet.seqno, conn=packet.conn
            )

    def _entry_for(self, packet: Packet) -> ReceiverEntry | None:
        """The receiver's entry that a unit belongs to, made if need be; None if it is of an old connection."""
        sender, conn = packet.sender, packet.conn
        if not packet.seqno:
            self.count("malformed")
            return None
        entry = self.receivers.get(sender)
        if entry is not None and entry.conn == conn:
            if packet.flags & FIRST:
                self._begin(entry, packet.seqno)
            elif entry.window is None:
                self._keep_early(entry, packet)
            return entry
        tombstone = self._graves.stones.get(sender)
        if (entry is not None and conn < entry.conn) or (tombstone is not None and not tombstone.admits(conn)):
            self.rule("unicast3.old_connection")
            self.count("old_connection")
            return None
        if entry is not None:
            self.rule("unicast3.new_connection")
            self._bury(entry, closed=True)
        entry = self.receivers[sender] = ReceiverEntry(sender, conn, self.runtime.now())
        self._admit(entry)  # what is late of one that is gone is not waited for
        self._keep_task_running()
        if tombstone is not None and tombstone.conn == conn:
            self.rule("unicast3.revived")
            self._graves.revive(sender)
            entry.window = Window(tombstone.delivered, self._room(entry))
        elif packet.flags & FIRST:
            self.rule("unicast3.first_creates")
            self._begin(entry, packet.seqno)
        else:
            self._keep_early(entry, packet)
        if entry.left:
            self._bury_outsiders()
        return entry

    def _room(self, entry: ReceiverEntry) -> int:
        """How many units that cannot be delivered yet are kept: few of one that may never be a member."""
        return min(self.settings.window, OUTSIDERS_WINDOW) if entry.left else self.settings.window

    def _keep_early(self, entry: ReceiverEntry, packet: Packet) -> None:
        entry.want_first = True
        entry.keep_early(packet, self._room(entry))

    def _bury_outsiders(self) -> None:
        """Whoever speaks under many names gets no more than so many entries: the one that was silent longest goes."""
        outsiders = [entry for entry in self.receivers.values() if entry.left]
        if len(outsiders) > OUTSIDERS_MAX:
            self.count("outsiders_dropped")
            oldest = min(outsiders, key=lambda entry: entry.touched)
            self._bury(oldest, closed=self.stack.view.replaces(oldest.peer))

    def _begin(self, entry: ReceiverEntry, seqno: int) -> None:
        """The sender will not send anything before `seqno` on this connection."""
        entry.want_first = False
        if entry.window is not None:
            if seqno <= entry.window.delivered + 1:
                return
            # Our former self acked what is before the first, and forgot it: it will never come again.
            entry.early = entry.window.slots
        elif entry.early:
            self.rule("unicast3.first_in_batch")
        entry.window = Window(seqno - 1, self._room(entry))
        for packet in entry.early.values():
            entry.window.add(packet)
        entry.early = {}

    def _hand_up(self, out: list[Packet]) -> None:
        for packet in out:
            if packet.flags & TRAIN and packet.carrier == UCAST and (entry := self.receivers.get(packet.sender)):
                entry.in_train = not packet.flags & TRAIN_END
        if self.stack.trace.on:
            for packet in out:
                if packet.carrier == UCAST and packet.proto != APP:
                    self.stack.trace.emit(
                        "deliver", view=self.stack.view.id, sender=packet.sender, first=packet.seqno,
                        last=packet.seqno, count=1, sum=zlib.crc32(packet.body), conn=packet.conn, app=False,
                    )  # fmt: skip
        self.pass_up(out)

    # The peer's own messages.

    def _handle(self, peer: Address, message: object) -> None:
        match message:
            case Ack(conn, upto):
                self._acked(peer, conn, upto)
            case Ask(conn, ranges):
                self._answer(peer, conn, ranges)
            case SendFirstSeqno(conn):
                entry = self.senders.get(peer)
                if entry is None or entry.conn != conn:
                    self._refuse(peer, conn)
                elif entry.unacked:
                    self.rule("unicast3.first_sent")
                    self._send_first(entry)
            case Close(conn):
                receiver = self.receivers.get(peer)
                if receiver is not None and receiver.conn == conn:
                    self.rule("unicast3.close_received")
                    self._bury(receiver, closed=True)
                else:
                    self.rule("unicast3.old_connection")
                    self._graves.close(peer, conn)

    def _acked(self, peer: Address, conn: int, upto: int) -> None:
        entry = self.senders.get(peer)
        if entry is None or entry.conn != conn:
            self.count("old_connection")
            self._refuse(peer, conn)
            return
        if upto > entry.sent:
            self.count("malformed")
            return
        self.count("acks_received")
        if entry.acknowledge(upto):
            entry.touched = self.runtime.now()
            self.rule("unicast3.acked")
            if self.stack.trace.on:
                self.stack.trace.emit(
                    "discard", sender=self.stack.local, last=upto, reason="acked", to=str(peer), conn=conn
                )

    def _answer(self, peer: Address, conn: int, ranges: Ranges) -> None:
        entry = self.senders.get(peer)
        if entry is None or entry.conn != conn:
            self._refuse(peer, conn)
            return
        left = self.settings.ask_most  # whatever a peer asks for, one request costs no more than this
        for first, last in ranges:
            if first <= entry.acked and entry.unacked:
                self._send_first(entry)  # it misses what it once acked: it has lost its memory
                return
            for seqno in range(first, min(last, first + left - 1) + 1):
                left -= 1
                packet = entry.unacked.get(seqno)
                if packet is not None:
                    self.rule("unicast3.answer")
                    self._resend(entry, packet, "asked")

    def _refuse(self, peer: Address, conn: int) -> None:
        """It speaks of a connection that we gave up: our CLOSE was lost."""
        self.rule("unicast3.old_connection")
        self.send(Close(conn), peer)

    def _send_first(self, entry: SenderEntry) -> None:
        packet = entry.unacked[entry.acked + 1]
        self._resend(entry, packet, "first", FIRST)

    def _resend(self, entry: SenderEntry, packet: Packet, reason: str, flags: int = 0) -> None:
        self.count(f"resent_{reason}")
        if self.stack.trace.on:
            self.stack.trace.emit(
                "retransmit", sender=self.stack.local, first=packet.seqno, last=packet.seqno, to=str(entry.peer),
                conn=entry.conn, reason=reason,
            )  # fmt: skip
        self.pass_down(packet.copy(entry.peer, AGAIN | flags))

    # The retransmission task: resending, asking, reaping.

    def _keep_task_running(self) -> None:
        if self._task_timer is None:
            self._task_timer = self.runtime.call_later(self.settings.retransmit_interval, self._task)

    def _task(self) -> None:
        self._task_timer = None
        now = self.runtime.now()
        for entry in list(self.senders.values()):
            self._run_sender(entry, now)
        for receiver in list(self.receivers.values()):
            self._run_receiver(receiver, now)
        for peer, tombstone in self._graves.unfinished(self.stack.view):
            self.rule("unicast3.train_kept")
            self.send(Ack(tombstone.conn, tombstone.delivered), peer)
            self._keep_task_running()
        if self.senders or self.receivers:
            self._keep_task_running()

    def _run_sender(self, entry: SenderEntry, now: float) -> None:
        if entry.stuck():
            self.rule("unicast3.resend_highest")
            if entry.state is State.CLOSING:
                self.rule("unicast3.closing_flushes")
            self._resend(entry, entry.unacked[entry.sent], "highest")
        self._expire(entry, now)
        flushed = (not entry.unacked and not entry.in_train) or entry.left
        if entry.state is State.CLOSING and flushed and now - entry.touched >= self.settings.conn_close_timeout:
            self._end_sender(entry)

    def _end_sender(self, entry: SenderEntry) -> None:
        self.rule("unicast3.closed")
        self._set_state(entry, State.CLOSED)
        del self.senders[entry.peer]
        self.count("undeliverable", len(entry.unacked))
        if entry.in_train:
            self._give_up(entry.peer)
        self.rule("unicast3.close_sent")
        self.send(Close(entry.conn), entry.peer)

    def _run_receiver(self, entry: ReceiverEntry, now: float) -> None:
        if entry.want_first:
            self.rule("unicast3.first_wanted")
            self.count("send_first_seqno")
            entry.want_first = False
            self.send(SendFirstSeqno(entry.conn), entry.peer)
        elif entry.window is not None and not entry.window.complete:
            self.rule("unicast3.ask")
            self.count("asks")
            self.send(Ask(entry.conn, entry.window.missing(self.settings.ask_most)), entry.peer)
        self._expire(entry, now)
        if entry.window is None and now - entry.touched >= FIRST_PATIENCE * self.settings.retransmit_interval:
            self._bury(entry, closed=False)  # its sender gave it up; if not, its next unit starts it anew
        elif entry.in_train and not entry.left:
            if now - entry.touched >= self.settings.conn_close_timeout:
                self.rule("unicast3.train_kept")
                entry.touched = now
                self._acks.send(entry, now)
        elif entry.state is State.CLOSING and now - entry.touched >= self.settings.conn_close_timeout:
            self.rule("unicast3.closed")
            self._bury(entry, closed=self.stack.view.replaces(entry.peer))

    def _expire(self, entry: SenderEntry | ReceiverEntry, now: float) -> None:
        expiry = self.settings.conn_expiry_timeout
        if entry.state is State.OPEN and expiry and now - entry.touched >= expiry:
            self.rule("unicast3.expired")
            entry.touched = now
            self._set_state(entry, State.CLOSING)

    def _bury(self, entry: ReceiverEntry, closed: bool) -> None:
        """Remove a receiver's entry."""
        self._set_state(entry, State.CLOSED)
        self._acks.forget(entry.peer)
        del self.receivers[entry.peer]
        self._graves.bury(entry, closed)

    def _ended(self, peer: Address, conn: int) -> None:
        """Told once this turn is over: units that came in the same batch go up before."""
        self.runtime.call_soon(self.stack.above(self).up_event, StreamEnded(peer, UCAST, conn))

    def _set_state(self, entry: SenderEntry | ReceiverEntry, state: State) -> None:
        entry.state = state
        self._trace_state(entry)

    def _trace_state(self, entry: SenderEntry | ReceiverEntry) -> None:
        if self.stack.trace.on:
            sender = isinstance(entry, SenderEntry)
            self.stack.trace.emit(
                "conn", side="send" if sender else "receive", peer=str(entry.peer), conn=entry.conn,
                state=entry.state.name, unacked=len(entry.unacked) if isinstance(entry, SenderEntry) else None,
                peer_left=entry.left,
            )  # fmt: skip

    # Views: a member that left is not waited for.

    def down_event(self, event: Event) -> None:
        if isinstance(event, ViewChange):
            entries: tuple[SenderEntry | ReceiverEntry, ...] = (*self.senders.values(), *self.receivers.values())
            for entry in entries:
                entry.left = entry.peer not in event.view
                if entry.left and entry.state is State.OPEN:
                    entry.touched = self.runtime.now()
                    self._set_state(entry, State.CLOSING)
                elif not entry.left and isinstance(entry, ReceiverEntry) and entry.window is not None:
                    entry.window.limit = self.settings.window
            for peer in [peer for peer in self._given_up if self.stack.view.replaces(peer)]:
                del self._given_up[peer]
            self._graves.close_replaced(event.view)
            if self._graves.stones:
                self._keep_task_running()
        super().down_event(event)

    def held(self) -> dict[str, int]:
        overdue = self.runtime.now() - self.settings.conn_close_timeout - 2 * self.settings.retransmit_interval
        entries: tuple[SenderEntry | ReceiverEntry, ...] = (*self.senders.values(), *self.receivers.values())
        return {
            "unacked": sum(len(e.unacked) for e in self.senders.values() if not e.left),
            "undelivered": sum(
                len(e.early) + (0 if e.window is None else len(e.window.slots))
                for e in self.receivers.values()
                if not e.left
            ),
            "overdue": sum(e.left and e.touched < overdue for e in entries),
        }
