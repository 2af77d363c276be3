"""The origin's half: bodies that its clients publish, until their events are ordered.

    state      means                                                         leaves it when
    WAITING    the origin has offered all it may: nothing was sent           there is room -> OFFERED
    OFFERED    it was sent to the voters; too few have it                    enough have it -> HELD
    HELD       enough have it; earlier publishes of its channel come first   its turn -> PROPOSED; too few -> OFFERED
    PROPOSED   its event is on its way into the order                        ordered: it is over

Promises: what one channel publishes is proposed in its order, and an event with a large body only while enough brokers
have that body. A channel without large bodies under way never waits. Bytes that are offered are bounded, but for one
body that is larger than the bound; who publishes faster is told to stop (`blocked`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coterie.broker.large_bodies.actions import Action, Offer, Origin, Propose
from coterie.settings import setting

Channel = Hashable


class State(Enum):
    WAITING = "waiting"
    OFFERED = "offered"
    HELD = "held"
    PROPOSED = "proposed"


class Input(Enum):
    ROOM = "room"
    ENOUGH = "enough"
    TOO_FEW = "too few"
    TURN = "turn"


TABLE: Final[Mapping[tuple[State, Input], State]] = {
    (State.WAITING, Input.ROOM): State.OFFERED,
    (State.OFFERED, Input.ENOUGH): State.HELD,
    (State.HELD, Input.TOO_FEW): State.OFFERED,
    (State.HELD, Input.TURN): State.PROPOSED,
}


@dataclass(frozen=True, slots=True)
class OffersSettings:
    """How much of large bodies may be under way."""

    offered_bytes: int = setting(256 << 20, "large bodies offered to others at one time", unit="bytes", minimum=1)
    channel_bytes: int = setting(
        16 << 20, "large bodies, and publishes behind them, above which a channel is not read", unit="bytes", minimum=0
    )
    waiting_bytes: int = setting(
        512 << 20, "the same of all channels, above which none that has a large body is read", unit="bytes", minimum=0
    )


@dataclass(slots=True, eq=False)
class _Offer:
    number: int
    channel: Channel
    digest: bytes
    size: int
    persistent: bool
    item: object
    state: State = State.WAITING
    holders: dict[str, int] = field(default_factory=dict)
    """Names, with the lives of their stores in which they had it."""

    def on(self, event: Input) -> None:
        self.state = TABLE[self.state, event]


class Offers:
    """Of one broker. `enough`: whether those that have a body, with the lives of their stores, are a majority."""

    def __init__(self, me: Origin, settings: OffersSettings, enough: Callable[[Mapping[str, int]], bool]) -> None:
        self._me = me
        self._settings = settings
        self._enough = enough
        self._voters: tuple[str, ...] = ()
        self._last = 0
        self._offers: dict[int, _Offer] = {}
        self._waiting: deque[_Offer] = deque()
        self._offered_bytes = 0
        self._channels: dict[Channel, deque[_Offer | tuple[object, int]]] = {}
        """What waits for its turn, of channels where something does; the first of each is a large one."""
        self._channel_bytes: dict[Channel, int] = {}
        self.waiting = 0
        """Bytes of everything that waits for its turn."""

    # From clients.

    def publish(self, channel: Channel, item: object, size: int) -> list[Action]:
        """Without a large body."""
        line = self._channels.get(channel)
        if line is None:
            return [Propose(item)]
        line.append((item, size))
        self._channel_bytes[channel] += size
        self.waiting += size
        return []

    def publish_large(
        self, channel: Channel, item: object, digest: bytes, size: int, persistent: bool
    ) -> tuple[int, list[Action]]:
        """The number of the offer, and what is to be done."""
        self._last += 1
        offer = self._offers[self._last] = _Offer(self._last, channel, digest, size, persistent, item)
        self._channels.setdefault(channel, deque()).append(offer)
        self._channel_bytes[channel] = self._channel_bytes.get(channel, 0) + size
        self.waiting += size
        self._waiting.append(offer)
        return offer.number, self._fill()

    def blocked(self, channel: Channel) -> bool:
        """Nothing more should be read from it until this is false."""
        waiting = self._channel_bytes.get(channel, 0)
        return waiting > self._settings.channel_bytes or (waiting > 0 and self.waiting > self._settings.waiting_bytes)

    # From others.

    def held(self, holder: str, origin: Origin, number: int, life: int) -> list[Action]:
        """`life`: of the holder's store."""
        offer = self._offers.get(number)
        if offer is None or origin != self._me or offer.state is State.WAITING:
            return []
        offer.holders[holder] = life
        return self._recount([offer])

    def voters(self, present: Sequence[str]) -> list[Action]:
        """Who is there to be offered bodies, this broker too. Lives, or voters, may have changed: what was enough may
        not be any more."""
        joined = [name for name in present if name not in self._voters]
        self._voters = tuple(present)
        actions: list[Action] = []
        for offer in self._offers.values():
            offer.holders = {name: life for name, life in offer.holders.items() if name in present}
            if offer.state in (State.OFFERED, State.HELD):
                actions += [self._to(name, offer) for name in joined]
        return actions + self._recount([*self._offers.values()])

    def retry(self) -> list[Action]:
        """Some time has passed: offer again to those who have not answered, or refused."""
        return [
            self._to(name, offer)
            for offer in self._offers.values()
            if offer.state is State.OFFERED
            for name in self._voters
            if name not in offer.holders
        ]

    def ordered(self, number: int) -> list[Action]:
        """Its event has come, or was found void: the offer is over."""
        offer = self._offers.get(number)
        if offer is None or offer.state is not State.PROPOSED:
            return []
        del self._offers[number]
        self._offered_bytes -= offer.size
        return self._fill()

    # What follows from it.

    def _fill(self) -> list[Action]:
        """Offer what there is room for, in the order of publishing."""
        actions: list[Action] = []
        while self._waiting:
            offer = self._waiting[0]
            if self._offered_bytes and self._offered_bytes + offer.size > self._settings.offered_bytes:
                break
            self._waiting.popleft()
            self._offered_bytes += offer.size
            offer.on(Input.ROOM)
            actions += [self._to(name, offer) for name in self._voters]
        return actions

    def _recount(self, offers: Sequence[_Offer]) -> list[Action]:
        channels: dict[Channel, None] = {}
        for offer in offers:
            if offer.state not in (State.OFFERED, State.HELD):
                continue
            if self._enough(offer.holders) != (offer.state is State.HELD):
                offer.on(Input.TOO_FEW if offer.state is State.HELD else Input.ENOUGH)
                channels[offer.channel] = None
        actions: list[Action] = []
        for channel in channels:
            actions += self._go_on(channel)
        return actions

    def _go_on(self, channel: Channel) -> list[Action]:
        """Propose whatever is first in that channel and need not wait."""
        actions: list[Action] = []
        line = self._channels[channel]
        while line:
            first = line[0]
            if isinstance(first, _Offer):
                if first.state is not State.HELD:
                    return actions
                first.on(Input.TURN)
                actions.append(Propose(first.item, first.number, tuple(sorted(first.holders))))
                size = first.size
            else:
                item, size = first
                actions.append(Propose(item))
            line.popleft()
            self._channel_bytes[channel] -= size
            self.waiting -= size
        del self._channels[channel], self._channel_bytes[channel]
        return actions

    def _to(self, name: str, offer: _Offer) -> Offer:
        return Offer(name, self._me, offer.number, offer.digest, offer.size, offer.persistent)
