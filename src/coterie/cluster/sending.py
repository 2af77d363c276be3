"""What this broker puts on the log: in one order, and only while it serves.

Events of clients are numbered when they are asked for, and wait while there is no room or no majority; too many that
wait are an alarm, which blocks publishers. What concerns members and not queues has no number, and no order with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coterie.cluster import wire
from coterie.cluster.local_messages import Asked, LocalMessages
from coterie.cluster.wire import Kind
from coterie.group.channel import BufferFull, ChannelClosed
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.cluster.core import Core

ALARM = "cluster"
"""The broker's alarm while publishers must wait for the cluster."""


class Sending:
    """Of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.local = LocalMessages()
        self._sent = 0
        """Events that we sent; the number of the last."""
        self._draining = False

    def begin_anew(self) -> None:
        """Those who forgot this broker expect its first event."""
        self._sent = 0

    def send(self, kind: Kind, parts: Sequence[Buffer], asked: Asked) -> None:
        """An event of ours. It is numbered now, and goes out as soon as it may."""
        core = self._core
        self._sent += 1
        asked.payload = b"".join(
            (wire.head(kind, core.time.now(), self._sent, asked.on_disk, core.versions.spoken), *parts)
        )
        local = self.local
        if core.serves and not local.waiting and local.in_order:
            try:
                core.channel.send_nowait(asked.payload)
                local.sent(asked)
                return
            except BufferFull:
                pass
            except ChannelClosed:
                return
        local.wait(asked)
        if self.is_full:
            self.alarm()
        self.drain()

    @property
    def is_full(self) -> bool:
        """More waits than may: what can wait elsewhere must."""
        return self.local.waiting_bytes > self._core.settings.backlog_max

    def in_turn(self, done: Callable[[], None]) -> None:
        """Something that needs no event, after all answers that are due before it."""
        core = self._core
        core.interface.flush()
        self.behind_answers(done)

    def behind_answers(self, done: Callable[[], None]) -> None:
        """After those of all events that are sent, or wait to be."""
        core = self._core
        last = self.local.last()
        if last is not None:
            last.after.append(done)
        else:
            place, index = core.pending.last()
            core.pending.answer(place, index, done)

    def drain(self) -> None:
        core = self._core
        if not self._draining and self.local.waiting and core.serves and self.local.in_order:
            self._draining = True
            core.runtime.spawn(self._send_waiting())

    async def _send_waiting(self) -> None:
        core = self._core
        local = self.local
        try:
            while core.serves and local.waiting and local.in_order:
                asked = local.waiting[0]
                try:
                    core.channel.send_nowait(asked.payload)
                    local.sent(asked)
                except BufferFull:
                    await core.channel.writable()
        except ChannelClosed:
            pass
        finally:
            self._draining = False
            self.alarm()

    def alarm(self) -> None:
        core = self._core
        backlog = self.local.waiting_bytes
        blocked = core.broker.alarms.get(ALARM, False)
        limit = core.settings.backlog_max
        core.broker.set_alarm(ALARM, not core.serves or backlog > (limit // 2 if blocked else limit))

    def multicast(self, kind: Kind, data: bytes) -> None:
        """Something about members, not about queues: it counts whatever was lost."""
        core = self._core
        payload = wire.head(kind, core.time.now(), 0) + data

        async def send() -> None:
            try:
                await core.channel.send(payload)
            except ChannelClosed:
                pass

        core.runtime.spawn(send())
