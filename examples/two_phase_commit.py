"""Two-phase commit, and a member that joins in the middle of it: no half-done transaction gets into its state.

python examples/two_phase_commit.py

Each member may run transactions: it multicasts PREPARE, waits until every member has acknowledged it by unicast,
multicasts COMMIT, and waits again. When somebody wants the state, the group is flushed, and every member's `block()` is
called: it completes the transactions that have begun, which takes messages and acks, and holds back the others.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import Address, View
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Buffer, Future, Runtime

ACK_TIMEOUT = 1.0
"""Seconds to wait for acks. A crashed member is not removed from the view before `block()` has returned, so that a
transaction which waits for its ack must end by itself, and in less time than the flush waits for `block()`."""


@dataclass
class Phase:
    """Which acks one phase of a transaction still waits for."""

    missing: set[Address]
    done: Future[bool]

    def without(self, gone: Callable[[Address], bool]) -> None:
        self.missing = {member for member in self.missing if not gone(member)}
        if not self.missing and not self.done.done():
            self.done.set_result(True)


class Ledger(Receiver):
    """Accounts that change by two-phase commit. It knows no clock and no socket, only a runtime."""

    def __init__(self, runtime: Runtime, note: Callable[[str], None]) -> None:
        self.runtime, self.note = runtime, note
        self.channel: Channel | None = None
        self.view: View | None = None
        self.accounts: dict[str, int] = {}
        self.prepared: dict[str, dict[str, int]] = {}
        """By transaction: changes that are neither committed nor rolled back. Half-done, that is."""
        self.under_way: dict[str, Phase | None] = {}
        """Our own transactions that have begun."""
        self.numbers = 0
        self._blocked = False
        self._quiet: list[Future[None]] = []
        self._held_back: list[Future[None]] = []

    # The member that runs a transaction.

    async def transfer(self, source: str, target: str, amount: int) -> bool:
        """Both accounts change, at every member, or neither does."""
        while self._blocked:
            future: Future[None] = self.runtime.future()
            self._held_back.append(future)
            await future
        assert self.channel is not None
        self.numbers += 1
        name = f"{self.channel.local.name}-{self.numbers}"
        self.under_way[name] = None
        try:
            if await self._phase(name, "PREPARE", {source: -amount, target: amount}):
                return await self._phase(name, "COMMIT")
            self._send("ROLLBACK", name)
            return False
        finally:
            del self.under_way[name]
            self._look()

    async def _phase(self, name: str, kind: str, changes: dict[str, int] | None = None) -> bool:
        """Tell everybody, and wait until everybody has acknowledged it."""
        assert self.view is not None
        phase = self.under_way[name] = Phase(set(self.view.members), self.runtime.future())
        self._send(kind, name, changes)
        timer = self.runtime.call_later(ACK_TIMEOUT, self._time_is_up, phase)
        try:
            acknowledged = await phase.done
        finally:
            timer.cancel()
        return acknowledged or kind == "COMMIT"  # what all have prepared is done, whoever is slow to say so

    def _time_is_up(self, phase: Phase) -> None:
        if not phase.done.done():
            phase.done.set_result(False)

    # The flush.

    def block(self) -> Awaitable[None]:
        """Complete what has begun; begin nothing. Multicasts still go out, and acks come in, until this returns."""
        self._blocked = True
        return self._complete()

    async def _complete(self) -> None:
        if self.under_way:
            self.note(f"block(): completes {len(self.under_way)} transactions that have begun")
            quiet: Future[None] = self.runtime.future()
            self._quiet.append(quiet)
            await quiet
        self.note("block(): nothing is half-done")

    def unblock(self) -> None:
        self._blocked = False
        held_back, self._held_back = self._held_back, []
        for future in held_back:
            future.set_result(None)

    def _look(self) -> None:
        if not self.under_way:
            quiet, self._quiet = self._quiet, []
            for future in quiet:
                future.set_result(None)

    # Every member.

    def receive(self, batch: list[Delivery]) -> None:
        for sender, messages, *_ in batch:
            for message in messages:
                kind, name, changes = json.loads(bytes(message))
                self._take(sender, kind, name, changes)

    def _take(self, sender: Address, kind: str, name: str, changes: dict[str, int]) -> None:
        if kind == "ACK":
            phase = self.under_way.get(name)
            if phase is not None:
                phase.without(lambda member: member == sender)
        elif kind == "PREPARE":
            self.prepared[name] = changes
            self._send("ACK", name, dest=sender)
        elif kind == "ROLLBACK":
            self.prepared.pop(name, None)
        elif name in self.prepared:
            for account, change in self.prepared.pop(name).items():
                self.accounts[account] = self.accounts.get(account, 0) + change
            self._send("ACK", name, dest=sender)

    def _send(self, kind: str, name: str, changes: dict[str, int] | None = None, dest: Address | None = None) -> None:
        assert self.channel is not None
        self.channel.send_nowait(json.dumps([kind, name, changes or {}]).encode(), dest)

    def view_accepted(self, view: View) -> None:
        """Who is gone neither acknowledges nor commits: by virtual synchrony its COMMIT reached all of us, or none."""
        self.view = view
        for phase in self.under_way.values():
            if phase is not None:
                phase.without(lambda member: member not in view)
        names = {member.name for member in view.members}
        self.prepared = {name: change for name, change in self.prepared.items() if name.rpartition("-")[0] in names}

    # State transfer.

    def get_state(self) -> list[bytes]:
        return [json.dumps([self.accounts, self.prepared]).encode()]

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self.accounts, self.prepared = json.loads(b"".join([bytes(chunk) async for chunk in chunks]))
        self.note(f"set_state(): {len(self.prepared)} transactions are half-done")


async def join(name: str, peers: list[str]) -> Ledger:
    ledger = Ledger(AioRuntime(name), lambda text: print(f"{name}: {text}"))
    stack = preset("virtual-synchrony", TCP={"bind_port": 0}, STATIC={"peers": peers})
    ledger.channel = Channel(ledger.runtime, stack, group="bank", name=name, receiver=ledger)
    await ledger.channel.connect()
    return ledger


async def main() -> None:
    a = await join("A", [])
    assert a.channel is not None
    peers = [str(a.channel.stack.find(Tcp).endpoint)]
    b = await join("B", peers)
    await a.channel.has_members(2)

    closing = asyncio.Event()

    async def customer(ledger: Ledger, source: str, target: str) -> int:
        committed = 0
        while not closing.is_set():
            committed += await ledger.transfer(source, target, 1)
        return committed

    customers = [customer(a, "ann", "bob") for _ in range(20)] + [customer(b, "bob", "cat") for _ in range(20)]
    working = asyncio.gather(*customers)
    await asyncio.sleep(0.02)
    c = await join("C", peers)
    assert c.channel is not None
    await c.channel.get_state(a.channel.local)
    await asyncio.sleep(0.02)
    closing.set()
    print("all that was begun was committed:", sum(await working) == a.numbers + b.numbers)
    print("the same accounts everywhere:", a.accounts == b.accounts == c.accounts)
    for ledger in (c, b, a):
        assert ledger.channel is not None
        await ledger.channel.close()
        assert isinstance(ledger.runtime, AioRuntime)
        await ledger.runtime.close()


if __name__ == "__main__":
    run(main())
