"""TOTAL: all members of a view deliver all multicasts in one order.

Promises: members that go together from one view to the next deliver the same bundles in the same order, each with its
position in the view (1, 2, 3 ...). Members multicast directly. The coordinator is the sequencer, and its stream
*is* the order: a bundle of its own stands where it stands, and a record in between gives places to bundles of others,
in ranges, once a turn. Delivery is `agreed`, when place and content are known here, or `safe`, when everybody has both.
At the end of a view what has no place yet is delivered by rank of its sender and number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.group.events import Event, OrderEnds, ViewChange, ViewEnding
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, RAW, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.total_held import Holding, Report
from coterie.group.wire import Codec
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.stack import Stack


@dataclass(frozen=True, slots=True)
class Record:
    """The next places in the order are those of these bundles. A numbered multicast of the sequencer."""

    ranges: tuple[tuple[int, int, int], ...]
    """Rank of the sender in the view, first number, last number."""


@dataclass(frozen=True, slots=True)
class TotalSettings:
    delivery: str = setting(
        "agreed", "agreed: once its place is known here; safe: once every member has it.", choices=("agreed", "safe")
    )
    held: str = setting(
        "off",
        "Whether to tell up to which position the order is held: by a majority; or by that, and by all.",
        choices=("off", "majority", "all"),
    )
    report_interval: float = setting(
        0.1, "How soon a member that does not know who holds the order asks.", unit="s", minimum=0.001
    )


class Source:
    """A member of the view that is not the sequencer: what came from it and is not delivered."""

    __slots__ = ("ordered", "queue", "recorded")

    def __init__(self) -> None:
        self.queue: deque[Packet] = deque()
        self.ordered = 0
        """Its highest number that has a place."""
        self.recorded = 0
        """At the sequencer: its highest number that a record was sent for."""


class Places:
    """A range of a record whose bundles are not all here."""

    __slots__ = ("last", "source")

    def __init__(self, source: Source, last: int) -> None:
        self.source, self.last = source, last


TOTAL_ID = 22
SIGNALS: dict[str, tuple[bool, ...]] = {"off": (), "majority": (False,), "all": (False, True)}
"""By setting: which `Held` events come, those for a majority (False), those for everyone (True)."""


class Total(Protocol):
    """One order of all multicasts of a view, the same everywhere."""

    name = "TOTAL"
    id = TOTAL_ID
    role = "total order"
    needs_below = ("reliable multicast", "membership")
    Settings = TotalSettings
    codec = Codec({1: Record, 2: Report})
    rules = {
        "total.record": "The sequencer orders what others sent, in ranges, once a turn.",
        "total.own_bundle": "A bundle of the sequencer is ordered where it stands in its stream.",
        "total.piggyback": "A record that is due goes out right before a bundle of the sequencer.",
        "total.waits_for_record": "A bundle whose place is not known waits.",
        "total.waits_for_content": "A place whose bundle is not here holds up what is behind it.",
        "total.view_change_leftover": "What has no place when the view ends is delivered by rank and number.",
        "total.skipped_missing": "A place whose bundle nobody has when the view ends is given up.",
        "total.sequencer_changed": "The coordinator of the new view is its sequencer.",
        "total.paused": "While a flush holds, the sequencer orders nothing.",
        "total.resumed": "What piled up during a flush is ordered when it ends.",
        "total.held_majority": "A member learns that a majority holds the order up to a position.",
        "total.held_all": "A member learns that everybody holds the order up to a position.",
        "total.promised": "Whoever has answered a flush for a view holds no more of the one that ends than it said.",
        "total.reports_later": "Where a majority matters, a member that it does not need reports a little later.",
        "total.asked": "A member that does not learn in time who holds the order asks.",
        "total.answered": "A member that is asked reports once more.",
        "total.safe_waits": "Under safe delivery a bundle waits until every member holds its place.",
        "total.safe_view_change": "What is not known to be safe when the view ends is delivered nevertheless.",
    }

    settings: TotalSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self.paused = False
        self._nakack = stack.find(Nakack) if stack.has(Nakack) else None
        self._safe = self.settings.delivery == "safe"
        self._signals = SIGNALS[self.settings.held]
        self._reports = self._safe or bool(self._signals)
        self._turn_comes = False
        self._begin(stack.view)

    def _begin(self, view: View) -> None:
        """All that belongs to one view."""
        self._view = view
        """Whose order this is: the stack's view is the next one already when the end of this one is delivered."""
        self._sequencer = view.coordinator
        self._orders = self._sequencer == self.stack.local
        """We are the sequencer."""
        self._sources = [Source() for _ in view.members]
        """By rank. The sequencer's is not used."""
        self._by_sender = dict(zip(view.members[1:], self._sources[1:], strict=True))
        self._ahead: deque[Packet | Places] = deque()
        """The order behind the first place whose bundle is not here."""
        self._position = 0
        """The last place whose bundle is here, as are all before it."""
        self._unsafe: deque[Packet] = deque()
        """Under safe delivery: bundles with a place, not known to be held by all."""
        self._promised = False
        """We have told somebody what we have of this view, who may go on to the next one with that."""
        self._due = False
        """We are the sequencer, and a record is due."""
        everyone = self._safe or True in self._signals
        self._holding = Holding(self, view, self.settings.report_interval, self._reports, everyone)
        if self._nakack is not None:
            self._nakack.own_may_wait(not self._orders)

    def stop(self) -> None:
        self._holding.end()

    # Down: a record that is due goes first.

    def down(self, packet: Packet) -> None:
        if self._due and packet.carrier == MCAST and packet.proto == APP and not self.paused:
            self.rule("total.piggyback")
            self._order()
        self.pass_down(packet)

    def _order_soon(self) -> None:
        """Once a turn: however many bundles came in it, one record orders them all."""
        self._due = True
        if not self._turn_comes and not self.paused:
            self._turn_comes = True
            self.runtime.call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._turn_comes = False
        if self._due and not self.paused and self.stack.running:
            self._order()

    def _order(self) -> None:
        self._due = False
        ranges = []
        for rank, source in enumerate(self._sources):
            if source.queue and (last := source.queue[-1].seqno) > source.recorded:
                ranges.append((rank, max(source.recorded + 1, source.queue[0].seqno), last))
                source.recorded = last
        if ranges:
            self.rule("total.record")
            self.count("records")
            self.send(Record(tuple(ranges)), None, MCAST)

    def count_holders(self, members: Sequence[Address], need: int) -> None:
        """Until the view ends, so many of these members are the majority that `held` speaks of."""
        self._holding.count(members, need)
        self._tell_held()

    def pause(self) -> None:
        """A flush begins: nothing is ordered before `go_on`."""
        if not self.paused:
            self.paused = True
            if self._orders:
                self.rule("total.paused")

    def go_on(self) -> None:
        """The flush is over: what piled up is ordered now."""
        if self.paused:
            self.paused = False
            if self._due:
                self.rule("total.resumed")
                self._order_soon()

    @property
    def delivered(self) -> int:
        """The last place whose bundle went up in this view."""
        return self._position - len(self._unsafe)

    def promise(self) -> None:
        """What we have now is told to whoever makes the next view. It may go there without us, and without what we get
        from now on: that must not be called held, though we and others have it."""
        self._promised = True

    def release(self) -> None:
        """No view came of it."""
        if self._promised:
            self._promised = False
            self._holding.grown(self._position)
            self._hand_up([])

    # Up: walk the sequencer's stream, and deliver what it orders.

    def up(self, batch: list[Packet]) -> None:
        out: list[Packet] = []
        before, arrived, told = self._position, False, False
        for packet in batch:
            if packet.carrier == MCAST and packet.proto == APP:
                if packet.sender == self._sequencer:
                    self.rule("total.own_bundle")
                    if self._ahead:
                        self._ahead.append(packet)
                    else:
                        self._place(packet, out)
                elif (source := self._by_sender.get(packet.sender)) is not None:
                    source.queue.append(packet)
                    arrived = True
                else:
                    self.count("foreign")
            elif packet.proto == TOTAL_ID:
                self._handle(packet, out)
                told = True
            else:
                out.append(packet)
        if arrived:
            self._arrived(out)
        if self._position != before:
            if self._promised:
                self.rule("total.promised")
            else:
                self._holding.grown(self._position)
        elif not told:
            if out:
                self.pass_up(out)
            return
        self._hand_up(out)

    def _arrived(self, out: list[Packet]) -> None:
        """Bundles of others came: they may fill the first open place, or wait for one."""
        if self._ahead:
            self._walk(out)
        for source in self._sources:
            if source.queue:
                self.rule("total.waits_for_record")
                if self._orders:
                    self._order_soon()
                return

    def _place(self, packet: Packet, out: list[Packet]) -> None:
        """The bundle has the next place."""
        self._position = packet.pos = self._position + 1
        if self.stack.trace.on:
            self.stack.trace.emit(
                "ordered", view=self._view.id, pos=packet.pos, sender=packet.sender, first=packet.seqno
            )
        if self._safe:
            self._unsafe.append(packet)
        else:
            out.append(packet)

    def _walk(self, out: list[Packet]) -> None:
        """Go on from the first place whose bundle was not here."""
        ahead = self._ahead
        while ahead:
            entry = ahead[0]
            if isinstance(entry, Packet):
                self._place(entry, out)
            elif not self._fill(entry.source, entry.last, out):
                return
            ahead.popleft()

    def _fill(self, source: Source, last: int, out: list[Packet]) -> bool:
        """Deliver a source's bundles up to a number. False if some are not here."""
        queue = source.queue
        while queue and queue[0].seqno <= last:
            packet = queue.popleft()
            self._place(packet, out)
            if packet.seqno == last:
                return True
        if queue:  # its stream has passed that number without such a bundle: the record made no sense
            self.count("malformed")
            return True
        return False

    def _handle(self, packet: Packet, out: list[Packet]) -> None:
        match self.decode(packet):
            case Record(ranges) if packet.carrier == MCAST and packet.sender == self._sequencer:
                for rank, first, last in ranges:
                    self._take_range(rank, first, last, out)
            case Report() as report if packet.carrier == RAW and packet.view == self._view.tag:
                self._holding.heard(packet.sender, report)
            case Record():
                self.count("foreign")

    def _take_range(self, rank: int, first: int, last: int, out: list[Packet]) -> None:
        if not (0 < rank < len(self._sources) and self._sources[rank].ordered < first <= last):
            self.count("malformed")
            return
        source = self._sources[rank]
        source.ordered = last
        if self._ahead:
            self._ahead.append(Places(source, last))
        elif not self._fill(source, last, out):
            self.rule("total.waits_for_content")
            self._ahead.append(Places(source, last))

    def _hand_up(self, out: list[Packet]) -> None:
        if self._unsafe:
            safe = self._holding.holders.by_all()
            while self._unsafe and self._unsafe[0].pos <= safe:
                out.append(self._unsafe.popleft())
            if self._unsafe:
                self.rule("total.safe_waits")
        if out:
            self.pass_up(out)
        self._tell_held()

    def _tell_held(self) -> None:
        if self._signals:
            delivered = self.delivered
            for everyone in self._signals:
                self._holding.tell(delivered, everyone)

    # The end of a view.

    def up_event(self, event: Event) -> None:
        match event:
            case ViewEnding():
                self._finish_view()
            case ViewChange(view):
                self._finish_view()  # for a membership that did not say that it ends
                if view.coordinator != self._sequencer:
                    self.rule("total.sequencer_changed")
                self._holding.end()
                self._begin(view)
        super().up_event(event)

    def _finish_view(self) -> None:
        """Deliver all that is left of the view. Whoever goes on with us has the same bundles and the same records."""
        if self._ahead or any(source.queue for source in self._sources):
            self.stack.above(self).up_event(OrderEnds())
        out: list[Packet] = []
        for entry in self._ahead:
            if isinstance(entry, Packet):
                self._place(entry, out)
            elif not self._fill(entry.source, entry.last, out):
                self.rule("total.skipped_missing")
                self.count("skipped")
        self._ahead.clear()
        for source in self._sources:
            if source.queue:
                self.rule("total.view_change_leftover")
            for packet in source.queue:
                self._place(packet, out)
            source.queue.clear()
        if self._unsafe:
            self.rule("total.safe_view_change")
            out.extend(self._unsafe)
            self._unsafe.clear()
        if out:
            self.pass_up(out)

    def held(self) -> dict[str, int]:
        """Bundles without a place, and places without a bundle; bundles that wait for everybody to hold them."""
        unordered = len(self._ahead) + sum(len(source.queue) for source in self._sources)
        return {"unordered": unordered, "unsafe": len(self._unsafe)}
