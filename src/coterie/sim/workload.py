"""The application of a simulated member: it sends messages that can be checked, and checks what it gets.

Every message says who sent it, in which stream, and its number there, and ends with a checksum. So a receiver notices,
without looking into any protocol, what is altered, doubled, reordered, misdirected or missing.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from math import inf
from typing import TYPE_CHECKING

from coterie.group.channel import BufferFull, Channel, ChannelClosed, Delivery, Receiver
from coterie.group.members import Address, View
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.sim.runtime import SimRuntime

PATIENT = "~"
"""Marks the stream of those messages that waited for credit: their order among the others is not promised."""
FAREWELLS = (0.0, 1.0, 1.03)
"""Seconds after a member left at which an application may still have a word for it."""
Complain = Callable[[str, str], None]
"""Told the property that is violated, and how."""


def make_message(sender: Address, to: str, number: int, size: int) -> bytes:
    """A message of about `size` bytes."""
    head = f"{sender}>{to}:{number}|".encode()
    filler = bytes((number + i) & 0xFF for i in range(min(64, max(0, size - len(head) - 4))))
    if filler and size > len(head) + 68:
        filler = (filler * (size // 64 + 1))[: size - len(head) - 4]
    body = head + filler
    return body + zlib.crc32(body).to_bytes(4, "little")


def read_message(message: Buffer) -> tuple[str, str, int]:
    """Sender, addressee and number. Raises ValueError if the message is altered."""
    data = bytes(message)
    if len(data) < 4 or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise ValueError("its checksum is wrong")
    head = data[: data.index(b"|")].decode()
    sender, _, rest = head.partition(">")
    to, _, number = rest.rpartition(":")
    return sender, to, int(number)


class Application(Receiver):
    """One incarnation of the application."""

    def __init__(self, runtime: SimRuntime, local: Address, complain: Complain) -> None:
        self._runtime = runtime
        self._complain = complain
        self.local = local
        self.delay = 0.0
        """How long it takes over a batch."""
        self.channel: Channel | None = None
        self.block_delay = 0.0
        """How long it takes to stop sending; if it takes time at all, it has a last word to say."""
        self.greets = False
        """It sends everybody a word when it may multicast again."""
        self.farewells = False
        """It says a word to those who left."""
        self._members: tuple[Address, ...] = ()
        self.state_size = 0
        self._multicasts = 0
        """How many it got: its state."""
        self.sent: dict[str, int] = {}
        """Number of the last message, by stream."""
        self._patient: dict[str, list[int]] = {}
        """Sizes of the messages that wait for the channel, by addressee."""
        self._got: dict[tuple[str, str], int] = {}
        """Number of the last message, by sender and stream."""
        self._excused: dict[tuple[str, str], float] = {}
        """By sender and stream: holes up to this number are no surprise, since one of us took the other for dead."""

    # Sending.

    def next_message(self, to: str, size: int) -> bytes:
        return make_message(self.local, to, self.sent.get(to, 0) + 1, size)

    def was_sent(self, to: str) -> None:
        self.sent[to] = self.sent.get(to, 0) + 1

    def send_waiting(self, channel: Channel, to: str, dest: Address | None, sizes: list[int]) -> None:
        """Send as soon as there is credit. Only one after the other: nothing is promised about sends side by side."""
        queue = self._patient.get(to)
        if queue is not None:
            queue += sizes
        else:
            self._patient[to] = sizes
            self._runtime.spawn(self._send_patiently(channel, to, dest, sizes))

    async def _send_patiently(self, channel: Channel, to: str, dest: Address | None, sizes: list[int]) -> None:
        stream = to + PATIENT
        while sizes:
            message = self.next_message(stream, sizes.pop(0))
            self.was_sent(stream)
            try:
                await channel.send(message, dest)
            except ChannelClosed:
                break
        del self._patient[to]

    # Receiving.

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        for delivery in batch:
            self._multicasts += delivery.multicast
            for message in delivery.messages:
                self._check(delivery, message)
        return self._take_time() if self.delay else None

    async def _take_time(self) -> None:
        await self._runtime.sleep(self.delay)

    def view_accepted(self, view: View) -> None:
        gone = [member for member in self._members if member not in view]
        self._members = view.members
        if self.farewells:
            for member in gone:
                for delay in FAREWELLS:
                    self._runtime.call_later(delay, self._say_farewell, member)

    def _say_farewell(self, member: Address) -> None:
        """It may be there still, or come back; if it is not, nothing may be left of this."""
        to = str(member)
        try:
            if self.channel is not None and member not in self._members:
                self.channel.send_nowait(self.next_message(to, 20), member)
                self.was_sent(to)
        except (BufferFull, ChannelClosed):
            pass

    # Flushes and state.

    def block(self) -> Awaitable[None] | None:
        return self._finish_sending() if self.block_delay else None

    async def _finish_sending(self) -> None:
        await self._runtime.sleep(self.block_delay)
        if self.channel is not None and self.channel.stack.running:
            try:
                self.channel.send_nowait(self.next_message("all", 20))
                self.was_sent("all")
            except BufferFull:
                pass

    def unblock(self) -> None:
        channel = self.channel
        if self.greets and channel is not None and channel.stack.running:
            for member in channel.view.members:
                try:
                    channel.send_nowait(self.next_message(str(member), 20), member)
                    self.was_sent(str(member))
                except BufferFull:
                    pass

    def get_state(self) -> Iterator[bytes]:
        return self._chunks(str(self._multicasts).encode().rjust(max(8, self.state_size)))

    @staticmethod
    def _chunks(state: bytes) -> Iterator[bytes]:
        for start in range(0, len(state), 777):
            yield state[start : start + 777]

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        state = b"".join([bytes(chunk) async for chunk in chunks])
        self._multicasts = int(state)
        for sender, stream in list(self._got):  # what the state has need not come any more
            if stream.startswith("all"):
                del self._got[sender, stream]
        if self.delay:
            await self._runtime.sleep(self.delay)

    def _check(self, delivery: Delivery, message: Buffer) -> None:
        try:
            sender, to, number = read_message(message)
        except ValueError as error:
            self._complain("G3", f"{self.local} got a message of {delivery.sender} that was altered: {error}")
            return
        if sender != str(delivery.sender):
            self._complain("G3", f"{self.local} got a message of {sender} as if {delivery.sender} had sent it")
        if to.removesuffix(PATIENT) != ("all" if delivery.multicast else str(self.local)):
            self._complain("G3", f"{self.local} got a message of {sender} that was meant for {to}")
        last = self._got.get((sender, to), None if delivery.multicast else 0)
        rule = "G8" if delivery.multicast else "G15"
        if last is not None and number <= last:
            self._complain(rule, f"{self.local} got message {number} of {sender} to {to} after message {last}")
        elif last is not None and number > last + 1 and number - 1 > self._excused.get((sender, to), 0):
            text = f"{self.local} got message {number} of {sender} to {to} after message {last}: a hole"
            self._complain(rule, text)
        self._got[sender, to] = number

    def lost_touch(self, sender: str) -> None:
        """One of us took the other for dead: until that is over, anything may be missing."""
        for stream in self._streams():
            self._excused[sender, stream] = inf

    def in_touch(self, sender: Application) -> None:
        """We are in each other's views again: what is sent from now on must arrive."""
        for stream in self._streams():
            self._excused[str(sender.local), stream] = sender.sent.get(stream, 0)

    def _streams(self) -> list[str]:
        own = str(self.local)
        return ["all", own, "all" + PATIENT, own + PATIENT]
