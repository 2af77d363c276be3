"""The channel in groups that agree on their views: joining, leaving, flushing, blocking. docs/protocols/channel.md."""

from __future__ import annotations

import pytest
from vs_rig import Group, Member, hold

from coterie.errors import UserError
from coterie.group.channel import Channel, ChannelClosed, Flush, FlushFailed
from coterie.group.protocols.nakack import Nakack
from coterie.runtime.base import Future
from coterie.sim.clock import World
from coterie.sim.link import Link
from coterie.sim.network import Fabric
from coterie.sim.node import Node


def lone_channel(stack: str = "reliable") -> tuple[World, Channel]:
    world = World(1)
    return world, Channel(Node(world, Fabric(world), "a").boot(), stack, group="test", name="a")


def holding(group: Group, member: Member) -> bool:
    return len(group.events("flush_held", member.node.name)) > len(group.events("flush_ended", member.node.name))


# Joining and leaving.


def test_connecting_ends_with_the_first_view() -> None:
    group = Group(size=2)
    a = group.connect(0)
    assert [view.members for view in a.app.views] == [(a.local,)]
    b = group.connect(1)
    assert [view.members for view in b.app.views] == [(a.local, b.local)]


def test_connecting_may_wait_for_others() -> None:
    group = Group(size=2)
    a = group.boot(0)
    task = a.do(a.channel.connect(members=2))
    group.run(2)
    assert not task.done()
    group.connect(1)
    group.wait(task)
    assert a.view() == "ab"


def test_what_is_sent_before_the_first_view_waits_for_it() -> None:
    group = Group(size=2)
    a = group.connect(0)
    b = group.boot(1)
    b.do(b.channel.connect())
    group.run(0)
    b.channel.send_nowait(b"early")
    group.run(0)
    assert b.channel.stack.find(Nakack).sent == 0
    group.until(lambda: b.app.got == [b"early"])
    group.run(1)
    assert a.app.got == [b"early"]
    (sent,) = [e for e in group.events("send", "b") if e.data["app"]]
    assert sent.view == str(b.channel.view.id)


def test_unicasts_sent_before_and_after_the_first_view_keep_their_order() -> None:
    group = Group(size=2)
    group.connect(0)
    b = group.boot(1)
    b.do(b.channel.connect())
    group.run(0)
    b.channel.send_nowait(b"1", b.local)
    group.until(lambda: b.channel.view.id.counter > 0)
    b.channel.send_nowait(b"2", b.local)
    group.run(1)
    assert b.app.got == [b"1", b"2"]


def test_joining_with_the_state_needs_layers_that_can_do_it() -> None:
    _, channel = lone_channel()
    with pytest.raises(UserError, match="STATE"):
        channel.connect(state=True).send(None)


def test_a_member_that_closes_has_left_before_it_is_gone_and_nobody_suspects_it() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    started = group.world.time
    group.wait(b.do(b.channel.close()))
    assert (a.view(), c.view()) == ("ac", "ac")
    assert group.world.time - started < 1
    assert group.events("suspect") == []


def test_what_was_sent_before_closing_is_delivered_in_the_view_of_the_sender() -> None:
    group = Group(size=2)
    a, b = group.connected()
    b.channel.send_nowait(b"last words")
    group.wait(b.do(b.channel.close()))
    assert a.app.told[-4:] == [b"last words", "block", "a", "unblock"] or a.app.got == [b"last words"]
    assert a.app.told.index(b"last words") < a.app.told.index("a", 1)


def test_a_member_that_closes_does_not_wait_for_the_others_to_cease_sending() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    for member in (a, c):
        member.chatter(pause=0.002)
    group.run(0.2)
    started = group.world.time
    group.wait(b.do(b.channel.close()))
    assert (a.view(), c.view()) == ("ac", "ac")
    assert group.world.time - started < 0.3


def test_the_oldest_member_leaves_like_any_other() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    group.wait(a.do(a.channel.close()))
    group.until(lambda: (b.view(), c.view()) == ("bc", "bc"))
    assert group.events("suspect") == []


