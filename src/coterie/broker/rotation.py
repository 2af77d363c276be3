"""The consumers of a queue, and whose turn it is.

Among consumers with room, those of the highest priority take turns. One without room leaves the rotation until it is
woken. With a single active consumer only that one is in it: the one that came first among those of the highest
priority at the time when its predecessor went.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer


class Rotation:
    """Who may be given messages."""

    def __init__(self, single: bool) -> None:
        self.single = single
        """The queue has a single active consumer."""
        self.consumers: list[Consumer] = []
        """All of them, in the order in which they came."""
        self.hungry = 0
        self._turns: dict[int, deque[Consumer]] = {}
        """Those with room, by priority, the highest first."""

    @property
    def active(self) -> Consumer | None:
        """The single active consumer, if the queue has such."""
        return next((consumer for consumer in self.consumers if consumer.active), None) if self.single else None

    def check(self, consumer: Consumer, what: str) -> None:
        """Whether it may join. Raises ProtocolError 403."""
        others = self.consumers
        taken = any(other.exclusive for other in others)
        if taken or (consumer.exclusive and (others or self.single)):
            raise ProtocolError(ACCESS_REFUSED, f"{what} in exclusive use")

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        if self.single:
            if self.active is None:
                self._activate()
        else:
            consumer.active = True
            self.wake(consumer)

    def turns(self) -> list[Consumer]:
        """Those with room, in the order of their turns."""
        return [consumer for turns in self._turns.values() for consumer in turns]

    def restore(self, consumers: Sequence[Consumer], turns: Sequence[Consumer]) -> None:
        """As they are elsewhere."""
        self.consumers = list(consumers)
        for consumer in turns:
            self.wake(consumer)

    def image(self) -> dict[int, deque[Consumer]]:
        """Whose turn it is, as it is now."""
        return {priority: turns.copy() for priority, turns in self._turns.items()}

    def restore_all(
        self, consumers: list[Consumer], active: Sequence[Consumer], turns: dict[int, deque[Consumer]]
    ) -> None:
        """As it was, whoever has come or gone since."""
        for consumer in self.consumers:
            consumer.active = consumer.hungry = False
        for consumer in consumers:
            consumer.active = consumer.hungry = False
        for consumer in active:
            consumer.active = True
        self.consumers, self._turns = consumers, turns
        self.hungry = 0
        for waiting in turns.values():
            for consumer in waiting:
                consumer.hungry = True
                self.hungry += 1

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if consumer.hungry:
            self.rest(consumer)
        was_active, consumer.active = consumer.active, False
        if self.single and was_active and self.consumers:
            self._activate()

    def clear(self) -> list[Consumer]:
        gone, self.consumers = self.consumers, []
        self._turns.clear()
        self.hungry = 0
        for consumer in gone:
            consumer.active = consumer.hungry = False
        return gone

    def wake(self, consumer: Consumer) -> bool:
        """It may have room again; whether that is news."""
        if consumer.hungry or not consumer.active:
            return False
        consumer.hungry = True
        self.hungry += 1
        turns = self._turns.get(consumer.priority)
        if turns is None:
            turns = self._turns[consumer.priority] = deque()
            self._turns = dict(sorted(self._turns.items(), reverse=True))
        turns.append(consumer)
        return True

    def rest(self, consumer: Consumer) -> None:
        """It has no room."""
        turns = self._turns[consumer.priority]
        if turns[0] is consumer:
            turns.popleft()
        else:
            turns.remove(consumer)
        if not turns:
            del self._turns[consumer.priority]
        consumer.hungry = False
        self.hungry -= 1

    def next(self) -> Consumer | None:
        """Whose turn it is."""
        for turns in self._turns.values():
            return turns[0]
        return None

    def turn(self, consumer: Consumer) -> None:
        """It has had its turn."""
        self._turns[consumer.priority].rotate(-1)

    def _activate(self) -> None:
        best = max(consumer.priority for consumer in self.consumers)
        chosen = next(consumer for consumer in self.consumers if consumer.priority == best)
        chosen.active = True
        self.wake(chosen)
