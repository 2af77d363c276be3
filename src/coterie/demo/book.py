"""The application of the demonstration: a book into which every member writes every message that it delivers.

Messages come in one order for all, so books that began alike stay alike, to the byte. A member that joins is given the
book; after a partition the smaller part is given the larger one's. Each sender numbers its messages: a hole between
two of them is wrong, unless the network had fallen apart between them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterable

from coterie.group.channel import Delivery, Receiver
from coterie.group.members import Address, MergeView, View
from coterie.runtime.base import Buffer

NUMBER = struct.Struct("<Q")
"""What a message begins with."""
_SENDER = struct.Struct("<I")
_CHUNK = 64 * 1024


class Book(Receiver):
    """One member's copy."""

    def __init__(self, view_accepted: Callable[[View, Address | None], None]) -> None:
        self._tell_view = view_accepted
        """Told each view, and after a merge whose book to take over."""
        self.local: Address | None = None
        self.view: View | None = None
        self.pages = bytearray()
        self.sum = 0
        self.delivered = 0
        self.wrong = 0
        self._last: dict[Address, int] = {}

    def receive(self, batch: list[Delivery]) -> None:
        for delivery in batch:
            sender, last = delivery.sender, self._last.get(delivery.sender)
            tag = _SENDER.pack(zlib.crc32(str(sender).encode()))
            for message in delivery.messages:
                (number,) = NUMBER.unpack_from(message)
                self.wrong += last is not None and number != last + 1
                last = number
                self._write(tag, message)
            self.delivered += len(delivery.messages)
            if last is not None:
                self._last[sender] = last

    def _write(self, *parts: Buffer) -> None:
        for part in parts:
            self.pages += part
            self.sum = zlib.crc32(part, self.sum)

    def view_accepted(self, view: View) -> None:
        before = () if self.view is None else self.view.members
        self._last = {member: last for member, last in self._last.items() if member in view and member in before}
        self.view = view
        self._tell_view(view, self._whose_to_take(view))

    def _whose_to_take(self, view: View) -> Address | None:
        if not isinstance(view, MergeView):
            return None
        largest = max(view.subgroups, key=lambda part: (len(part.members), part.id))
        return None if self.local in largest.members else largest.members[0]

    def get_state(self) -> Iterable[Buffer]:
        pages = bytes(self.pages)  # as they are now
        return (memoryview(pages)[at : at + _CHUNK] for at in range(0, len(pages), _CHUNK))

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self.pages, self.sum = bytearray(), 0
        async for chunk in chunks:
            self._write(chunk)