def test_closing_ends_although_nobody_answers() -> None:
    group = Group(size=2)
    a, b = group.connected()
    a.node.pause(frozen=True)
    started = group.world.time
    group.wait(b.do(b.channel.close()))
    assert group.world.time - started < 2 * b.channel.settings.close_timeout + 1


# Flushing.


def test_inside_a_flush_nobody_multicasts_and_all_have_delivered_the_same() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    stops = [member.chatter(0.002) for member in (a, b, c)]
    group.run(0.5)
    release = hold(a)
    seen: list[list[list[bytes]]] = []

    async def flush() -> None:
        async with a.channel.flush() as flush:
            assert flush.held
            seen.append([sorted(member.app.state) for member in (a, b, c)])
            await release
            seen.append([sorted(member.app.state) for member in (a, b, c)])
        assert not flush.held

    task = a.do(flush())
    group.until(lambda: bool(seen))
    group.run(1)
    release.set_result(None)
    group.wait(task)
    before, after = seen
    assert before[0] == before[1] == before[2]
    assert before == after
    group.run(1)
    for stop in stops:
        stop()
    group.rest()
    assert len(a.app.state) > len(before[0])
    assert sorted(a.app.state) == sorted(b.app.state) == sorted(c.app.state)


def test_unicasts_pass_while_a_flush_holds() -> None:
    group = Group(size=2)
    a, b = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True
    b.channel.send_nowait(b"to one", a.local)
    b.channel.send_nowait(b"to all")
    group.run(1)
    assert a.app.got == [b"to one"]
    assert a.channel.stop_flush() is True
    group.run(1)
    assert a.app.got == [b"to one", b"to all"]
    assert a.channel.stop_flush() is False


def test_a_flush_against_another_members_flush_fails_says_so_and_blocks_nobody() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True

    async def flush() -> None:
        async with b.channel.flush():
            raise AssertionError("it must not hold")

    with pytest.raises(FlushFailed, match="a#1"):
        group.wait(b.do(flush()))
    assert group.wait(b.do(b.channel.start_flush())) is False
    a.channel.stop_flush()
    c.channel.send_nowait(b"goes on")
    group.run(1)
    assert a.app.got == b.app.got == [b"goes on"]
    assert group.wait(b.do(b.channel.start_flush())) is True
    b.channel.stop_flush()
    group.rest()


def test_a_second_flush_of_the_same_member_waits_for_the_first() -> None:
    group = Group(size=2)
    a, _ = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True
    second = a.do(a.channel.start_flush())
    group.run(0.5)
    assert not second.done()
    a.channel.stop_flush()
    assert group.wait(second) is True
    a.channel.stop_flush()
    group.rest()


def test_a_flush_that_waits_longer_than_its_time_limit_fails_and_is_given_up() -> None:
    group = Group(size=2)
    a, b = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True
    second = a.do(a.channel.start_flush(timeout=0.3))
    assert group.wait(second) is False
    a.channel.stop_flush()
    b.channel.send_nowait(b"goes on")
    group.run(1)
    assert a.app.got == [b"goes on"]
    group.rest()


def test_a_flush_whose_body_raises_is_released() -> None:
    group = Group(size=2)
    a, b = group.connected()

    async def flush() -> None:
        async with a.channel.flush():
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        group.wait(a.do(flush()))
    b.channel.send_nowait(b"goes on")
    group.run(1)
    assert a.app.got == [b"goes on"]
    group.rest()


BRIEF = {"FLUSH2": {"exclusive_max": 1.0}}
"""Applications' flushes are over after a second."""


def test_a_flush_that_outlives_its_longest_time_is_lost_and_its_holder_learns_it_at_once_and_in_the_end() -> None:
    group = Group(size=2, settings=BRIEF)
    a, b = group.connected()
    release = hold(a)
    seen: list[Flush] = []

    async def flush() -> None:
        async with a.channel.flush() as flush:
            seen.append(flush)
            await release

    task = a.do(flush())
    group.until(lambda: bool(seen))
    group.run(0.5)
    assert seen[0].held
    assert not seen[0].lost
    group.run(1)
    assert not seen[0].held
    assert "was released after exclusive_max (1 s)" in seen[0].lost
    assert group.wait(b.do(b.channel.start_flush())) is True  # it is somebody else's turn
    release.set_result(None)
    with pytest.raises(FlushFailed, match=r"was released after exclusive_max \(1 s\)"):
        group.wait(task)
    assert holding(group, b)  # that the first one ends does not release the second
    assert b.channel.stop_flush() is True
    group.rest()


