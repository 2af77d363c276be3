"""Discovery: where other processes of the group may be.

Each kind finds endpoints in its own way and tells the transport (PeerFound): at once when one is new, and again every
`interval` while nobody is connected there. Finding the wrong place, or oneself, does no harm: the transport finds out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from coterie.group.events import PeerFound
from coterie.group.protocol import Protocol
from coterie.group.protocols.transport import Transport
from coterie.group.stack import Stack
from coterie.runtime.base import Endpoint, Timer

FOUND_MAX = 1024
"""Endpoints that are kept in mind: what a network answers must not grow without bound."""


class Discovery(Protocol):
    """Base of all kinds: a timer, and what was found."""

    role = "discovery"
    needs_below = ("transport",)

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.stats = {"found": 0}
        self._found: dict[Endpoint, None] = {}
        self._timer: Timer | None = None

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self.transport = stack.find(Transport)  # type: ignore[type-abstract]

    def start(self) -> None:
        self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @abstractmethod
    def look(self) -> None:
        """Look around, now and every interval: `find`, at once or later, what is seen."""

    def find(self, endpoints: Iterable[Endpoint]) -> None:
        """These exist: those that are new are told at once."""
        if self._timer is None:  # stopped while it was looking
            return
        for endpoint in endpoints:
            if endpoint not in self._found:
                if len(self._found) >= FOUND_MAX:
                    self._found.pop(next(iter(self._found)))
                self._found[endpoint] = None
                self.count("found")
                self._tell(endpoint)

    def keep(self, endpoints: Iterable[Endpoint]) -> None:
        """Only these still exist: others are not told any more."""
        existing = dict.fromkeys(endpoints)
        self._found = {endpoint: None for endpoint in self._found if endpoint in existing}

    def found(self) -> list[Endpoint]:
        """What is known now, sorted."""
        return sorted(self._found)

    def _again(self) -> None:
        self._timer = self.runtime.call_later(self.settings.interval, self._again)
        connected = {self.transport.endpoint_of(peer) for peer in self.transport.peers()}
        for endpoint in list(self._found):
            if endpoint not in connected:
                self._tell(endpoint)
        self.look()

    def _tell(self, endpoint: Endpoint) -> None:
        self.stack.below(self).down_event(PeerFound(endpoint))
