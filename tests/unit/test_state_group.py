"""State transfer in whole stacks, with joins, flushes, crashes and loss: docs/protocols/state_transfer.md."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from vs_rig import Group, Member, hold

from coterie.errors import UserError
from coterie.group.channel import ChannelClosed, StateFailed
from coterie.group.presets import preset
from coterie.group.stack import Layer
from coterie.runtime.base import Buffer
from coterie.sim.node import Node

STACKS = ["virtual-synchrony", "total-order"]
each_stack = pytest.mark.parametrize("stack", STACKS)


def slowly(member: Member, pause: float) -> None:
    """Its application takes so long over each chunk of a state."""

    async def take(chunks: AsyncIterator[Buffer]) -> bytes:
        taken = []
        async for chunk in chunks:
            taken.append(bytes(chunk))
            await member.runtime.sleep(pause)
        return b"".join(taken)

    member.app.take = take


def same_states(*members: Member) -> bool:
    """Without total order the senders' messages may interleave differently."""
    first = members[0].app.state
    return all(sorted(m.app.state) == sorted(first) for m in members) and len(set(first)) == len(first)


# Joining with the state.


@each_stack
def test_a_joiner_gets_the_state_while_everybody_multicasts_and_misses_and_doubles_nothing(stack: str) -> None:
    group = Group(stack, 3)
    a, b = group.connected(2)
    stops = [a.chatter(), b.chatter()]
    group.run(1)
    c = group.connect(2, state=True)
    stops.append(c.chatter())
    group.run(1)
    for stop in stops:
        stop()
    group.rest()
    assert c.app.told.index("set") < c.app.told.index("abc")
    assert same_states(a, b, c)
    assert len(a.app.state) > 200
    assert len(c.app.got) < len(a.app.got)  # the rest came as state
    if stack == "total-order":
        assert a.app.state == b.app.state == c.app.state


def test_a_joiner_is_given_the_state_under_the_flush_of_its_view_and_no_other() -> None:
    group = Group(size=2)
    (a,) = group.connected(1)
    a.channel.send_nowait(b"before")
    group.run(1)
    group.connect(1, state=True)
    group.rest()
    assert {event.data["mode"] for event in group.events("flush_held")} == {"view"}
    assert group.rules()["state.join_cut"] == 1


def test_the_first_member_of_a_group_begins_without_a_state() -> None:
    group = Group(size=1)
    a = group.connect(0, state=True)
    assert a.app.told == ["a", *[t for t in a.app.told if t != "a"]]
    assert "set" not in a.app.told


def test_several_joiners_in_one_view_all_get_the_state() -> None:
    group = Group(size=4)
    (a,) = group.connected(1)
    a.channel.send_nowait(b"before")
    group.run(1)
    joiners = [group.boot(n) for n in (1, 2, 3)]
    for task in [joiner.do(joiner.channel.connect(state=True)) for joiner in joiners]:
        group.wait(task)
    group.until(lambda: all(m.view().startswith("a") and len(m.view()) == 4 for m in group.members))
    group.rest()
    assert [joiner.app.state for joiner in joiners] == [[b"before"]] * 3


def test_a_joiner_whose_provider_crashes_gets_the_state_of_another_at_a_new_cut() -> None:
    group = Group(size=4, settings={"STATE": {"chunk_size": 100, "window": 2}})
    a, b, c = group.connected(3)
    stops = [b.chatter(), c.chatter()]
    group.run(1)
    d = group.boot(3)
    slowly(d, 0.05)
    task = d.do(d.channel.connect(state=True))
    group.until(lambda: d.channel.state_progress is not None and d.channel.state_progress.bytes > 0)
    provider = d.channel.state_progress.provider  # type: ignore[union-attr]
    assert provider == a.local
    a.node.crash()
    group.until(lambda: d.app.interrupted == 1)
    d.app.take = d.app.join
    group.wait(task)
    assert d.channel.state_progress.provider in (b.local, c.local)  # type: ignore[union-attr]
    for stop in stops:
        stop()
    group.rest()
    assert same_states(b, c, d)
    assert d.app.told.count("set") == 2
    assert d.app.told.index("abcd") < d.app.told.index("bcd")
    assert group.rules()["state.provider_gone"] > 0
    assert group.rules()["state.member_cut"] > 0


