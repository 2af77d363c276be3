"""What the charts show: one moment for each sample, kept in a ring. Whoever looks costs nothing but the sending."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from coterie.durations import Durations


@dataclass(frozen=True, slots=True)
class Moment:
    """Rates are per second, over the time since the moment before; durations in seconds, over the same time."""

    number: int
    time: float
    """By the wall clock."""
    publish: float
    confirm: float
    deliver: float
    redeliver: float
    ack: float
    ready: int
    unacked: int
    confirm_mean: float | None
    """None: none was timed."""
    confirm_worst: float | None
    sync_mean: float | None
    sync_worst: float | None
    lag_mean: float | None
    lag_worst: float | None


COLUMNS = tuple(field.name for field in fields(Moment))


@dataclass(frozen=True, slots=True)
class Totals:
    """Of everything that a node has, as of a sample."""

    queues: int = 0
    exchanges: int = 0
    consumers: int = 0
    connections: int = 0
    channels: int = 0
    ready: int = 0
    unacked: int = 0
    bytes: int = 0


class Stretch:
    """Mean and worst of what took some time, since it was asked last."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._count, self._total = durations.count, durations.total

    def take(self) -> tuple[float | None, float | None]:
        found = self._durations
        count, total = found.count - self._count, found.total - self._total
        worst, found.worst = found.worst, 0.0
        self._count, self._total = found.count, found.total
        return (round(total / count, 6), round(worst, 6)) if count else (None, None)


class History:
    """The last moments. A moment is given by what was counted until then, all of which only grows."""

    def __init__(self, kept: int, confirms: Durations, syncs: Durations, lag: Durations) -> None:
        self._ring: deque[Moment] = deque(maxlen=kept)
        self._stretches = [Stretch(each) for each in (confirms, syncs, lag)]
        self._before: tuple[float, Sequence[int]] | None = None
        self.totals = Totals()

    def take(self, now: float, wall: float, counted: Sequence[int], totals: Totals) -> None:
        """`counted`: published, confirmed, delivered, redelivered and acknowledged."""
        self.totals = totals
        before, self._before = self._before, (now, counted)
        times = [stretch.take() for stretch in self._stretches]
        if before is None:
            return
        elapsed = max(now - before[0], 1e-3)
        rates = [round(max(0, new - old) / elapsed, 2) for new, old in zip(counted, before[1], strict=True)]
        number = self._ring[-1].number + 1 if self._ring else 1
        publish, confirm, deliver, redeliver, ack = rates
        (confirms, syncs, lag) = times
        self._ring.append(
            Moment(
                number, round(wall, 3), publish, confirm, deliver, redeliver, ack, totals.ready, totals.unacked,
                *confirms, *syncs, *lag,
            )
        )  # fmt: skip

    def after(self, number: int) -> list[list[object]]:
        """The later ones, as rows of COLUMNS, the oldest first."""
        return [list(astuple(moment)) for moment in self._ring if moment.number > number]
