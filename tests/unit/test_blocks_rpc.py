"""Rpc on whole stacks in the simulator: docs/blocks.md."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from blocks_rig import Group

from coterie.blocks import CallTimeout, Hub, MemberLost, RemoteError, Rpc, TooFewAnswers
from coterie.errors import UserError
from coterie.group.channel import ChannelClosed, Receiver
from coterie.group.events import Replaced
from coterie.group.members import Address
from coterie.group.protocols.flush_base import FlushProtocol
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.base import Endpoint, Future


class Server:
    """Answers, at once or when it is told to."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.asked: list[tuple[Address, bytes]] = []
        self.waiting: list[Future[bytes]] = []
        self.rpc = Rpc(hub, "rpc", self.handle, handlers_max=3)

    def handle(self, caller: Address, request: bytes) -> bytes | Awaitable[bytes]:
        self.asked.append((caller, request))
        if request == b"fail":
            raise ValueError("no such thing")
        if request in (b"later", b"later at " + self.hub.local.name.encode()):
            return self.later()
        if request == b"fail later":
            return self.fail_later()
        return request + b" by " + self.hub.local.name.encode()

    async def later(self) -> bytes:
        future: Future[bytes] = self.hub.runtime.future()
        self.waiting.append(future)
        return await future

    async def fail_later(self) -> bytes:
        await self.later()
        raise ValueError("in the end")


def group_of(size: int, stack: str = "virtual-synchrony") -> tuple[Group, list[Server]]:
    group = Group(size, stack)
    servers = group.make(Server)
    for number in range(size):
        group.ask(number, group.hubs[number].connect())
    group.until(lambda: group.together(*range(size)))
    return group, servers


def nothing_is_left(servers: list[Server]) -> bool:
    return not any(server.rpc._calls or server.rpc._handling for server in servers)


@pytest.mark.parametrize("stack", ["reliable", "virtual-synchrony", "total-order"])
def test_one_member_is_asked_and_answers(stack: str) -> None:
    group, servers = group_of(3, stack)
    assert group.ask(0, servers[0].rpc.call(group.address(1), b"hello", 1)) == b"hello by b"
    assert [server.asked for server in servers] == [[], [(group.address(0), b"hello")], []]
    assert nothing_is_left(servers)


@pytest.mark.parametrize("stack", ["reliable", "virtual-synchrony", "total-order"])
def test_all_members_are_asked_and_answer_the_caller_included(stack: str) -> None:
    group, servers = group_of(3, stack)
    answers = group.ask(1, servers[1].rpc.call_all(b"hello", 1))
    assert answers == {group.address(n): b"hello by " + b"abc"[n : n + 1] for n in range(3)}
    assert nothing_is_left(servers)


def test_a_member_may_ask_itself() -> None:
    group, servers = group_of(2)
    assert group.ask(0, servers[0].rpc.call(group.address(0), b"hello", 1)) == b"hello by a"


def test_the_first_answers_are_enough() -> None:
    group, servers = group_of(3)
    answers = group.ask(0, servers[0].rpc.call_first(b"later at c", 2, 1))
    assert answers == {group.address(0): b"later at c by a", group.address(1): b"later at c by b"}
    servers[2].waiting[0].set_result(b"too late")
    group.run(0.1)
    assert servers[0].rpc.late == 1
    assert nothing_is_left(servers)


def test_a_handler_may_take_its_time_and_others_are_answered_meanwhile() -> None:
    group, servers = group_of(2)
    slow = group.start(0, servers[0].rpc.call(group.address(1), b"later", 10))
    group.run(0.5)
    assert group.ask(0, servers[0].rpc.call(group.address(1), b"hello", 1)) == b"hello by b"
    assert not slow.done()
    servers[1].waiting[0].set_result(b"at last")
    group.until(slow.done)
    assert slow.result() == b"at last"


@pytest.mark.parametrize("request_", [b"fail", b"fail later"])
def test_what_a_handler_raises_is_an_error_at_the_caller(request_: bytes) -> None:
    group, servers = group_of(2)
    call = group.start(0, servers[0].rpc.call(group.address(1), request_, 1))
    group.until(lambda: call.done() or bool(servers[1].waiting))
    for future in servers[1].waiting:
        future.set_result(b"")
    group.until(call.done)
    with pytest.raises(RemoteError, match=r"ValueError: (no such thing|in the end)") as caught:
        call.result()
    assert caught.value.member == group.address(1)
    assert nothing_is_left(servers)


def test_errors_of_some_do_not_spoil_the_answers_of_the_others() -> None:
    group, servers = group_of(3)
    call = group.start(0, servers[0].rpc.call_all(b"later", 10))
    group.run(0.1)
    servers[0].waiting[0].set_result(b"fine")
    servers[1].waiting[0].set_exception(ValueError("not fine"))
    servers[2].waiting[0].set_result(b"fine, too")
    group.until(call.done)
    answers = call.result()
    assert (answers[group.address(0)], answers[group.address(2)]) == (b"fine", b"fine, too")
    assert isinstance(answers[group.address(1)], RemoteError)


