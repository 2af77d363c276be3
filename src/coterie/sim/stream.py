"""Simulated streams: TCP as a program sees it.

Bytes arrive in order or not at all. A host takes only so much that has not been read at the other end (`room`); what is
written on top is `buffered` here. On a blocked link everything waits, and comes after healing, joined, unless the
connection is reset first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.sim.clock import DEAD, Owner

if TYPE_CHECKING:
    from coterie.sim.network import Fabric, Ports


@dataclass(slots=True)
class Limits:
    """Sizes of socket and write buffers, in bytes."""

    room: int = 65536
    """What the two hosts keep of one direction of a stream."""
    high_mark: int = 65536
    """Once this much is buffered, `drained` follows when it has fallen under the low mark again."""
    low_mark: int = 16384


class SimStream(Stream):
    """One end of a connection. What it sends is kept here until the other end has read it."""

    other: SimStream

    def __init__(self, fabric: Fabric, ports: Ports, owner: Owner, to: Ports, port: int) -> None:
        self.peer = Endpoint(to.ip, port)
        self.host = ports.name
        self.number = 0
        self._ports = ports
        self._world = fabric.world
        self._limits = fabric.limits
        self._link = fabric.link(ports.name, to.name)
        self._owner = owner
        self._handler: StreamHandler | None = None
        self._open = True
        self._closing = False
        self._reading = True
        self._was_high = False
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._flight: deque[bytes | None] = deque()
        """Under way, or arrived and not read; None is the end of the stream."""
        self._in_flight = 0
        self._due = 0.0
        self._late = 0
        """How many pieces of `_flight` should have arrived but wait for the link or the reader."""
        self._writes: deque[tuple[int, float]] = deque()
        """Of what the other end has not read: how many bytes were written when."""
        self.written_at = 0.0
        """When the other end wrote the first byte of what is being received here. A slow link may take seconds."""

    @classmethod
    def pair(
        cls, fabric: Fabric, source: Ports, source_owner: Owner, target: Ports, target_owner: Owner, port: int
    ) -> tuple[SimStream, SimStream]:
        near = cls(fabric, source, source_owner, target, port)
        far = cls(fabric, target, target_owner, source, source.free_port())
        near.other, far.other = far, near
        return near, far

    def begin(self, handler: StreamHandler) -> None:
        """The handshake is over, at this end."""
        if self._open:
            self._handler = handler
            handler.connected(self)
        else:  # it was reset meanwhile: that is told here, and not by `_finish` too, which may be under way
            handler.closed(CloseReason.RESET)

    def not_before(self, time: float) -> None:
        """Nothing sent here arrives earlier."""
        self._due = time

    # What the program calls.

    @property
    def buffered(self) -> int:
        return self._queued

    @property
    def expects(self) -> bool:
        """Something that the other end has written is on its way."""
        return bool(self.other._flight or self.other._queue)

    def write(self, buffers: Sequence[Buffer]) -> None:
        if not self._open or self._closing or self._owner.state == DEAD:
            return
        data = b"".join(buffers)
        if not data:
            return
        self._writes.append((len(data), self._world.time))
        if not self._queue and self._in_flight + len(data) <= self._limits.room:
            self._launch(data)
            return
        self._queue.append(data)
        self._queued += len(data)
        self._pump()
        if self._queued > self._limits.high_mark:
            self._was_high = True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._world.soon(self._owner, self.other._catch_up)

    def close(self) -> None:
        if self._open and not self._closing and self._owner.state != DEAD:
            self._closing = True
            self._pump()

    def abort(self) -> None:
        if self._open and self._owner.state != DEAD:
            self._world.soon(self._owner, self._finish, CloseReason.LOCAL)
            self._drop()
            self.other.reset_from_afar()

    # Sending.

    def _pump(self) -> None:
        """Give the host what it has room for."""
        queue = self._queue
        while queue and self._open:
            room = self._limits.room - self._in_flight
            if room < min(self._limits.room // 2, self._queued):
                return  # a host does not send crumbs
            parts = []
            while queue and room > 0:
                data = queue.popleft()
                if len(data) > room:
                    queue.appendleft(data[room:])
                    data = data[:room]
                parts.append(data)
                room -= len(data)
            joined = b"".join(parts)
            self._queued -= len(joined)
            self._launch(joined)
        if self._was_high and self._queued <= self._limits.low_mark:
            self._was_high = False
            if self._handler is not None and not self._closing:
                self._world.soon(self._owner, self._handler.drained)
        if self._closing and self._open and not queue:
            self._fly(None, 0)
            self._drop()
            self._world.soon(self._owner, self._finish, CloseReason.LOCAL)

    def _launch(self, data: bytes) -> None:
        link = self._link
        if link.chop and len(data) > 1 and link.random() < link.chop:
            cut = link.rng.randrange(1, len(data))
            self._fly(data[:cut], cut)
            self._fly(data[cut:], len(data) - cut)
        else:
            self._fly(data, len(data))

    def _fly(self, data: bytes | None, size: int) -> None:
        self._flight.append(data)
        self._in_flight += size
        world = self._world
        due = world.time + self._link.stream_delay(size)
        if due > self._due:
            self._due = due
        world.at(self._due, self.other._owner, self._arrive)

    # Arriving: these run as calls of the other end's process.

    def _arrive(self) -> None:
        if self._late:
            self._late += 1
        elif self._link.blocked:
            self._late = 1
            self._link.when_open(self._heal)
        elif not self.other._reading:
            self._late = 1
        elif self._flight:
            self._hand_over(1)

    def _heal(self) -> None:
        self._world.soon(self.other._owner, self._catch_up)

    def _catch_up(self) -> None:
        if not self._late:
            return
        if self._link.blocked:
            self._link.when_open(self._heal)
        elif self.other._reading:
            late, self._late = self._late, 0
            self._hand_over(late)

    def _hand_over(self, pieces: int) -> None:
        flight = self._flight
        taken = [flight.popleft() for _ in range(min(pieces, len(flight)))]
        ended = taken[-1:] == [None]
        data = b"".join([piece for piece in taken if piece is not None])
        self._in_flight -= len(data)
        if self._queue:
            self._pump()
        other = self.other
        if data:
            other.written_at = self._written(len(data))
            if other._open and other._handler is not None:
                other._handler.received(data)
        if ended and other._open:
            other._drop()
            other._finish(CloseReason.EOF)

    def _written(self, size: int) -> float:
        """When the first of the next bytes was written; so many of them have been read now."""
        first = self._writes[0][1]
        while size:
            length, time = self._writes.popleft()
            if length > size:
                self._writes.appendleft((length - size, time))
                break
            size -= length
        return first

    # Ending.

    def reset_from_afar(self, extra: float = 0.0) -> None:
        """The other host sends a reset: it overtakes everything, and waits where the link is blocked."""
        back = self.other._link
        delay = back.delay(0) + extra * back.random()
        self._world.after(delay, self._owner, self._reset_arrives)

    def _reset_arrives(self) -> None:
        if self.other._link.blocked:
            self.other._link.when_open(lambda: self._world.soon(self._owner, self._reset_arrives))
        elif self._open:
            self.reset()

    def reset(self) -> None:
        """This end is told that the connection is gone."""
        if self._open:
            self._drop()
            self._world.soon(self._owner, self._finish, CloseReason.RESET)

    def process_died(self, silent: bool, polite: bool) -> None:
        """Its process is gone: what the host has taken still arrives unless it resets, or is silent."""
        if not self._open:
            return
        if not silent and polite:
            self._fly(None, 0)
        self._drop()
        if not silent and not polite:
            self._flight.clear()
            self.other.reset_from_afar()

    def _drop(self) -> None:
        """No more sending from here; what the other end has sent is lost."""
        self._open = False
        self._queue.clear()
        self._queued = 0
        self._ports.streams.pop(self.number, None)

    def _finish(self, reason: CloseReason) -> None:
        if self._handler is not None:
            self._handler.closed(reason)
