"""Waiting for one's own disk: a broker whose disk takes nothing is not updated until it is well again.

While a disk refuses, or is too slow, what is to be written waits in memory. Publishers are stopped everywhere by then
(alarms.py), but other events go on: acks, declarations. When more waits than `cluster.unsynced_max`, and the others are
a majority without it, the broker says on the log that it steps back (`Replica.tick`). At that place it is lost, for
everybody: what it held goes back, its clients are sent away, and it applies nothing more. It stays in the group, and
when its disk is well again it asks to be updated.

Whoever has a full disk when it comes to a cluster waits in the same way: it would have to keep in memory all that an
update brings.
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.logs import Log
from coterie.runtime.base import Runtime, Timer

log = Log(__name__)
AGAIN = 0.5
"""Seconds between two looks at whether the disk is well again."""


class DiskWatch:
    """Of one broker."""

    def __init__(
        self, runtime: Runtime, waits: Callable[[], bool], unwell: Callable[[], bool], well: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._may_wait = waits
        """Whether this broker is still one that does not serve."""
        self._unwell = unwell
        self._well = well
        """Called when it asks to be updated."""
        self._waits = False
        """It was not well when it last said how it is."""
        self._timer: Timer | None = None

    def said(self, unwell: bool) -> None:
        """It has told its status."""
        self._waits = unwell
        if unwell and self._timer is None:
            self._timer = self._runtime.call_later(AGAIN, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if not self._waits or not self._may_wait():
            self._waits = False
        elif self._unwell():
            self.said(unwell=True)
        else:
            log.info("the disk is well again: this broker asks to be updated")
            self._well()
