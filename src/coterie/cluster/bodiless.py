"""A bodiless message: everything but its body, which is on its way from another broker.

A broker that is being updated knows of every message where it is, how large, and what its header says. That is all that
events need: it may be given to a consumer of another broker, accepted, evicted, moved, or die and become a letter that
is bodiless too. Only this broker's own clients and its disk must wait for the body. Until it comes, a bodiless message
has a blank body of the right size, and calls itself transient, so that the store leaves it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from coterie.broker.delivery import ranges_of
from coterie.broker.message import Message
from coterie.broker.observer import Arrived, QueueObserver, Reason
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.runtime.base import Runtime

log = Log(__name__)

Place = tuple["Queue", int]
BLANKS = 64
"""Sizes whose blank bodies are kept: most messages have one of few sizes."""


@lru_cache(BLANKS)
def blank(size: int) -> bytes:
    return bytes(size)


class Bodiless(Message):
    """`fill` makes it whole."""

    __slots__ = ("asked_for", "is_bodiless", "known_places", "letters", "needed_by", "will_persist")

    def __init__(
        self, exchange: str, key: str, route: bytes, header: bytes, size: int, persistent: bool, priority: int,
        ttl: int | None,
    ) -> None:  # fmt: skip
        super().__init__(exchange, key, route, header, blank(size), False, priority, ttl)
        self.will_persist = persistent
        self.is_bodiless = True
        self.known_places: tuple[Place, ...] = ()
        """Where it is, or was."""
        self.letters: tuple[Bodiless, ...] = ()
        """What became of it where it died."""
        self.asked_for = False
        self.needed_by: tuple[int, ...] = ()
        """Queues that are not ready without it."""

    def letter(self, letter: Message) -> Message:
        """A letter with this body."""
        if not self.is_bodiless:
            return letter
        same = Bodiless(
            letter.exchange, letter.key, letter.route, letter.header, len(letter.body), letter.persistent,
            letter.priority, letter.ttl,
        )  # fmt: skip
        self.letters += (same,)
        return same

    def comes_to(self, queue: Queue, position: int) -> None:
        self.known_places += ((queue, position),)

    def places(self) -> Iterator[Place]:
        """Where its body is still needed. A position may have been given to another message since, if a step was taken
        back."""
        for queue, position in self.known_places:
            if queue.message(position) is self:
                yield queue, position
        for letter in self.letters:
            yield from letter.places()

    def fill(self, body: bytes) -> None:
        self.body = body
        self.persistent = self.will_persist
        self.is_bodiless = False
        for letter in self.letters:
            letter.fill(body)

    def forget(self) -> None:
        """Nobody will ask any more where it is."""
        self.known_places = ()
        self.letters = ()


def is_bodiless(message: Message | None) -> bool:
    return isinstance(message, Bodiless) and message.is_bodiless


class Watch(QueueObserver):
    """Notes where bodiless messages come to."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        lost: list[int] = []
        for position, message in enumerate(arrived.messages, arrived.first):
            if isinstance(message, Bodiless) and message.is_bodiless:
                if queue.home is None:
                    message.comes_to(queue, position)
                else:
                    lost.append(position)
        if lost:
            self._runtime.call_soon(self._lose, queue, lost)

    @staticmethod
    def _lose(queue: Queue, positions: list[int]) -> None:
        """They have left the queues that others have too, and so nobody has their bodies any more."""
        lost = queue.drop_ready(ranges_of(positions), Reason.LOST)
        log.warning("messages came to a queue of this broker alone before their bodies", queue=queue.name, lost=lost)