def test_a_flush_that_was_lost_has_not_held_when_it_is_stopped() -> None:
    group = Group(size=2, settings=BRIEF)
    a, _ = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True
    group.run(2)
    assert a.channel.stop_flush() is False
    assert group.wait(a.do(a.channel.start_flush())) is True
    group.run(0.5)
    assert a.channel.stop_flush() is True
    group.rest()


def test_a_process_that_stood_still_during_its_flush_learns_that_it_was_lost_before_any_timer_tells_it() -> None:
    group = Group(size=2, settings=BRIEF)
    a, b = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True
    held: list[bool] = []
    a.runtime.call_later(0.5, lambda: held.append(a.channel.stop_flush()))  # before its longest time is over
    a.node.pause()
    b.channel.send_nowait(b"waits")
    group.run(3)
    assert b.app.got == [b"waits"]
    a.node.resume(a.node.incarnation)
    group.run(0.1)
    assert held == [False]


def test_a_flush_ends_with_its_channel_and_its_holder_learns_it() -> None:
    group = Group(size=2)
    a, b = group.connected()
    release = hold(a)

    async def flush() -> None:
        async with a.channel.flush():
            await release

    task = a.do(flush())
    group.until(lambda: holding(group, a))
    group.wait(a.do(a.channel.close()))
    release.set_result(None)
    with pytest.raises(FlushFailed, match="ended with its channel"):
        group.wait(task)
    group.until(lambda: b.view() == "b")
    group.rest()


def test_what_goes_wrong_inside_a_flush_that_was_lost_is_what_is_raised() -> None:
    group = Group(size=2, settings=BRIEF)
    a, _ = group.connected()

    async def flush() -> None:
        async with a.channel.flush():
            await a.runtime.sleep(2)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        group.wait(a.do(flush()))
    group.rest()


def cut(group: Group, *pairs: str) -> list[Link]:
    """Nothing passes between these until each link is unblocked."""
    links = [group.fabric.link(*way) for pair in pairs for way in (list(pair), list(pair[::-1]))]
    for link in links:
        link.block()
    return links


HURRIED = {
    "FAILURE": {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.4, "verify_timeout": 0.1},
    "MERGE": {"interval": 0.2},
}


def test_when_groups_merge_every_holder_is_told_and_nobody_stays_blocked() -> None:
    group = Group(size=4, settings=HURRIED)
    members = group.connected()
    a, b, c, _ = members
    links = cut(group, "ac", "ad", "bc", "bd")
    group.until(lambda: [m.view() for m in members] == ["ab", "ab", "cd", "cd"])
    told: list[str] = []
    tasks, flushes, release = [], [], [hold(a), hold(c)]

    async def flush(member: Member, end: Future[None]) -> None:
        async with member.channel.flush(lost=told.append) as held:
            flushes.append(held)
            await end

    for member, end in zip((a, c), release, strict=True):
        tasks.append(member.do(flush(member, end)))
    group.until(lambda: len(flushes) == 2)
    b.channel.send_nowait(b"waits")
    for link in links:
        link.unblock()
    group.until(lambda: all(len(m.channel.view.members) == 4 for m in members))
    assert [flush.held for flush in flushes] == [False, False]
    group.until(lambda: all(m.app.got == [b"waits"] for m in members))
    assert sorted(told) == sorted(flush.lost for flush in flushes)
    assert "whom it did not block" in told[0]
    for task, end in zip(tasks, release, strict=True):
        end.set_result(None)
        with pytest.raises(FlushFailed, match="whom it did not block"):
            group.wait(task)
    group.rest()


