"""The lease: a broker that may have been excluded keeps quiet.

It asks the others again and again; an answer proves that whoever gave it took this broker for a member when the
question was sent. With such proofs from a majority of the voters, none of them older than the lease, no other majority
can have gone on without it: others exclude a broker that is not proven dead only after a silence that is longer than
the lease. A process that was stopped and wakes up finds its lease over, whatever runs first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.cluster.quorum import reached
from coterie.runtime.base import Runtime, Timer

_STEPS = 4
"""Questions in one lease."""
_MICRO = 1_000_000
_NEVER = float("-inf")


class LivenessLease:
    """Of one broker."""

    def __init__(
        self, runtime: Runtime, seconds: float, ask: Callable[[int], None], renewed: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._ask = ask
        self._renewed = renewed
        """Called when the lease was over and is not any more."""
        self._heard: dict[str, float] = {}
        """By name: when the last question that it has answered was sent."""
        self._voters: tuple[str, ...] = ()
        self._until = 0.0
        self._over = False
        """Somebody found it over."""
        self._timer: Timer | None = None

    def valid(self) -> bool:
        if self._runtime.now() < self._until:
            return True
        self._over = True
        return False

    def silence(self, name: str) -> float | None:
        """Seconds since the last question that it has answered was sent; None: it is asked nothing."""
        heard = self._heard.get(name)
        return None if heard is None or self._timer is None else max(0.0, self._runtime.now() - heard)

    def begin(self, members: Sequence[str], voters: Sequence[str]) -> None:
        """These have just agreed on a view with us, and a majority of these is needed."""
        now = self._runtime.now()
        self._heard = {name: max(now, self._heard.get(name, now)) for name in members}
        self._voters = tuple(voters)
        self._count()
        if self._timer is None:
            self._tick()

    def stop(self) -> None:
        self._until = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def heard(self, name: str, number: int) -> None:
        """An answer to the question of that number."""
        if name in self._heard and self._timer is not None:
            self._heard[name] = max(self._heard[name], number / _MICRO)
            self._count()

    def _count(self) -> None:
        self._until = reached(self._voters, self._heard, _NEVER) + self._seconds
        if self._over and self._runtime.now() < self._until:
            self._over = False
            self._renewed()

    def _tick(self) -> None:
        self._timer = self._runtime.call_later(self._seconds / _STEPS, self._tick)
        self._ask(int(self._runtime.now() * _MICRO))
