"""SharedLock on whole stacks in the simulator: docs/blocks.md."""

from __future__ import annotations

import asyncio

import pytest
from blocks_rig import Group

from coterie.blocks import Hub, Lease, LockLost, LockTimeout, NoMajority, SharedLock
from coterie.blocks.copies import Own
from coterie.group.channel import ChannelClosed
from coterie.group.presets import preset
from coterie.runtime.aio import AioRuntime, run


def printer(hub: Hub) -> SharedLock:
    return SharedLock(hub, "printer")


def group_of(size: int, majority_of: int = 0) -> tuple[Group, list[SharedLock]]:
    group = Group(size, majority_of=majority_of)
    locks = group.make(printer)
    group.connect()
    return group, locks


def test_one_member_holds_the_lock_and_the_others_get_it_in_the_order_in_which_they_asked() -> None:
    group, locks = group_of(3)
    order: list[int] = []

    async def work(n: int) -> None:
        async with locks[n] as lease:
            assert lease.held
            order.append(n)
            await group.runtime(n).sleep(0.5)
            assert order[-1] == n

    tasks = []
    for n in (1, 0, 2):
        tasks.append(group.start(n, work(n)))
        group.run(0.1)
    assert locks[2].holder == group.address(1)
    assert locks[2].waiting == (group.address(0), group.address(2))
    group.until(lambda: all(task.done() for task in tasks))
    assert order == [1, 0, 2]
    group.run(0.1)
    assert [lock.holder for lock in locks] == [None, None, None]


def test_each_grant_has_a_larger_token_than_the_one_before() -> None:
    group, locks = group_of(3)
    tokens = []
    for n in range(9):
        lease = group.ask(n % 3, locks[n % 3].acquire())
        tokens.append(lease.token)
        group.ask(n % 3, lease.release())
    group.crash(0)
    group.until(lambda: group.together(1, 2))
    lease = group.ask(1, locks[1].acquire())
    tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert tokens[-1].view > tokens[0].view


def test_tokens_rise_even_if_requests_that_were_given_up_share_a_bundle_with_others() -> None:
    group, (_, b) = group_of(2)
    tokens = []

    async def impatient() -> None:
        with pytest.raises(LockTimeout):
            await b.acquire(timeout=0.0001)

    async def patient() -> None:
        lease = await b.acquire()
        tokens.append(lease.token)
        await lease.release()

    for _ in range(5):
        group.start(1, impatient())
        group.start(1, patient())
        group.start(1, impatient())
    group.run(2)
    assert len(tokens) == 5
    assert tokens == sorted(set(tokens))
    assert b.holder is None


def test_a_holder_that_crashes_gives_up_the_lock() -> None:
    group, locks = group_of(3)
    old = group.ask(2, locks[2].acquire())
    waiting = group.start(0, locks[0].acquire())
    group.run(0.1)
    assert not waiting.done()
    group.crash(2, silent=True)
    group.until(waiting.done)
    assert waiting.result().token > old.token


def test_a_holder_that_leaves_gives_up_the_lock() -> None:
    group, locks = group_of(2)
    lease = group.ask(1, locks[1].acquire())
    waiting = group.start(0, locks[0].acquire())
    group.ask(1, group.hubs[1].close())
    group.until(waiting.done)
    assert not lease.held
    with pytest.raises(LockLost):
        lease.check()


def test_a_waiting_member_that_crashes_is_passed_over() -> None:
    group, locks = group_of(3)
    lease = group.ask(0, locks[0].acquire())
    group.start(1, locks[1].acquire())
    group.run(0.1)
    last = group.start(2, locks[2].acquire())
    group.run(0.1)
    group.crash(1)
    group.run(2)
    group.ask(0, lease.release())
    group.until(last.done)
    assert last.result().held


def test_a_joiner_knows_who_holds_the_lock_and_waits_behind_who_waits() -> None:
    group = Group(3)
    locks = group.make(printer, 0, 1)
    group.connect()
    lease = group.ask(0, locks[0].acquire())
    second = group.start(1, locks[1].acquire())
    group.run(0.1)
    (joiner,) = group.make(printer, 2)
    group.connect(2)
    assert joiner.holder == group.address(0)
    third = group.start(2, joiner.acquire())
    group.run(0.1)
    group.ask(0, lease.release())
    group.until(second.done)
    assert not third.done()
    group.ask(1, second.result().release())
    group.until(third.done)


def test_two_tasks_of_one_member_exclude_each_other_too() -> None:
    group, (a,) = group_of(1)
    inside: list[int] = []

    async def work(n: int) -> None:
        async with a:
            inside.append(n)
            await group.runtime(0).sleep(0.1)
            assert inside[-1] == n

    tasks = [group.start(0, work(n)) for n in range(5)]
    group.until(lambda: all(task.done() for task in tasks))
    assert inside == [0, 1, 2, 3, 4]
    assert all(task.result() is None for task in tasks)


def test_a_request_that_takes_too_long_is_taken_back() -> None:
    group, (a, b) = group_of(2)
    lease = group.ask(0, a.acquire())
    with pytest.raises(LockTimeout, match=r"within 0\.3 s"):
        group.ask(1, b.acquire(timeout=0.3))
    group.run(0.1)
    assert a.waiting == ()
    group.ask(0, lease.release())
    group.run(0.1)
    assert (a.holder, b.holder) == (None, None)


def test_an_error_inside_of_the_block_releases_the_lock_and_comes_out() -> None:
    group, (a,) = group_of(1)

    async def fails() -> None:
        async with a:
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        group.ask(0, fails())
    group.run(0.1)
    assert a.holder is None


