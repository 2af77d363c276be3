"""Events that nobody can carry out, in a simulated cluster: because of mistakes in the code, or as sent by peers.

A mistake that nobody knows of is one that some event meets half-way: so some events, which are told by their places in
the log and so are the same at every broker, fail at some step inside. What peers send is what an altered, truncated or
foreign event may be.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.broker.journal import Journal
from coterie.cluster.outbox import Asked
from coterie.cluster.states import State
from coterie.cluster.wire import Kind

if TYPE_CHECKING:
    from coterie.broker.storage import Store
    from coterie.cluster.member import Member
    from coterie.group.members import Address

R = TypeVar("R")
STEPS = 30
"""At one of so many an event fails, or at its end."""


class Mistake(Exception):
    """One that nobody knows of."""


class Mistaken(Journal):
    """The journal of a broker in whose code there are mistakes."""

    __slots__ = ("_aside", "_chance", "_left", "_member", "_seed")

    def __init__(self, store: Store, seed: int, chance: float, member: Member) -> None:
        super().__init__(store)
        self._seed = seed
        self._member = member
        self._chance = chance
        self._aside = False
        self._left = 0
        """Notes until the event fails; 0: it does not."""

    def run(self, step: Callable[[], R]) -> R:
        if self.on or self._aside or not self._member.turn.applying:
            return super().run(step)
        replica = self._member.replica
        place = f"{replica.cluster} {replica.era.view} {replica.progress.epoch}.{replica.progress.index}"
        rng = random.Random(f"{self._seed} {place}")
        self._left = rng.randint(1, STEPS) if rng.random() < self._chance else 0
        try:
            return super().run(lambda: self._whole(step))
        finally:
            self._left = 0

    def _whole(self, step: Callable[[], R]) -> R:
        result = step()
        if self._left:  # which steps there are differs where a queue is at home: the verdict must not
            raise Mistake
        return result

    def note(self, undo: Callable[..., object], *args: Any) -> None:
        if self._left > 1 and not self._aside:
            self._left -= 1
            if self._left == 1:
                raise Mistake
        super().note(undo, *args)

    def apart(self, step: Callable[[], object], what: str) -> bool:
        aside, self._aside = self._aside, True
        try:
            return super().apart(step, what)
        finally:
            self._aside = aside


def go_astray(member: Member) -> None:
    """With one of its next events this broker makes another state of the log than the others: it flags messages that
    are ready as redelivered, which does no harm to anybody."""
    events, trace = member._events, member._runtime.trace
    right = events._do

    def wrong(kind: Kind, sender: Address, data: memoryview, asked: Asked | None) -> object:
        answer = right(kind, sender, data, asked)
        for queue in member.applier.queues.values():
            strays = queue.table.state.ready.difference(queue.table.flagged)
            if strays and queue.home is None and member.replica.state is State.IN_STEP:
                del vars(events)["_do"]
                ranges = [*strays.ranges()]
                queue.table.flag(ranges)
                queue.journal.effects.released(queue, ranges)
                queue.journal.say(partial(trace.emit, "strays", life=member.replica.life()))
                break
        return answer

    vars(events)["_do"] = wrong


def nonsense(rng: random.Random) -> tuple[Kind, bytes]:
    """An event that a broker would never send."""
    kind = rng.choice([*Kind])
    number = rng.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1))
    data = rng.choice(
        (
            b"", rng.randbytes(rng.randint(1, 60)), number.to_bytes(8, "big") * rng.randint(1, 4), b"[" * 3000,
            b'{"queue":%d,"number":-1,"tag":5,"flags":[1,{}],"limit":"x"}' % number,
            b'{"vhost":"/","do":"DeclareQueue","name":["q"],"flags":[],"args":7}',
            b'{"vhost":"/","do":"SetLimit","name":"max-queues","value":"many"}',
            b'{"do":"record","kind":"user","key":"u","record":{"tags":[],"permissions":{"/":["("]},"limits":{}}}',
            b'{"do":"no such thing"}', b'{"queue":[],"step":{"do":"acquire"}}', b'{"cut":["a",{}],"queues":[[]]}',
        )
    )  # fmt: skip
    return kind, data


def send_nonsense(member: Member, rng: random.Random) -> None:
    """As an event of this broker; or as a word about members, which has no number."""
    kind, data = nonsense(rng)
    if kind < Kind.STATUS:
        member.outbox.send(kind, (data,), Asked(b""))
    else:
        member.outbox.multicast(kind, data)
