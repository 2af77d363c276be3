"""All links of a broker, and the identity by which other brokers know it.

The identity is kept with users and vhosts, so that it is one for a whole cluster, and stays when a broker that stood
alone becomes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie import patterns
from coterie.errors import UserError
from coterie.site_replication.address import parse_destinations
from coterie.site_replication.link import Link

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.site_replication.settings import ReplicationSettings

RECORD = "replication"
IDENTITY = "identity"


class Links:
    """None, if nothing is configured."""

    def __init__(self, broker: Broker, settings: ReplicationSettings) -> None:
        """Raises UserError for settings that are no good."""
        self._broker = broker
        self._settings = settings
        try:
            patterns.check(settings.queues)
        except UserError as error:
            raise UserError(f"replication.queues: {error}") from None
        destinations = parse_destinations(settings.to)
        settings.check_tls(any(each.secure for each in destinations))
        self.links = [Link(broker, each, settings) for each in destinations]

    def start(self) -> None:
        """Once the broker has recovered."""
        for link in self.links:
            link.start(self._identify)

    def stop(self) -> None:
        for link in self.links:
            link.stop()

    def _identify(self, done: Callable[[str], None]) -> None:
        """By the one that keeps the time, so that there is one only."""

        def found() -> str:
            record = self._broker.records.get((RECORD, IDENTITY), {})
            return f"{record['id']}/{self._settings.vhost}" if "id" in record else ""

        if found():
            done(found())
        else:
            record: dict[str, object] = {"id": self._broker.runtime.entropy(16).hex()}
            self._broker.keep_record(RECORD, IDENTITY, record, None, lambda kept: done(found()))
