"""NAKACK: reliable FIFO multicast.

Promises: what a member multicasts in a view, every member that stays delivers once, unaltered, in the order in which
it was stamped. Each sender numbers its bundles; receivers ask for the ones they miss, in ranges, from the sender or,
when it is gone or does not answer, from anyone who still has them; everybody keeps a bundle until its sender says
that it is stable (STABLE). A lost last bundle is noticed because a sender that falls silent repeats its highest
number.

Without agreement on views (FIXED) a stream goes on over views. With it (GMS) NAKACK is `synchronous`: a bundle is
delivered in the view in which it was stamped, or not at all. What comes before its view waits for it, bounded. A flush
stops all delivery (`freeze`), lets it go on up to a common cut (`advance`), and ends it (`thaw`, or the next view).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coterie.group import bundle
from coterie.group.events import Event, StreamEnded, StreamOpened, ViewChange, Writable
from coterie.group.members import Address, View
from coterie.group.packet import AGAIN, APP, MCAST, TRAIN, TRAIN_END, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.nakack_streams import (
    RULES,
    SYNCHRONOUS_RULES,
    Ask,
    Early,
    Highest,
    NakackSettings,
    Stream,
)
from coterie.group.window import Ranges, Window
from coterie.group.wire import Codec
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.stack import Stack

__all__ = ["Ask", "Highest", "Nakack", "NakackSettings"]

UNBOUNDED = 2**62
BURIED_MAX = 1024
CLOCK_ERROR = 1e-6
"""Clocks are floats: a sum of times is not exact."""


class Nakack(Protocol):
    """Reliable FIFO multicast: numbers, holes, retransmission, retention."""

    name = "NAKACK"
    id = 16
    role = "reliable multicast"
    needs_below = ("transport",)
    Settings = NakackSettings
    codec = Codec({1: Ask, 2: Highest})
    rules = RULES
    synchronous_rules = SYNCHRONOUS_RULES
    """Only with agreed views."""

    settings: NakackSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self.own = Stream(stack.local, Window(0, UNBOUNDED))  # `full` is what bounds our own
        self.streams: dict[Address, Stream] = {stack.local: self.own}
        self.sent = 0
        """Highest number stamped here."""
        self._own_turn_comes = False
        self._own_may_wait = False
        """Nobody above can use our own bundles before something of another member has come."""
        self._buried: dict[Address, int] = {}
        """Per member that left long ago and may come back: the highest number delivered."""
        self.in_train = False
        """A message of ours is half sent."""
        self._after_train: list[Callable[[], None]] = []
        self._ask_timer: Timer | None = None
        self._highest_timer: Timer | None = None
        self._sent_at_last_run = 0
        self._was_full = False
        self._reap_timer: Timer | None = None
        self._rumour_timer: Timer | None = None
        self.synchronous = False
        """Bundles are delivered in the view in which they were stamped only. Membership says so."""
        self.frozen = False
        """A flush holds: nothing is delivered beyond its cut."""
        self._cut: dict[Address, int] = {}
        self._at_cut: Callable[[], None] | None = None
        self._early = Early(self.settings.early_max)

    def stop(self) -> None:
        for timer in (self._ask_timer, self._highest_timer, self._reap_timer, self._rumour_timer):
            if timer is not None:
                timer.cancel()

    # Down: stamp, keep, send, and deliver to ourselves once this turn is over.

    @property
    def full(self) -> bool:
        """No more bundles may be stamped before some are stable."""
        if self.sent - self.own.window.forgotten < self.settings.window:
            return False
        if not self._was_full:
            self._was_full = True
            self.rule("nakack.window_full")
        return True

    def down(self, packet: Packet) -> None:
        if packet.carrier != MCAST or packet.seqno:
            self.pass_down(packet)
            return
        stack = self.stack
        self.sent = seqno = self.sent + 1
        packet.seqno = seqno
        packet.sender = stack.local
        packet.view = stack.view.tag
        if stack.trace.on:
            app = packet.proto == APP
            stack.trace.emit(
                "send", view=stack.view.id, sender=stack.local, first=seqno, last=seqno, to="all", app=app,
                count=bundle.count(packet), sum=zlib.crc32(packet.body),
            )  # fmt: skip
        self.own.window.add(packet)
        if packet.flags & TRAIN:
            self.in_train = not packet.flags & TRAIN_END
            if self._after_train and not self.in_train:
                self.runtime.call_soon(self._train_ended)
        if not self._own_turn_comes and not self._own_may_wait:
            self._own_turn_comes = True
            self.runtime.call_soon(self._deliver_own)
        if self._highest_timer is None:
            self._highest_timer = self.runtime.call_later(self.settings.highest_interval, self._tell_highest)
        self.pass_down(packet)

    def between_trains(self, call: Callable[[], None]) -> None:
        """Call when no message of ours is half sent: now, if that is so. A stream can only start there for a member."""
        if self.in_train:
            self._after_train.append(call)
        else:
            call()

    def _train_ended(self) -> None:
        waiting, self._after_train = self._after_train, []
        for call in waiting:
            self.between_trains(call)

    def own_may_wait(self, may: bool) -> None:
        """Total order: what others give a place to need not be delivered here in a turn of its own, but with theirs."""
        self._own_may_wait = may
        if not may and self.own.window.delivered < self.sent and not self._own_turn_comes:
            self._own_turn_comes = True
            self.runtime.call_soon(self._deliver_own)

    def _deliver_own(self) -> None:
        out: list[Packet] = []
        self._own_turn_comes = False
        if not self.frozen:
            self.own.window.take(out)
        if out:
            self._hand_up(out)

    # Up: fill the sender's window and pass on what is in order.

    def up(self, batch: list[Packet]) -> None:
        out: list[Packet] = []
        if self._own_may_wait and not self.frozen and self.own.window.delivered < self.sent:
            self.own.window.take(out)
        streams, tag = self.streams, self.stack.view.tag if self.synchronous else None
        for packet in batch:
            if packet.carrier == MCAST:
                if packet.view != tag and tag is not None:
                    self._of_other_view(packet, tag)
                    continue
                stream = streams.get(packet.sender)
                if stream is None:
                    self.count("unknown_sender")
                    continue
                window = stream.window
                if not window.add(packet):
                    if packet.seqno > window.delivered + window.limit:
                        self.count("too_far_ahead")
                        self._ask_soon(stream)  # nobody else will tell us that there is something to ask for
                    else:
                        self.count("duplicates")
                        self.rule("nakack.duplicate")
                    continue
                if self.stack.trace.on:
                    self.stack.trace.emit("receive", sender=packet.sender, first=packet.seqno, last=packet.seqno)
                if packet.seqno == window.delivered + 1:
                    stream.asks = 0
                    if not self.frozen:
                        window.take(out)
                    else:
                        self.rule("nakack.frozen")
                        self._take_to_cut(stream, out)
                if window.delivered != window.received:
                    self._ask_soon(stream)
            elif packet.proto == self.id:
                self._handle(packet)
            else:
                out.append(packet)
        if out:
            if self.stack.trace.on:
                self._trace_delivery(out)
            self.pass_up(out)
        if self._at_cut is not None:
            self._look_at_cut()

    def _of_other_view(self, packet: Packet, tag: int) -> None:
        """Counters of views rise, so a higher one is a view to come; all others are over, or never ours."""
        if packet.view >> 32 <= tag >> 32:
            self.count("old_view")
            self.rule("nakack.old_view")
        elif self._early.keep(packet):
            self.rule("nakack.early")
        else:
            self.count("early_dropped")  # asked for again when the view is here

    def _hand_up(self, out: list[Packet]) -> None:
        if self.stack.trace.on:
            self._trace_delivery(out)
        self.pass_up(out)

    def _trace_delivery(self, out: list[Packet]) -> None:
        for packet in out:
            if packet.carrier == MCAST and packet.proto != APP:
                self.stack.trace.emit(
                    "deliver", view=self.stack.view.id, sender=packet.sender, first=packet.seqno,
                    last=packet.seqno, count=1, sum=zlib.crc32(packet.body), app=False,
                )  # fmt: skip

    def _handle(self, packet: Packet) -> None:
        match self.decode(packet):
            case Ask(sender, ranges):
                self._resend(packet.sender, sender, ranges)
            case Highest(seqno):
                stream = self.streams.get(packet.sender)
                if self.synchronous and packet.view != self.stack.view.tag:
                    return
                if stream is not None and seqno > stream.window.received:
                    self._believe(stream, seqno)

    def heard_of(self, sender: Address, highest: int) -> None:
        """Another member says that `sender` has used numbers up to `highest`. They may well be on their way to us."""
        stream = self.streams.get(sender)
        if stream is not None and stream is not self.own and highest > max(stream.window.received, stream.rumour):
            stream.rumour = highest
            if self._rumour_timer is None:
                self._rumour_timer = self.runtime.call_later(self.settings.highest_interval, self._look_at_rumours)

    def _look_at_rumours(self) -> None:
        self._rumour_timer = None
        for stream in self.streams.values():
            if stream.rumour > stream.window.received:
                self._believe(stream, stream.rumour)

    def _believe(self, stream: Stream, highest: int) -> None:
        self.rule("nakack.last_lost")
        stream.window.told(highest)
        self._ask_soon(stream)

    # Holes.

    def _ask_soon(self, stream: Stream) -> None:
        """Each stream has its own time: a hole that nobody can fill must not hold up the requests for others."""
        if stream.ask_at is None:
            self._ask_after(stream, self.settings.ask_delay)
            self._wake_to_ask()

    def _ask_after(self, stream: Stream, delay: float) -> None:
        stream.ask_delay = delay
        stream.ask_at = self.runtime.now() + delay

    def _wake_to_ask(self) -> None:
        """Set the timer for the stream whose turn comes first."""
        times = [stream.ask_at for stream in self.streams.values() if stream.ask_at is not None]
        if self._ask_timer is not None:
            self._ask_timer.cancel()
            self._ask_timer = None
        if times:
            wait = min(times) - self.runtime.now() - CLOCK_ERROR
            self._ask_timer = self.runtime.call_later(max(0.0, wait), self._ask)

    def _ask(self) -> None:
        self._ask_timer = None
        now = self.runtime.now() + 2 * CLOCK_ERROR
        for stream in self.streams.values():
            if stream.ask_at is None or stream.ask_at > now:
                continue
            ranges = stream.window.missing(self.settings.ask_most)
            if not ranges:
                stream.ask_at = None
                continue
            target = self._whom_to_ask(stream)
            stream.asks += 1
            self._ask_after(stream, min(max(stream.ask_delay, 0.001) * 2, self.settings.ask_max_delay))
            if target is not None:
                self.count("asks")
                self.send(Ask(stream.sender, ranges), target)
        self._wake_to_ask()

    def _whom_to_ask(self, stream: Stream) -> Address | None:
        """The sender; or, if it is gone or has not answered several times, the others in turn."""
        members = self.stack.view.members
        if stream.holder is not None and stream.asks < self.settings.ask_others_after:
            return stream.holder
        patience = self.settings.ask_others_after
        if stream.sender in members and (stream.asks < patience or stream.asks % 2 == 0):
            self.rule("nakack.ask_sender")
            return stream.sender
        others = [m for m in members if m not in (self.stack.local, stream.sender)]
        if not others:
            return stream.sender if stream.sender in members else None
        self.rule("nakack.ask_others")
        return others[(stream.asks // 2) % len(others)]

    def _resend(self, to: Address, sender: Address, ranges: Ranges) -> None:
        stream = self.streams.get(sender)
        if stream is None:
            self.count("cannot_resend")
            return
        left = self.settings.ask_most  # whatever a peer asks for, one request costs no more than this
        for first, last in ranges:
            for seqno in range(first, min(last, first + left - 1) + 1):
                left -= 1
                packet = stream.window.slots.get(seqno)
                if packet is None:
                    self.count("cannot_resend")
                    continue
                self.rule("nakack.resend_own" if stream is self.own else "nakack.resend_foreign")
                self.count("resent")
                if self.stack.trace.on:
                    self.stack.trace.emit(
                        "retransmit", sender=sender, first=seqno, last=seqno, to=str(to), reason="asked"
                    )
                self.pass_down(packet.copy(to, AGAIN))

    # A lost last bundle.

    def _tell_highest(self) -> None:
        self._highest_timer = None
        if self.own.window.forgotten == self.sent:
            return  # all of it is stable: silence is fine
        if self.sent == self._sent_at_last_run:
            self.rule("nakack.highest")
            packet = Packet(self.codec.encode(Highest(self.sent)), None, self.id)
            packet.view = self.stack.view.tag
            self.pass_down(packet)
        self._sent_at_last_run = self.sent
        self._highest_timer = self.runtime.call_later(self.settings.highest_interval, self._tell_highest)

    # What STABLE and membership ask and tell.

    def digest(self) -> dict[Address, tuple[int, int]]:
        """Per sender: the highest number delivered here, and the highest known to exist."""
        return {sender: (s.window.delivered, s.window.received) for sender, s in self.streams.items()}

    def stable(self, sender: Address, upto: int, reason: str = "stable") -> None:
        """Nobody will ask for `sender`'s bundles up to this one any more."""
        stream = self.streams.get(sender)
        if stream is None or not stream.window.forget(upto):
            return
        if self.stack.trace.on:
            self.stack.trace.emit(
                "discard", view=self.stack.view.id, sender=sender, last=stream.window.forgotten, reason=reason
            )
        if stream is self.own and self._was_full and not self.full:
            self._was_full = False
            self.stack.above(self).up_event(Writable())

    def open(self, sender: Address, start: int) -> bool:
        """The stream of `sender` begins at `start` for us. False if it goes on where it was, without a gap."""
        stream = self.streams.get(sender)
        if stream is not None:
            stream.departed = None
            old = stream.window
            if old.delivered >= start - 1:
                return False
            self.rule("nakack.reopened")
            self.count("reopened")
            stream.window = Window(start - 1, self.settings.window)
            for packet in old.slots.values():
                stream.window.add(packet)
            stream.window.told(old.received)
            if not stream.window.complete:
                self._ask_soon(stream)
            self.runtime.call_soon(self._deliver_early, stream)  # after what membership passes up in this very turn
            return True
        delivered = self._buried.pop(sender, 0)
        self.streams[sender] = Stream(sender, Window(max(start - 1, delivered), self.settings.window))
        return start - 1 > delivered or not delivered

    def _deliver_early(self, stream: Stream) -> None:
        """What came before its stream was opened there. Taken only now: more may have come since, and follows it."""
        out: list[Packet] = []
        stream.window.take(out)
        if not stream.window.complete:
            self._ask_soon(stream)
        if out:
            self._hand_up(out)

    # What a flush asks for.

    def delivered(self) -> dict[Address, int]:
        """Per member of the view: the highest number delivered here. What we have stamped is as good as delivered."""
        delivered = {s.sender: s.window.delivered for s in self.streams.values() if s.departed is None}
        return delivered | {self.stack.local: self.sent}

    def freeze(self) -> dict[Address, int]:
        """Deliver nothing more, and say how far everything is delivered."""
        if not self.frozen:
            self._deliver_own()
            self.frozen = True
        return self.delivered()

    def advance(self, cut: Mapping[Address, int], holders: Mapping[Address, Address], done: Callable[[], None]) -> None:
        """Deliver up to the cut, with the help of those who have it all; `done` is called when that is so."""
        self._cut = dict(cut)
        self._at_cut = done
        out: list[Packet] = []
        for sender, last in cut.items():
            stream = self.streams.get(sender)
            if stream is None:
                continue
            self._take_to_cut(stream, out)
            if stream.window.delivered < last:
                self.rule("nakack.advanced")
                stream.holder, stream.asks = holders.get(sender), 0
                stream.window.told(last)
                self._ask_after(stream, 0.0)
        if out:
            self._hand_up(out)
        self._wake_to_ask()
        self._look_at_cut()

    def _take_to_cut(self, stream: Stream, out: list[Packet]) -> None:
        stream.window.take_upto(out, self._cut.get(stream.sender, 0))

    def _look_at_cut(self) -> None:
        done = self._at_cut
        delivered = self.delivered()
        if done is not None and all(delivered.get(sender, last) >= last for sender, last in self._cut.items()):
            self._at_cut = None
            done()

    def thaw(self) -> None:
        """The flush is over, and the view goes on."""
        self._end_flush()
        out: list[Packet] = []
        for stream in self.streams.values():
            stream.window.take(out)
            if not stream.window.complete:  # a full window had nothing to ask for, and nobody may send any more
                self._ask_soon(stream)
        if out:
            self._hand_up(out)

    def _end_flush(self) -> None:
        self.frozen = False
        self._cut.clear()
        self._at_cut = None
        for stream in self.streams.values():
            stream.holder = None

    # What agreed membership tells.

    def install(self, view: View, starts: Mapping[Address, int]) -> list[Event]:
        """A new view, in which each member's stream starts at a number. Returns what the layers above must be told."""
        self._end_flush()
        events: list[Event] = []
        for sender in [sender for sender in self.streams if sender not in view]:
            self._discard_all(self.streams.pop(sender))
            events.append(StreamEnded(sender, MCAST, 0))
        for member in view.members:
            stream, start = self.streams.get(member), starts[member]
            if stream is None or stream.window.delivered != start - 1:
                self.streams[member] = Stream(member, Window(start - 1, self.settings.window))
                events.append(StreamOpened(member, start))
            else:
                stream.window.cut_off()  # of the old view, and whoever sent it after the cut does not come along
                stream.rumour = 0
        if early := self._early.take(view.tag):
            self.runtime.call_soon(self.up, early)  # when everybody knows the view
        return events

    def _discard_all(self, stream: Stream) -> None:
        if self.stack.trace.on:
            self.stack.trace.emit(
                "discard", view=self.stack.view.id, sender=stream.sender, last=stream.window.received, reason="left"
            )

    def has(self, sender: Address) -> bool:
        return sender in self.streams

    def held(self) -> dict[str, int]:
        streams = self.streams.values()
        return {
            "unstable": sum(s.window.received - s.window.forgotten for s in streams if s.departed is None),
            "undelivered": sum(s.window.received - s.window.delivered for s in streams if s.departed is None),
        }

    def down_event(self, event: Event) -> None:
        if isinstance(event, ViewChange) and not self.synchronous:
            self._view_changed(event)
        super().down_event(event)

    def _view_changed(self, event: ViewChange) -> None:
        now = self.runtime.now()
        for sender in [sender for sender in self._buried if event.view.replaces(sender)]:
            self._end(sender)
        for sender, stream in self.streams.items():
            if sender in event.view:
                stream.departed = None
            elif stream.departed is None:
                stream.departed = now
                self.rule("nakack.departed_kept")
                if self._reap_timer is None:
                    self._reap_timer = self.runtime.call_later(self.settings.keep_departed, self._reap)

    def _bury(self, stream: Stream) -> None:
        """Remember how far it was: it may come back, and then nothing may be delivered twice."""
        self._buried[stream.sender] = stream.window.delivered
        if self.stack.view.replaces(stream.sender):
            self._end(stream.sender)
        elif len(self._buried) > BURIED_MAX:
            self._end(next(iter(self._buried)))

    def _end(self, sender: Address) -> None:
        del self._buried[sender]
        self.stack.above(self).up_event(StreamEnded(sender, MCAST, 0))

    def _reap(self) -> None:
        """Forget the streams of those who left long ago."""
        self._reap_timer = None
        deadline = self.runtime.now() - self.settings.keep_departed
        departed = [s for s in self.streams.values() if s.departed is not None]
        for stream in departed:
            assert stream.departed is not None
            if stream.departed <= deadline:
                self._discard_all(stream)
                del self.streams[stream.sender]
                self._bury(stream)
        if any(s.departed is not None for s in self.streams.values()):
            self._reap_timer = self.runtime.call_later(self.settings.keep_departed, self._reap)