def test_a_joiner_that_crashes_while_it_gets_the_state_is_forgotten() -> None:
    group = Group(size=3, settings={"STATE": {"chunk_size": 100, "window": 2}})
    a, b = group.connected(2)
    closed: list[bool] = []

    def give() -> Iterator[bytes]:
        try:
            while True:
                yield bytes(100)
        finally:
            closed.append(True)

    a.app.give = give
    c = group.boot(2)
    slowly(c, 0.05)
    c.do(c.channel.connect(state=True))
    group.until(lambda: c.channel.state_progress is not None and c.channel.state_progress.bytes > 300)
    c.node.crash()
    group.until(lambda: (a.view(), b.view()) == ("ab", "ab"))
    assert closed == [True]
    group.rest()


def test_a_joiner_that_finds_nobody_to_give_it_the_state_fails_and_is_a_member_all_the_same() -> None:
    group = Group(size=2, settings={"STATE": {"chunk_size": 100, "window": 2}})
    (a,) = group.connected(1)
    a.app.give = lambda: [bytes(10_000)]
    b = group.boot(1)
    slowly(b, 0.05)
    task = b.do(b.channel.connect(state=True))
    group.until(lambda: b.channel.state_progress is not None and b.channel.state_progress.bytes > 0)
    a.node.crash()
    with pytest.raises(StateFailed, match="no state: there is no other member"):
        group.wait(task)
    b.channel.send_nowait(b"alone")
    group.run(1)
    assert (b.view(), b.app.got) == ("b", [b"alone"])
    assert group.rules()["state.gave_up"] == 1


def test_a_joiner_that_closes_before_it_has_the_state_leaves_the_group() -> None:
    group = Group(size=3, settings={"STATE": {"chunk_size": 100, "window": 2}})
    a, b = group.connected(2)
    a.app.give = lambda: [bytes(100_000)]
    c = group.boot(2)
    slowly(c, 1.0)
    task = c.do(c.channel.connect(state=True))
    group.until(lambda: c.view() == "abc")
    closing = c.do(c.channel.close())
    with pytest.raises(ChannelClosed):
        group.wait(task)
    group.wait(closing)
    assert (a.view(), b.view()) == ("ab", "ab")
    assert group.events("suspect") == []
    group.rest()


def test_a_provider_that_closes_gives_the_state_first() -> None:
    group = Group(size=2, settings={"STATE": {"chunk_size": 100, "window": 2}})
    (a,) = group.connected(1)
    a.app.state = [b"x"] * 500
    b = group.boot(1)
    slowly(b, 0.05)
    task = b.do(b.channel.connect(state=True))
    group.until(lambda: b.channel.state_progress is not None and b.channel.state_progress.bytes > 0)
    closing = a.do(a.channel.close())
    group.wait(task)
    group.wait(closing)
    assert b.app.state == [b"x"] * 500
    assert b.app.interrupted == 0
    assert b.view() == "b"


def test_joiners_whose_only_provider_crashes_find_out_soon_that_nobody_has_the_state() -> None:
    group = Group(size=3, settings={"STATE": {"chunk_size": 100, "window": 2}})
    (a,) = group.connected(1)
    a.app.give = lambda: [bytes(10_000)]
    joiners = [group.boot(1), group.boot(2)]
    for joiner in joiners:
        slowly(joiner, 0.05)
    tasks = [joiner.do(joiner.channel.connect(state=True)) for joiner in joiners]
    group.until(lambda: all(j.channel.state_progress is not None and j.view() in ("abc", "acb") for j in joiners))
    a.node.crash()
    for task in tasks:
        with pytest.raises(StateFailed, match="nobody in the view has one"):
            group.wait(task, 5)
    group.rest()
    with pytest.raises(StateFailed, match="nobody in the view has one"):
        group.wait(joiners[0].do(joiners[0].channel.get_state()))


def test_a_joiner_may_be_told_to_go_on_without_the_state() -> None:
    group = Group(size=2, settings={"STATE": {"chunk_size": 100, "window": 2, "join_without": True}})
    (a,) = group.connected(1)
    a.app.give = lambda: [bytes(10_000)]
    b = group.boot(1)
    slowly(b, 0.05)
    task = b.do(b.channel.connect(state=True))
    group.until(lambda: b.channel.state_progress is not None and b.channel.state_progress.bytes > 0)
    a.node.crash()
    group.wait(task)
    assert b.view() == "b"


