"""SharedLock: at most one holder in the group, and the others wait their turn.

Promises: requests queue in the total order, at every member alike, and the first one holds the lock; it is released
when its holder says so or leaves the view. Each grant has a *token* that is larger than those of all grants before it
in the same part of the group: whoever guards the thing behind the lock can refuse a holder that has been replaced.
After a partition the queue of the largest part counts; holders in other parts are told that the lock is lost, and who
waited there waits on, at the end. While a partition lasts each part has a holder, unless the hub was told
`majority_of`: then only a majority has one, and a holder outside it is told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from coterie.blocks.hub import Hub
from coterie.blocks.machine import Machine, Place
from coterie.blocks.replicated import Replicated
from coterie.errors import CoterieError
from coterie.group.channel import ChannelClosed
from coterie.group.members import Address, View
from coterie.group.wire import Codec
from coterie.runtime.base import Future

log = logging.getLogger("coterie.blocks")

Token = Place


class LockLost(CoterieError):
    """The lock was taken from its holder: it may be somebody else's by now. Undo, or leave it to the token."""


class LockTimeout(CoterieError):
    """The lock was not to be had in time. It is not asked for any more."""


@dataclass(frozen=True, slots=True)
class Acquire:
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    number: int


@dataclass(frozen=True, slots=True)
class Queue:
    queue: tuple[tuple[Address, int], ...]
    token: Token | None
    """Of the first one, which holds the lock; None: nobody does."""


CODEC = Codec({1: Acquire, 2: Release, 3: Queue})


Lost = Callable[["Lease"], None]


class Lease:
    """The lock, as long as this member holds it."""

    def __init__(self, lock: SharedLock, number: int, token: Token, lost: Lost | None) -> None:
        self._lock = lock
        self._number = number
        self._lost = lost
        self.token = token
        self.held = True

    def check(self) -> None:
        """Raises LockLost if the lock is not ours any more."""
        if not self.held:
            raise LockLost(f"the lock '{self._lock.name}' with the token {tuple(self.token)} is not held any more")

    async def release(self) -> None:
        """Let the next one have it. Raises LockLost if it was not ours any more."""
        self.check()
        self.held = False
        await self._lock.let_go(self._number)

    def take_away(self) -> None:
        """The group has."""
        if self.held:
            self.held = False
            if self._lost is not None:
                try:
                    self._lost(self)
                except Exception:
                    log.exception("whoever held the lock '%s' failed when told of its loss", self._lock.name)


