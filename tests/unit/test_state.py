"""State transfer: docs/protocols/state_transfer.md. Here with views by hand; with everything in test_state_group.py."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest
from harness import A, B, C, Floor, Lose, Net, Script, nothing

from coterie.group import bundle
from coterie.group.events import Suspect, ViewChange
from coterie.group.inbox import Inbox
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import AGAIN, APP, MCAST, UCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.state import State, StateFailed, StateProgress, StateSettings
from coterie.group.protocols.state_messages import CODEC, Ack, Cancel, Chunk, End, Failed
from coterie.group.protocols.state_stream import pieces
from coterie.group.receiver import Delivery, Receiver, StateInterrupted
from coterie.group.stack import Stack
from coterie.runtime.base import Buffer, Future
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event as TraceEvent


class App(Receiver):
    """An application whose state is the list of everything that it has received."""

    def __init__(self) -> None:
        self.state: list[bytes] = []
        self.told: list[object] = []
        """What happened, in order: messages, views, `get`, `set`."""
        self.then: Callable[[], Awaitable[None] | None] = lambda: None
        self.give: Callable[[], Iterable[Buffer]] = lambda: list(self.state)
        self.take: Callable[[AsyncIterator[Buffer]], Awaitable[None]] = self.take_all
        self.interrupted: list[str] = []

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        for delivery in batch:
            for message in delivery.messages:
                self.state.append(bytes(message))
                self.told.append(bytes(message))
        return self.then()

    def view_accepted(self, view: View) -> None:
        self.told.append(view.members)

    def get_state(self) -> Iterable[Buffer]:
        self.told.append("get")
        return self.give()

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self.told.append("set")
        try:
            await self.take(chunks)
        except StateInterrupted as why:
            self.interrupted.append(str(why))
            raise

    async def take_all(self, chunks: AsyncIterator[Buffer]) -> None:
        self.state = [bytes(chunk) async for chunk in chunks]


class Member(Script):
    """A member whose views are installed by hand, with a real top of the stack and an application."""

    def __init__(self, local: Address, flow: int | None = None, **settings: object) -> None:
        self.traced: list[TraceEvent] = []
        self.world = World(1, "state", self.traced.append)
        self.runtime = Node(self.world, Fabric(self.world), local.name).boot()
        self.floor, self.app = Floor(), App()
        self.nakack, self.state = Nakack(), State(StateSettings(**settings))  # type: ignore[arg-type]
        layers: list[Protocol] = [self.floor, self.nakack, self.state]
        if flow is not None:
            layers.append(Flow(Flow.Settings(window=flow)))
        self.inbox = Inbox(
            self.app,
            view_changed=lambda view: None,
            writable=lambda: None,
            stopped=lambda: None,
            unsent=lambda: 0,
            push_out=lambda done, wait: done(),
            replaced=lambda event: None,
        )
        self.stack = Stack(self.runtime, "test", local, layers, self.inbox)
        self.stack.start()
        self._codecs = {layer.id: layer.codec for layer in layers}
        self.joined: Future[None] = self.runtime.future()
        self.state.joins(self.joined)

    def install(
        self, view: View, states: tuple[Address, ...] = (), provider: Address | None = None, sent: int = 0
    ) -> None:
        for member in view.members:
            self.nakack.open(member, sent + 1 if member == provider != self.stack.local else 1)
        self.stack.view = view
        change = ViewChange(view, (), states, provider)
        self.stack.below(self.state).down_event(change)
        self.state.up_event(change)
        self.run(0)

    def multicast(self, text: bytes) -> None:
        self.inbox.pass_down(Packet(bundle.join([text]), None, APP, MCAST))
        self.run(0)

    def messages(self, kind: type) -> list[Any]:
        return [message for _, message in self.sent(kind)]

    def joined_error(self) -> BaseException | None:
        """Why it has no state."""
        assert self.joined.done()
        try:
            self.joined.result()  # type: ignore[attr-defined]
        except StateFailed as error:
            return error
        return None

    def kinds(self, kind: str) -> list[TraceEvent]:
        return [event for event in self.traced if event.kind == kind]


def view(number: int, *members: Address) -> View:
    return View(ViewId(number, A), members)


class Pair:
    """A member and a joiner, and the network between them."""

    def __init__(self, flow: int | None = None, **settings: object) -> None:
        self.provider, self.joiner = Member(A, flow, **settings), Member(B, flow, **settings)
        self.net = Net(self.provider, self.joiner)
        self.provider.install(view(1, A))

    def join(self) -> None:
        """The joiner's first view is installed at both."""
        self.provider.install(view(2, A, B), (B,), A)
        self.joiner.install(view(2, A, B), (B,), A, sent=self.provider.nakack.sent)

    def run(self, seconds: float = 1.0, lose: Lose = nothing) -> None:
        self.net.run(seconds, lose)

    @property
    def done(self) -> bool:
        return self.joiner.joined.done()

    @property
    def at_rest(self) -> bool:
        return not any(self.provider.state.held().values()) and not any(self.joiner.state.held().values())


