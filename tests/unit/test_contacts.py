"""When endpoints are dialled again."""

from __future__ import annotations

from coterie.group.members import Address
from coterie.group.protocols.contacts import QUICK_LOOKS, Contact, Contacts
from coterie.runtime.base import Endpoint
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node

PEER = Address("b", 1)
THERE = Endpoint("10.0.0.2", 7800)


class Dialler:
    """A transport that only notes when it was told to dial; every attempt fails at once."""

    def __init__(self) -> None:
        self.world = World(1)
        self.times: list[float] = []
        self.book = Contacts(
            Node(self.world, Fabric(self.world), "a").boot(),
            self.dial,
            lambda _: False,
            reconnect_min=0.1,
            reconnect_max=5.0,
            forget_after=60.0,
            contacts_max=10,
        )

    def dial(self, contact: Contact) -> None:
        self.times.append(self.world.time)
        contact.dialling = False
        self.book.failed(contact)

    def contact(self) -> Contact:
        contact = self.book.named(THERE, found=True)
        assert contact is not None
        contact.address = PEER
        return contact


def test_a_lost_peer_is_looked_at_quickly_a_few_times_and_then_ever_more_rarely() -> None:
    dialler = Dialler()
    dialler.contact()
    dialler.book.lost(PEER, stayed=True)
    dialler.world.run(10)
    assert len([time for time in dialler.times if time < 0.05]) == QUICK_LOOKS
    pauses = [b - a for a, b in zip(dialler.times[QUICK_LOOKS - 1 :], dialler.times[QUICK_LOOKS:], strict=False)]
    assert min(pauses) > 0.05
    assert max(pauses) <= 5.0


def test_a_peer_that_hangs_up_soon_is_not_looked_at_quickly() -> None:
    dialler = Dialler()
    dialler.contact()
    dialler.book.lost(PEER, stayed=False)
    dialler.world.run(10)
    assert min(dialler.times) >= 0.05
    assert len(dialler.times) < 12


def test_whoever_is_known_to_live_is_not_looked_at_quickly() -> None:
    dialler = Dialler()
    dialler.contact()
    dialler.book.lost(PEER, stayed=True)
    dialler.book.settled(PEER)
    dialler.world.run(0.05)
    assert len(dialler.times) <= 1


def test_what_failed_before_says_nothing_about_another_process_at_the_same_endpoint() -> None:
    dialler = Dialler()
    contact = dialler.contact()
    dialler.book.now(contact)
    dialler.world.run(60)
    assert contact.failures > 5
    dialler.book.answered(contact, PEER)
    assert contact.failures > 5  # the same one: whoever accepts and hangs up is not dialled in a loop
    dialler.book.answered(contact, PEER._replace(incarnation=2))
    assert contact.failures == 0
    start = dialler.world.time
    dialler.book.lost(contact.address or PEER, stayed=False)
    dialler.world.run(start + 0.2)
    assert [time for time in dialler.times if start + 0.05 <= time <= start + 0.1]
