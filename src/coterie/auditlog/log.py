"""The audit log of one node: a record becomes one line, in the shape of a trace's, and goes to a file and an exchange.

What clients have said (names, reasons) is bounded, and has nothing in it that a terminal would obey. What is secret is
never handed in: whoever records names what is told, key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from coterie.auditlog.flood import Flood
from coterie.auditlog.settings import AuditSettings
from coterie.trace import Event, Json

if TYPE_CHECKING:
    from coterie.runtime.base import Runtime, Timer

KIND: Final = "audit"
EXCHANGE: Final = "coterie.audit"
TEXT_MAX: Final = 256
"""Characters of a text that are kept."""
ITEMS_MAX: Final = 20
FREQUENT: Final = frozenset({
    "login.accepted", "login.refused", "access.refused", "lease.acquired", "lease.retired", "lease.released",
    "message.published", "message.got",
})  # fmt: skip
"""What clients bring about as often as they like, as they do all that comes by AMQP."""
LOOK: Final = 1.0
"""Seconds between two looks for windows that are over."""
DONE, REFUSED, FAILED = "done", "refused", "failed"
AMQP: Final = "amqp"
"""The door by which most comes."""
Sink = Callable[[str, Event], bool]
"""Given the action too. False: the line is lost."""


class AuditLog:
    """Off until somebody wants its lines."""

    def __init__(
        self,
        run: str = "",
        node: str = "",
        inc: int = 0,
        now: Callable[[], float] = lambda: 0.0,
        wall: Callable[[], float] = lambda: 0.0,
        settings: AuditSettings | None = None,
    ) -> None:
        self.sinks: list[Sink] = []
        self.lost = 0
        """Lines that the disk did not take, since the start."""
        self._run, self._node, self._inc = f"{run}/audit", node, inc
        self._now, self._wall = now, wall
        settings = settings or AuditSettings()
        self._flood = Flood(settings.window, settings.lines_per_host, settings.lines_in_all)
        self._n = 0
        self._timer: Timer | None = None

    def record(
        self, action: str, user: str, host: str, door: str, result: str = DONE, why: str = "", **told: object
    ) -> None:
        """`user`: who, or who it claims to be; `host`: from where; `door`: amqp, http or node."""
        if not self.sinks:
            return
        now = self._now()
        self._summarise(now)
        if (door == AMQP or action in FREQUENT) and not self._flood.takes(action, door, host, now):
            return
        data: dict[str, Json] = {
            "action": action, "user": clean(user), "from": clean(host), "door": door, "result": result,
        }  # fmt: skip
        if why:
            data["why"] = clean(why)
        data |= {name: plain(value) for name, value in told.items() if value is not None}
        self._write(action, now, data)

    def start(self, runtime: Runtime) -> None:
        """From now on what was left out is told in time, also if nothing else happens."""
        if self.sinks:
            self._timer = runtime.call_later(LOOK, self._look, runtime)

    def _look(self, runtime: Runtime) -> None:
        self._summarise(self._now())
        self.start(runtime)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.sinks:
            self._summarise(self._now(), all=True)
            self.sinks.clear()

    def _summarise(self, now: float, all: bool = False) -> None:
        for each in self._flood.due(now, all):
            hosts: dict[str, Json] = {clean(host): count for host, count in each.hosts.items()}
            data: dict[str, Json] = {
                "action": each.action, "user": "", "from": "", "door": each.door, "result": "counted", "hosts": hosts,
                "seconds": round(each.seconds, 3),
            }  # fmt: skip
            self._write(each.action, now, data, each.count)

    def _write(self, action: str, now: float, data: dict[str, Json], count: int = 1) -> None:
        event = Event(self._run, self._node, self._inc, self._n, now, KIND, wall=self._wall(), count=count, data=data)
        self._n += 1
        for sink in self.sinks:
            if not sink(action, event):
                self.lost += 1


def clean(text: str) -> str:
    """Bounded, and printable whatever it was: control characters, line ends, marks that turn the direction of a text,
    and bytes that are no text are spelled."""
    cut = text[:TEXT_MAX]
    if not cut.isascii() or not cut.isprintable():
        cut = "".join(
            each if each.isprintable() else each.encode("ascii", "backslashreplace").decode() if ord(each) > 127
            else f"\\x{ord(each):02x}"
            for each in cut
        )[: 4 * TEXT_MAX]  # fmt: skip
    return cut if len(text) <= TEXT_MAX else f"{cut}..."


def plain(value: object) -> Json:
    """What a line may hold: texts that are clean, numbers that fit, and lists or tables of those."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, Mapping):
        return {clean(str(name)): _simple(each) for name, each in list(value.items())[:ITEMS_MAX]}
    if isinstance(value, list | tuple):
        return [_simple(each) for each in value[:ITEMS_MAX]]
    return clean(str(value))


def _simple(value: object) -> Json:
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return clean(str(value))
