"""What this broker puts on the log: in one order, and only while it serves.

Events of clients are numbered when they are asked for, and wait while there is no room or no majority; too many that
wait are an alarm, which blocks publishers. What concerns members and not queues has no number, and no order with them.

A node's own events come back in the order in which it sent them, so they are a line, with what only this node knows of
each (the cluster plan's LocalMessageMap). What was sent and cannot count (it was ordered while there was no majority)
is sent again, in its order, when there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.cluster import wire
from coterie.cluster.wire import Kind
from coterie.group.channel import BufferFull, ChannelClosed
from coterie.logs import Log
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.cluster.answers import Answers
    from coterie.cluster.log_time import LogTime
    from coterie.cluster.standing import Standing
    from coterie.cluster.voids import Void
    from coterie.group.channel import Channel
    from coterie.runtime.base import Runtime

log = Log(__name__)
ALARM = "cluster"
"""The broker's alarm while publishers must wait for the cluster."""
VOIDS = 20
"""So often an event may be ordered in vain, each time while there is no majority, before somebody should look."""


@dataclass(slots=True)
class Asked:
    """One event of ours."""

    payload: Buffer
    done: Callable[[object], None] | None = None
    """Who waits for the answer, which comes when a majority holds the event."""
    routed: Routed = field(default_factory=dict)
    """The messages themselves."""
    publishes: Sequence[Publish] = ()
    on_disk: bool = False
    """The answer waits for a majority of disks, too."""
    everywhere: bool = False
    """The answer waits until every broker that serves has applied it."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """What is to be answered right behind it."""
    failed: Callable[[Void], None] | None = None
    """Who is told if it was void, besides whoever waits for the answer."""
    voids: int = 0
    """How often it was ordered and did not count."""

    def fail(self) -> None:
        """It was void: nothing was published."""
        for publish in self.publishes:
            publish.refused = True

    def refuse(self, messages: Sequence[Message]) -> None:
        """Some of its messages were refused: the publisher of each is told with the answer. A publish has a message of
        its own; bodies of several may be one object, and some messages are nobody's publish: letters."""
        publishes = {publish.enqueued: publish for publish in self.publishes}
        for message in messages:
            publish = publishes.get(message)
            if publish is not None:
                publish.refused = True


class LocalMessages:
    """Those that wait to be sent, those that are under way, and those that came back and did not count."""

    def __init__(self) -> None:
        self.waiting: deque[Asked] = deque()
        self.waiting_bytes = 0
        self._sent: deque[Asked] = deque()
        self._void: deque[Asked] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self._sent) + len(self._void)

    @property
    def in_order(self) -> bool:
        """Whether one may be sent now without overtaking another that has to be sent again."""
        return not self._void

    @property
    def under_way(self) -> int:
        return len(self._sent)

    def last(self) -> Asked | None:
        """The youngest that has not come back."""
        for line in (self.waiting, self._sent, self._void):
            if line:
                return line[-1]
        return None

    def wait(self, asked: Asked) -> None:
        self.waiting.append(asked)
        self.waiting_bytes += len(asked.payload)

    def sent(self, asked: Asked) -> None:
        """It is under way; if it was the first of those that wait, it waits no more."""
        if self.waiting and self.waiting[0] is asked:
            self.waiting.popleft()
            self.waiting_bytes -= len(asked.payload)
        self._sent.append(asked)

    def back(self, counts: bool) -> Asked:
        """The oldest that is under way has come back. One that does not count is sent again, when all that are under
        way, and cannot count either, have come back."""
        asked = self._sent.popleft()
        if not counts:
            asked.voids += 1
            if asked.voids % VOIDS == 0:
                log.error("an event of this broker is ordered again and again, and never counts", times=asked.voids)
            self._void.append(asked)
        if self._void and not self._sent:
            self.waiting_bytes += sum(len(each.payload) for each in self._void)
            self.waiting.extendleft(reversed(self._void))
            self._void.clear()
        return asked

    def clear(self) -> None:
        """None of them will ever be answered."""
        self.waiting.clear()
        self._sent.clear()
        self._void.clear()
        self.waiting_bytes = 0


class Outbox:
    """Of one broker."""

    def __init__(
        self, runtime: Runtime, standing: Standing, channel: Channel, time: LogTime, answers: Answers, waiting_max: int,
        blocked: Callable[[bool], None],
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._standing = standing
        self._channel = channel
        self._time = time
        self._answers = answers
        self._waiting_max = waiting_max
        self._block = blocked
        """Told whether publishers must wait."""
        self._blocked = True
        self.local = LocalMessages()
        self._sent = 0
        """Events that we sent; the number of the last."""
        self._draining = False

    def begin_anew(self) -> None:
        """Those who forgot this broker expect its first event."""
        self._sent = 0

    def send(self, kind: Kind, parts: Sequence[Buffer], asked: Asked) -> None:
        """An event of ours. It is numbered now, and goes out as soon as it may."""
        standing = self._standing
        self._sent += 1
        asked.payload = b"".join(
            (wire.head(kind, self._time.now(), self._sent, asked.on_disk, standing.versions.spoken), *parts)
        )
        local = self.local
        if standing.serves and not local.waiting and local.in_order:
            try:
                self._channel.send_nowait(asked.payload)
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
        return self.local.waiting_bytes > self._waiting_max

    def behind_answers(self, done: Callable[[], None]) -> None:
        """After those of all events that are sent, or wait to be."""
        last = self.local.last()
        if last is not None:
            last.after.append(done)
        else:
            place, index = self._answers.last()
            self._answers.answer(place, index, done)

    def drain(self) -> None:
        if not self._draining and self.local.waiting and self._standing.serves and self.local.in_order:
            self._draining = True
            self._runtime.spawn(self._send_waiting())

    async def _send_waiting(self) -> None:
        local = self.local
        try:
            while self._standing.serves and local.waiting and local.in_order:
                asked = local.waiting[0]
                try:
                    self._channel.send_nowait(asked.payload)
                    local.sent(asked)
                except BufferFull:
                    await self._channel.writable()
        except ChannelClosed:
            pass
        finally:
            self._draining = False
            self.alarm()

    def alarm(self) -> None:
        """Whether publishers must wait may have changed."""
        limit = self._waiting_max // 2 if self._blocked else self._waiting_max
        self._blocked = not self._standing.serves or self.local.waiting_bytes > limit
        self._block(self._blocked)

    def multicast(self, kind: Kind, data: bytes) -> None:
        """Something about members, not about queues: it counts whatever was lost."""
        channel, payload = self._channel, wire.head(kind, self._time.now(), 0) + data

        async def send() -> None:
            try:
                await channel.send(payload)
            except ChannelClosed:
                pass

        self._runtime.spawn(send())
