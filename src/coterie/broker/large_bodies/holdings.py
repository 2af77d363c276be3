"""Every broker's half: the bodies that it has in files, and why it keeps them.

    state       means                                             leaves it when
    WANTED      it is needed, and nobody sends it                 somebody is asked -> FETCHING; offered -> RECEIVING
    RECEIVING   its origin sends it                               whole -> CHECKING; the origin is gone -> WANTED
    FETCHING    somebody who has it was asked                     whole -> CHECKING; that one is gone -> WANTED
    CHECKING    all bytes are written: are they the right ones?   right -> HERE; wrong -> WANTED
    HERE        it is what its name says                          synced -> SYNCED; the sync failed -> WANTED
    SYNCED      it is on disk                                     found damaged -> WANTED

Reasons to keep a body: offers that no event has followed yet, and live events. Without one it is removed. An offer ends
with its event, or when a view without its origin is applied: all events of that origin have come before. An offer that
comes after its event is none: which are over is remembered, alike at every broker, as it follows from the log. What one
origin offers is bounded, and so is the number of bodies that are fetched at one time.

An event names who had its body when it was proposed. One of them may have crashed and come back without it since,
before any event told it that the body is needed. So a broker must not report an event as synced before its body is
(`undurable`): a confirm then means that a majority has both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from coterie.broker.large_bodies.actions import (
    Action,
    Arrived,
    Check,
    Fetch,
    Held,
    Lacking,
    Missing,
    Origin,
    Refused,
    Remove,
    Send,
    Sync,
    Write,
)
from coterie.broker.ranges import END, PositionSet, Range
from coterie.settings import setting


class State(Enum):
    WANTED = "wanted"
    RECEIVING = "receiving"
    FETCHING = "fetching"
    CHECKING = "checking"
    HERE = "here"
    SYNCED = "synced"


class Input(Enum):
    ASKED = "asked"
    OFFERED = "offered"
    WHOLE = "whole"
    SOURCE_GONE = "source gone"
    RIGHT = "right"
    WRONG = "wrong"
    SYNCED = "synced"


TABLE: Final[Mapping[tuple[State, Input], State]] = {
    (State.WANTED, Input.ASKED): State.FETCHING,
    (State.WANTED, Input.OFFERED): State.RECEIVING,
    (State.RECEIVING, Input.WHOLE): State.CHECKING,
    (State.RECEIVING, Input.SOURCE_GONE): State.WANTED,
    (State.FETCHING, Input.WHOLE): State.CHECKING,
    (State.FETCHING, Input.SOURCE_GONE): State.WANTED,
    (State.CHECKING, Input.RIGHT): State.HERE,
    (State.CHECKING, Input.WRONG): State.WANTED,
    (State.HERE, Input.SYNCED): State.SYNCED,
    (State.HERE, Input.WRONG): State.WANTED,
    (State.SYNCED, Input.WRONG): State.WANTED,
}
_PRESENT: Final = (State.HERE, State.SYNCED)
_COMING: Final = (State.RECEIVING, State.FETCHING)


@dataclass(frozen=True, slots=True)
class HoldingsSettings:
    """How much others may make this broker keep."""

    origin_bytes: int = setting(
        512 << 20, "large bodies of one origin that no event has followed yet", unit="bytes", minimum=1
    )
    body_bytes: int = setting(1 << 30, "largest body", unit="bytes", minimum=1)
    fetches: int = setting(4, "bodies fetched from others at one time", minimum=1)


class _Offered(NamedTuple):
    size: int
    persistent: bool


@dataclass(slots=True, eq=False)
class _Body:
    digest: bytes
    size: int
    serial: int
    state: State = State.WANTED
    source: str = ""
    """Who sends it."""
    got: int = 0
    syncing: bool = False
    missed: bool = False
    """It was told that nobody has it."""
    offers: dict[tuple[Origin, int], _Offered] = field(default_factory=dict)
    events: dict[int, bool] = field(default_factory=dict)
    """Whether each is persistent."""
    holders: dict[str, None] = field(default_factory=dict)
    """Who is said to have it, and has not said otherwise; in the order in which they are asked."""

    @property
    def needed(self) -> bool:
        return bool(self.offers or self.events)

    @property
    def persistent(self) -> bool:
        return any(self.events.values()) or any(offer.persistent for offer in self.offers.values())


class Holdings:
    """Of one broker."""

    def __init__(self, me: str, settings: HoldingsSettings) -> None:
        self._me = me
        self._settings = settings
        self._serial = 0
        self._bodies: dict[bytes, _Body] = {}
        self._wanted: dict[bytes, _Body] = {}
        """Those of that state, and how many are being fetched."""
        self._fetching = 0
        self._offered: dict[Origin, int] = {}
        """Bytes that each has offered, of which no event has come."""
        self._undurable: dict[int, None] = {}
        """Persistent events whose bodies are not synced here."""
        self._over: dict[Origin, PositionSet] = {}
        """Numbers of offers whose events have come."""
        self._members: frozenset[Origin] = frozenset()
        self._names: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._bodies)

    def state(self, digest: bytes) -> State | None:
        body = self._bodies.get(digest)
        return None if body is None else body.state

    def has(self, digest: bytes) -> bool:
        """Whether messages with that body can be delivered."""
        return self.state(digest) in _PRESENT

    def offered_bytes(self, origin: Origin) -> int:
        return self._offered.get(origin, 0)

    @property
    def undurable(self) -> int | None:
        """The first persistent event whose body is not synced here: neither it nor what follows may be reported."""
        return min(self._undurable, default=None)

    # At the start.

    def over(self) -> dict[Origin, list[Range]]:
        """The numbers of offers whose events have come: a part of every snapshot."""
        return {origin: [*numbers.ranges()] for origin, numbers in self._over.items()}

    def found(self, files: Mapping[bytes, int], over: Mapping[Origin, Sequence[Range]] | None = None) -> None:
        """Files of a former life, which were checked, and what the snapshot says of offers. The events of the log are
        told after this; `settled` when this broker is in step: an event that names a file may still come until then."""
        self._over = {origin: PositionSet(numbers) for origin, numbers in (over or {}).items()}
        for digest, size in files.items():
            self._set(self._new(digest, size), State.SYNCED)

    def settled(self) -> list[Action]:
        """What no event names and nobody offers is not needed."""
        return self._tidy([*self._bodies.values()])

    # From origins.

    def offered(self, origin: Origin, number: int, digest: bytes, size: int, persistent: bool) -> list[Action]:
        """Its bytes follow, from the origin: also if it was offered before."""
        body = self._bodies.get(digest)
        key = origin, number
        if number in self._over.get(origin, ()):
            return []
        if body is None or key not in body.offers:
            used = self._offered.get(origin, 0)
            if (
                origin not in self._members
                or not 0 < size <= self._settings.body_bytes
                or not 0 < number < END
                or (body is not None and body.size != size)
                or (used and used + size > self._settings.origin_bytes)
            ):
                return [Refused(origin, number)]
            self._offered[origin] = used + size
            body = body or self._new(digest, size)
            body.offers[key] = _Offered(size, persistent)
        if body.state is State.WANTED:
            self._on(body, Input.OFFERED)
            body.source, body.got = origin.name, 0
        return self._sync(body) + self._tell(body, [key])

    # Bytes.

    def chunk(self, source: str, digest: bytes, offset: int, size: int) -> list[Action]:
        """Bytes came. What is out of turn, of somebody else, or too much is dropped; a source may begin anew."""
        body = self._bodies.get(digest)
        if body is None or body.state not in _COMING or body.source != source or size <= 0:
            return []
        if offset == 0:
            body.got = 0
        if offset != body.got or offset + size > body.size:
            return []
        body.got += size
        actions: list[Action] = [Write(digest, offset, size)]
        if body.got == body.size:
            self._on(body, Input.WHOLE)
            actions.append(Check(digest, body.serial))
        return actions

    def checked(self, digest: bytes, serial: int, right: bool) -> list[Action]:
        """Whether the file is what its name says; False also if it could not be written."""
        body = self._bodies.get(digest)
        if body is None or body.serial != serial or body.state is not State.CHECKING:
            return []
        if not right:
            return self._lost(body, Input.WRONG)
        self._on(body, Input.RIGHT)
        body.source = ""
        actions: list[Action] = [Arrived(digest)] if body.events else []
        return actions + self._sync(body) + self._tell(body, [*body.offers]) + self._fetch()

    def synced(self, digest: bytes, serial: int, done: bool) -> list[Action]:
        """A file whose sync has failed is not believed again: it is written anew."""
        body = self._bodies.get(digest)
        if body is None or body.serial != serial or body.state is not State.HERE:
            return []
        body.syncing = False
        if not done:
            return self._lost(body, Input.WRONG)
        self._on(body, Input.SYNCED)
        for ref in body.events:
            self._undurable.pop(ref, None)
        return self._tell(body, [key for key, offer in body.offers.items() if offer.persistent])

    def damaged(self, digest: bytes) -> list[Action]:
        """A file that was right is not, or cannot be read."""
        body = self._bodies.get(digest)
        if body is None or body.state not in _PRESENT:
            return []
        body.syncing = False
        self._undurable.update((ref, None) for ref, persistent in body.events.items() if persistent)
        return self._lost(body, Input.WRONG)

    # From the order.

    def event(
        self, ref: int, digest: bytes, size: int, persistent: bool, origin: Origin, number: int, holders: Sequence[str]
    ) -> list[Action]:
        """An ordered event names it: the offer is over."""
        body = self._bodies.get(digest) or self._new(digest, size)
        body.events[ref] = persistent
        if persistent and body.state is not State.SYNCED:
            self._undurable[ref] = None
        self._end_offer(body, (origin, number))
        self._over.setdefault(origin, PositionSet()).add(number, number + 1)
        for name in (*holders, origin.name):
            body.holders.setdefault(name)
        body.missed = False
        if body.size != size and body.state not in (*_PRESENT, State.CHECKING):  # somebody has offered what it is not
            body.size = size
            if body.state in _COMING:
                return self._lost(body, Input.SOURCE_GONE)
        return self._sync(body) + self._fetch()

    def released(self, ref: int, digest: bytes) -> list[Action]:
        """No message of that event needs it any more."""
        body = self._bodies.get(digest)
        if body is None or ref not in body.events:
            return []
        del body.events[ref]
        self._undurable.pop(ref, None)
        return self._tidy([body]) + self._fetch()

    def view(self, members: Collection[Origin]) -> list[Action]:
        """A view is applied: all events of those who are gone have come."""
        self._members = frozenset(members)
        self._names = frozenset(member.name for member in members)
        for origin in [origin for origin in self._over if origin not in self._members]:
            del self._over[origin]
        ended = [body for body in self._bodies.values() if any(key[0] not in self._members for key in body.offers)]
        for body in ended:
            for key in [key for key in body.offers if key[0] not in self._members]:
                self._end_offer(body, key)
        actions = self._tidy(ended)
        for body in self._bodies.values():
            body.missed = False
            if body.state in _COMING and body.source not in self._names:
                self._on(body, Input.SOURCE_GONE)
        return actions + self._fetch()

    # From others, and the clock.

    def asked(self, peer: str, digest: bytes) -> list[Action]:
        return [Send(peer, digest) if self.has(digest) else Lacking(peer, digest)]

    def lacking(self, peer: str, digest: bytes) -> list[Action]:
        """A peer that was asked has not got it."""
        body = self._bodies.get(digest)
        if body is None:
            return []
        body.holders.pop(peer, None)
        return self._lost(body, Input.SOURCE_GONE) if body.state in _COMING and body.source == peer else []

    def stalled(self, digest: bytes) -> list[Action]:
        """Nothing has come for too long: somebody else is asked, if there is anybody."""
        body = self._bodies.get(digest)
        if body is None or body.state not in _COMING:
            return []
        if body.source in body.holders:  # the last to be asked again
            del body.holders[body.source]
            body.holders[body.source] = None
        return self._lost(body, Input.SOURCE_GONE)

    def retry(self) -> list[Action]:
        """Some time has passed: those who had not got it may have it now."""
        for body in self._wanted.values():
            if not self._sources(body):
                body.missed = False
                body.holders.update(dict.fromkeys(sorted(self._names)))
        return self._fetch()

    # What follows from it.

    def _new(self, digest: bytes, size: int) -> _Body:
        self._serial += 1
        body = self._bodies[digest] = self._wanted[digest] = _Body(digest, size, self._serial)
        return body

    def _on(self, body: _Body, event: Input) -> None:
        self._set(body, TABLE[body.state, event])

    def _set(self, body: _Body, state: State) -> None:
        self._fetching += (state is State.FETCHING) - (body.state is State.FETCHING)
        body.state = state
        if state is State.WANTED:
            self._wanted[body.digest] = body
        else:
            self._wanted.pop(body.digest, None)

    def _sync(self, body: _Body) -> list[Action]:
        """If somebody needs that, and it is not under way."""
        if body.state is not State.HERE or body.syncing or not body.persistent:
            return []
        body.syncing = True
        return [Sync(body.digest, body.serial)]

    def _tell(self, body: _Body, keys: Sequence[tuple[Origin, int]]) -> list[Action]:
        """Origins of these offers, if the body is here as they need it."""
        enough = [State.SYNCED], [State.HERE, State.SYNCED]
        return [Held(*key) for key in keys if body.state in enough[not body.offers[key].persistent]]

    def _end_offer(self, body: _Body, key: tuple[Origin, int]) -> None:
        offer = body.offers.pop(key, None)
        if offer is None:
            return
        self._offered[key[0]] -= offer.size
        if not self._offered[key[0]]:
            del self._offered[key[0]]

    def _lost(self, body: _Body, why: Input) -> list[Action]:
        """What came is of no use, or nothing comes any more."""
        if why is Input.WRONG:
            body.holders.pop(body.source, None)
        self._on(body, why)
        return self._fetch()

    def _sources(self, body: _Body) -> list[str]:
        offering = [origin.name for origin, _ in body.offers if origin.name not in body.holders]
        return [name for name in (*body.holders, *offering) if name in self._names and name != self._me]

    def _fetch(self) -> list[Action]:
        """Ask for what is wanted, the oldest first; for what is only offered, the origin offers again."""
        actions: list[Action] = []
        for body in [body for body in self._wanted.values() if body.events]:
            sources = self._sources(body)
            if sources and self._fetching < self._settings.fetches:
                self._on(body, Input.ASKED)
                body.source, body.got = sources[0], 0
                actions.append(Fetch(sources[0], body.digest))
            elif not sources and not body.missed:
                body.missed = True
                actions.append(Missing(body.digest))
        return actions

    def _tidy(self, bodies: Sequence[_Body]) -> list[Action]:
        """Remove what there is no reason to keep."""
        actions: list[Action] = []
        for body in bodies:
            if not body.needed:
                self._set(body, State.SYNCED)  # it is none of those that are wanted or fetched
                del self._bodies[body.digest]
                actions.append(Remove(body.digest))
        return actions
