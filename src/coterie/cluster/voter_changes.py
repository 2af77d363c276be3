"""How brokers become voters, and stop to be: both are proposed on the log, and decided there, by every broker alike.

The oldest broker in step proposes those that are in step and have no vote, one by one. An operator forgets a broker
that is lost, or a broker gives up its own vote. Of two changes of the voters the second begins only when a majority
holds the first: each majority of the old voters then has a member in each majority of the new ones, so there are never
two that go on apart. That is why a proposal carries the voters as its sender knows them to be held, and is void if they
are others by now; and why no name is forgotten while a new voter joins, who may become one at any place of that view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from coterie.cluster.replica import CHANGED
from coterie.cluster.standing import Standing
from coterie.cluster.wire import Kind

Done = Callable[[str], None]
"""Called with nothing if it is decided and a majority holds it, else with the reason why not."""
WhenHeld = Callable[[Callable[[], None]], None]
"""Calls something as soon as a majority holds whatever has been decided so far."""
Multicast = Callable[[Kind, dict[str, object]], None]


class NewVoters:
    """Who shall have a vote, as one broker sees it."""

    def __init__(self, standing: Standing, when_held: WhenHeld, multicast: Multicast) -> None:
        self._standing = standing
        self._when_held = when_held
        self._multicast = multicast
        self._proposed = ""

    def look(self) -> None:
        """The members have changed."""
        name = self._standing.candidate()
        if name != self._proposed:
            self._proposed = name
            if name:
                self._when_held(lambda: self._propose(name))

    def _propose(self, name: str) -> None:
        if name == self._proposed == self._standing.candidate():
            self._multicast(Kind.VOTER, {"name": name, "voters": list(self._standing.voters)})

    def decided(self) -> None:
        """A proposal of ours has had its place in the log, and counted or not."""
        self._proposed = ""
        self.look()


class Forgetting:
    """What this broker was asked to forget, one name after the other."""

    def __init__(self, standing: Standing, when_held: WhenHeld, multicast: Multicast) -> None:
        self._standing = standing
        self._when_held = when_held
        self._multicast = multicast
        self._asked: deque[tuple[str, Done]] = deque()

    def ask(self, name: str, done: Done) -> None:
        self._asked.append((name, done))
        if len(self._asked) == 1:
            self._begin()

    def _begin(self) -> None:
        self._when_held(self._send)

    def _send(self) -> None:
        if not self._asked:
            return
        standing, name = self._standing, self._asked[0][0]
        why = standing.why_not_forget(standing.us, name)
        if why:
            self._answer(name, why)
        else:
            self._multicast(Kind.FORGET, {"name": name, "voters": list(standing.voters)})

    def decided(self, name: str, why: str, when_safe: WhenHeld) -> None:
        """Our word has had its place in the log."""
        if not self._asked or self._asked[0][0] != name:
            return  # whoever asked was told that nobody knows
        if why == CHANGED:
            self._begin()
        elif why:
            self._answer(name, why)
        else:
            when_safe(partial(self._answer, name, ""))

    def _answer(self, name: str, why: str) -> None:
        if self._asked and self._asked[0][0] == name:
            _, done = self._asked.popleft()
            if self._asked:
                self._begin()
            done(why)

    def look(self) -> None:
        """The members, or the state of this broker, have changed."""
        if self._asked and not self._standing.serves:
            self.fail(self._standing.why)

    def fail(self, why: str) -> None:
        """This broker was cut off."""
        asked, self._asked = self._asked, deque()
        for name, done in asked:
            done(f"this broker ceased to serve before '{name}' was forgotten, or while it was: {why}")
