"""Readers of streams wait for their part of the time only while somebody else wants the rest."""

from __future__ import annotations

import asyncio
import time

from coterie.console.pace import Pace


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def timed(pace: Pace, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        await pace.work(lambda: busy(0.002))
    return time.perf_counter() - began


def test_readers_get_their_part_while_others_are_active_and_everything_else_if_not() -> None:
    said = 0

    def activity() -> int:
        nonlocal said
        said += 5000
        return said

    async def run() -> None:
        assert await timed(Pace(0.2, 1, activity), 5) >= 5 * 0.002 * 6  # four fifths of the time are not theirs
        assert await Pace(0.2, 1, lambda: 7).work(lambda: "made") == "made"
        idle = Pace(0.01, 1, lambda: 7)
        sleeping = asyncio.ensure_future(asyncio.sleep(1.0))
        await timed(idle, 5)
        assert not sleeping.done()  # at one hundredth of the time it would take longer
        sleeping.cancel()

    asyncio.run(run())


def test_only_so_many_may_read() -> None:
    pace = Pace(0.2, 2, lambda: 0)
    assert [pace.enter() for _ in range(3)] == [True, True, False]
    pace.leave()
    assert pace.enter()
