"""Whether the broker has so much in memory that publishers are to wait.

Two measures, and either is enough. What messages take is counted: bodies, and so much for each message beside its body.
That is exact, falls when messages go, and is the same in the simulator. And the operating system says what the whole
process has: headers of messages, bindings, channels, buffers, logs, whatever clients can make a broker keep. Memory
that is free again may stay with the process (fragments): when half of the messages have gone that were there when it
became too large, and it does not grow, it may go on, up to so much more.

Whoever does not publish does not wait, and can make it grow all the same: by bindings, channels, consumers. When the
process has half as much again as it may have before publishers wait, nothing of that is made any more, but for a few.
"""

from __future__ import annotations

from typing import Final

BESIDE: Final = 512
"""Bytes that a message takes beside its body and headers, about, paged out or not."""
PROCESS_PART: Final = 1.5
"""Of memory_high: what the process may have before publishers wait whatever is counted."""
PROCESS_MAX: Final = 4 / 3
"""Of that: beyond it nothing is taken for fragments."""
PROCESS_EXHAUSTED: Final = 1.5
"""Of that: beyond it nothing new is made, as publishers that wait have not been enough."""
FEW: Final = 16
"""Channels of a connection, and consumers of a channel, that may be made all the same, for messages to be consumed."""
SMALL: Final = 4096
"""Bytes of arguments that such a consumer may have."""
PROCESS_MIN: Final = 64 << 20
"""Bytes that a process may grow by in any case, however small memory_high is."""
PROCESS_STEP: Final = 16 << 20
"""Bytes of growth that are no fragments any more."""


class MemoryWatch:
    """Of one broker. `look` now and then."""

    def __init__(self, process: int) -> None:
        """`process`: what it has at the start; 0: nobody knows."""
        self._first = process
        self._last = process
        self._counted = False
        self.process = False
        """It is the process that is too large."""
        self.exhausted = False
        """It is so large that nothing new is to be made: publishers wait, and others make it grow."""
        self._most = 0
        """The most that was counted while it was."""
        self._mark = 0
        """With less than this the process was let go on though it had not given memory back."""

    def limit(self, high: int) -> int:
        """Of the process."""
        return max(int(high * PROCESS_PART), self._first + PROCESS_MIN)

    def look(self, counted: int, process: int, high: int, low: float) -> bool:
        """So much is counted, so much the process has; these are `memory_high` and `memory_low`."""
        if counted > high:
            self._counted = True
        elif counted <= high * low:
            self._counted = False
        limit, grows = self.limit(high), process > self._last
        self._last = process
        self.exhausted = process > limit * PROCESS_EXHAUSTED
        if process <= limit * low:
            self.process, self._mark, self._most = False, 0, 0
        elif process > max(limit, self._mark):
            self.process, self._most = True, max(self._most, counted)
        if self.process and not grows and process < PROCESS_MAX * limit and counted < self._most / 2:
            self.process, self._mark, self._most = False, process + PROCESS_STEP, 0
        return self._counted or self.process
