"""The simulated runtime: virtual time, order, clocks, tasks, crashes and pauses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coterie.sim.clock import StillBusy, World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime
from coterie.trace import Event


def node(world: World, name: str = "a") -> Node:
    return Node(world, Fabric(world), name)


def boot(world: World) -> SimRuntime:
    return node(world).boot()


def test_calls_come_in_the_order_of_their_time_and_then_of_their_scheduling() -> None:
    world = World(1)
    runtime = boot(world)
    seen: list[str] = []
    runtime.call_later(0.2, seen.append, "late")
    runtime.call_later(0.1, seen.append, "early, first")
    runtime.call_later(0.1, seen.append, "early, second")
    runtime.call_soon(seen.append, "soon")
    world.run(1.0)
    assert seen == ["soon", "early, first", "early, second", "late"]
    assert world.time == 1.0


def test_a_cancelled_timer_never_fires() -> None:
    world = World(1)
    runtime = boot(world)
    seen: list[str] = []
    runtime.call_later(0.1, seen.append, "x").cancel()
    world.run(1.0)
    assert seen == []


def test_nothing_of_a_crashed_node_is_called_again() -> None:
    world = World(1)
    host = node(world)
    runtime = host.boot()
    seen: list[str] = []
    runtime.call_later(0.5, seen.append, "timer")
    runtime.offload(lambda: 1, lambda _: seen.append("offload"))
    runtime.call_soon(seen.append, "soon")
    host.crash()
    runtime.call_soon(seen.append, "after death")
    world.run(1.0)
    assert seen == []


def test_a_paused_node_gets_what_waited_in_order_when_it_goes_on() -> None:
    world = World(1)
    host = node(world)
    runtime = host.boot()
    seen: list[tuple[str, float]] = []
    for name, delay in (("second", 0.2), ("first", 0.1), ("third", 0.9)):
        runtime.call_later(delay, lambda name=name: seen.append((name, world.time)))
    host.pause()
    world.after(0.5, world.nature, host.resume, 1)
    world.run(1.0)
    assert seen == [("first", 0.5), ("second", 0.5), ("third", 0.9)]


def test_two_overlapping_pauses_end_with_the_second() -> None:
    world = World(1)
    host = node(world)
    runtime = host.boot()
    seen: list[float] = []
    runtime.call_later(0.1, lambda: seen.append(world.time))
    host.pause()
    host.pause()
    world.after(0.3, world.nature, host.resume, 1)
    world.after(0.6, world.nature, host.resume, 1)
    world.run(1.0)
    assert seen == [0.6]


def test_a_clock_at_another_rate_stretches_time_and_timers_never_fire_early_by_it() -> None:
    world = World(1)
    runtime = boot(world)
    start = runtime.now()
    seen: list[tuple[float, float]] = []
    runtime.call_later(1.0, lambda: seen.append((world.time, runtime.now() - start)))
    world.after(0.5, world.nature, runtime.set_rate, 0.5)
    world.run(3.0)
    (when, by_its_clock), *_ = seen
    assert when == pytest.approx(1.5)
    assert by_its_clock == pytest.approx(1.0)


def test_random_numbers_depend_on_seed_node_and_incarnation_only() -> None:
    def draws(seed: int, name: str, boots: int) -> list[float]:
        world = World(seed)
        host = node(world, name)
        runtime = host.boot()
        for _ in range(boots):
            host.crash()
            runtime = host.boot()
        return [runtime.rng.random(), runtime.rng.random(), float(runtime.entropy(1)[0])]

    assert draws(1, "a", 0) == draws(1, "a", 0)
    assert len({tuple(draws(*key)) for key in ((1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1))}) == 4


def test_random_numbers_do_not_depend_on_the_hash_seed() -> None:
    code = "from coterie.sim.clock import World; print(World(7).rng('x').random())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_task_awaits_futures_and_other_tasks() -> None:
    world = World(1)
    runtime = boot(world)
    future = runtime.future()

    async def inner() -> int:
        await runtime.sleep(0.5)
        return 20

    async def outer() -> int:
        return await runtime.spawn(inner()) + int(await future)

    task = runtime.spawn(outer())
    runtime.call_later(0.1, future.set_result, 3)
    world.run(1.0)
    assert task.done()
    assert task.result() == 23


def test_a_failure_of_a_task_reaches_who_awaits_it() -> None:
    world = World(1)
    runtime = boot(world)

    async def broken() -> None:
        raise ValueError("no")

    async def careful() -> str:
        try:
            await runtime.spawn(broken())
        except ValueError as error:
            return str(error)
        return "nothing"

    task = runtime.spawn(careful())
    world.run(1.0)
    assert task.result() == "no"
    assert not world.unhandled


def test_a_failure_of_a_task_that_nobody_asks_for_is_remembered() -> None:
    world = World(1)
    runtime = boot(world)

    async def broken() -> None:
        raise ValueError("no")

    runtime.spawn(broken())
    world.run(1.0)
    ((who, error),) = world.unhandled.values()
    assert who == "a#1"
    assert str(error) == "no"


def test_the_clean_up_of_a_task_whose_process_died_leaves_no_trace() -> None:
    events: list[Event] = []
    world = World(1, sink=events.append)
    host = node(world)
    runtime = host.boot()

    async def work() -> None:
        try:
            await runtime.future()
        finally:
            runtime.trace.emit("stop")

    runtime.spawn(work())
    world.run(1.0)
    host.crash()
    assert [event.kind for event in events] == ["crash"]


def test_offloaded_work_completes_later_with_its_result_or_its_exception() -> None:
    world = World(1)
    runtime = boot(world)
    results: list[object] = []
    runtime.offload(lambda: 42, results.append)
    runtime.offload(lambda: 1 // 0, results.append)
    assert results == []
    world.run(1.0)
    assert 42 in results
    assert any(isinstance(result, ZeroDivisionError) for result in results)


def test_a_run_that_keeps_itself_busy_is_stopped() -> None:
    world = World(1)
    runtime = boot(world)

    def again() -> None:
        runtime.call_soon(again)

    again()
    with pytest.raises(StillBusy):
        world.run(1.0, max_steps=1000)


def test_the_trace_carries_virtual_time_and_numbers_without_holes() -> None:
    events: list[Event] = []
    world = World(1, "r1", events.append)
    runtime = boot(world)
    runtime.call_later(0.25, lambda: runtime.trace.emit("block"))
    runtime.call_later(0.5, lambda: runtime.trace.emit("unblock"))
    world.run(1.0)
    assert [(e.run, e.node, e.inc, e.n, e.t, e.kind) for e in events] == [
        ("r1", "a", 1, 0, 0.25, "block"),
        ("r1", "a", 1, 1, 0.5, "unblock"),
    ]
