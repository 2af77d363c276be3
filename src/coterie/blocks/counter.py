"""SharedCounter: a whole number of which every member has a copy.

Promises: additions are applied in one order at every member, so that no two calls of `add(1)` get the same number;
reading is local. Joins, merges and `majority_of` are as for SharedDict.
"""

from __future__ import annotations

from coterie.blocks.hub import Hub
from coterie.blocks.machine import Machine, Place
from coterie.blocks.replicated import Replicated
from coterie.group.members import Address


class SharedCounter(Machine):
    """A replicated whole number."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._name = name
        self._value = 0
        self._replicated = Replicated.of(hub)
        self._replicated.add(name, self)

    @property
    def value(self) -> int:
        """As it is here and now."""
        return self._value

    async def add(self, number: int = 1) -> int:
        """Add everywhere; gives what the value was right after this addition."""
        return _number(await self._replicated.update(self._name, _bytes(number)))

    # The replicated part.

    def apply(self, sender: Address, body: bytes, at: Place) -> bytes:
        self._value += _number(body)
        return self.save()

    def save(self) -> bytes:
        return _bytes(self._value)

    def load(self, state: bytes) -> None:
        self._value = _number(state)


def _bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