def test_when_time_is_up_the_error_tells_who_has_answered_and_who_has_not() -> None:
    group, servers = group_of(3)
    start = group.world.time
    with pytest.raises(CallTimeout, match=r"no answer of c#1 within 0\.5 s") as caught:
        group.ask(0, servers[0].rpc.call_all(b"later at c", 0.5))
    assert 0.5 <= group.world.time - start < 0.6
    assert set(caught.value.answers) == {group.address(0), group.address(1)}
    assert caught.value.missing == (group.address(2),)
    servers[2].waiting[0].set_result(b"late")
    group.run(0.1)
    assert servers[0].rpc.late == 1
    assert nothing_is_left(servers)


def test_a_call_to_one_ends_when_its_time_is_up() -> None:
    group, servers = group_of(2)
    with pytest.raises(CallTimeout):
        group.ask(0, servers[0].rpc.call(group.address(1), b"later", 0.5))


# Members that are lost.


@pytest.mark.parametrize("silent", [False, True])
def test_a_member_that_crashes_before_it_answered_is_lost_and_not_waited_for(silent: bool) -> None:
    group, servers = group_of(3)
    b = group.address(1)
    one = group.start(0, servers[0].rpc.call(b, b"later", 60))
    all_ = group.start(0, servers[0].rpc.call_all(b"later at b", 60))
    group.run(0.1)
    group.crash(1, silent)
    group.until(lambda: one.done() and all_.done(), seconds=10)
    with pytest.raises(MemberLost):
        one.result()
    answers = all_.result()
    assert isinstance(answers[b], MemberLost)
    assert answers[group.address(2)] == b"later at b by c"
    assert nothing_is_left([servers[0], servers[2]])


def test_a_member_that_leaves_before_it_answered_is_lost() -> None:
    group, servers = group_of(2)
    call = group.start(0, servers[0].rpc.call(group.address(1), b"later", 60))
    group.run(0.1)
    group.ask(1, group.hubs[1].close())
    group.until(call.done, seconds=10)
    with pytest.raises(MemberLost):
        call.result()


def test_a_member_that_is_cut_off_is_lost_and_its_answer_after_the_merge_is_dropped() -> None:
    group, servers = group_of(3)
    call = group.start(0, servers[0].rpc.call_all(b"later at b", 60))
    group.run(0.1)
    group.split([0, 2], [1])
    group.until(call.done)
    assert isinstance(call.result()[group.address(1)], MemberLost)
    servers[1].waiting[0].set_result(b"late")
    group.heal()
    group.run(0.1)
    assert nothing_is_left(servers)
    assert group.ask(0, servers[0].rpc.call(group.address(1), b"hello", 1)) == b"hello by b"


def test_a_member_that_was_lost_stays_lost_although_it_answers_after_a_merge() -> None:
    group, servers = group_of(3)
    call = group.start(0, servers[0].rpc.call_all(b"later", 60))
    group.run(0.1)
    group.split([0, 2], [1])
    group.heal()
    for server in (servers[1], servers[0], servers[2]):
        server.waiting[0].set_result(b"fine")
        group.run(0.1)
    assert isinstance(call.result()[group.address(1)], MemberLost)
    assert call.result()[group.address(2)] == b"fine"


def test_a_member_that_was_in_the_view_when_all_were_asked_and_is_gone_when_it_is_delivered_is_lost() -> None:
    group, servers = group_of(3)
    group.cut([0, 1], [2])
    group.until(lambda: len(group.hubs[0].channel.view.members) == 3 and _flushing(group))
    call = group.start(0, servers[0].rpc.call_all(b"hello", 60))
    group.until(call.done, seconds=10)
    answers = call.result()
    assert isinstance(answers[group.address(2)], MemberLost)
    assert answers[group.address(1)] == b"hello by b"


def _flushing(group: Group) -> bool:
    """The gate is shut: what is multicast now belongs to the next view."""
    return group.hubs[0].channel.stack.find(FlushProtocol).shut  # type: ignore[type-abstract]


def test_who_is_not_in_the_view_is_lost_at_once() -> None:
    group, servers = group_of(2)
    with pytest.raises(MemberLost):
        group.ask(0, servers[0].rpc.call(Address("z", 1), b"hello", 1))


def test_too_few_that_can_answer_end_the_call_at_once() -> None:
    group, servers = group_of(3)
    call = group.start(0, servers[0].rpc.call_first(b"later", 3, 60))
    group.run(0.1)
    for server in (servers[0], servers[2]):
        server.waiting[0].set_result(b"fine")
    group.crash(1)
    group.until(call.done, seconds=10)
    with pytest.raises(TooFewAnswers, match="2 answers, where 3 were wanted") as caught:
        call.result()
    assert len(caught.value.answers) == 3