def test_a_holder_that_one_member_takes_for_dead_is_told_before_that_member_sends_anything() -> None:
    group = Group(size=3, settings=HURRIED)
    a, b, c = group.connected()
    told: list[str] = []
    assert group.wait(b.do(b.channel.start_flush(lost=told.append))) is True
    c.channel.send_nowait(b"waits")
    links = cut(group, "bc")
    group.until(lambda: bool(group.events("suspect", "c")))
    group.run(1)
    assert (c.app.got, told) == ([], [])  # it can tell nobody, and sends nothing
    assert {m.view() for m in (a, b, c)} == {"abc"}
    for link in links:
        link.unblock()
    group.until(lambda: a.app.got == [b"waits"])
    assert "was left by c#1, which takes this member for dead," in told[0]
    (lost,) = group.events("flush_lost", "b")
    (sent,) = [e for e in group.events("send", "c") if e.data["to"] == "all"]
    assert lost.t < sent.t
    assert b.channel.stop_flush() is False
    group.rest()


def test_a_callback_that_fails_when_it_is_told_that_a_flush_is_lost_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group(size=2, settings=BRIEF)
    a, b = group.connected()

    def fail(why: str) -> None:
        raise RuntimeError(why)

    assert group.wait(a.do(a.channel.start_flush(lost=fail))) is True
    group.run(2)
    assert a.channel.stop_flush() is False
    assert "has failed" in caplog.text
    b.channel.send_nowait(b"goes on")
    group.until(lambda: a.app.got == [b"goes on"])
    group.rest()


def test_a_flush_may_be_of_some_members_only() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    assert group.wait(a.do(a.channel.start_flush([a.local, b.local]))) is True
    b.channel.send_nowait(b"of b")
    c.channel.send_nowait(b"of c")
    group.run(0.5)
    assert c.app.got == [b"of c"]
    a.channel.stop_flush()
    group.rest()
    assert sorted(c.app.got) == [b"of b", b"of c"]
    with pytest.raises(UserError, match="not in the view"):
        a.channel.flush([c.local._replace(incarnation=7)])


def test_a_stack_without_a_flush_says_what_is_missing() -> None:
    _, channel = lone_channel()
    with pytest.raises(UserError, match="FLUSH2"):
        channel.flush()
    with pytest.raises(UserError, match="STATE"):
        channel.get_state().send(None)


def test_before_connecting_there_is_nothing_to_flush_and_no_state() -> None:
    _, channel = lone_channel("virtual-synchrony")
    with pytest.raises(ChannelClosed):
        channel.flush()
    with pytest.raises(ChannelClosed):
        channel.get_state().send(None)
    assert channel.state_progress is None


def test_whoever_waits_for_a_flush_or_a_state_is_told_that_the_channel_was_closed() -> None:
    group = Group(size=2)
    a, b = group.connected()
    assert group.wait(a.do(a.channel.start_flush())) is True
    flush = a.do(a.channel.flush().start())
    state = b.do(b.channel.get_state())
    group.run(0.1)
    for member in (a, b):
        member.channel.stack.stop()
    for task in (flush, state):
        with pytest.raises(ChannelClosed):
            group.wait(task)


# Blocking.


def test_an_application_is_told_to_stop_before_a_view_and_to_go_on_after_it() -> None:
    group = Group(size=3)
    a, b = group.connected(2)
    for member in (a, b):
        member.app.told.clear()
    group.connect(2)
    group.run(1)
    assert a.app.told == b.app.told == ["block", "abc", "unblock"]


def test_what_block_sends_is_delivered_before_the_view() -> None:
    group = Group(size=3)
    a, b = group.connected(2)

    def say() -> None:
        b.channel.send_nowait(b"one more thing")

    b.app.blocks = say
    group.connect(2)
    group.run(1)
    for member in (a, b):
        assert member.app.told.index(b"one more thing") < member.app.told.index("abc")


