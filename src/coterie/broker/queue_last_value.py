"""A last-value queue: of the messages with one key, only the newest is of interest.

`x-last-value-key` names the header that is the key. A message replaces the one with the same key, whoever holds that,
and stands at the tail with a position of its own. A holder may go on with a value that was replaced; what he accepts,
or gives back, is gone already, so that an old value never comes after a new one. What is leased stays with its lease,
and is dropped when that gives it back. Messages without the header, or with a table or list for it, are not replaced
and replace nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.broker.entry import Entry
from coterie.broker.leases import Lease
from coterie.broker.message import Message
from coterie.broker.observer import Reason
from coterie.broker.queue import Queue
from coterie.errors import ProtocolError


class LastValueQueue(Queue):
    kind = "last-value"

    def _prepare(self) -> None:
        self._newest: dict[str, Entry] = {}

    def _remake(self) -> None:
        self._newest = {}
        for entry in self.entries.values():
            if isinstance(entry.mark, str):
                if isinstance(entry.holder, Lease) and entry.position in entry.holder.replaced:
                    continue
                self._newest[entry.mark] = entry

    def _mark(self, entries: Sequence[Entry]) -> None:
        header = self.spec.last_value_key
        for entry in entries:
            if entry.message is not None:
                entry.mark = _key(entry.message, header)

    def _fit(self, arrived: Sequence[Entry], now: float | None) -> None:
        ready: list[Entry] = []
        held: list[Entry] = []
        for entry in arrived:
            if isinstance(entry.mark, str):
                if isinstance(entry.holder, Lease) and entry.position in entry.holder.replaced:
                    continue  # restored: a newer one has come, and may have gone
                older = self._newest.get(entry.mark)
                if older is None:
                    pass
                elif isinstance(older.holder, Lease):
                    self.keep()
                    older.holder.replaced.add(older.position)
                    self.leases.save(older.holder)
                else:
                    (ready if older.holder is None else held).append(older)
                self._newest[entry.mark] = entry
        if ready:
            self.leave(ready, Reason.REPLACED, ghosts=True)
        if held:
            self.dequeue(held, Reason.REPLACED)
        super()._fit(arrived, now)

    def give_back(self, entries: Sequence[Entry], redelivered: bool) -> None:
        replaced = [e for e in entries if isinstance(e.mark, str) and self._newest.get(e.mark) is not e]
        if replaced:
            self.dequeue(replaced, Reason.REPLACED)
        super().give_back(entries, redelivered)

    def _forget(self, entries: list[Entry]) -> None:
        for entry in entries:
            if isinstance(entry.mark, str) and self._newest.get(entry.mark) is entry:
                del self._newest[entry.mark]


def _key(message: Message, header: str) -> str | None:
    """The key as a text that tells 1 from "1"."""
    if not message.has_headers:
        return None
    try:
        value = (message.properties().headers or {}).get(header)
    except ProtocolError:  # a store, or a peer, has let it in
        return None
    if value is None or isinstance(value, list | tuple | dict):
        return None
    return f"{type(value).__name__}:{value}"
