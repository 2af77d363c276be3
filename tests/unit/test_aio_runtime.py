"""The asyncio runtime: clock, timers, randomness, tasks, offloaded work, and what becomes of exceptions."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from coterie.errors import CoterieError
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Runtime, resolve


def with_runtime(scenario: Callable[[AioRuntime], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with a node that is closed afterwards."""

    async def main() -> None:
        runtime = AioRuntime("a")
        try:
            await scenario(runtime)
        finally:
            await runtime.close()

    run(main())


async def offloaded(runtime: AioRuntime, work: Callable[[], object]) -> object:
    future = asyncio.get_running_loop().create_future()
    runtime.offload(work, future.set_result)
    return await future


def test_it_runs_on_uvloop() -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main()).startswith("uvloop")


def test_a_seed_gives_the_same_numbers_again_and_without_one_they_differ() -> None:
    async def main() -> None:
        def draw(seed: int | None) -> float:
            return AioRuntime("a", seed=seed).rng.random()

        assert draw(5) == draw(5)
        assert draw(None) != draw(None)

    run(main())


def test_calls_are_made_after_this_turn_in_order() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        calls: list[int] = []
        done = runtime.future()
        runtime.call_soon(calls.append, 1)
        runtime.call_soon(calls.append, 2)
        runtime.call_soon(done.set_result, None)
        assert calls == []
        await done
        assert calls == [1, 2]

    with_runtime(scenario)


def test_a_timer_never_fires_before_its_time_even_if_the_loop_was_busy() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        for delay in (0.0, 0.0004, 0.0013, 0.0105):
            time.sleep(0.003)  # a long turn: a loop that caches the time would start the timer too early
            start = runtime.now()
            fired = runtime.future()
            runtime.call_later(delay, fired.set_result, None)
            await fired
            assert runtime.now() - start >= delay

    with_runtime(scenario)


def test_a_cancelled_timer_does_not_fire() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        fired: list[str] = []
        runtime.call_later(0.001, fired.append, "cancelled").cancel()
        later = runtime.future()
        runtime.call_later(0.005, later.set_result, None)
        await later
        assert fired == []

    with_runtime(scenario)


def test_offloaded_work_runs_on_another_thread_and_completes_on_the_loop() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        here = threading.get_ident()
        completed_on: list[int] = []
        done = runtime.future()

        def complete(result: int | Exception) -> None:
            completed_on.append(threading.get_ident())
            done.set_result(result)

        runtime.offload(threading.get_ident, complete)
        assert await done != here
        assert completed_on == [here]

    with_runtime(scenario)


def test_offloaded_work_that_raises_completes_with_its_exception() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        def work() -> None:
            raise ValueError("no")

        assert repr(await offloaded(runtime, work)) == "ValueError('no')"

    with_runtime(scenario)


def test_offloading_on_a_closed_node_completes_with_an_error() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        await runtime.close()
        assert isinstance(await offloaded(runtime, lambda: None), CoterieError)

    with_runtime(scenario)


def test_work_that_is_still_offloaded_when_the_node_closes_completes_never() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        release = threading.Event()
        results: list[object] = []
        for _ in range(20):
            runtime.offload(release.wait, results.append)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("a-offload")]
        await runtime.close()
        release.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)
        assert threads
        assert results == []

    with_runtime(scenario)


def test_a_spawned_task_gives_its_result_and_its_exception_to_whoever_awaits_it() -> None:
    async def scenario(runtime: Runtime) -> None:
        async def answer(future: Awaitable[int]) -> int:
            return await future + 1

        future = runtime.future()
        task = runtime.spawn(answer(future))
        future.set_result(41)
        assert await task == 42

        broken = runtime.future()
        task = runtime.spawn(answer(broken))
        broken.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await task

    with_runtime(scenario)


def test_an_exception_in_a_callback_is_logged_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(what: str) -> None:
        raise ValueError(what)

    async def scenario(runtime: AioRuntime) -> None:
        async def after(call: Callable[..., object], what: str) -> None:
            """The runtime promises no order between a timer and what is due at once: one after the other."""
            done = runtime.future()
            call(fail, what)
            call(done.set_result, None)
            await done

        await after(runtime.call_soon, "soon")
        await after(partial(runtime.call_later, 0.001), "later")
        completed = runtime.future()

        def complete(what: str | Exception) -> None:
            completed.set_result(None)
            fail(str(what))

        runtime.offload(lambda: "offloaded", complete)
        await completed

    with_runtime(scenario)
    assert all(record.name.startswith("coterie") and record.exc_info for record in caplog.records)
    logged = [record.getMessage() for record in caplog.records]
    assert [text.rpartition("ValueError: ")[2] for text in logged] == ["soon", "later", "offloaded"]


def test_an_exception_in_a_task_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("nobody awaits this")

    async def scenario(runtime: AioRuntime) -> None:
        runtime.spawn(fail())
        await asyncio.sleep(0)
        gc.collect()

    with_runtime(scenario)
    (record,) = caplog.records
    assert record.name.startswith("coterie")
    assert "ValueError: nobody awaits this" in caplog.text


def test_closing_cancels_tasks_and_logs_what_they_raise_instead(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        cancelled: list[str] = []

        async def wait(then: Callable[[], None]) -> None:
            try:
                await runtime.future()
            finally:
                then()

        def fail() -> None:
            raise ValueError("while ending")

        runtime.spawn(wait(lambda: cancelled.append("yes")))
        runtime.spawn(wait(fail))
        await asyncio.sleep(0)
        await runtime.close()
        await runtime.close()
        assert cancelled == ["yes"]

    with_runtime(scenario)
    assert len(caplog.records) == 1
    assert "ValueError: while ending" in caplog.text


def test_an_application_keeps_its_own_exception_handler() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
        runtime = AioRuntime("a")
        runtime.call_soon(int, "x")
        await asyncio.sleep(0)
        await runtime.close()
        return seen

    assert len(asyncio.run(main())) == 1


def test_entropy_has_the_size_asked_for() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        assert len(runtime.entropy(16)) == 16
        assert runtime.entropy(16) != runtime.entropy(16)
        assert abs(runtime.wall() - time.time()) < 60

    with_runtime(scenario)


LOGIN = """
import asyncio, resource
from coterie.broker.passwords import hashed
from coterie.runtime.aio import AioRuntime, run

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

async def main():
    runtime = AioRuntime("a")
    before, done = resident(), asyncio.Event()
    runtime.offload(lambda: hashed(b"guess", b"salt" * 4), lambda found: done.set())
    await done.wait()
    print(resident() - before)
    await runtime.close()

run(main())
"""


def test_what_a_password_takes_to_check_is_not_kept() -> None:
    found = subprocess.run([sys.executable, "-c", LOGIN], capture_output=True, text=True, timeout=60, check=True)
    assert int(found.stdout) < 8 << 20


def test_a_completion_that_comes_when_whoever_waited_is_gone_is_dropped() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        future = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await future

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        resolve(future, None)
        assert future.cancelled()

    with_runtime(scenario)