def test_what_is_sent_after_block_waits_for_the_view() -> None:
    group = Group(size=3)
    a, b = group.connected(2)
    b.app.blocks = lambda: b.runtime.call_soon(b.channel.send_nowait, b"too late")
    c = group.connect(2)
    group.run(1)
    for member in (a, b, c):
        assert member.app.told.index("abc") < member.app.told.index(b"too late")


def test_a_two_phase_commit_that_is_under_way_is_finished_inside_block() -> None:
    group = Group(size=3)
    a, b = group.connected(2)
    acks: list[bytes] = []
    all_acks = hold(b)

    def vote() -> None:
        if a.app.got[-1] == b"prepare":
            a.channel.send_nowait(b"ack", b.local)

    def count() -> None:
        if b.app.got[-1] == b"ack" and not all_acks.done():
            acks.append(b"ack")
            all_acks.set_result(None)

    async def finish() -> None:
        b.channel.send_nowait(b"prepare")
        await all_acks
        b.channel.send_nowait(b"commit")

    a.app.then, b.app.then, b.app.blocks = vote, count, finish
    c = group.connect(2)
    group.run(1)
    assert acks == [b"ack"]
    for member in (a, b):
        told = member.app.told
        assert told.index(b"prepare") < told.index(b"commit") < told.index("abc")
    assert c.app.got == []


def test_what_block_sends_goes_out_although_there_is_no_credit_at_the_moment() -> None:
    group = Group(size=2, settings={"FLOW": {"window": 2000}, "FRAG": {"size": 500}, "channel": {"bundle_size": 500}})
    a, b = group.connected()
    slow = True

    async def dawdle() -> None:
        await a.runtime.sleep(0.2)

    a.app.then = lambda: dawdle() if slow else None

    def say() -> None:
        for n in range(20):
            b.channel.send_nowait(b"%02d" % n + bytes(300))

    b.app.blocks = say
    flush = a.do(a.channel.start_flush())
    group.wait(flush)
    group.run(10)
    assert [message[:2] for message in b.app.got] == [b"%02d" % n for n in range(20)]
    a.channel.stop_flush()
    slow = False
    group.rest()


def test_an_application_that_never_returns_from_block_does_not_stop_the_group() -> None:
    group = Group(size=3, settings={"FLUSH2": {"block_timeout": 0.5}})
    a, b = group.connected(2)

    async def never() -> None:
        await hold(b)

    b.app.blocks = never
    group.connect(2)
    group.until(lambda: (a.view(), b.view()) == ("abc", "abc"))


# Two processes with one name.


def namesake(group: Group, number: int, name: str, incarnation: int) -> Member:
    """A process on another host that has been given the name of a member. It has not connected yet."""
    return group.boot(number, name=name, incarnation=incarnation)


def gave_way(member: Member) -> bool:
    return not member.channel.stack.running and "another process has joined as" in member.channel.failure


@pytest.mark.parametrize("name", ["a", "b", "c"], ids=["coordinator", "next in line", "youngest"])
def test_a_member_gives_way_to_a_newer_process_with_its_name_and_the_group_settles(name: str) -> None:
    group = Group(size=4)
    members = group.connected(3)
    old = members["abc".index(name)]
    rest = [member for member in members if member is not old]
    waits = old.do(old.channel.has_members(9))
    new = namesake(group, 3, name, 7)
    group.wait(new.do(new.channel.connect(3)))
    group.until(lambda: gave_way(old), 10)
    why = f"another process has joined as {name}: {name}#7 at "
    assert old.channel.failure.startswith(why)
    assert f"{name}#1" in old.channel.failure
    assert old.app.ended == [old.channel.failure]
    with pytest.raises(ChannelClosed, match=why):
        group.wait(waits)
    with pytest.raises(ChannelClosed, match=why):
        old.channel.send_nowait(b"too late")
    with pytest.raises(ChannelClosed, match=why):
        old.channel.flush()
    group.wait(old.do(old.channel.close()))  # nothing is left to do
    group.run(10)
    for member in (*rest, new):
        assert sorted(member.channel.view.members) == sorted([*(m.local for m in rest), new.local])
        assert not member.channel.failure
        assert not member.app.ended
    settled = len(new.app.views)
    new.channel.send_nowait(b"goes on")
    group.run(5)
    assert all(member.app.got[-1] == b"goes on" for member in (*rest, new))
    assert len(new.app.views) == settled
    group.rest()


