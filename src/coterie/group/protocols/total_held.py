"""Who holds the total order up to where: what TOTAL's `held` signal and its safe delivery rest on.

To hold a position is to have every bundle up to it and every record that orders them. Members report what they hold,
unnumbered and cumulative; who does not learn in time what it wants to know asks; a group at rest is silent. The
sequencer orders only what it has: it holds whatever anybody else holds, and need not say so.

Where only a majority matters, as few report at once as make one, before they even hand up what they hold now: the
oldest. The others do so a little later, for many turns at a time. And where a member and the sequencer are a majority,
nobody but the sequencer has to be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.group.events import Held
from coterie.group.members import Address, View
from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.runtime.base import Timer
from coterie.trace import Json


@dataclass(frozen=True, slots=True)
class Report:
    """I hold the order of the view, whose tag is in the header, up to this position."""

    position: int
    ask: bool
    """I have not learnt in time that those who matter hold as much: tell me."""


_LATER = 0.05
"""A report that nobody needs at once comes after this part of `report_interval`."""


class Holders:
    """The positions that the members of one view hold, as far as one of them knows."""

    __slots__ = ("_counted", "_heard", "_local", "_need", "_told", "_view", "is_needed", "own", "two_suffice")

    is_needed: bool
    """We are one of the oldest that make a majority, with the sequencer if it counts."""
    two_suffice: bool
    """Any member and the sequencer are a majority, so that only the sequencer needs to be told."""

    def __init__(self, view: View, local: Address) -> None:
        self._view, self._local = view, local
        self.own = 0
        """Nothing beyond it is ever called held: what we do not have ourselves is of no use here."""
        self._heard = {m: 0 for m in view.members if m not in (local, view.coordinator)}
        self.count(view.members, len(view.members) // 2 + 1)
        self._told = False
        """The application has said who counts."""

    def count(self, members: Sequence[Address], need: int) -> None:
        """From now on so many of these are a majority."""
        view = self._view.members
        self._counted, self._need = tuple(m for m in view if m in members), need
        others = [m for m in self._counted if m != view[0]]
        self.is_needed = self._local in others[: need - (view[0] in self._counted)]
        self.two_suffice = need <= 2 and self._counted == view
        self._told = True

    def heard(self, member: Address, position: int) -> None:
        """A report. An older one that comes late takes nothing back."""
        if position > self._heard.get(member, position):
            self._heard[member] = position

    def by_all(self) -> int:
        """The position up to which every member of the view holds the order."""
        return min(self.own, *self._heard.values()) if self._heard else self.own

    def by_majority(self) -> int:
        """The position up to which a majority does. We, and the sequencer, hold all that we hold."""
        own, heard, need = self.own, self._heard, self._need
        known = sorted([heard.get(m, own) for m in self._counted], reverse=True)
        return min(own, known[need - 1]) if len(known) >= need else 0

    def said(self) -> tuple[Json, Json]:
        """For the trace: who counts, and how many of them are a majority, if the application has said so."""
        return ([str(m) for m in self._counted], self._need) if self._told else (None, None)

    def who(self, position: int) -> list[Address]:
        """The members that are known to hold a position, which we hold ourselves."""
        return [m for m in self._view.members if self._heard.get(m, self.own) >= position]


class Holding:
    """One member's part in finding out who holds the order of one view."""

    def __init__(self, layer: Protocol, view: View, interval: float, reports: bool, everyone: bool) -> None:
        """`everyone`: it matters what everybody holds, and not only what a majority does."""
        self._layer, self._view, self._interval = layer, view, interval
        self._orders = view.coordinator == layer.stack.local
        self._reports = reports and len(view.members) > 1
        self.holders = Holders(view, layer.stack.local)
        self._told = {False: 0, True: 0}
        """Positions that were last said to be held: by a majority, by all."""
        self._everyone = everyone
        self._report_comes = False
        self._asked = False
        """Somebody waits for our report."""
        self._later: Timer | None = None
        """Of the report that is not needed at once."""
        self._watched = 0
        """The position whose holders the timer will look at."""
        self._timer: Timer | None = None
        self._over = False

    def end(self) -> None:
        """The view is over, or the stack stops."""
        self._over = True
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()
        self._timer = self._later = None

    def count(self, members: Sequence[Address], need: int) -> None:
        """Others matter now: nobody may have told us what they hold."""
        self.holders.count(members, need)
        if self._reports:
            self._watch()

    def grown(self, position: int) -> None:
        """We hold more than before: say so, and see to it that we hear of the others."""
        self.holders.own = position
        if self._reports:
            if self._orders:  # whoever holds something knows that the sequencer does
                pass
            elif self._everyone:
                self._report_soon()
            elif self.holders.is_needed:
                self._report()
            elif self._later is None:
                self._layer.rule("total.reports_later")
                self._later = self._layer.runtime.call_later(self._interval * _LATER, self._report)
            self._watch()

    def _report_soon(self) -> None:
        if not self._report_comes:
            self._report_comes = True
            self._layer.runtime.call_soon(self._report)

    def _report(self, ask: bool = False) -> None:
        self._report_comes = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if not self._over:
            layer = self._layer
            to = None
            if not (ask or self._asked or self._everyone) and self.holders.two_suffice:
                to = self._view.coordinator
            self._asked = False
            packet = Packet(layer.codec.encode(Report(self.holders.own, ask)), to, layer.id)
            packet.view = self._view.tag
            layer.count("reports")
            layer.pass_down(packet)

    def heard(self, member: Address, report: Report) -> None:
        if self._orders and report.position > self.holders.own:
            self._layer.count("malformed")  # nobody can hold what was never ordered
            return
        self.holders.heard(member, report.position)
        if report.ask and not self._orders and member in self._view:
            self._layer.rule("total.answered")
            self._asked = True
            self._report_soon()

    def _watch(self) -> None:
        if self._timer is None:
            self._watched = self.holders.own
            self._timer = self._layer.runtime.call_later(self._interval, self._look)

    def _look(self) -> None:
        """Do we know by now that those who matter hold what we held an interval ago?"""
        self._timer = None
        known = self.holders.by_all() if self._everyone else self.holders.by_majority()
        if known < self._watched:
            self._layer.rule("total.asked")
            self._report(ask=True)
            self._watch()
        elif self._watched < self.holders.own:
            self._watch()

    def tell(self, delivered: int, everyone: bool) -> None:
        """Say how far the order is held, if that is further than what was said before, and delivered."""
        told = self._told[everyone]
        if delivered <= told:
            return
        position = min(delivered, self.holders.by_all() if everyone else self.holders.by_majority())
        if position <= told:
            return
        self._told[everyone] = position
        layer, by = self._layer, "all" if everyone else "majority"
        layer.rule(f"total.held_{by}")
        if layer.stack.trace.on:
            named: Json = [str(m) for m in self.holders.who(position)]
            of, need = self.holders.said()
            layer.stack.trace.emit("held", view=self._view.id, pos=position, by=by, members=named, of=of, need=need)
        # To the application at once: nobody between has anything to do with it.
        layer.stack.top.up_event(Held(self._view.id, position, everyone))
