"""The events in memory, bounded in bytes, least recently used first out.

An event counts whole: bytes, columns, index, and the rest of a buffer of which it is a part. Three kinds do not go when
there are too many bytes, though they count: *volatile* ones, which are nowhere else; those that somebody *holds*,
because a slow socket still has slices of them, so that nothing would be won; and, until the last hold is released,
those that were forgotten while held.
"""

from __future__ import annotations

from coterie.broker.columns.event import PublishEvent


class _Slot:
    __slots__ = ("event", "forgotten", "holds", "size", "volatile")

    def __init__(self, event: PublishEvent, volatile: bool) -> None:
        self.event = event
        self.size = event.memory
        self.volatile = volatile
        self.holds = 0
        self.forgotten = False


class Hold:
    """Keeps an event counted; `release` may be called more than once."""

    __slots__ = ("_cache", "_ref", "_slot")

    def __init__(self, cache: EventCache, ref: int, slot: _Slot) -> None:
        self._cache: EventCache | None = cache
        self._ref = ref
        self._slot = slot

    def release(self) -> None:
        cache, self._cache = self._cache, None
        if cache is not None:
            cache._released(self._ref, self._slot)


class EventCache:
    """By reference."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._loose: dict[int, _Slot] = {}
        """What may go; the one that was used last is the last."""
        self._fixed: dict[int, _Slot] = {}
        """What may not."""
        self.bytes = 0
        """Of all."""
        self.fixed_bytes = 0
        """Of those that may not go: volatile, held, and forgotten but still held."""

    def __len__(self) -> int:
        return len(self._loose) + len(self._fixed)

    def __contains__(self, ref: int) -> bool:
        return ref in self._loose or ref in self._fixed

    def put(self, ref: int, event: PublishEvent, volatile: bool = False) -> PublishEvent:
        """Gives what is to be used from now on: another object, if the event was a small part of a large buffer, or if
        there was one of that reference before. That one stays, as holders may have it; it becomes volatile if either
        is."""
        slot = self._fixed.get(ref) or self._loose.get(ref)
        if slot is None:
            slot = _Slot(event.alone(), volatile)
            self.bytes += slot.size
            if volatile:
                self._fixed[ref] = slot
                self.fixed_bytes += slot.size
            else:
                self._loose[ref] = slot
        elif volatile and not slot.volatile:
            slot.volatile = True
            self._fix(ref, slot)
        self._shrink()
        return slot.event

    def get(self, ref: int) -> PublishEvent | None:
        slot = self._loose.pop(ref, None)
        if slot is not None:
            self._loose[ref] = slot
        else:
            slot = self._fixed.get(ref)
        return None if slot is None else slot.event

    def hold(self, ref: int, event: PublishEvent) -> Hold:
        """Somebody has slices of it, for as long as the hold is not released."""
        slot = self._fixed.get(ref) or self._loose.get(ref)
        if slot is None or slot.event is not event:  # it has left already: it counts all the same
            slot = _Slot(event, False)
            slot.forgotten = True
            self.bytes += slot.size
            self.fixed_bytes += slot.size
        else:
            self._fix(ref, slot)
        slot.holds += 1
        self._shrink()
        return Hold(self, ref, slot)

    def forget(self, ref: int) -> None:
        """Nothing of it is needed any more."""
        slot = self._loose.pop(ref, None)
        if slot is not None:
            self.bytes -= slot.size
            return
        slot = self._fixed.pop(ref, None)
        if slot is None:
            return
        slot.forgotten = True
        if not slot.holds:
            self.bytes -= slot.size
            self.fixed_bytes -= slot.size

    def clear(self) -> None:
        for ref in [*self._loose, *self._fixed]:
            self.forget(ref)

    def _fix(self, ref: int, slot: _Slot) -> None:
        if self._loose.pop(ref, None) is not None:
            self._fixed[ref] = slot
            self.fixed_bytes += slot.size

    def _released(self, ref: int, slot: _Slot) -> None:
        slot.holds -= 1
        if slot.holds or (slot.volatile and not slot.forgotten):
            return
        self.fixed_bytes -= slot.size
        if slot.forgotten:
            self.bytes -= slot.size
        else:
            del self._fixed[ref]
            self._loose[ref] = slot
            self._shrink()

    def _shrink(self) -> None:
        loose = self._loose
        while self.bytes > self.limit and loose:
            ref = next(iter(loose))
            self.bytes -= loose.pop(ref).size
