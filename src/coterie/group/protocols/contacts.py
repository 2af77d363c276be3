"""Endpoints that a transport knows, and when to dial them again.

Every endpoint that discovery found or a peer told us is dialled until it answers, with exponential back-off and jitter,
for as long as the transport runs. The book is bounded: what is learned from peers is forgotten when it has not answered
for `forget_after`, and when the book is full the endpoint that was named longest ago and is not connected goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.group.members import Address
from coterie.runtime.base import Endpoint, Runtime, Timer

QUICK_LOOKS = 4
QUICK_PAUSE = 0.05
"""Of the shortest ordinary pause."""


@dataclass(slots=True, eq=False)
class Contact:
    """One endpoint."""

    endpoint: Endpoint
    found: bool
    """Discovery named it (rather than a peer): it is never given up."""
    heard_of: float
    """When it was last named or last answered."""
    address: Address | None = None
    """Who answered there last."""
    newer: bool = False
    """A newer process of that name speaks from there, and has not answered us yet."""
    lost: bool = False
    """The connection to `address` was lost, and whether it is dead is not known yet."""
    failures: int = 0
    """Attempts since it last answered and stayed, or another process answered there."""
    looks: int = 0
    """Quick attempts that are left, to learn whether a lost peer is dead."""
    dialling: bool = False
    timer: Timer | None = None


class Contacts:
    """The book of endpoints. `dial` starts an attempt; whoever dials reports `failed` or `answered`."""

    def __init__(
        self,
        runtime: Runtime,
        dial: Callable[[Contact], None],
        connected: Callable[[Address], bool],
        *,
        reconnect_min: float,
        reconnect_max: float,
        forget_after: float,
        contacts_max: int,
    ) -> None:
        self._runtime, self._dial, self._connected = runtime, dial, connected
        self._reconnect_min, self._reconnect_max = reconnect_min, reconnect_max
        self._forget_after, self._contacts_max = forget_after, contacts_max
        self._contacts: dict[Endpoint, Contact] = {}
        self._own: dict[Endpoint, None] = {}

    def __len__(self) -> int:
        return len(self._contacts)

    def named(self, endpoint: Endpoint, *, found: bool) -> Contact | None:
        """Somebody named an endpoint: keep it in mind. None if it is this process itself."""
        if endpoint in self._own:
            return None
        contact = self._contacts.pop(endpoint, None)
        if contact is None:
            self._make_room()
            contact = Contact(endpoint, found, self._runtime.now())
        contact.found = contact.found or found
        contact.heard_of = self._runtime.now()
        self._contacts[endpoint] = contact  # the latest stand last
        return contact

    def is_self(self, endpoint: Endpoint) -> None:
        """This endpoint is our own: never dial it (again)."""
        if len(self._own) >= self._contacts_max:
            self._own.pop(next(iter(self._own)))
        self._own[endpoint] = None
        self.forget(endpoint)

    def answered(self, contact: Contact, address: Address) -> None:
        if contact.address != address:  # another process: what failed before says nothing about it
            contact.failures = 0
        contact.address, contact.heard_of, contact.newer = address, self._runtime.now(), False
        self._cancel(contact)
        self.settled(address)

    def settled(self, address: Address) -> None:
        """Whether `address` lives is known now."""
        for contact in self.of(address):
            contact.lost = False

    def heard(self, contact: Contact, sender: Address) -> None:
        """Somebody speaks from there: is it whom we know there, or its successor?"""
        old = contact.address
        contact.newer = old is not None and old.name == sender.name and old.incarnation < sender.incarnation

    def failed(self, contact: Contact) -> None:
        """An attempt came to nothing."""
        contact.failures += 1
        self.later(contact)

    def lost(self, address: Address, *, stayed: bool) -> None:
        """The connection to `address` is gone: whoever was content because of it dials again.

        One that had not `stayed` for long counts as a failure: whoever accepts and hangs up is not dialled in a loop.
        """
        for contact in self.of(address):
            contact.lost = True
            contact.failures = 0 if stayed else contact.failures + 1
            contact.looks = QUICK_LOOKS if stayed else 0
            self.later(contact)

    def replaced(self, old: Address, endpoint: Endpoint) -> None:
        """A newer incarnation of `old` lives at `endpoint`: what only the old one told us is of no use any more."""
        for contact in self.of(old):
            contact.lost = False
            if contact.endpoint != endpoint:
                if contact.found:
                    self.later(contact)
                else:
                    self.forget(contact.endpoint)

    def now(self, contact: Contact) -> None:
        """Dial at once, unless there is no need to."""
        if self._wanted(contact):
            self._cancel(contact)
            self._start(contact)

    def later(self, contact: Contact) -> None:
        """Dial after a pause that grows with the number of failures."""
        if not self._wanted(contact) or contact.timer is not None:
            return
        if not contact.found and self._runtime.now() - contact.heard_of > self._forget_after:
            self.forget(contact.endpoint)
            return
        pause: float = min(self._reconnect_max, self._reconnect_min * 2.0 ** min(contact.failures - 1, 30))
        if contact.lost and contact.looks:
            # A process that is just being killed may still accept, and reset: only the next attempt is refused.
            contact.looks -= 1
            pause = self._reconnect_min * QUICK_PAUSE
        pause *= 0.5 + 0.5 * self._runtime.rng.random()  # so that two who lost each other do not collide for ever
        contact.timer = self._runtime.call_later(pause, self._due, contact)

    def of(self, address: Address) -> list[Contact]:
        """The endpoints at which `address` was met last."""
        return [contact for contact in self._contacts.values() if contact.address == address]

    def former(self, address: Address) -> dict[Address, None]:
        """Lost, older incarnations of the same name."""
        return {
            old: None
            for old in (contact.address for contact in self._contacts.values() if contact.lost)
            if old is not None and old.name == address.name and old.incarnation < address.incarnation
        }

    def forget(self, endpoint: Endpoint) -> None:
        contact = self._contacts.pop(endpoint, None)
        if contact is not None:
            self._cancel(contact)

    def close(self) -> None:
        for endpoint in list(self._contacts):
            self.forget(endpoint)

    def _wanted(self, contact: Contact) -> bool:
        if contact.dialling or self._contacts.get(contact.endpoint) is not contact:
            return False
        return contact.address is None or contact.newer or not self._connected(contact.address)

    def _due(self, contact: Contact) -> None:
        contact.timer = None
        if self._wanted(contact):
            self._start(contact)

    def _start(self, contact: Contact) -> None:
        contact.dialling = True
        self._dial(contact)

    def _cancel(self, contact: Contact) -> None:
        if contact.timer is not None:
            contact.timer.cancel()
            contact.timer = None

    def _make_room(self) -> None:
        if len(self._contacts) < self._contacts_max:
            return
        for contact in self._contacts.values():
            if contact.address is None or not self._connected(contact.address):
                self.forget(contact.endpoint)
                return
