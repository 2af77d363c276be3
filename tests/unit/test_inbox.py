"""The top of a stack: what keeps its place there, and what a flush and a state transfer ask of the application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import pytest
from harness import A, B, Floor

from coterie.group import bundle
from coterie.group.events import Block, Event, Held, SnapshotWanted, StateComes, StateOver, Unblock, ViewChange
from coterie.group.inbox import Inbox
from coterie.group.members import View, ViewId
from coterie.group.packet import APP, MCAST, UCAST, Packet
from coterie.group.receiver import Delivery, Receiver, StateInterrupted
from coterie.group.stack import Stack
from coterie.runtime.base import Buffer, Future
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node


class App(Receiver):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.then: Callable[[], Awaitable[None] | None] = lambda: None
        self.blocks: Callable[[], Awaitable[None] | None] = lambda: None

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        self.told += [bytes(message) for delivery in batch for message in delivery.messages]
        return self.then()

    def view_accepted(self, view: View) -> None:
        self.told.append(view.id.counter)

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        self.told.append(("held", position, everyone))

    def block(self) -> Awaitable[None] | None:
        self.told.append("block")
        return self.blocks()

    def unblock(self) -> None:
        self.told.append("unblock")

    def get_state(self) -> Iterable[Buffer]:
        self.told.append("get")
        return [b"state"]

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self.told.append("set")
        try:
            async for chunk in chunks:
                self.told.append(chunk)
        except StateInterrupted:
            self.told.append("interrupted")
            raise


class Chunks:
    """A state that comes when the test says so."""

    def __init__(self, top: Top) -> None:
        self._future: Future[bytes | None] = top.runtime.future()
        self._top = top
        self.ended: list[Exception | None] = []

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._future
        self._future = self._top.runtime.future()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def give(self, chunk: bytes) -> None:
        self._future.set_result(chunk)
        self._top.run()

    def end(self) -> None:
        self._future.set_result(None)
        self._top.run()

    def interrupt(self) -> None:
        self._future.set_exception(StateInterrupted("gone"))
        self._top.run()

    def event(self, buffer_max: int = 1 << 20) -> StateComes:
        return StateComes(self, buffer_max, self.ended.append)


class Top:
    """An inbox at the top of a stack that has nothing else."""

    def __init__(self, app: Receiver | None = None) -> None:
        self.world = World(1)
        self.runtime = Node(self.world, Fabric(self.world), "a").boot()
        self.app = app or App()
        self.pushed: list[bool] = []
        self.inbox = Inbox(
            self.app,
            view_changed=lambda view: None,
            writable=lambda: None,
            stopped=lambda: None,
            unsent=lambda: 0,
            push_out=self._push_out,
            replaced=lambda event: None,
        )
        Stack(self.runtime, "test", A, [Floor()], self.inbox).start()

    def _push_out(self, done: Callable[[], None], wait: bool) -> None:
        self.pushed.append(wait)
        done()

    @property
    def told(self) -> list[Any]:
        assert isinstance(self.app, App)
        return self.app.told

    def run(self) -> None:
        self.world.run(self.world.time)

    def up(self, text: bytes, carrier: int = MCAST) -> None:
        packet = Packet(bundle.join([text]), None, APP, carrier)
        packet.sender, packet.seqno = B, 1
        self.inbox.up([packet])
        self.run()

    def event(self, event: Event) -> None:
        self.inbox.up_event(event)
        self.run()

    def view(self, number: int) -> None:
        self.event(ViewChange(View(ViewId(number, A), (A, B))))

    def snapshot(self) -> list[object]:
        answers: list[object] = []
        self.event(SnapshotWanted(lambda: True, answers.append))
        return answers

    def busy(self) -> Future[None]:
        """The application does not finish with the next batch before this future is done."""
        future: Future[None] = self.runtime.future()
        assert isinstance(self.app, App)
        app = self.app

        async def wait() -> None:
            await future

        def once() -> Awaitable[None]:
            app.then = lambda: None
            return wait()

        app.then = once
        return future


# Places.


def test_what_is_of_no_protocol_of_the_stack_goes_no_further() -> None:
    """Nobody accounts for it: it was kept for ever as taken before its turn, with the bytes around it."""
    top = Top()
    odd = Packet(bundle.join([b"odd"]), None, 99, MCAST)
    usual = Packet(bundle.join([b"usual"]), None, APP, MCAST)
    odd.sender = usual.sender = B
    top.inbox.up([odd, usual])
    top.inbox.up([odd])
    assert top.told == [b"usual"]
    assert top.inbox.stats["unclaimed"] == 2


def test_a_snapshot_keeps_its_place_between_what_came_before_and_after_it() -> None:
    top = Top()
    work = top.busy()
    top.up(b"1")
    top.up(b"2")
    answers = top.snapshot()
    top.view(2)
    assert top.told == [b"1"]
    assert answers == []
    work.set_result(None)
    top.run()
    assert top.told == [b"1", b"2", "get", 2]
    assert answers == [[b"state"]]


def test_what_is_held_is_told_behind_what_was_delivered_and_only_the_last_word_of_several() -> None:
    top = Top()
    work = top.busy()
    top.event(Held(ViewId(1, A), 1, False))
    top.up(b"2")
    for position in (2, 3, 4):
        top.event(Held(ViewId(1, A), position, False))
    top.event(Held(ViewId(1, A), 3, True))
    assert top.told == [("held", 1, False), b"2"]
    work.set_result(None)
    top.run()
    assert top.told == [("held", 1, False), b"2", ("held", 4, False), ("held", 3, True)]


def test_a_snapshot_that_nobody_wants_any_more_is_not_made() -> None:
    top = Top()
    top.event(SnapshotWanted(lambda: False, lambda state: None))
    assert top.told == []


def test_what_comes_up_out_of_the_applications_own_call_waits_for_its_return() -> None:
    top = Top()
    app = top.app
    assert isinstance(app, App)

    def deliver_more() -> None:
        app.then = lambda: None
        packet = Packet(bundle.join([b"2"]), None, APP, MCAST)
        packet.sender = B
        top.inbox.up([packet])
        app.told.append("returned")

    app.then = deliver_more
    top.up(b"1")
    assert top.told == [b"1", "returned", b"2"]


# States.


def test_everything_that_comes_after_the_cut_waits_for_the_state() -> None:
    top = Top()
    chunks = Chunks(top)
    top.up(b"1")
    top.event(chunks.event())
    top.view(2)
    top.up(b"2")
    top.up(b"to one", UCAST)
    chunks.give(b"state")
    assert top.told == [b"1", "set", b"state"]
    chunks.end()
    assert chunks.ended == [None]
    assert top.told == [b"1", "set", b"state"]  # whether it was the whole state is not for the inbox to say
    top.event(StateOver())
    assert top.told == [b"1", "set", b"state", 2, b"2", b"to one"]
    assert top.inbox.held()["untaken"] == 0


def test_a_state_waits_for_what_came_before_its_cut() -> None:
    top = Top()
    work = top.busy()
    top.up(b"1")
    top.up(b"2")
    top.event(Chunks(top).event())
    assert top.told == [b"1"]
    work.set_result(None)
    top.run()
    assert top.told == [b"1", b"2", "set"]


def test_a_second_cut_drops_the_multicasts_between_the_two_and_nothing_else() -> None:
    top = Top()
    first, second = Chunks(top), Chunks(top)
    top.event(first.event())
    first.give(b"half")
    top.view(2)
    top.up(b"in the second state")
    top.up(b"to one", UCAST)
    first.interrupt()
    top.view(3)
    top.up(b"this too")
    top.event(second.event())
    top.up(b"after it")
    assert top.told == ["set", b"half", "interrupted", 2, b"to one", 3, "set"]
    second.give(b"whole")
    second.end()
    top.event(StateOver())
    assert top.told == ["set", b"half", "interrupted", 2, b"to one", 3, "set", b"whole", b"after it"]
    assert top.inbox.held()["untaken"] == 0


def test_a_second_cut_waits_until_the_application_has_noticed_that_the_first_state_does_not_come() -> None:
    top = Top()
    first, second = Chunks(top), Chunks(top)
    top.event(first.event())
    top.event(second.event())
    assert top.told == ["set"]
    first.interrupt()
    assert top.told == ["set", "interrupted", "set"]


def test_a_second_cut_replaces_a_first_whose_turn_has_not_come() -> None:
    top = Top()
    work = top.busy()
    top.up(b"1")
    top.up(b"2")
    top.event(Chunks(top).event())
    top.up(b"in the state")
    top.event(Chunks(top).event())
    work.set_result(None)
    top.run()
    assert top.told == [b"1", b"2", "set"]


def test_a_state_that_is_given_up_lets_everything_go_on() -> None:
    top = Top()
    chunks = Chunks(top)
    top.event(chunks.event())
    top.up(b"1")
    chunks.interrupt()
    assert isinstance(chunks.ended[0], StateInterrupted)
    assert top.told == ["set", "interrupted"]
    top.event(StateOver())
    assert top.told == ["set", "interrupted", b"1"]


def test_a_state_that_is_given_up_before_its_turn_is_never_set() -> None:
    top = Top()
    work = top.busy()
    top.up(b"1")
    top.event(Chunks(top).event())
    top.up(b"2")
    top.event(StateOver())
    work.set_result(None)
    top.run()
    assert top.told == [b"1", b"2"]


# Blocking.


def test_block_is_called_at_once_although_the_application_is_busy_with_a_batch() -> None:
    top = Top()
    top.busy()
    top.up(b"1")
    top.up(b"2")
    answered: list[bool] = []
    top.event(Block(lambda: answered.append(True)))
    assert top.told == [b"1", "block"]
    assert answered == [True]
    top.event(Unblock())
    assert top.told == [b"1", "block", "unblock"]


def test_messages_arrive_while_block_waits_and_the_flush_waits_for_it() -> None:
    top = Top()
    assert isinstance(top.app, App)
    acks: Future[None] = top.runtime.future()

    async def wait() -> None:
        await acks

    top.app.blocks = wait
    answered: list[bool] = []
    top.event(Block(lambda: answered.append(True)))
    top.up(b"ack")
    assert top.told == ["block", b"ack"]
    assert answered == []
    assert top.inbox.held()["blocking"] == 1
    acks.set_result(None)
    top.run()
    assert answered == [True]
    assert top.inbox.held()["blocking"] == 0


def test_a_flush_that_ended_while_block_waited_unblocks_after_it() -> None:
    top = Top()
    assert isinstance(top.app, App)
    acks: Future[None] = top.runtime.future()

    async def wait() -> None:
        await acks
        top.told.append("returned")

    top.app.blocks = wait
    answered: list[int] = []
    top.event(Block(lambda: answered.append(1)))
    top.event(Unblock())
    assert top.told == ["block"]
    acks.set_result(None)
    top.run()
    assert top.told == ["block", "returned", "unblock"]


def test_a_flush_that_begins_while_block_waits_for_an_earlier_one_shares_its_answer() -> None:
    top = Top()
    assert isinstance(top.app, App)
    acks: Future[None] = top.runtime.future()

    async def wait() -> None:
        await acks

    top.app.blocks = wait
    answered: list[int] = []
    top.event(Block(lambda: answered.append(1)))
    top.event(Unblock())
    top.event(Block(lambda: answered.append(2)))
    acks.set_result(None)
    top.run()
    assert answered == [2]  # the earlier one has given up, or it would not have unblocked
    assert top.told == ["block"]
    top.event(Unblock())
    assert top.told == ["block", "unblock"]


def test_however_many_flushes_begin_while_block_does_not_return_only_the_last_one_is_kept() -> None:
    top = Top()
    assert isinstance(top.app, App)
    acks: Future[None] = top.runtime.future()

    async def wait() -> None:
        await acks

    top.app.blocks = wait
    answered: list[int] = []
    for number in range(100):
        top.event(Block(partial(answered.append, number)))
        top.event(Unblock())
    assert top.inbox.held()["blocking"] == 1
    acks.set_result(None)
    top.run()
    assert answered == [99]
    assert top.told == ["block", "unblock"]


@pytest.mark.parametrize("later", [False, True])
def test_a_block_that_raises_holds_up_nobody(later: bool) -> None:
    top = Top()
    assert isinstance(top.app, App)

    async def fail_later() -> None:
        raise RuntimeError("no")

    def fail() -> Awaitable[None]:
        if later:
            return fail_later()
        raise RuntimeError("no")

    top.app.blocks = fail
    answered: list[bool] = []
    top.event(Block(lambda: answered.append(True)))
    assert answered == [True]


def test_unblock_comes_only_after_block() -> None:
    top = Top()
    top.event(Unblock())
    assert top.told == []


def test_only_an_application_that_has_a_block_of_its_own_waits_for_what_it_has_sent() -> None:
    plain, own = Top(Receiver()), Top()
    for top in (plain, own):
        top.event(Block(lambda: None))
    assert (plain.pushed, own.pushed) == ([False], [True])
