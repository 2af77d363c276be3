"""What comes often has only so many lines within a time: what is beyond is counted, and told as one line at its end.
Each action by each door is counted by itself: clients of AMQP leave the lines of operators their room.

Who floods a broker with wrong logins can so neither fill its disk nor push older lines out of the log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

HOSTS_MAX: Final = 1000
"""Hosts that are counted apart within one window; all others are one."""
HOSTS_TOLD: Final = 10
OTHERS: Final = "others"


@dataclass(slots=True)
class Window:
    """Of one action, by one door."""

    began: float
    lines: int = 0
    hosts: Counter[str] = field(default_factory=Counter)
    """How many lines each had."""
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a window in which something was left out."""

    action: str
    door: str
    count: int
    hosts: dict[str, int]
    seconds: float


class Flood:
    """Of one node."""

    def __init__(self, window: float, per_host: int, in_all: int) -> None:
        self._seconds, self._per_host, self._in_all = window, per_host, in_all
        self._windows: dict[tuple[str, str], Window] = {}

    def takes(self, action: str, door: str, host: str, now: float) -> bool:
        """Whether it has a line of its own. `due` is to be asked before."""
        window = self._windows.setdefault((action, door), Window(now))
        if host not in window.hosts and len(window.hosts) >= HOSTS_MAX:
            host = OTHERS
        if window.lines < self._in_all and window.hosts[host] < self._per_host:
            window.lines += 1
            window.hosts[host] += 1
            return True
        window.hosts[host] += 0
        window.left_out[host] += 1
        return False

    def due(self, now: float, all: bool = False) -> list[Summary]:
        """Of windows that are over; or of all that there are."""
        over = [key for key, each in self._windows.items() if all or now - each.began >= self._seconds]
        found: list[Summary] = []
        for key in over:
            window = self._windows.pop(key)
            left_out = window.left_out
            if left_out:
                hosts = dict(left_out.most_common(HOSTS_TOLD))
                found.append(Summary(*key, left_out.total(), hosts, now - window.began))
        return found
