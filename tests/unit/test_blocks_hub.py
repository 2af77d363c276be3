"""The hub: several share one channel. On whole stacks in the simulator: docs/blocks.md."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator

import pytest
from blocks_rig import Group

from coterie.blocks import Hub, Port, Rpc, SharedDict
from coterie.errors import UserError
from coterie.group.channel import Delivery, Receiver
from coterie.group.members import View, ViewId
from coterie.runtime.base import Buffer, Future


class Log(Receiver):
    """An application of one's own behind a port."""

    def __init__(self, hub: Hub, name: str = "log") -> None:
        self.hub = hub
        self.port: Port = hub.port(name, self)
        self.got: list[str] = []
        self.views: list[View] = []
        self.blocked: list[str] = []
        self.held_at: list[int] = []
        self.chunk = 3
        self.wait: Future[None] | None = None

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        self.got += [bytes(message).decode() for delivery in batch for message in delivery.messages]
        return None if self.wait is None else self.pause(self.wait)

    async def pause(self, future: Future[None]) -> None:
        await future

    def view_accepted(self, view: View) -> None:
        self.views.append(view)

    def held(self, view: ViewId, position: int, everyone: bool) -> None:
        self.held_at.append(position)

    def block(self) -> Awaitable[None] | None:
        self.blocked.append("block")
        return None if self.wait is None else self.pause(self.wait)

    def unblock(self) -> None:
        self.blocked.append("unblock")

    def get_state(self) -> Iterator[bytes]:
        state = "/".join(self.got).encode()
        return (state[start : start + self.chunk] for start in range(0, len(state), self.chunk))

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        state = b"".join([bytes(chunk) async for chunk in chunks]).decode()
        self.got = state.split("/") if state else []


class Fails(Log):
    """Fails in every way that an application can fail in."""

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        super().receive(batch)
        if len(self.got) % 2:
            raise RuntimeError("receive")
        return self.later()

    async def later(self) -> None:
        raise RuntimeError("later")

    def view_accepted(self, view: View) -> None:
        raise RuntimeError("view")

    def block(self) -> Awaitable[None] | None:
        raise RuntimeError("block")

    def unblock(self) -> None:
        raise RuntimeError("unblock")


def connected(group: Group) -> None:
    for number in group.hubs:
        group.ask(number, group.hubs[number].connect(state=True))
    group.until(lambda: group.together(*group.hubs))


def test_messages_of_one_port_reach_the_ports_of_that_name_in_order_and_no_others() -> None:
    group = Group(2, "virtual-synchrony")
    logs = group.make(Log)
    others = group.make(lambda hub: Log(hub, "other"))
    connected(group)
    for n in range(3):
        logs[0].port.send_nowait(b"log %d" % n)
        others[0].port.send_nowait(b"other %d" % n)
        logs[0].port.send_nowait(b"for b %d" % n, group.address(1))
    group.run(0.1)
    for n in (0, 1):
        assert [text for text in logs[n].got if text.startswith("log")] == ["log 0", "log 1", "log 2"]
        assert others[n].got == ["other 0", "other 1", "other 2"]
    assert [text for text in logs[1].got if text.startswith("for")] == ["for b 0", "for b 1", "for b 2"]
    assert not [text for text in logs[0].got if text.startswith("for")]


def test_blocks_and_the_applications_own_messages_share_one_channel() -> None:
    group = Group(2)
    logs = group.make(Log)
    dicts = group.make(lambda hub: SharedDict(hub, "stock"))
    rpcs = group.make(lambda hub: Rpc(hub, "rpc", lambda caller, request: request.upper()))
    connected(group)
    group.start(0, logs[0].port.send(b"hello"))
    group.ask(1, dicts[1].set("apples", b"3"))
    assert group.ask(0, rpcs[0].call(group.address(1), b"shout", 1)) == b"SHOUT"
    group.run(0.1)
    assert [log.got for log in logs] == [["hello"], ["hello"]]
    assert dicts[0].snapshot() == {"apples": b"3"}


def test_every_port_is_told_of_views_and_flushes() -> None:
    group = Group(2, "virtual-synchrony")
    logs = group.make(Log)
    others = group.make(lambda hub: Log(hub, "other"))
    connected(group)

    async def flush() -> None:
        async with group.hubs[0].channel.flush():
            pass

    for log in (*logs, *others):
        log.blocked.clear()
    group.ask(0, flush())
    group.run(0.5)
    for log in (*logs, *others):
        assert log.blocked == ["block", "unblock"]
        assert log.views[-1] == group.hubs[0].view


def test_a_flush_waits_for_the_block_of_every_port() -> None:
    group = Group(2, "virtual-synchrony")
    logs = group.make(Log)
    others = group.make(lambda hub: Log(hub, "other"))
    connected(group)
    logs[0].wait, others[0].wait = group.runtime(0).future(), group.runtime(0).future()
    flushed = group.start(1, group.hubs[1].channel.start_flush())
    logs[0].wait.set_result(None)
    group.run(0.05)
    assert others[0].blocked[-1] == "block"
    assert not flushed.done()
    others[0].wait.set_result(None)
    group.until(flushed.done)
    assert flushed.result()
    group.hubs[1].channel.stop_flush()


