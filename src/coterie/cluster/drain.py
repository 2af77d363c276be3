"""Draining: a broker hands over everything before it leaves, so that nobody has to find out that it is gone.

Its clients have been told to go when `hand_over` is called. It waits until the log has brought back whatever this
broker sent, and nothing is left that it holds: then every message that its clients had is ready again, and nobody waits
for an answer of ours. Then it gives up its vote, which is decided like any forgetting, and leaves the group. Others go
on without a pause for failure detection, and a majority of those who are left is enough.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from coterie.logs import Log
from coterie.runtime.base import Future, Runtime, resolve

if TYPE_CHECKING:
    from coterie.cluster.applier import Applier
    from coterie.cluster.outbox import Outbox
    from coterie.cluster.proposer import Proposer
    from coterie.cluster.standing import Standing
    from coterie.cluster.voter_changes import Forgetting

log = Log(__name__)
LOOK_AGAIN = 0.02
"""Seconds, at most, between two looks at whether something that is waited for has come."""
DRAINED = "this node is drained: it has left the cluster, and joins it again when it is restarted"


def why_not(standing: Standing) -> str:
    """Why this broker cannot be drained now; nothing: it can."""
    if not standing.serves:
        return f"this broker does not serve, and has nothing to hand over: {standing.why}"
    if standing.us.name not in standing.voters:
        return ""
    why = standing.why_not_forget(standing.us, standing.us.name)
    return f"this broker cannot be drained: {why}" if why else ""


class Drain:
    """Of one broker, once."""

    def __init__(
        self, runtime: Runtime, standing: Standing, proposer: Proposer, outbox: Outbox, applier: Applier,
        forgetting: Forgetting, leave: Callable[[str], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._standing = standing
        self._proposer = proposer
        self._outbox = outbox
        self._applier = applier
        self._forgetting = forgetting
        self._leave = leave
        self.waits_for = ""
        """What it is that takes so long."""
        self._cut_off = False
        self._waiting: Future[None] | None = None

    async def answers(self) -> None:
        """Until everything that clients have asked for so far is answered: what they published is confirmed."""
        self.waits_for = "clients' requests to be answered"
        await self._in_turn()

    async def hand_over(self) -> None:
        """Until nothing is left here; then give up the vote, and leave the group."""
        us = self._applier.peer(self._standing.us)
        self.waits_for = "what clients held to be requeued"
        await self._in_turn()
        # What was allotted to a consumer before the log had its end is given back by an event of its own.
        while not self._cut_off and (len(self._outbox.local) or us.held or us.subscribers):
            await self._change()
        await self._give_up_vote()
        self.waits_for = "the others to let this broker go"
        await self._leave(DRAINED)
        self.waits_for = ""

    async def _give_up_vote(self) -> None:
        name = self._standing.us.name
        while not self._cut_off and name in self._standing.voters:
            decided: Future[str] = self._runtime.future()
            self._forgetting.ask(name, partial(resolve, decided))
            self.waits_for = why = await decided
            if why:
                log.warning("this broker cannot leave yet", why=why)
                await self._change()

    async def _in_turn(self) -> None:
        """Until whatever is under way now has come back, and is answered."""
        passed: Future[None] = self._runtime.future()
        self._proposer.in_turn(lambda: resolve(passed, None))
        while not self._cut_off and not passed.done():
            await self._change()

    async def _change(self) -> None:
        """Something may have changed."""
        self._waiting = self._runtime.future()
        timer = self._runtime.call_later(LOOK_AGAIN, self.look)
        await self._waiting
        timer.cancel()

    def look(self) -> None:
        """Something has changed."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def ended(self, why: str) -> None:
        """There is nothing to hand over any more: others have taken this broker for lost, or it cannot follow."""
        self._cut_off = True
        log.warning("this broker was cut off while it was drained", why=why)
        self.look()