def test_the_first_and_only_member_gives_way_to_a_newer_process_with_its_name() -> None:
    group = Group(size=2)
    old = group.connect(0)
    new = namesake(group, 1, "a", 7)
    group.wait(new.do(new.channel.connect()))
    group.until(lambda: gave_way(old), 10)
    group.run(5)
    assert new.channel.view.members == (new.local,)
    assert new.channel.stack.running


def test_of_two_processes_with_one_name_that_join_at_the_same_time_the_older_one_is_told_so_by_connect() -> None:
    group = Group(size=3)
    old, new = group.boot(0), namesake(group, 1, "a", 7)
    joins, begins = old.do(old.channel.connect()), new.do(new.channel.connect())
    other = group.boot(2)
    other.do(other.channel.connect())
    with pytest.raises(ChannelClosed, match="another process has joined as a"):
        group.wait(joins)
    group.wait(begins)
    group.until(lambda: sorted(other.channel.view.members) == [new.local, other.local])
    assert old.channel.view.id.counter == 0  # it was never in a view


def test_an_older_process_that_comes_later_is_turned_away_and_disturbs_nobody() -> None:
    group = Group(size=4)
    members = group.connected(3)
    views = [len(member.app.views) for member in members]
    old = namesake(group, 3, "b", 0)
    with pytest.raises(ChannelClosed, match="another process has joined as b: b#1 at "):
        group.wait(old.do(old.channel.connect()))
    group.run(5)
    assert [len(member.app.views) for member in members] == views
    assert all(member.channel.stack.running for member in members)


def test_parts_that_each_have_a_process_of_one_name_become_one_group_with_the_newer_one() -> None:
    group = Group(size=4)
    a, b, c = group.connected(3)
    left, right = ("a", "b"), ("c", "d")
    for one in left:
        for other in right:
            group.fabric.link(one, other).block()
            group.fabric.link(other, one).block()
    group.until(lambda: a.view() == b.view() == "ab" and c.view() == "c")
    new = namesake(group, 3, "b", 7)
    group.wait(new.do(new.channel.connect(2)))
    for one in left:
        for other in right:
            group.fabric.link(one, other).unblock()
            group.fabric.link(other, one).unblock()
    group.until(lambda: gave_way(b))
    group.until(lambda: all(sorted(m.channel.view.members) == [a.local, new.local, c.local] for m in (a, c, new)))
    group.run(5)
    assert all(member.channel.stack.running for member in (a, c, new))
    group.rest()


def test_a_process_that_stood_still_while_it_was_replaced_gives_way_when_it_goes_on() -> None:
    group = Group(size=4)
    a, b, c = group.connected(3)
    b.node.pause(frozen=True)
    group.until(lambda: a.view() == c.view() == "ac")
    new = namesake(group, 3, "b", 7)
    group.wait(new.do(new.channel.connect(3)))
    b.node.resume(b.node.incarnation)
    group.until(lambda: gave_way(b))
    assert all(sorted(m.channel.view.members) == [a.local, new.local, c.local] for m in (a, c, new))


def test_nobody_gives_way_to_a_process_that_is_dead_whatever_its_number() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    b.node.crash()
    again = group.connect(1)  # an ordinary restart
    group.until(lambda: all(sorted(m.channel.view.members) == [a.local, again.local, c.local] for m in (a, c, again)))
    again.node.crash()
    behind = group.boot(1, incarnation=1)  # its clock has gone back: the dead one counts as newer
    group.wait(behind.do(behind.channel.connect(3)))
    c.node.crash(silent=True)
    later = group.boot(2)  # before anybody has noticed
    group.wait(later.do(later.channel.connect(3)))
    group.run(5)
    assert all(m.channel.stack.running and not m.channel.failure for m in (a, behind, later))
    assert a.channel.view.members == behind.channel.view.members == later.channel.view.members
