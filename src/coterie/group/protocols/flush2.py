"""FLUSH2: everybody stops multicasting and has delivered the same; by unicasts to and from a leader.

Promises: when a flush holds, those who take part have shut their gates and delivered exactly the same multicasts, and
the unicasts that they had sent each other before. An idle group needs one message to each member and one back; only
if digests differ does a reconciliation follow, in which NAKACK fetches what someone misses. Several leaders may hold
one flush; exclusive ones exclude each other; those for views go before all others. Every flush ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.group.events import ViewChange
from coterie.group.members import Address
from coterie.group.protocols.flush_common import Flushing
from coterie.group.protocols.flush_hold import Hold
from coterie.group.protocols.flush_messages import (
    COMMON_RULES,
    AbortFlush,
    Cut,
    Flush2Settings,
    LeftFlush,
    Reconciled,
    Sent,
    StartFlush,
    StartFlushFail,
    StartFlushOk,
    StopFlush,
    Units,
)
from coterie.group.wire import Codec

if TYPE_CHECKING:
    from coterie.group.stack import Stack


class Flush2(Flushing):
    """Flushing by one leader's unicasts: fast when nothing is missing, and it finds out what is."""

    name = "FLUSH2"
    id = 24
    Settings = Flush2Settings
    delivers_ahead = True
    codec = Codec(
        {
            1: StartFlush, 2: StartFlushOk, 3: StartFlushFail, 4: AbortFlush, 5: StopFlush, 6: Cut, 7: Reconciled,
            8: Sent, 9: LeftFlush,
        }
    )  # fmt: skip
    rules = {
        "flush2.suspend": "SUSPEND: START-FLUSH goes to everybody who is to take part.",
        "flush2.start": "START-FLUSH: its sender is added to the leaders, and block() is called.",
        "flush2.start_ok": "The gate is shut: START-FLUSH-OK with the digest goes to the leader.",
        "flush2.same_digests": "All have answered, and all digests are the same: the flush holds.",
        "flush2.unicasts": "Unicasts that were sent before the flush are waited for.",
        "flush2.ahead": "What a block() multicasts that is still running is delivered by those whose gates are shut.",
        "flush2.resume": "RESUME: STOP-FLUSH goes to everybody, and nobody is waited for.",
        "flush2.stop": "STOP-FLUSH of the last leader: the gate opens.",
        "flush2.stop_not_last": "STOP-FLUSH while another leader holds: the gate stays shut.",
        "flush2.suspect_expected": "SUSPECT: nothing is expected of a suspected member any more.",
        "flush2.suspect_leader": "SUSPECT: a suspected leader's flush is over.",
        "flush2.view_expected": "A view change: nothing is expected of who is not part of it; the round starts over.",
        "flush2.view_leader": "A view change: the flush of a leader that is not part of it is over.",
        **{f"flush2.{name}": sentence for name, sentence in COMMON_RULES.items()},
    }

    settings: Flush2Settings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._ahead: dict[Address, int] = {}
        """By member whose block() runs: how far it has multicast."""
        self._sent_told = 0
        self._telling = False

    def handle(self, peer: Address, message: object) -> None:
        match message:
            case StartFlushOk():
                self.leading.answered(peer, message)
            case Sent(view, upto):
                if view == self.stack.view.id and peer in self.stack.view:
                    self._ahead[peer] = max(upto, self._ahead.get(peer, 0))
                    self._deliver_ahead()
            case _:
                super().handle(peer, message)

    def ready(self, hold: Hold) -> None:
        """START-FLUSH-OK."""
        hold.answered = True
        self.holding.promise(hold)
        self.note("start_ok")
        self.nakack.freeze()
        sent, received = self._units()
        self.tell(hold.leader, StartFlushOk(hold.number, hold.round, self.delivered(), sent, received))
        self._deliver_ahead()

    def _units(self) -> tuple[Units, Units]:
        if not self.settings.unicasts:
            return (), ()
        members = self.stack.view.members
        sent, received = self.unicast3.sent_digest(), self.unicast3.received_digest()
        return (
            tuple(sent.get(member, (0, 0)) for member in members) if sent else (),
            tuple(received.get(member, (0, 0)) for member in members) if received else (),
        )

    # What is multicast out of a block() that takes its time. Its sender may wait for answers to it, and whoever has
    # answered START-FLUSH already delivers nothing any more unless it is told to.

    def block_runs(self) -> None:
        if not self._telling:
            self._telling = True
            self.runtime.call_soon(self._tell_sent)

    def _tell_sent(self) -> None:
        self._telling = False
        if self.closing and self.nakack.sent > self._sent_told:
            self._sent_told = self.nakack.sent
            others = {m: None for hold in self.holding.holds.values() for m in hold.targets if m != self.stack.local}
            self.tell_all(others, Sent(self.stack.view.id, self._sent_told))

    def _deliver_ahead(self) -> None:
        """Before there is a cut, what a member that takes part in all flushes has multicast can do no harm: its own
        answer, which has not come yet, will be no lower."""
        if not self._ahead or not self.shut or not self.nakack.frozen or self.holding.at_cut:
            return
        delivered = self.nakack.delivered()
        holds = self.holding.holds.values()
        ahead = {
            member: upto
            for member, upto in self._ahead.items()
            if delivered.get(member, upto) < upto and all(member in hold.targets for hold in holds if hold.targets)
        }
        if ahead:
            assert not self.holding.under_way, "the way to a cut is not left for what a block() has sent"
            self.note("ahead")
            self.nakack.advance(ahead, {member: member for member in ahead}, lambda: None)

    def left(self, hold: Hold) -> None:
        if not self.holding.holds:
            self._ahead.clear()
            self._sent_told = 0

    def joins(self, event: ViewChange, before: tuple[Address, ...]) -> None:
        self._ahead.clear()
        super().joins(event, before)
