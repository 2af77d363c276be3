"""Void events: those that could not be carried out, at any broker.

Whatever a client, a peer or an old store has brought into an event: if carrying it out raises, it raises everywhere,
for it follows from the event and from what all brokers have alike. Then the event has its place in the log and nothing
else: what it did so far is taken back (`broker.journal`), its sender is told, and everybody goes on.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING
from zlib import crc32

from coterie.amqp.wire.codes import INTERNAL_ERROR
from coterie.errors import ProtocolError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.cluster.membership import Progress
    from coterie.cluster.wire import Kind
    from coterie.group.members import Address
    from coterie.trace import Json

log = Log(__name__)


class Void(ProtocolError):
    """The answer to an event that was void."""


class Voids:
    """Of the log, as one broker has followed it."""

    def __init__(self) -> None:
        self.count = 0
        """Since the broker came into step, or what the one said that has updated it."""
        self.sum = 0
        """Of their places: the same at every broker at the same place."""

    def add(self, progress: Progress, sender: Address, kind: Kind) -> Void:
        """The event at that place is void, for what is being raised. Gives what its sender is told."""
        place = f"{progress.epoch}.{progress.index}"
        self.count += 1
        self.sum = crc32(place.encode(), self.sum)
        log.error(
            "an event is void: nothing of it has happened, at any broker", event=place, kind=kind.name, sender=sender,
            error=traceback.format_exc(),
        )  # fmt: skip
        cause = sys.exception()
        if isinstance(cause, ProtocolError):
            return Void(cause.reply_code, f"{cause}: event {place} is void")
        return Void(INTERNAL_ERROR, f"this cannot be carried out: event {place} is void, and the brokers' logs say why")

    def to_json(self) -> list[Json]:
        return [self.count, self.sum]

    def install(self, said: object) -> None:
        """As the one has it that updates this broker; an older version says nothing."""
        match said:
            case [int(count), int(total)]:
                self.count, self.sum = count, total
            case _:
                self.count = self.sum = 0
