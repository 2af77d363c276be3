"""How a process gets its first view: it joins a group that it can reach, or is the first of a new one.

A process that hears of a coordinator asks it, again and again, and whoever is redirected asks the other one. A process
that hears of none waits a little; of several that wait together the one with the lowest address begins, and the others
join it. If two begin all the same, a merge puts it right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.group.events import OtherView
from coterie.group.members import Address, ViewId
from coterie.group.protocols.gms.messages import JoinReq
from coterie.group.protocols.transport import Transport
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.protocols.gms.gms import Gms

HEARD_MAX = 1024
"""Peers whose views are kept in mind."""
PATIENCE = 4
"""How many times as long as the first one the others wait for it, and go on asking to be let in."""


class Joiner:
    def __init__(self, gms: Gms) -> None:
        self._gms = gms
        self._transport = gms.stack.find(Transport)  # type: ignore[type-abstract]
        self._heard: dict[Address, tuple[ViewId, Address]] = {}
        """By peer: the view that it is in, and the coordinator of that."""
        self._started = 0.0
        self._timer: Timer | None = None
        self._asked: Address | None = None
        self._redirected_at = -1e9

    def start(self) -> None:
        runtime = self._gms.runtime
        self._started = runtime.now()
        self._timer = runtime.call_later(self._gms.settings.alone_after, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hear(self, event: OtherView) -> None:
        if len(self._heard) >= HEARD_MAX and event.peer not in self._heard:
            return
        self._heard[event.peer] = event.view, event.coordinator
        if self._asked is None:
            self._ask()

    def redirected(self, peer: Address, coordinator: Address) -> None:
        """Ask that one; or, if it says so of itself, ask it again. Two that name each other get one request a while."""
        now = self._gms.runtime.now()
        if coordinator not in self._transport.peers():
            return
        if coordinator != peer:
            if coordinator == self._asked or now - self._redirected_at < self._gms.settings.resend_interval:
                return
            self._gms.rule("gms.redirected")
            self._redirected_at = now
        self._asked = coordinator
        self._gms.send(JoinReq(self._gms.want_state), coordinator)

    def _coordinators(self) -> list[Address]:
        """Of the views that we know of: those that we can reach."""
        peers = self._transport.peers()
        return sorted({who for peer, (view, who) in self._heard.items() if view.counter and who in peers})

    def _ask(self) -> bool:
        coordinators = self._coordinators()
        if not coordinators:
            return False
        at = coordinators.index(self._asked) + 1 if self._asked in coordinators else 0
        self._asked = coordinators[at % len(coordinators)]  # whoever did not answer may not be able to
        self._gms.rule("gms.join_asked")
        self._gms.send(JoinReq(self._gms.want_state), self._asked)
        return True

    def _look(self) -> None:
        """Time is up: ask once more, or begin."""
        gms = self._gms
        waited = gms.runtime.now() - self._started
        alone_after = gms.settings.alone_after
        peers = self._transport.peers()
        self._heard = {peer: heard for peer, heard in self._heard.items() if peer in peers}
        if self._ask():
            begin = waited > PATIENCE * max(alone_after, gms.settings.join_retry, gms.settings.resumer_timeout)
        else:
            first = all(gms.stack.local < peer for peer in self._heard)
            begin = first or waited > PATIENCE * alone_after
        if begin:
            gms.rule("gms.first")
            gms.begin()
        else:
            self._timer = gms.runtime.call_later(gms.settings.join_retry, self._look)