def test_a_port_that_takes_its_time_holds_back_what_comes_next() -> None:
    group = Group(2, "virtual-synchrony")
    logs = group.make(Log)
    connected(group)
    logs[1].wait = group.runtime(1).future()
    logs[0].port.send_nowait(b"1")
    group.run(0.1)
    logs[0].port.send_nowait(b"2")
    group.run(0.1)
    assert logs[1].got == ["1"]
    logs[1].wait.set_result(None)
    group.run(0.1)
    assert logs[1].got == ["1", "2"]


def test_held_positions_are_told_to_every_port() -> None:
    group = Group(2, settings={"TOTAL": {"held": "all"}})
    logs = group.make(Log)
    connected(group)
    logs[0].port.send_nowait(b"1")
    group.run(1)
    assert logs[1].held_at[-1] >= 1


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_the_state_is_that_of_all_ports_each_its_own(chunk: int) -> None:
    group = Group(2)
    (log,) = group.make(Log, 0)
    (other,) = group.make(lambda hub: Log(hub, "other"), 0)
    (empty,) = group.make(lambda hub: Log(hub, "empty"), 0)
    (stock,) = group.make(lambda hub: SharedDict(hub, "stock"), 0)
    log.chunk = other.chunk = chunk
    connected(group)
    for n in range(20):
        log.port.send_nowait(b"log %d" % n)
        other.port.send_nowait(bytes(1_000).replace(b"\0", b"x"))
    group.ask(0, stock.set("apples", b"3"))
    (stock,) = group.make(lambda hub: SharedDict(hub, "stock"), 1)  # in another order
    (log2,) = group.make(Log, 1)
    (other2,) = group.make(lambda hub: Log(hub, "other"), 1)
    (empty2,) = group.make(lambda hub: Log(hub, "empty"), 1)
    group.ask(1, group.hubs[1].connect())
    assert log2.got == log.got != []
    assert other2.got == other.got != []
    assert empty2.got == empty.got == []
    assert stock.snapshot() == {"apples": b"3"}


def test_the_state_of_a_port_that_is_not_here_is_left_out_and_messages_for_it_are_counted() -> None:
    group = Group(2, "virtual-synchrony")
    (gone,) = group.make(lambda hub: Log(hub, "gone"), 0)
    (log,) = group.make(Log, 0)
    connected(group)
    log.port.send_nowait(b"1")
    gone.port.send_nowait(b"2")
    group.run(0.1)
    (log2,) = group.make(Log, 1)
    group.ask(1, group.hubs[1].connect(state=True))
    assert log2.got == ["1"]
    gone.port.send_nowait(b"3")
    log.port.send_nowait(b"4")
    group.hubs[0].channel.send_nowait(b"")  # what does not come through a port is for nobody
    group.hubs[0].channel.send_nowait(b"\xffx")
    group.run(0.1)
    assert log2.got == ["1", "4"]
    assert group.hubs[1].unknown == 3


def test_a_state_that_breaks_off_in_the_middle_is_replaced_as_a_whole() -> None:
    group = Group(3)
    dicts = group.make(lambda hub: SharedDict(hub, "stock"), 0, 1)
    logs = group.make(lambda hub: Log(hub, "large"), 0, 1)
    connected(group)
    for _ in range(30):
        logs[0].port.send_nowait(bytes(100_000).replace(b"\0", b"x"))
        group.run(0.05)
    (joiner,) = group.make(lambda hub: SharedDict(hub, "stock"), 2)
    (log,) = group.make(lambda hub: Log(hub, "large"), 2)
    replicated = group.replicated(2)
    assert replicated is not None
    for member in (*logs, log):
        member.chunk = 1000
    group.start(2, group.hubs[2].connect())
    while replicated._arrived is None:  # its part has come, the other one has not
        group.world.run(group.world.time + 0.0002)
    assert log.got == []
    group.crash(0)
    group.ask(1, dicts[1].set("apples", b"3"))
    group.until(lambda: group.together(1, 2))
    assert joiner.snapshot() == {"apples": b"3"}
    assert log.got == logs[1].got


def test_a_port_that_fails_does_not_disturb_the_others() -> None:
    group = Group(2, "virtual-synchrony")
    fails = group.make(lambda hub: Fails(hub, "fails"))
    logs = group.make(Log)
    connected(group)
    for n in range(6):
        fails[0].port.send_nowait(b"x")
        logs[0].port.send_nowait(b"%d" % n)
        group.run(0.05)

    async def flush() -> None:
        async with group.hubs[0].channel.flush():
            pass

    group.ask(0, flush())
    assert logs[1].got == ["0", "1", "2", "3", "4", "5"]
    assert len(fails[1].got) == 6
    group.run(0.5)
    assert logs[1].blocked[-2:] == ["block", "unblock"]


def test_two_ports_of_one_name_and_names_that_are_too_long_are_refused() -> None:
    group = Group(1, "virtual-synchrony")
    hub = group.hub(0)
    Log(hub)
    with pytest.raises(UserError, match="'log' already"):
        Log(hub)
    with pytest.raises(UserError, match="1 to 32 bytes, not 33"):
        Log(hub, "x" * 33)
    with pytest.raises(UserError, match="not 0"):
        Log(hub, "")
