"""A message of a queue as it is looked at: read in bulk, browsed, sent to another site. Nothing changes by that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.message import Message


class Row(NamedTuple):
    position: int
    message: Message
    redelivered: bool
    state: str
    """`ready`, or `acquired`: somebody has it; `gone`: it has left while it was brought from disk."""

    @property
    def held(self) -> bool:
        return self.state == "acquired"


def rows_of(found: Iterable[tuple[Entry, Message]]) -> list[Row]:
    return [Row(entry.position, message, entry.redelivered, entry.state.value) for entry, message in found]