def test_who_joins_while_all_are_asked_answers_or_is_not_waited_for() -> None:
    group = Group(3, "virtual-synchrony")
    servers = group.make(Server, 0, 1)
    group.connect()
    call = group.start(0, servers[0].rpc.call_all(b"later at b", 60))
    group.run(0.1)
    servers += group.make(Server, 2)
    group.connect(2)
    servers[1].waiting[0].set_result(b"fine")
    group.until(call.done)
    assert set(call.result()) == {group.address(0), group.address(1)}
    assert len(group.ask(0, servers[0].rpc.call_all(b"hello", 1))) == 3


def test_who_joins_between_the_call_and_its_delivery_is_asked_as_well() -> None:
    group = Group(3, "virtual-synchrony")
    servers = group.make(Server, 0, 1)
    group.connect()
    group.until(lambda: not _flushing(group))
    servers += group.make(Server, 2)
    group.start(2, group.hubs[2].connect())
    while not _flushing(group):
        group.world.run(group.world.time + 0.0005)
    call = group.start(0, servers[0].rpc.call_all(b"later at c", 60))
    group.until(lambda: bool(servers[2].waiting))
    assert not call.done()
    servers[2].waiting[0].set_result(b"fine")
    group.until(call.done)
    assert call.result()[group.address(2)] == b"fine"


# Limits, wrong use, the end.


def test_a_member_with_too_much_to_do_says_that_it_is_busy() -> None:
    group, servers = group_of(2)
    calls = [group.start(0, servers[0].rpc.call(group.address(1), b"later", 10)) for _ in range(4)]
    group.until(calls[3].done)
    with pytest.raises(RemoteError, match="busy"):
        calls[3].result()
    for future in servers[1].waiting:
        future.set_result(b"fine")
    group.until(lambda: all(call.done() for call in calls))
    assert [call.result() for call in calls[:3]] == [b"fine"] * 3
    assert group.ask(0, servers[0].rpc.call(group.address(1), b"hello", 1)) == b"hello by b"


def test_a_member_without_a_handler_says_so() -> None:
    group = Group(2, "virtual-synchrony")
    rpcs = group.make(lambda hub: Rpc(hub, "rpc"))
    group.connect()
    with pytest.raises(RemoteError, match="nobody answers here"):
        group.ask(0, rpcs[0].call(group.address(1), b"hello", 1))


def test_large_requests_and_answers_pass() -> None:
    group, servers = group_of(2)
    answer = group.ask(0, servers[0].rpc.call(group.address(1), bytes(3_000_000), 10))
    assert answer == bytes(3_000_000) + b" by b"


def test_calls_that_have_to_wait_for_credit_end_when_their_time_is_up() -> None:
    group, servers = group_of(2)
    group.nodes[1].pause()
    calls = [group.start(0, servers[0].rpc.call(group.address(1), bytes(1_000_000), 0.3)) for _ in range(10)]
    group.until(lambda: all(call.done() for call in calls))
    for call in calls:
        with pytest.raises(CallTimeout):
            call.result()
    group.nodes[1].resume(1)
    group.run(1)
    assert group.ask(0, servers[0].rpc.call(group.address(1), b"hello", 1)) == b"hello by b"
    assert nothing_is_left(servers)


def test_whoever_calls_when_the_hub_is_closed_is_told() -> None:
    group, servers = group_of(2)
    call = group.start(0, servers[0].rpc.call(group.address(1), b"later", 60))
    group.run(0.1)
    group.ask(0, group.hubs[0].close())
    group.until(call.done)
    with pytest.raises(ChannelClosed):
        call.result()
    with pytest.raises(ChannelClosed):
        group.ask(0, servers[0].rpc.call(group.address(1), b"hello", 1))


def test_whoever_calls_when_the_channel_closes_by_itself_is_told() -> None:
    group, servers = group_of(2)
    told: list[str] = []

    class Port(Receiver):
        def closed(self, why: str) -> None:
            told.append(why)

    group.hubs[0].port("other", Port())
    call = group.start(0, servers[0].rpc.call(group.address(1), b"later", 60))
    group.run(0.1)
    newer = group.address(0)._replace(incarnation=9)
    group.runtime(0).call_soon(group.hubs[0].channel.stack.find(Tcp).up_event, Replaced(newer, Endpoint("x", 1)))
    group.until(call.done)
    with pytest.raises(ChannelClosed):
        call.result()
    assert told == [group.hubs[0].channel.failure]
    assert str(newer) in told[0]
    group.ask(0, group.hubs[0].close())  # as whoever has a hub does in the end
    group.until(lambda: group.together(1))


def test_calling_before_connecting_is_refused() -> None:
    group = Group(1, "virtual-synchrony")
    (server,) = group.make(Server)
    with pytest.raises(ChannelClosed):
        group.ask(0, server.rpc.call_all(b"hello", 1))


def test_to_want_no_answer_at_all_is_refused() -> None:
    group, servers = group_of(1)
    with pytest.raises(UserError, match="at least one"):
        group.ask(0, servers[0].rpc.call_first(b"hello", 0, 1))
