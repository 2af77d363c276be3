"""How a name stops to be a voter: an operator forgets a broker that is lost, or a broker gives up its own vote.

It is decided in its place of the log, by every broker alike. Of two changes of the voters the second begins only when a
majority holds the first: each majority of the old voters then has a member in each majority of the new ones, so there
are never two that go on apart. That is why the word carries the voters as its sender knows them to be held, and is void
if they are others by now; and why it is void while a new voter joins, who may become one at any place of that view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from coterie.cluster import wire
from coterie.cluster.voters import majority
from coterie.cluster.wire import Kind
from coterie.group.members import Address

if TYPE_CHECKING:
    from coterie.cluster.core import Core

Done = Callable[[str], None]
"""Called with nothing if it is decided and a majority holds it, else with the reason why not."""
CHANGED = "the voters have changed meanwhile"


def refusal(core: Core, asker: Address, name: str) -> str:
    """Why that name cannot be forgotten now; nothing: it can. One that is in step gives up its vote itself."""
    voters, there = core.voters, {member.name for member in core.in_step}
    if name not in voters:
        return f"'{name}' is no voter: the voters are {', '.join(voters)}"
    if name in there and name != asker.name:
        return f"'{name}' is in step: drain it, or stop it, before it is forgotten"
    absent = [member.name for member in core.members if member not in core.in_step]
    joining = [member for member in absent if member not in voters or member == name]
    if joining:
        return f"{', '.join(joining)} is about to join, and to vote: wait until it is in step, or stop it"
    rest = [voter for voter in voters if voter != name]
    if not rest:
        return f"'{name}' is the only voter: nobody else has what it has"
    if not majority(rest, there - {name}):
        lost = ", ".join(voter for voter in rest if voter not in there)
        return f"without '{name}' there would be no majority, as {lost} is lost: bring it back, or forget it first"
    return ""


class Forgetting:
    """What this broker was asked to forget, one name after the other."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: deque[tuple[str, Done]] = deque()
        core.changed.append(self._look)
        core.cut_off.append(self._fail)

    def ask(self, name: str, done: Done) -> None:
        self._asked.append((name, done))
        if len(self._asked) == 1:
            self._begin()

    def _begin(self) -> None:
        """As soon as a majority holds whatever has been decided so far."""
        self._core.when_held(self._send)

    def _send(self) -> None:
        if not self._asked:
            return
        core, name = self._core, self._asked[0][0]
        why = refusal(core, core.us, name)
        if why:
            self._answer(name, why)
        else:
            core.sending.multicast(Kind.FORGET, wire.encode_json({"name": name, "voters": list(core.voters)}))

    def decided(self, name: str, why: str, when_safe: Callable[[Callable[[], None]], None]) -> None:
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

    def _look(self) -> None:
        if self._asked and not self._core.serves:
            self._fail(self._core.why)

    def _fail(self, why: str) -> None:
        asked, self._asked = self._asked, deque()
        for name, done in asked:
            done(f"this broker ceased to serve before '{name}' was forgotten, or while it was: {why}")
