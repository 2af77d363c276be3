"""Direct replies to a client of another broker: told one to one, through no queue and not by the log.

The address of a reply names the broker at which somebody waits for it, and its incarnation, by a sum: whoever gets a
reply to such an address hands it to that broker, which knows the channel. What is handed over arrives once and in its
order, or not at all if that broker is lost; and nobody is told whether the channel was still there, as a reply that
nobody takes is dropped there too. Who wants to know asks before (`queue.declare` with `passive`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from coterie.broker.message_codec import Routes, decode_messages, encode_messages
from coterie.broker.specs import REPLY_TO
from coterie.cluster import wire
from coterie.errors import PeerError, ProtocolError
from coterie.group.channel import BufferFull, ChannelClosed
from coterie.group.members import Address
from coterie.logs import Log
from coterie.runtime.base import Buffer, Runtime

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.vhost import Vhost
    from coterie.cluster.standing import Standing
    from coterie.group.channel import Channel

log = Log(__name__)
REPLY, ASK, ANSWER = 5, 6, 7
"""The first byte of what brokers tell each other about direct replies."""
WORDS = (REPLY, ASK, ANSWER)
_NAME = struct.Struct(">H")
_ASK = struct.Struct(">Q")
_ANSWER = struct.Struct(">Q?")


def tag_of(broker: Address) -> str:
    """What names a broker in an address of replies: short, however long its name is."""
    return blake2b(str(broker).encode(), digest_size=8).hexdigest()


class Elsewhere:
    """Somebody at another broker who waits for replies, as something that can be published to."""

    __slots__ = ("_broker", "_replies", "_vhost")

    def __init__(self, replies: RemoteReplies, broker: Address, vhost: str) -> None:
        self._replies = replies
        self._broker = broker
        self._vhost = vhost

    def enqueue(self, messages: Sequence[Message], /) -> None:
        self._replies.hand_over(self._broker, self._vhost, messages)


class RemoteReplies:
    """Of one broker: those that it hands over, and those that it gets."""

    def __init__(
        self, runtime: Runtime, standing: Standing, channel: Channel, vhosts: Mapping[str, Vhost], waiting_max: int
    ) -> None:
        self._runtime = runtime
        self._standing = standing
        self._channel = channel
        self._vhosts = vhosts
        self._waiting_max = waiting_max
        self._routes = Routes()
        self._asked: dict[int, tuple[Address, Callable[[bool], None]]] = {}
        """Questions that have no answer yet."""
        self._numbers = 0
        self._waiting: deque[tuple[Address, bytes]] = deque()
        """What the group has no room for at the moment, and its bytes."""
        self._waiting_bytes = 0
        self.dropped = 0
        """Replies that there was no room for at all."""

    def where(self, name: str) -> Address | None:
        """The broker that an address of replies names, if it is another one that is there."""
        tag = name[len(REPLY_TO) + 1 :].partition(".")[0]
        others = (member for member in self._standing.servants if member != self._standing.us)
        return next((member for member in others if tag_of(member) == tag), None)

    def find(self, vhost: str, name: str) -> Elsewhere | None:
        if not name.startswith(REPLY_TO):
            return None
        broker = self.where(name)
        return None if broker is None else Elsewhere(self, broker, vhost)

    def ask(self, vhost: str, name: str, done: Callable[[bool], None]) -> None:
        """Whether somebody waits there."""
        broker = self.where(name)
        if broker is None:
            done(False)
            return
        self._numbers += 1
        self._asked[self._numbers] = broker, done
        self._tell(broker, ASK, (_ASK.pack(self._numbers), _name(vhost), name.encode(errors=wire.ANY_BYTES)))

    def hand_over(self, broker: Address, vhost: str, messages: Sequence[Message]) -> None:
        parts: list[Buffer] = [_name(vhost)]
        encode_messages(messages, parts)
        self._tell(broker, REPLY, parts)

    # Telling.

    def _tell(self, broker: Address, what: int, parts: Sequence[Buffer]) -> None:
        data = b"".join((bytes((what,)), *parts))
        if not self._waiting:
            try:
                self._channel.send_nowait(data, broker)
                return
            except BufferFull:
                pass
            except ChannelClosed:
                return
        if what == REPLY and self._waiting_bytes > self._waiting_max:
            self.dropped += 1
            return
        self._waiting.append((broker, data))
        self._waiting_bytes += len(data)
        if len(self._waiting) == 1:
            self._runtime.spawn(self._send_waiting())

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                broker, data = self._waiting[0]
                if self._standing.serves_with(broker):
                    await self._channel.send(data, broker)
                if self._waiting and self._waiting[0][1] is data:
                    self._waiting.popleft()
                    self._waiting_bytes -= len(data)
        except ChannelClosed:
            self.clear()

    # Hearing.

    def heard(self, what: int, sender: Address, data: memoryview) -> None:
        try:
            if what == REPLY:
                self._reply(data)
            elif what == ASK:
                self._question(sender, data)
            else:
                self._answer(data)
        except (struct.error, ValueError, IndexError, PeerError, ProtocolError) as error:
            log.error("a word about direct replies that cannot be read", sender=sender, error=error)

    def _reply(self, data: memoryview) -> None:
        name, at = _read_name(data)
        vhost = self._vhosts.get(name)
        for message in decode_messages(data, at, len(data), self._routes):
            waits = None if vhost is None else vhost.pseudo.get(message.key)
            if waits is not None:
                waits.enqueue([message])

    def _question(self, sender: Address, data: memoryview) -> None:
        (number,) = _ASK.unpack_from(data)
        name, at = _read_name(data[_ASK.size :])
        vhost = self._vhosts.get(name)
        there = vhost is not None and bytes(data[_ASK.size + at :]).decode(errors=wire.ANY_BYTES) in vhost.pseudo
        self._tell(sender, ANSWER, (_ANSWER.pack(number, there),))

    def _answer(self, data: memoryview) -> None:
        number, there = _ANSWER.unpack_from(data)
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked[1](there)

    # Members come and go.

    def look(self) -> None:
        """Whoever waited at a broker that is lost waits no more."""
        lost = [number for number, (broker, _) in self._asked.items() if not self._standing.serves_with(broker)]
        for number in lost:
            self._asked.pop(number)[1](False)

    def clear(self) -> None:
        """This broker was cut off, or its channel is closed."""
        self._asked.clear()
        self._waiting.clear()
        self._waiting_bytes = 0


def _name(vhost: str) -> bytes:
    text = vhost.encode(errors=wire.ANY_BYTES)
    return _NAME.pack(len(text)) + text


def _read_name(data: memoryview) -> tuple[str, int]:
    (size,) = _NAME.unpack_from(data)
    end = _NAME.size + size
    return bytes(data[_NAME.size : end]).decode(errors=wire.ANY_BYTES), end