def test_a_long_transfer_holds_up_neither_the_group_nor_its_flow_control() -> None:
    window = 50_000
    group = Group(
        size=3, settings={"STATE": {"chunk_size": 100, "window": 2}, "FLOW": {"window": window}, "FRAG": {"size": 5000}}
    )
    a, b = group.connected(2)
    a.app.give = lambda: [b"1:x" * 1000]
    c = group.boot(2)
    slowly(c, 0.5)  # 15 s
    task = c.do(c.channel.connect(state=True))
    group.until(lambda: c.view() == "abc")
    stop = b.chatter(0.01, 2000)
    group.run(5)
    stop()
    group.run(1)
    assert sum(map(len, a.app.got)) > 10 * window  # ten windows ahead of what c has taken
    assert a.app.got == b.app.got
    assert c.app.got == []
    group.wait(task)
    group.rest()
    assert c.app.got == a.app.got


def test_beyond_the_bound_what_waits_for_the_state_holds_up_its_senders() -> None:
    settings = {"STATE": {"chunk_size": 100, "window": 2, "buffer_max": 100_000}, "FLOW": {"window": 50_000}}
    group = Group(size=3, settings={**settings, "FRAG": {"size": 5000}, "channel": {"buffer_max": 10_000}})
    a, b = group.connected(2)
    a.app.give = lambda: [b"1:x" * 1000]
    c = group.boot(2)
    slowly(c, 0.5)
    task = c.do(c.channel.connect(state=True))
    group.until(lambda: c.view() == "abc")
    stop = b.chatter(0.01, 2000)
    group.run(5)
    stop()
    assert 100_000 <= sum(map(len, a.app.got)) <= 200_000
    group.wait(task)
    group.rest()
    assert c.app.got == a.app.got


# A member asks.


@each_stack
def test_a_member_gets_the_state_while_everybody_multicasts_and_misses_and_doubles_nothing(stack: str) -> None:
    group = Group(stack, 3)
    a, b, c = group.connected()
    stops = [member.chatter() for member in (a, b, c)]
    group.run(1)
    c.app.state = [b"something else"]
    group.wait(c.do(c.channel.get_state()))
    group.run(1)
    for stop in stops:
        stop()
    group.rest()
    assert same_states(a, b, c)
    if stack == "total-order":
        assert a.app.state == b.app.state == c.app.state
    cuts = [e for e in group.events("state_cut") if e.data["id"] == "c#1/1"]
    assert [e.data["role"] for e in cuts] == ["provider", "requester"]
    assert cuts[0].data["digest"] == cuts[1].data["digest"]


@pytest.mark.parametrize("delivery", ["agreed", "safe"])
def test_under_safe_delivery_too_both_cut_at_the_same_position(delivery: str) -> None:
    group = Group("total-order", 3, {"TOTAL": {"delivery": delivery}})
    a, b, c = group.connected()
    stops = [member.chatter(0.002) for member in (a, b, c)]
    group.run(1)
    for _ in range(3):
        group.wait(c.do(c.channel.get_state()))
        group.run(0.1)
    for stop in stops:
        stop()
    group.rest()
    assert a.app.state == b.app.state == c.app.state


def test_the_flush_is_released_before_the_bytes_are_sent() -> None:
    group = Group(size=2, settings={"STATE": {"chunk_size": 100, "window": 2}})
    a, b = group.connected()
    a.app.give = lambda: [b"1:x" * 1000]
    slowly(b, 0.1)
    task = b.do(b.channel.get_state())
    group.until(lambda: b.channel.state_progress is not None and b.channel.state_progress.bytes > 0)
    a.channel.send_nowait(b"goes on")
    group.run(0.5)
    assert a.app.got == [b"goes on"]
    assert b.app.got == []
    assert not task.done()
    group.wait(task)
    group.rest()
    assert b.app.state == [b"x"] * 1000 + [b"goes on"]


def test_the_member_that_is_asked_for_gives_its_state() -> None:
    group = Group(size=3)
    _a, b, c = group.connected()
    b.app.give = lambda: [b"3:b's"]
    group.wait(c.do(c.channel.get_state(b.local)))
    assert c.app.state == [b"b's"]
    with pytest.raises(UserError, match="not another member"):
        group.wait(c.do(c.channel.get_state(c.local)))


def test_a_provider_whose_application_fails_is_replaced_by_another() -> None:
    group = Group(size=3)
    a, b, c = group.connected()

    def give() -> Iterator[bytes]:
        yield b"1:x"
        raise RuntimeError("broken")

    a.app.give = give
    b.app.state = [b"right"]
    group.wait(c.do(c.channel.get_state()))
    assert c.app.state == [b"right"]
    assert group.rules()["state.provider_failed"] == 1
    group.rest()