@dataclass(slots=True)
class Wanted:
    """A request of ours that was not granted yet."""

    future: Future[Lease]
    lost: Lost | None

    def refuse(self, error: CoterieError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class SharedLock(Machine):
    """A lock for the whole group: `async with lock:`, or `lease = await lock.acquire()`."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.name = name
        self._runtime = hub.runtime
        self._local = hub.local
        self._queue: list[tuple[Address, int]] = []
        """Member and number of its request. The first one holds the lock if there is a token."""
        self._token: Token | None = None
        self._numbers = 0
        self._wanted: dict[int, Wanted] = {}
        self._leases: dict[int, Lease] = {}
        self._leaving: dict[int, None] = {}
        """Requests that are being taken back."""
        self._counted = False
        """Our copy counted when we last looked."""
        self._inside: Lease | None = None
        """Of `async with`: here, one at a time."""
        self._entering = False
        self._outside: deque[Future[None]] = deque()
        self._replicated = Replicated.of(hub)
        self._replicated.add(name, self)

    @property
    def holder(self) -> Address | None:
        """Who has it, as far as it is known here."""
        return self._queue[0][0] if self._token is not None else None

    @property
    def waiting(self) -> tuple[Address, ...]:
        """Who waits for it, as far as it is known here."""
        members = tuple(member for member, _ in self._queue)
        return members if self._token is None else members[1:]

    async def acquire(self, timeout: float | None = None, lost: Lost | None = None) -> Lease:
        """Wait for our turn. `lost` is called if the lock is taken from us later. Raises LockTimeout, NoMajority."""
        self._numbers += 1
        number = self._numbers
        wanted = self._wanted[number] = Wanted(self._runtime.future(), lost)
        timer = None
        if timeout is not None:
            error = LockTimeout(f"the lock '{self.name}' was not to be had within {timeout:g} s")
            timer = self._runtime.call_later(timeout, wanted.refuse, error)
        self._runtime.spawn(self._ask(number))
        try:
            return await wanted.future
        except BaseException:
            self._leases.pop(number, None)
            raise
        finally:
            del self._wanted[number]
            if timer is not None:
                timer.cancel()
            self._runtime.call_soon(self.look)  # it may have been granted to us, who gave up: on to the next

    async def _ask(self, number: int) -> None:
        try:
            await self._replicated.update(self.name, CODEC.encode(Acquire(number)))
        except CoterieError as error:
            if number in self._wanted:
                self._wanted[number].refuse(error)

    async def let_go(self, number: int) -> None:
        """Take a request back, granted or not. Is said again as long as the request is seen to stand."""
        self._leases.pop(number, None)
        if number in self._leaving:
            return
        self._leaving[number] = None
        try:
            await self._replicated.update(self.name, CODEC.encode(Release(number)))
        except CoterieError as error:  # then the group lets go of us
            log.info("the lock '%s' was not released by %s: %s", self.name, self._local, error)
        finally:
            del self._leaving[number]

    async def __aenter__(self) -> Lease:
        while self._entering:
            future = self._runtime.future()
            self._outside.append(future)
            try:
                await future
            except BaseException:
                self._next_one()
                raise
        self._entering = True
        try:
            self._inside = await self.acquire()
        except BaseException:
            self._entering = False
            self._next_one()
            raise
        return self._inside

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._inside = self._inside, None
        self._entering = False
        self._next_one()
        assert lease is not None
        if error is None or lease.held:
            await lease.release()

    def _next_one(self) -> None:
        while self._outside and not self._entering:
            future = self._outside.popleft()
            if not future.done():
                future.set_result(None)
                return

    # The replicated part.

    def apply(self, sender: Address, body: bytes, at: Place) -> bytes:
        match CODEC.decode(body):
            case Acquire(number) if (sender, number) not in self._queue:
                self._queue.append((sender, number))
            case Release(number):
                self._keep(lambda entry: entry != (sender, number))
        self._grant(at)
        return b""

    def members_changed(self, view: View, at: Place, majority: bool) -> None:
        if not majority and self._token is not None:
            self._token = None
            del self._queue[0]
        self._keep(lambda entry: entry[0] in view)
        if majority:
            self._grant(at)

    def _keep(self, stays: Callable[[tuple[Address, int]], bool]) -> None:
        if self._token is not None and not stays(self._queue[0]):
            self._token = None
        self._queue = [entry for entry in self._queue if stays(entry)]

    def _grant(self, at: Place) -> None:
        if self._queue and self._token is None:
            self._token = at

    def save(self) -> bytes:
        return CODEC.encode(Queue(tuple(self._queue), self._token))

    def load(self, state: bytes) -> None:
        saved = CODEC.decode(state)
        self._queue, self._token = list(saved.queue), saved.token

    # What follows from it here.

    def look(self) -> None:
        copies = self._replicated.copies
        first = self._queue[0] if self._token is not None else None
        for number in [n for n in self._leases if copies.lost or first != (self._local, n)]:
            self._leases.pop(number).take_away()
        counted, self._counted = self._counted, copies.settled
        if not copies.settled:
            return
        ours = [number for member, number in self._queue if member == self._local]
        if not counted:
            for number in self._wanted:
                if number not in ours:  # it was asked for in a queue that does not count any more
                    self._runtime.spawn(self._ask(number))
        for number in ours:
            if number not in self._wanted and number not in self._leases and number not in self._leaving:
                self._runtime.spawn(self.let_go(number))
        if first is not None and first[0] == self._local and first[1] in self._wanted:
            self._take(first[1])

    def _take(self, number: int) -> None:
        wanted = self._wanted[number]
        assert self._token is not None
        if not wanted.future.done() and self._replicated.sure(self._token):
            lease = self._leases[number] = Lease(self, number, self._token, wanted.lost)
            wanted.future.set_result(lease)

    def close(self) -> None:
        for wanted in self._wanted.values():
            wanted.refuse(ChannelClosed("the channel was closed"))
        for lease in self._leases.values():
            lease.take_away()
        self._leases.clear()