def test_a_lease_is_released_once() -> None:
    group, (a,) = group_of(1)
    lease = group.ask(0, a.acquire())
    group.ask(0, lease.release())
    with pytest.raises(LockLost):
        group.ask(0, lease.release())


# Partitions.


def test_after_a_partition_the_holder_of_the_largest_part_keeps_the_lock_and_the_other_is_told() -> None:
    group, (a, b, c) = group_of(3)
    told: list[Lease] = []
    group.split([0], [1, 2])
    small = group.ask(0, a.acquire(lost=told.append))
    large = group.ask(1, b.acquire())
    assert small.held
    group.heal()
    assert large.held
    assert told == [small]
    with pytest.raises(LockLost):
        group.ask(0, small.release())
    assert a.holder == b.holder == c.holder == group.address(1)


def test_a_holder_is_told_as_soon_as_it_is_known_that_its_part_is_not_the_largest() -> None:
    group, (a, _, _) = group_of(3)
    replicated = group.replicated(0)
    assert replicated is not None
    copies: list[Own] = []
    group.split([0], [1, 2])
    group.ask(0, a.acquire(lost=lambda lease: copies.append(replicated.copies.own)))
    group.heal()
    assert copies == [Own.OLD]  # not only when it has got the state


def test_a_holder_that_is_lost_while_a_merge_is_decided_gives_up_the_lock() -> None:
    group, locks = group_of(4)
    replicated = group.replicated(1)
    assert replicated is not None
    group.split([0, 1, 2], [3])
    group.ask(0, locks[0].acquire())
    waiting = group.start(1, locks[1].acquire())
    group.run(0.1)
    group.mend()
    while replicated.copies.holders is not None:
        group.world.run(group.world.time + 0.0005)
    group.crash(0)
    group.until(lambda: group.together(1, 2, 3))
    group.until(waiting.done)
    assert locks[3].holder == group.address(1)


def test_async_with_raises_that_the_lock_was_lost_inside_of_it() -> None:
    group, (a, _, _) = group_of(3)

    async def work() -> None:
        async with a as lease:
            while lease.held:
                await group.runtime(0).sleep(0.1)

    group.split([0], [1, 2])
    task = group.start(0, work())
    group.run(0.5)
    assert not task.done()
    group.heal()
    group.until(task.done)
    with pytest.raises(LockLost):
        task.result()


def test_who_waited_in_another_part_waits_on_at_the_end_of_the_queue_that_counts() -> None:
    group, (a, b, c) = group_of(3)
    group.split([0], [1, 2])
    group.ask(0, a.acquire())
    waited = group.start(0, a.acquire())
    held = group.ask(1, b.acquire())
    first = group.start(2, c.acquire())
    group.run(0.1)
    group.heal()
    group.run(1)
    assert b.waiting == (group.address(2), group.address(0))
    group.ask(1, held.release())
    group.until(first.done)
    assert not waited.done()
    group.ask(2, first.result().release())
    group.until(waited.done)
    assert waited.result().token > first.result().token


def test_a_failing_callback_of_a_lost_lock_disturbs_nobody() -> None:
    def fails(lease: Lease) -> None:
        raise RuntimeError("no")

    group, (a, b, _) = group_of(3)
    group.split([0], [1, 2])
    lease = group.ask(0, a.acquire(lost=fails))
    group.heal()
    assert not lease.held
    assert group.ask(1, b.acquire()).held


def test_with_a_majority_only_the_majority_has_a_holder() -> None:
    group, (a, b, c) = group_of(3, majority_of=3)
    told: list[Lease] = []
    old = group.ask(0, a.acquire(lost=told.append))
    waiting = group.start(1, b.acquire())
    group.split([0], [1, 2])
    assert told == [old]
    with pytest.raises(NoMajority):
        group.ask(0, a.acquire())
    group.until(waiting.done)
    assert waiting.result().token > old.token
    group.heal()
    assert a.holder == b.holder == c.holder == group.address(1)
    assert waiting.result().held


def test_with_a_majority_a_member_that_is_cut_off_does_not_get_the_lock() -> None:
    group, (a, b, _) = group_of(3, majority_of=3)
    group.cut([0], [1, 2])
    alone = group.start(0, a.acquire())
    other = group.start(1, b.acquire())
    group.until(lambda: alone.done() and other.done())
    with pytest.raises(NoMajority):
        alone.result()
    assert other.result().held


def test_who_waits_when_the_hub_is_closed_is_told() -> None:
    group, (a, b) = group_of(2)
    group.ask(0, a.acquire())
    waiting = group.start(1, b.acquire())
    group.run(0.1)
    group.ask(1, group.hubs[1].close())
    with pytest.raises(ChannelClosed):
        waiting.result()
    assert not b._wanted
    assert not b._leases


def test_a_task_that_is_cancelled_while_it_waits_takes_its_request_back() -> None:
    async def main() -> None:
        runtime = AioRuntime("a")
        stack = preset("total-order", TCP={"bind_port": 0}, GMS={"alone_after": 0.01})
        hub = Hub(runtime, stack, group="test", name="a")
        lock = printer(hub)
        await hub.connect()
        lease = await lock.acquire()

        async def enter() -> None:
            async with lock:
                pass

        waiting, entering, entered = (
            asyncio.create_task(lock.acquire()), asyncio.create_task(enter()), asyncio.create_task(enter())
        )  # fmt: skip
        await asyncio.sleep(0.05)
        assert len(lock.waiting) == 2
        waiting.cancel()
        entering.cancel()
        await asyncio.gather(waiting, entering, return_exceptions=True)
        await lease.release()
        await asyncio.wait_for(entered, 5)
        assert not lock.waiting
        await hub.close()
        await runtime.close()

    run(main())
