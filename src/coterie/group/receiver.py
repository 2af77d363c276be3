"""What a group tells an application, and asks of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import NamedTuple

from coterie.errors import CoterieError
from coterie.group.members import Address, View, ViewId
from coterie.runtime.base import Buffer


class StateInterrupted(CoterieError):
    """Out of the chunks of a state: the rest of it will not come. What was set of it is worth nothing."""


class Delivery(NamedTuple):
    """The messages of one bundle, in the order in which they were sent."""

    sender: Address
    messages: list[memoryview]
    multicast: bool
    position: int = 0
    """Place of the bundle (its last part) in the total order of the view, from 1; 0 without total order."""


class Receiver:
    """What a group tells the application. Override what you need."""

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        """Messages arrived. A returned awaitable holds back further batches, in the end the senders, until done."""

    def view_accepted(self, view: View) -> None:
        """A new view is in force."""

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        """Total order, if it is set to tell: so many members hold the order of `view` up to a delivered position.

        A majority of them; or every member, if `everyone`.
        """

    def order_ends(self) -> None:
        """Total order: what comes until the next view was ordered at its end, by those who go on together.

        Whoever goes on elsewhere has the rest of the view in another order, or not at all.
        """

    def block(self) -> Awaitable[None] | None:
        """A flush begins: send what must be sent before it, then nothing more. Messages go on arriving meanwhile.

        A flush waits for a returned awaitable, though not for ever: see `block_timeout` of FLUSH2.
        """

    def unblock(self) -> None:
        """The flush is over. What was sent since `block` waited, and goes out now."""

    def closed(self, why: str) -> None:
        """The channel has closed by itself: another, newer process lives under this member's name.

        Nothing comes any more, and nothing can be sent. It is not called after `Channel.close`.
        """

    def get_state(self) -> Iterable[Buffer]:
        """The state, in chunks of any size, as it is now: what arrives later must not change it.

        A generator may make its chunks as they are asked for. A chunk may be reused once the next one is asked for.
        """
        return ()

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        """Replace the state by another member's. Whatever that member took afterwards arrives when this is done.

        `StateInterrupted` comes out of `chunks` when the member that gives the state is gone: what was set so far is
        worth nothing, and `set_state` is called again with another member's state.
        """
        async for _ in chunks:
            pass
