"""Who holds the total order up to where: what TOTAL's `held` signal and its safe delivery rest on.

To hold a position is to have every bundle up to it and every record that orders them. Members report what they hold,
unnumbered and cumulative, at the end of a turn in which it grew; who does not learn in time that everybody holds what
it holds asks; a group at rest is silent. The sequencer orders only what it has: it holds whatever anybody else holds,
and need not say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.group.events import Held
from coterie.group.members import Address, View
from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.runtime.base import Timer


@dataclass(frozen=True, slots=True)
class Report:
    """I hold the order of the view, whose tag is in the header, up to this position."""

    position: int
    ask: bool
    """I have not learnt in time that everybody holds as much: tell me."""


class Holders:
    """The positions that the members of one view hold, as far as one of them knows."""

    __slots__ = ("_counted", "_heard", "_local", "_need", "_view", "own")

    def __init__(self, view: View, local: Address) -> None:
        self._view, self._local = view, local
        self.own = 0
        """Nothing beyond it is ever called held: what we do not have ourselves is of no use here."""
        self._heard = {m: 0 for m in view.members if m not in (local, view.coordinator)}
        self._counted: tuple[Address, ...] | None = None
        self._need = 0

    def count(self, members: Sequence[Address], need: int) -> None:
        """From now on so many of these are a majority, and not more than half of the view."""
        self._counted, self._need = tuple(members), need

    def heard(self, member: Address, position: int) -> None:
        """A report. An older one that comes late takes nothing back."""
        if position > self._heard.get(member, position):
            self._heard[member] = position

    def by_all(self) -> int:
        """The position up to which every member of the view holds the order."""
        return min(self.own, *self._heard.values()) if self._heard else self.own

    def by_majority(self) -> int:
        """The position up to which more than half of the view does."""
        members = self._view.members
        if self._counted is not None:
            known = sorted((self._heard.get(m, self.own) for m in self._counted if m in members), reverse=True)
            return min(self.own, known[self._need - 1]) if len(known) >= self._need else 0
        sure = 1 if self._local == members[0] else 2  # we, and the sequencer, hold all that we hold
        last = len(members) // 2 - sure  # of the others, best first: the last one that a majority needs
        return self.own if last < 0 else min(self.own, sorted(self._heard.values(), reverse=True)[last])

    def who(self, position: int) -> list[Address]:
        """The members that are known to hold a position, which we hold ourselves."""
        return [m for m in self._view.members if self._heard.get(m, self.own) >= position]


class Holding:
    """One member's part in finding out who holds the order of one view."""

    def __init__(self, layer: Protocol, view: View, interval: float, reports: bool) -> None:
        self._layer, self._view, self._interval = layer, view, interval
        self._orders = view.coordinator == layer.stack.local
        self._reports = reports and len(view.members) > 1
        self.holders = Holders(view, layer.stack.local)
        self._told = {False: 0, True: 0}
        """Positions that were last said to be held: by a majority, by all."""
        self._report_comes = False
        self._watched = 0
        """The position whose holders the timer will look at."""
        self._timer: Timer | None = None
        self._over = False

    def end(self) -> None:
        """The view is over, or the stack stops."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def grown(self, position: int) -> None:
        """We hold more than before: say so at the end of the turn, and see to it that we hear of the others."""
        self.holders.own = position
        if self._reports:
            if not self._orders:  # whoever holds something knows that the sequencer does
                self._report_soon()
            self._watch()

    def _report_soon(self) -> None:
        if not self._report_comes:
            self._report_comes = True
            self._layer.runtime.call_soon(self._report)

    def _report(self, ask: bool = False) -> None:
        self._report_comes = False
        if not self._over:
            layer = self._layer
            packet = Packet(layer.codec.encode(Report(self.holders.own, ask)), None, layer.id)
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
            self._report_soon()

    def _watch(self) -> None:
        if self._timer is None:
            self._watched = self.holders.own
            self._timer = self._layer.runtime.call_later(self._interval, self._look)

    def _look(self) -> None:
        """Do we know by now that everybody holds what we held an interval ago?"""
        self._timer = None
        if self.holders.by_all() < self._watched:
            self._layer.rule("total.asked")
            self._report(ask=True)
            self._watch()
        elif self._watched < self.holders.own:
            self._watch()

    def tell(self, delivered: int, everyone: bool) -> None:
        """Say how far the order is held, if that is further than what was said before, and delivered."""
        position = min(delivered, self.holders.by_all() if everyone else self.holders.by_majority())
        if position <= self._told[everyone]:
            return
        self._told[everyone] = position
        layer, by = self._layer, "all" if everyone else "majority"
        layer.rule(f"total.held_{by}")
        if layer.stack.trace.on:
            layer.stack.trace.emit(
                "held", view=self._view.id, pos=position, by=by, members=[str(m) for m in self.holders.who(position)]
            )
        layer.stack.above(layer).up_event(Held(self._view.id, position, everyone))
