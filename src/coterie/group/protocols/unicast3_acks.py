"""When a UNICAST3 receiver acks: at the end of a batch, or as soon as the least interval between acks allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.group.members import Address
from coterie.group.protocols.unicast3_entries import ReceiverEntry
from coterie.group.protocols.unicast3_messages import Ack
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.protocols.unicast3 import Unicast3

CLOCK_ERROR = 1e-6
"""Clocks are floats."""


class Acks:
    """The acks of all receivers' entries, with one timer for those that have to wait."""

    def __init__(self, layer: Unicast3) -> None:
        self._layer = layer
        self._timer: Timer | None = None
        self._due: dict[Address, ReceiverEntry] = {}

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def forget(self, peer: Address) -> None:
        self._due.pop(peer, None)

    def due(self, entry: ReceiverEntry, now: float) -> None:
        """A batch is over: ack at once, or as soon as the least interval allows."""
        wait = entry.acked_at + self._layer.settings.ack_interval - now
        if wait <= 0:
            self.send(entry, now)
            return
        self._layer.rule("unicast3.ack_delayed")
        self._due[entry.peer] = entry
        if self._timer is None:
            self._timer = self._layer.runtime.call_later(wait, self._send_due)

    def send(self, entry: ReceiverEntry, now: float) -> None:
        layer = self._layer
        assert entry.window is not None
        entry.acked_at = now
        self.forget(entry.peer)
        if entry.window.delivered < 1 or layer.receivers.get(entry.peer) is not entry:
            return
        if entry.units > 1:
            layer.rule("unicast3.ack_batch")
        entry.units = 0
        layer.count("acks_sent")
        if layer.stack.trace.on:
            layer.stack.trace.emit("ack", to=str(entry.peer), conn=entry.conn, last=entry.window.delivered)
        layer.send(Ack(entry.conn, entry.window.delivered), entry.peer)

    def _send_due(self) -> None:
        self._timer = None
        now = self._layer.runtime.now()
        soonest: float | None = None
        for entry in list(self._due.values()):
            due = entry.acked_at + self._layer.settings.ack_interval
            if due <= now + CLOCK_ERROR:
                self.send(entry, now)
            elif soonest is None or due < soonest:
                soonest = due
        if soonest is not None:
            self._timer = self._layer.runtime.call_later(soonest - now, self._send_due)
