"""Replicated blocks under crashes, restarts, partitions and pauses: one seed is one run.

At rest all copies are the same, nobody waits, and nothing is held. With a majority, no partition loses what was
answered, and no number and no token is given twice.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

import pytest
from blocks_rig import Group

from coterie.blocks import Hub, LockLost, LockTimeout, NoMajority, SharedCounter, SharedDict, SharedLock, Token
from coterie.sim.future import Task
from coterie.sim.runtime import SimRuntime


class Member:
    """One incarnation, with one of each block, that does something all the time."""

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        run.group.hubs.pop(number, None)
        self.hub: Hub = run.group.hub(number)
        self.runtime: SimRuntime = run.group.runtime(number)
        self.rng = random.Random(f"{run.seed}/{self.hub.local}")
        self.dict = SharedDict(self.hub, "dict")
        self.counter = SharedCounter(self.hub, "counter")
        self.lock = SharedLock(self.hub, "lock")
        self.tasks: list[Task[None]] = []
        self.begin(self.hub.connect())
        self.begin(self.work())

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.runtime.spawn(coroutine))

    async def work(self) -> None:
        while self.hub.view is None:
            await self.runtime.sleep(0.05)
        while not self.run.over:
            self.begin(self.rng.choice((self.write, self.swap, self.add, self.use))())
            await self.runtime.sleep(self.rng.uniform(0, 0.2))

    async def write(self) -> None:
        try:
            await self.dict.set(self.rng.choice("xyz"), self.rng.randbytes(4))
        except NoMajority:
            pass

    async def swap(self) -> None:
        key = self.rng.choice("xyz")
        try:
            await self.dict.compare_and_set(key, self.dict.get(key), self.rng.choice((None, b"new")))
        except NoMajority:
            pass

    async def add(self) -> None:
        try:
            self.run.numbers.append(await self.counter.add())
        except NoMajority:
            pass

    async def use(self) -> None:
        try:
            lease = await self.lock.acquire(timeout=3)
            self.run.tokens.append(lease.token)
            await self.runtime.sleep(self.rng.uniform(0, 0.2))
            await lease.release()
        except (NoMajority, LockTimeout, LockLost):
            pass


class Run:
    def __init__(self, seed: int, size: int, majority_of: int = 0) -> None:
        self.seed = seed
        self.size = size
        self.rng = random.Random(f"{seed}/faults")
        self.group = Group(size, majority_of=majority_of, seed=seed)
        self.over = False
        self.numbers: list[int] = []
        """That were drawn from the counter."""
        self.tokens: list[Token] = []
        self.members = {number: Member(self, number) for number in range(size)}
        self.paused: dict[int, int] = {}
        self.parted = False

    def go(self, seconds: float, *kinds: str) -> Run:
        world = self.group.world
        world.run(1)
        end = world.time + seconds
        while world.time < end:
            getattr(self, self.rng.choice(kinds))()
            world.run(world.time + self.rng.choice((0.02, 0.1, 0.3, 1)))
        for number in list(self.paused):
            self.go_on(number)
        if self.parted:
            self.part()
        for number in range(self.size):
            self.restart(number)
        world.run(world.time + 8)
        self.over = True
        world.run(world.time + 8)
        return self

    def crash(self) -> None:
        alive = [number for number in range(self.size) if self.group.nodes[number].alive]
        number = self.rng.randrange(self.size)
        if number in alive and len(alive) > 1 and number not in self.paused:
            self.group.nodes[number].crash(silent=self.rng.random() < 0.5)
        else:
            self.restart(number)

    def restart(self, number: int) -> None:
        if not self.group.nodes[number].alive:
            self.members[number] = Member(self, number)

    def part(self) -> None:
        if self.parted:
            self.group.mend()
        else:
            numbers = self.rng.sample(range(self.size), self.size)
            at = self.rng.randrange(1, self.size)
            self.group.cut(numbers[:at], numbers[at:])
        self.parted = not self.parted

    def pause(self) -> None:
        number = self.rng.randrange(self.size)
        if number in self.paused:
            self.go_on(number)
        elif self.group.nodes[number].alive:
            self.paused[number] = self.group.nodes[number].incarnation
            self.group.nodes[number].pause()

    def go_on(self, number: int) -> None:
        self.group.nodes[number].resume(self.paused.pop(number))

    def check(self) -> None:
        """Everything is at rest, and the same everywhere."""
        assert not self.group.world.unhandled
        assert self.group.together(*range(self.size))
        members = list(self.members.values())
        assert all(task.done() for member in members for task in member.tasks)
        assert all(member.dict.snapshot() == members[0].dict.snapshot() for member in members)
        assert all(member.counter.value == members[0].counter.value for member in members)
        assert not any(member.lock.holder or member.lock.waiting for member in members)
        assert not any(member.lock._leases or member.lock._wanted for member in members)
        for number in range(self.size):
            replicated = self.group.replicated(number)
            assert replicated is not None
            assert not replicated._asked
            assert not replicated._applied
        assert len(self.numbers) > 20
        assert len(self.tokens) > 5


@pytest.mark.parametrize("seed", range(6))
def test_after_crashes_partitions_and_pauses_all_copies_are_the_same_and_nobody_waits(seed: int) -> None:
    Run(seed, size=3).go(8, "crash", "part", "pause").check()


@pytest.mark.parametrize("seed", range(3))
def test_with_a_majority_that_holds_after_restarts_too(seed: int) -> None:
    Run(seed, size=3, majority_of=3).go(8, "crash", "part", "pause").check()


@pytest.mark.parametrize("seed", range(3))
def test_with_a_majority_no_partition_loses_what_was_answered_or_gives_a_number_twice(seed: int) -> None:
    run = Run(seed, size=5, majority_of=5).go(8, "part", "pause")
    run.check()
    assert len(set(run.numbers)) == len(run.numbers)
    assert run.members[0].counter.value >= len(run.numbers)
    assert len(set(run.tokens)) == len(run.tokens)


def test_one_seed_is_one_run() -> None:
    first, second = (Run(7, size=3).go(3, "crash", "part") for _ in range(2))
    assert first.numbers == second.numbers
    assert first.tokens == second.tokens
    assert first.members[0].dict.snapshot() == second.members[0].dict.snapshot()
    assert first.group.world.steps == second.group.world.steps