def test_two_members_that_ask_at_the_same_time_share_the_flush_and_both_get_the_state() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    a.app.state = [b"right"]
    tasks = [member.do(member.channel.get_state(a.local)) for member in (b, c)]
    for task in tasks:
        group.wait(task)
    group.rest()
    assert b.app.state == c.app.state == [b"right"]
    assert group.events("flush_failed") == []


def test_two_members_that_ask_each_other_do_not_wait_for_each_other_for_ever() -> None:
    group = Group(size=2)
    a, b = group.connected()
    a.app.state, b.app.state = [b"of a"], [b"of b"]
    tasks = [a.do(a.channel.get_state(b.local)), b.do(b.channel.get_state(a.local))]
    for task in tasks:
        group.wait(task)
    group.rest()
    assert {a.app.state[0], b.app.state[0]} <= {b"of a", b"of b"}


def test_a_flush_of_an_application_only_delays_a_member_that_wants_the_state() -> None:
    group = Group(size=3)
    a, b, c = group.connected()
    a.app.state = [b"right"]
    release = hold(b)

    async def flush() -> None:
        async with b.channel.flush():
            await release

    b.do(flush())
    group.until(lambda: bool(group.events("flush_held", "b")))
    task = c.do(c.channel.get_state())
    group.run(1)
    assert not task.done()
    release.set_result(None)
    group.wait(task)
    assert c.app.state == [b"right"]
    assert group.rules()["state.flush_failed"] > 0
    group.rest()


def test_a_member_gets_its_state_although_the_view_changes_meanwhile() -> None:
    group = Group(size=4, settings={"STATE": {"chunk_size": 100, "window": 2}})
    a, b, c, d = group.connected()
    stop = b.chatter()
    group.run(1)
    slowly(c, 0.02)
    task = c.do(c.channel.get_state(a.local))
    group.until(lambda: c.channel.state_progress is not None and c.channel.state_progress.bytes > 0)
    d.node.crash()
    group.wait(task)
    stop()
    group.rest()
    assert c.view() == "abc"
    assert c.app.interrupted == 0
    assert same_states(a, b, c)


def test_a_lone_member_is_told_that_there_is_nobody_to_ask() -> None:
    group = Group(size=1)
    (a,) = group.connected()
    with pytest.raises(StateFailed, match="no state: there is no other member"):
        group.wait(a.do(a.channel.get_state()))


def test_a_request_with_a_time_limit_ends_in_time_and_what_waited_goes_on() -> None:
    group = Group(size=2, settings={"STATE": {"chunk_size": 100, "window": 2}})
    a, b = group.connected()
    a.app.give = lambda: [bytes(10_000)]
    slowly(b, 1.0)
    task = b.do(b.channel.get_state(timeout=2.0))
    group.run(1)
    a.channel.send_nowait(b"waits")
    started = group.world.time
    with pytest.raises(StateFailed, match="longer than 2 s"):
        group.wait(task)
    assert group.world.time - started < 1.1
    group.run(2)
    assert b.app.got == [b"waits"]
    group.rest()


def test_only_one_state_is_asked_for_at_a_time() -> None:
    group = Group(size=2)
    _a, b = group.connected()
    task = b.do(b.channel.get_state())
    group.run(0)
    with pytest.raises(UserError, match="on its way already"):
        group.wait(b.do(b.channel.get_state()))
    group.wait(task)


def test_a_state_arrives_whole_although_packets_are_lost_doubled_and_reordered() -> None:
    class Lossy(Group):
        def layers(self, node: Node, settings: object) -> list[Layer]:
            peers = [f"{other.ports.ip}:7800" for other in self.nodes]
            layers = preset(
                "virtual-synchrony",
                TCP={"bind_host": node.ports.ip, "bind_port": 7800},
                STATIC={"peers": peers, "interval": 0.1},
                STATE={"chunk_size": 500, "window": 8},
            )
            faults = [
                Layer("DROP", {"up": 0.1}), Layer("DUPLICATE", {"up": 0.1}),
                Layer("DELAY", {"up": 0.3, "longest": 0.03}),
            ]  # fmt: skip
            return [layers[0], *faults, *layers[1:]]

    group = Lossy(size=3)
    a, b = group.connected(2)
    a.app.state = [b"%d" % n for n in range(30_000)]
    b.app.state = list(a.app.state)
    stop = b.chatter(0.05)
    c = group.connect(2, state=True)
    group.run(1)
    stop()
    group.rest(30)
    assert same_states(a, b, c)
    assert group.rules()["state.resent"] > 0
