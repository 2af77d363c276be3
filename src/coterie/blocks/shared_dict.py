"""SharedDict: a dictionary of which every member has a copy.

Promises: updates are applied in one order at every member, and `await` returns when they are applied here; reads are
local, and may be behind another member's by what is on its way. A joiner has the whole dictionary when it has
connected. After a partition the dictionary of the largest part counts: what was set in the others is lost, unless the
hub was told `majority_of`, and then it was refused there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coterie.blocks.hub import Hub
from coterie.blocks.machine import Machine, Place
from coterie.blocks.replicated import Replicated
from coterie.group.members import Address
from coterie.group.wire import Codec

log = logging.getLogger("coterie.blocks")

YES, NO = b"\1", b"\0"


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes | None
    """None: delete."""


@dataclass(frozen=True, slots=True)
class PutIf:
    key: str
    expected: bytes | None
    """None: if there is no such key."""
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Entries:
    entries: dict[str, bytes]


CODEC = Codec({1: Put, 2: PutIf, 3: Entries})

Changed = Callable[[str, bytes | None], None]
"""Told the key and its new value; None if it was deleted."""


class SharedDict(Machine):
    """A replicated dictionary from text to bytes."""

    def __init__(self, hub: Hub, name: str, changed: Changed | None = None) -> None:
        self._name = name
        self._entries: dict[str, bytes] = {}
        self._changed = changed
        self._replicated = Replicated.of(hub)
        self._replicated.add(name, self)

    # Reading, from the local copy.

    def get(self, key: str) -> bytes | None:
        return self._entries.get(key)

    def snapshot(self) -> dict[str, bytes]:
        """All of it, as it is here and now."""
        return dict(self._entries)

    def __getitem__(self, key: str) -> bytes:
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    # Writing.

    async def set(self, key: str, value: bytes) -> None:
        await self._update(Put(key, value))

    async def delete(self, key: str) -> bool:
        """False if there was no such key."""
        return await self._update(Put(key, None))

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes | None) -> bool:
        """Set, or with None delete, if the value is what is expected (None: that there is none). False if it is not."""
        return await self._update(PutIf(key, expected, value))

    async def _update(self, message: object) -> bool:
        return await self._replicated.update(self._name, CODEC.encode(message)) == YES

    # The replicated part.

    def apply(self, sender: Address, body: bytes, at: Place) -> bytes:
        match CODEC.decode(body):
            case Put(key, value):
                return self._put(key, value)
            case PutIf(key, expected, value) if self._entries.get(key) == expected:
                self._put(key, value)
                return YES
        return NO

    def _put(self, key: str, value: bytes | None) -> bytes:
        before = self._entries.get(key)
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = value
        if value != before:
            self._tell(key, value)
        return NO if value is None and before is None else YES

    def save(self) -> bytes:
        return CODEC.encode(Entries(self._entries))

    def load(self, state: bytes) -> None:
        before, self._entries = self._entries, CODEC.decode(state).entries
        for key in {**before, **self._entries}:
            if before.get(key) != self._entries.get(key):
                self._tell(key, self._entries.get(key))

    def _tell(self, key: str, value: bytes | None) -> None:
        if self._changed is not None:
            try:
                self._changed(key, value)
            except Exception:  # it is the application's, and must not keep us from applying the rest
                log.exception("whoever watches the shared dict '%s' failed on '%s'", self._name, key)