def is_message(packet: Packet, *kinds: type) -> bool:
    return packet.proto == State.id and isinstance(CODEC.decode(packet.body), kinds)


def state_of(size: int) -> bytes:
    """Bytes of which no two stretches are alike."""
    return b"".join(zlib.crc32(b"%d" % n).to_bytes(4, "little") for n in range(size // 4 + 1))[:size]


class Maker:
    """A state that is made chunk by chunk, and says how much of it was."""

    def __init__(self, chunks: int, size: int) -> None:
        self.whole = state_of(chunks * size)
        self.size = size
        self.made = 0
        self.closed = False

    def __call__(self) -> Iterator[bytes]:
        try:
            for at in range(0, len(self.whole), self.size):
                self.made += 1
                yield self.whole[at : at + self.size]
        finally:
            self.closed = True


class Slow:
    """A `set_state` that takes one chunk each time it is told to."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.taken: list[bytes] = []
        self._next: Future[None] = member.runtime.future()
        member.app.take = self

    async def __call__(self, chunks: AsyncIterator[Buffer]) -> None:
        async for chunk in chunks:
            self.taken.append(bytes(chunk))
            await self._next
            self._next = self.member.runtime.future()

    def go_on(self) -> None:
        self._next.set_result(None)
        self.member.run(0)


# The cut.


def test_a_joiner_gets_what_was_delivered_before_its_view_as_state_and_the_rest_as_messages() -> None:
    pair = Pair()
    for text in (b"1", b"2"):
        pair.provider.multicast(text)
    pair.join()
    pair.provider.multicast(b"3")
    pair.run()
    assert pair.done
    assert pair.provider.app.told == [(A,), b"1", b"2", "get", (A, B), b"3"]
    assert pair.joiner.app.told == ["set", (A, B), b"3"]
    assert pair.joiner.app.state == [b"12", b"3"]
    assert pair.at_rest


def test_the_snapshot_waits_for_what_the_application_has_not_taken_yet() -> None:
    pair = Pair()
    busy: Future[None] = pair.provider.runtime.future()

    async def wait() -> None:
        await busy

    pair.provider.app.then = wait
    pair.provider.multicast(b"1")
    pair.provider.app.then = lambda: None
    pair.provider.multicast(b"2")
    pair.join()
    pair.provider.multicast(b"3")
    pair.run(0.5)
    assert "get" not in pair.provider.app.told
    assert not pair.done
    busy.set_result(None)
    pair.run(0.5)
    assert pair.provider.app.told == [(A,), b"1", b"2", "get", (A, B), b"3"]
    assert b"".join(pair.joiner.app.state) == b"123"


def test_the_snapshot_is_what_it_was_at_the_cut_however_late_its_bytes_are_made() -> None:
    pair = Pair()
    fixed: list[bytes] = []

    def give() -> Iterator[bytes]:
        fixed.extend(pair.provider.app.state)

        def chunks() -> Iterator[bytes]:
            yield from fixed

        return chunks()

    pair.provider.app.give = give
    pair.provider.multicast(b"1")
    pair.provider.install(view(2, A, B), (B,), A)
    pair.provider.multicast(b"2")
    pair.run(0.3)
    pair.joiner.install(view(2, A, B), (B,), A, sent=1)
    pair.run()
    assert pair.joiner.app.told == ["set", (A, B), b"2"]


def test_both_ends_tell_the_same_cut() -> None:
    pair = Pair()
    pair.provider.multicast(b"1")
    pair.join()
    pair.run()
    (given,), (got,) = pair.provider.kinds("state_cut"), pair.joiner.kinds("state_cut")
    assert (given.data["role"], got.data["role"]) == ("provider", "requester")
    assert given.data["id"] == got.data["id"]
    assert given.data["digest"] == got.data["digest"] == {"a#1": 1, "b#1": 0}


def test_what_was_sent_and_what_was_set_are_traced_with_size_and_sum() -> None:
    pair = Pair(chunk_size=100)
    pair.provider.app.state = [whole := state_of(1000)]
    pair.join()
    pair.run()
    (sent,), (was_set,) = pair.provider.kinds("state_sent"), pair.joiner.kinds("state_set")
    assert (sent.count, sent.sum) == (was_set.count, was_set.sum) == (1000, zlib.crc32(whole))
    assert sent.data["id"] == was_set.data["id"]


def test_a_joiner_that_nobody_could_give_a_state_does_not_wait_for_one() -> None:
    alone = Member(A)
    alone.install(view(1, A))
    assert alone.joined.done()
    assert alone.app.told == [(A,)]


def test_unicasts_wait_for_the_state_in_their_order_too() -> None:
    pair = Pair()
    pair.provider.app.give = lambda: [b"s"]
    pair.join()
    unicast = Packet(bundle.join([b"for b"]), B, APP, UCAST)
    unicast.sender, unicast.conn, unicast.seqno = A, 1, 1
    pair.joiner.inbox.up([unicast])
    pair.run()
    assert pair.joiner.app.told == ["set", (A, B), b"for b"]


# The stream.


def test_an_empty_state_is_a_state() -> None:
    pair = Pair()
    pair.join()
    pair.run()
    assert pair.done
    assert pair.joiner.app.state == []
    assert pair.joiner.app.told == ["set", (A, B)]


def test_a_state_much_larger_than_the_window_arrives_whole() -> None:
    pair = Pair(chunk_size=100, window=4)
    pair.provider.app.give = maker = Maker(500, 70)
    pair.join()
    pair.run(2)
    assert pair.done
    assert pair.at_rest
    assert b"".join(pair.joiner.app.state) == maker.whole


@pytest.mark.parametrize("sizes", [[1] * 250, [1000], [99, 100, 101], [0, 0, 350, 0], [100], []])
def test_chunks_of_any_size_are_sent_in_pieces_of_one_size(sizes: list[int]) -> None:
    whole = state_of(sum(sizes))
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    cut = list(pieces([whole[at : at + size] for at, size in zip(starts, sizes, strict=True)], 100))
    assert b"".join(cut) == whole
    assert all(len(piece) == 100 for piece in cut[:-1])


def test_an_application_may_use_its_buffer_again_for_the_next_chunk() -> None:
    def chunks() -> Iterator[bytearray]:
        buffer = bytearray(3)
        for n in range(50):
            buffer[:] = b"%03d" % n
            yield buffer

    assert b"".join(pieces(chunks(), 10)) == b"".join(b"%03d" % n for n in range(50))


def test_a_slow_set_state_makes_the_provider_wait_so_that_memory_is_bounded_on_both_sides() -> None:
    pair = Pair(chunk_size=100, window=4)
    pair.provider.app.give = maker = Maker(100, 100)
    slow = Slow(pair.joiner)
    pair.join()
    pair.run(2)
    assert maker.made == 4  # not one more than the window
    for n in range(1, 30):
        slow.go_on()
        pair.run(0.3)
        assert len(slow.taken) == n + 1
        assert maker.made <= n + 4
    assert pair.joiner.stack.rules.get("state.window", 0) == 0 < pair.provider.stack.rules["state.window"]


def test_a_slow_set_state_is_not_taken_for_a_dead_one() -> None:
    pair = Pair(chunk_size=100, window=4, stall_timeout=1.0)
    pair.provider.app.give = maker = Maker(10, 100)
    slow = Slow(pair.joiner)
    pair.join()
    pair.run(5)
    for _ in range(10):
        slow.go_on()
        pair.run(0.2)
    assert pair.done
    assert pair.at_rest
    assert b"".join(slow.taken) == maker.whole


@pytest.mark.parametrize("nth", [2, 3, 7])
def test_whatever_is_lost_on_the_way_the_state_arrives_once_and_whole(nth: int) -> None:
    pair = Pair(chunk_size=100, window=8)
    pair.provider.app.give = maker = Maker(60, 100)
    count = 0

    def lose(source: Address, target: Address, packet: Packet) -> bool:
        nonlocal count
        count += 1
        return count % nth == 0

    pair.join()
    pair.run(60, lose)
    assert pair.done
    assert pair.at_rest
    assert b"".join(pair.joiner.app.state) == maker.whole
    assert pair.provider.stack.rules["state.resent"] > 0


def test_only_what_was_lost_is_sent_again() -> None:
    pair = Pair(chunk_size=100, window=8)
    pair.provider.app.give = Maker(8, 100)
    lost: list[int] = []
    again: list[int] = []

    def lose(source: Address, target: Address, packet: Packet) -> bool:
        if not is_message(packet, Chunk):
            return False
        number = CODEC.decode(packet.body).number
        if packet.flags & AGAIN:
            again.append(number)
        elif number in (3, 5):
            lost.append(number)
            return True
        return False

    pair.join()
    pair.run(3, lose)
    assert pair.done
    assert lost == again == [3, 5]


def test_a_lost_end_is_sent_again() -> None:
    pair = Pair()
    lost = 0

    def lose(source: Address, target: Address, packet: Packet) -> bool:
        nonlocal lost
        if is_message(packet, End) and lost < 2:
            lost += 1
            return True
        return False

    pair.join()
    pair.run(3, lose)
    assert pair.done
    assert lost == 2


def test_a_provider_whose_requester_said_its_last_word_in_vain_finds_out_and_frees_everything() -> None:
    pair = Pair(stall_timeout=100.0)
    pair.provider.app.give = lambda: [b"s"]
    pair.join()
    pair.run(0.1, lambda source, target, packet: is_message(packet, Ack) and CODEC.decode(packet.body).taken == 2)
    assert pair.done
    assert pair.provider.state.held()["transfers"] == 1
    pair.run(1)
    assert pair.at_rest
    assert pair.provider.kinds("state_failed") == []


def test_chunks_that_come_twice_or_out_of_order_are_consumed_once_and_in_order() -> None:
    pair = Pair(chunk_size=10, window=8)
    pair.provider.app.give = maker = Maker(8, 10)
    pair.join()
    pair.joiner.run(0)
    for packet in pair.joiner.floor.out:
        packet.sender = B
    pair.provider.up(*pair.joiner.floor.out)
    pair.joiner.floor.out.clear()
    chunks = [packet for packet in pair.provider.floor.out if is_message(packet, Chunk)]
    assert len(chunks) == 8
    for packet in [*reversed(chunks), *chunks]:
        packet.sender = A
        pair.joiner.up(packet)
    pair.provider.floor.out.clear()
    pair.run(3)
    assert b"".join(pair.joiner.app.state) == maker.whole


def test_a_requester_with_a_smaller_window_is_not_overrun() -> None:
    provider, joiner = Member(A, chunk_size=10, window=64), Member(B, window=2)
    provider.install(view(1, A))
    provider.app.give = maker = Maker(50, 10)
    provider.install(view(2, A, B), (B,), A)
    joiner.install(view(2, A, B), (B,), A)
    Net(provider, joiner).run(5)
    assert b"".join(joiner.app.state) == maker.whole
    assert joiner.state.stats.get("too_far_ahead", 0) == 0


def test_a_set_state_that_stops_reading_is_done_when_the_rest_has_come() -> None:
    pair = Pair(chunk_size=100, window=4)
    pair.provider.app.give = Maker(50, 100)

    async def first_only(chunks: AsyncIterator[Buffer]) -> None:
        pair.joiner.app.state = [bytes(await anext(chunks))]

    pair.joiner.app.take = first_only
    pair.join()
    pair.provider.multicast(b"later")
    pair.run(3)
    assert pair.done
    assert pair.at_rest
    assert pair.joiner.app.state == [state_of(100), b"later"]
    assert pair.joiner.kinds("state_set")[0].count == 5000


def test_progress_is_told_while_the_state_comes() -> None:
    pair = Pair(chunk_size=100, window=4)
    pair.provider.app.state = [state_of(1000)]
    slow = Slow(pair.joiner)
    assert pair.joiner.state.progress is None
    pair.join()
    pair.run(0.5)
    assert pair.joiner.state.progress == StateProgress(A, 100, 1000, complete=False)
    slow.go_on()
    pair.run(0.5)
    assert pair.joiner.state.progress == StateProgress(A, 200, 1000, complete=False)
    for _ in range(9):
        slow.go_on()
        pair.run(0.5)
    assert pair.joiner.state.progress == StateProgress(A, 1000, 1000, complete=True)


def test_the_size_of_a_state_that_is_made_on_the_way_is_known_at_its_end() -> None:
    pair = Pair(chunk_size=100, window=4)
    pair.provider.app.give = Maker(3, 100)
    slow = Slow(pair.joiner)
    pair.join()
    pair.run(0.5)
    assert pair.joiner.state.progress == StateProgress(A, 100, None, complete=False)
    for _ in range(3):
        slow.go_on()
        pair.run(0.5)
    assert pair.joiner.state.progress == StateProgress(A, 300, 300, complete=True)


# Credit.


def deliver(member: Member, first: int, last: int, size: int) -> None:
    for number in range(first, last + 1):
        packet = Packet(bundle.join([bytes(size)]), None, APP, MCAST)
        packet.sender, packet.seqno, packet.view = A, number, member.stack.view.tag
        member.up(packet)


def unreported(member: Member) -> int:
    """Bundles that went up and were not credited to their sender."""
    return len(member.stack.find(Flow)._from[MCAST][A].waiting)


def test_what_waits_for_the_state_does_not_hold_up_its_senders_up_to_a_bound() -> None:
    pair = Pair(flow=10_000, buffer_max=5_000, chunk_size=100, window=2)
    pair.provider.app.give = Maker(10, 100)
    slow = Slow(pair.joiner)
    pair.join()
    pair.run(0.2)
    deliver(pair.joiner, 1, 4, 1000)
    assert unreported(pair.joiner) == 0
    deliver(pair.joiner, 5, 9, 1000)
    assert unreported(pair.joiner) == 5  # beyond the bound the senders wait
    assert pair.joiner.app.told == ["set"]
    for _ in range(11):
        slow.go_on()
        pair.run(0.2)
    assert pair.done
    assert len([item for item in pair.joiner.app.told if isinstance(item, bytes)]) == 9
    assert unreported(pair.joiner) == 0


def test_what_waits_for_the_state_does_not_keep_receive_buffers_alive() -> None:
    pair = Pair(flow=10_000)
    Slow(pair.joiner)
    pair.provider.app.give = Maker(2, 10)
    pair.join()
    pair.run(0.2)
    buffer = bytearray(1 << 20)
    body = bundle.join([b"small"])
    buffer[: len(body)] = body
    packet = Packet(memoryview(buffer)[: len(body)], None, APP, MCAST)
    packet.sender, packet.seqno, packet.view = A, 1, pair.joiner.stack.view.tag
    pair.joiner.up(packet)
    assert isinstance(packet.body, bytes)


# Failures.


def test_a_provider_whose_application_fails_says_so_and_frees_everything() -> None:
    pair = Pair(chunk_size=10, window=2)

    def give() -> Iterator[bytes]:
        yield state_of(40)
        raise RuntimeError("no more")

    pair.provider.app.give = give
    pair.join()
    pair.run(1, lambda source, target, packet: is_message(packet, Failed))
    assert pair.provider.state.held()["transfers"] == 0
    (failed,) = pair.provider.kinds("state_failed")
    assert "no more" in str(failed.data["reason"])


def test_a_get_state_that_raises_is_survived_and_told() -> None:
    pair = Pair()

    def give() -> Iterable[bytes]:
        raise RuntimeError("not now")

    pair.provider.app.give = give
    pair.join()
    pair.run(3)
    assert "not now" in pair.joiner.app.interrupted[0]
    assert "not now" in str(pair.joiner.joined_error())


def test_a_set_state_that_raises_ends_the_transfer_and_what_waited_goes_on() -> None:
    pair = Pair(chunk_size=10, window=2)
    pair.provider.app.give = maker = Maker(50, 10)

    async def fail(chunks: AsyncIterator[Buffer]) -> None:
        await anext(chunks)
        raise RuntimeError("disk full")

    pair.joiner.app.take = fail
    pair.join()
    pair.provider.multicast(b"later")
    pair.run(3)
    assert "disk full" in str(pair.joiner.joined_error())
    assert pair.joiner.app.told == ["set", (A, B), b"later"]
    assert pair.at_rest
    assert maker.made < 10


def test_bytes_that_are_not_what_was_sent_are_not_taken_for_the_state() -> None:
    pair = Pair()
    pair.provider.app.give = lambda: [b"right"]
    pair.join()

    def alter(source: Address, target: Address, packet: Packet) -> bool:
        if is_message(packet, Chunk):
            chunk = CODEC.decode(packet.body)
            packet.body = CODEC.encode(Chunk(chunk.id, chunk.number, chunk.total, b"wrong"))
        return False

    pair.run(3, alter)
    assert pair.joiner.app.interrupted == ["what came is not what was sent"]
    assert pair.joiner.state.stats["altered"] == 1
    assert pair.joiner.joined_error() is not None


def test_a_requester_that_leaves_ends_the_transfer_and_the_state_is_freed() -> None:
    pair = Pair(chunk_size=10, window=2)
    pair.provider.app.give = maker = Maker(50, 10)
    Slow(pair.joiner)
    pair.join()
    pair.run(0.5)
    assert not maker.closed
    pair.provider.install(view(3, A))
    assert maker.closed
    assert pair.provider.state.held()["transfers"] == 0
    assert pair.provider.stack.rules["state.requester_gone"] == 1


def test_a_requester_that_falls_silent_is_given_up_in_the_end() -> None:
    pair = Pair(stall_timeout=2.0)
    pair.provider.app.give = maker = Maker(50, 10)
    pair.join()
    pair.run(0.05)
    pair.run(3, lambda source, target, packet: source == B)
    assert pair.provider.state.held()["transfers"] == 0
    assert maker.made == 50


def test_a_member_gives_its_state_to_so_many_at_a_time_and_refuses_others() -> None:
    pair = Pair(transfers_max=1)
    pair.provider.install(view(2, A, B, C), (B, C), A)
    pair.provider.hear(C, State, Ack(view(2, A).tag, 0, 16, 0, ()))
    ((to, failed),) = pair.provider.sent(Failed)
    assert (to, failed.reason) == (C, "it gives its state to others already")
    assert pair.provider.stack.rules["state.refused"] == 1


def test_a_member_that_waits_for_the_state_itself_gives_none() -> None:
    pair = Pair()
    pair.joiner.install(view(2, A, B), (B,), A)
    pair.joiner.install(view(3, A, B, C), (C,), B)
    pair.joiner.hear(C, State, Ack(view(3, A).tag, 0, 16, 0, ()))
    ((to, failed),) = pair.joiner.sent(Failed)
    assert (to, failed.reason) == (C, "it waits for the state itself")


def test_a_joiner_that_is_ahead_of_its_provider_is_not_refused() -> None:
    pair = Pair()
    pair.provider.hear(B, State, Ack(view(2, A).tag, 0, 16, 0, ()))
    assert pair.provider.sent(Failed) == []
    pair.join()
    pair.run()
    assert pair.done


def test_what_nobody_asked_for_is_cancelled_and_what_makes_no_sense_is_counted() -> None:
    pair = Pair()
    pair.provider.hear(B, State, Chunk(7, 1, None, b"x"))
    assert pair.provider.sent(Cancel) == [(B, Cancel(7))]
    pair.join()
    pair.provider.hear(B, State, Ack(view(2, A).tag, 5, 16, 0, ()))
    pair.provider.hear(B, State, Ack(view(2, A).tag, 0, 16, 99, (100,)))
    assert pair.provider.state.stats["malformed"] == 2
    pair.run()
    assert pair.done


def test_a_stack_that_stops_interrupts_the_application_and_tells_the_provider() -> None:
    pair = Pair(chunk_size=10, window=2)
    pair.provider.app.give = Maker(50, 10)
    slow = Slow(pair.joiner)
    pair.join()
    pair.run(0.5)
    pair.joiner.stack.stop()
    slow.go_on()
    pair.net.carry()
    assert pair.joiner.app.interrupted == ["the channel was closed"]
    assert pair.provider.state.held()["transfers"] == 0


def test_a_joiner_whose_provider_is_gone_and_who_is_alone_then_fails_with_the_reason() -> None:
    pair = Pair(chunk_size=10, window=2)
    pair.provider.app.give = Maker(50, 10)
    slow = Slow(pair.joiner)
    pair.join()
    pair.run(0.5)
    pair.joiner.event(Suspect((A,), True))
    pair.joiner.install(view(3, B))
    slow.go_on()
    pair.joiner.run(3)
    assert pair.joiner.app.interrupted == ["a#1: it is suspected"]
    error = pair.joiner.joined_error()
    assert isinstance(error, StateFailed)
    assert str(error) == "no state: there is no other member (a#1: it is suspected)"
    assert pair.joiner.app.told == ["set", (A, B), (B,)]
