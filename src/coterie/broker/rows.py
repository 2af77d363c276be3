"""A message of a queue as it is looked at: read in bulk, browsed, sent to another site. Nothing changes by that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
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
