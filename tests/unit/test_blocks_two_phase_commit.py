"""The use case of the flush's design: block() completes transactions that are in two-phase commit. With both flushes.

Members A and B run transactions; C joins and acquires the state. The ledger is that of examples/two_phase_commit.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from coterie.group.channel import Channel
from coterie.group.presets import preset
from coterie.group.stack import Layer
from coterie.sim.clock import World
from coterie.sim.link import Conditions
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event

PORT = 7800
EXAMPLE = Path(__file__).parents[2] / "examples" / "two_phase_commit.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("two_phase_commit", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Ledger: Any = load_example().Ledger


class Bank:
    """Three nodes; what their ledgers do is written down."""

    def __init__(self, flush: str, ledger: Any = Ledger) -> None:
        self.traced: list[Event] = []
        self.world = World(1, "bank", self._trace)
        self.fabric = Fabric(self.world, Conditions(latency=0.01))
        self.nodes = {name: Node(self.world, self.fabric, name) for name in "ABC"}
        self.peers = [f"{node.ports.ip}:{PORT}" for node in self.nodes.values()]
        self.flush = flush
        self.kind = ledger
        self.ledgers: dict[str, Any] = {}
        self.log: list[tuple[str, str]] = []
        """Member and what it did, in the order of the world."""
        self.done: list[tuple[str, bool]] = []
        """Transactions that ended: whose, and how."""
        self.working = True

    def _trace(self, event: Event) -> None:
        self.traced.append(event)
        if event.kind in ("block", "unblock"):
            self.log.append((event.node, f"gate {event.kind}"))

    def boot(self, name: str) -> Any:
        node = self.nodes[name]
        layers = preset(
            "virtual-synchrony",
            TCP={"bind_host": node.ports.ip, "bind_port": PORT}, STATIC={"peers": self.peers, "interval": 0.1},
        )  # fmt: skip
        layers = [Layer(self.flush, {}) if layer.protocol == "FLUSH2" else layer for layer in layers]
        log = self.log

        class Watched(self.kind):  # type: ignore[misc, name-defined]
            last: dict[str, str]
            """By transaction: what was sent about it last."""

            def block(self) -> Any:
                log.append((name, "block() called"))
                return super().block()

            def get_state(self) -> list[bytes]:
                log.append((name, f"get_state() with {len(self.prepared)} half-done"))
                return super().get_state()  # type: ignore[no-any-return]

            def _send(self, kind: str, transaction: str, *args: Any, **more: Any) -> None:
                log.append((name, f"{kind} {transaction}"))
                if kind != "ACK":
                    self.last[transaction] = kind
                super()._send(kind, transaction, *args, **more)

            def _take(self, sender: Any, kind: str, transaction: str, changes: Any) -> None:
                if kind == "ACK":
                    log.append((name, f"ack of {sender.name} for {transaction}"))
                super()._take(sender, kind, transaction, changes)

        runtime = node.boot()
        ledger = self.ledgers[name] = Watched(runtime, lambda text: log.append((name, text)))
        ledger.last = {}
        ledger.channel = Channel(
            runtime, layers, group="bank", name=name, incarnation=node.incarnation, receiver=ledger
        )
        return ledger

    def ask(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
        process = self.nodes[name].process
        assert process is not None
        task = process.spawn(coroutine)
        self.until(task.done)
        return task.result()

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        end = self.world.time + seconds
        while not condition():
            assert self.world.time < end, "it never happened"
            self.world.run(self.world.time + 0.001)
        assert not self.world.unhandled

    async def customer(self, name: str, pause: float) -> None:
        ledger, process = self.ledgers[name], self.nodes[name].process
        assert process is not None
        while self.working:
            self.done.append((name, await ledger.transfer("ann", "bob", 1)))
            await process.sleep(pause)

    def open(self) -> None:
        """A and B are members, and both run transactions."""
        for name in "AB":
            self.ask(name, self.boot(name).channel.connect())
        self.until(lambda: all(len(self.ledgers[name].channel.view.members) == 2 for name in "AB"))
        for name in "AB":
            process = self.nodes[name].process
            assert process is not None
            for n in range(4):
                process.spawn(self.customer(name, 0.007 * n))
        self.until(lambda: len(self.done) > 20)

    def c_acquires_the_state(self) -> None:
        """C just joined and now starts a state transfer, to acquire the state from A."""
        c = self.boot("C")
        self.ask("C", c.channel.connect())
        self.until(lambda: all(len(ledger.channel.view.members) == 3 for ledger in self.ledgers.values()))
        seen = len(self.done)
        self.until(lambda: len(self.done) > seen + 20)
        self.until(lambda: self.phases("A") == {"PREPARE", "COMMIT"} == self.phases("B"))
        self.log.clear()
        self.ask("C", c.channel.get_state(self.ledgers["A"].channel.local))

    def phases(self, name: str) -> set[str]:
        """In which phases that member's transactions are: PREPARE (preparing) or COMMIT (all have prepared)."""
        ledger = self.ledgers[name]
        return {ledger.last[transaction] for transaction in ledger.under_way}

    def close(self) -> None:
        """Nothing new is begun, and what is under way ends."""
        self.working = False
        self.until(lambda: not any(ledger.under_way for ledger in self.ledgers.values()))
        self.world.run(self.world.time + 1)

    def by(self, name: str) -> list[str]:
        return [what for who, what in self.log if who == name]

    def inside_block(self, name: str) -> list[str]:
        """What the member did between the call of its block() and its return."""
        own = self.by(name)
        return own[own.index("block() called") + 1 : own.index("block(): nothing is half-done")]


@pytest.fixture(params=["FLUSH2", "FLUSH"])
def bank(request: pytest.FixtureRequest) -> Bank:
    return Bank(request.param)


def test_a_and_b_complete_their_prepared_and_preparing_transactions_in_block(bank: Bank) -> None:
    bank.open()
    bank.c_acquires_the_state()
    for name in "AB":
        inside = bank.inside_block(name)
        assert any(what.endswith("transactions that have begun") for what in inside)
        assert any(what.startswith("COMMIT") for what in inside)
    bank.close()
    assert all(ok for _, ok in bank.done)


def test_a_and_b_wait_for_the_acks_of_all_members_inside_of_block(bank: Bank) -> None:
    bank.open()
    bank.c_acquires_the_state()
    for name in "AB":
        own = bank.by(name)
        inside = bank.inside_block(name)
        committed = [what.removeprefix("COMMIT ") for what in inside if what.startswith("COMMIT")]
        assert committed
        for transaction in committed:
            behind = own[own.index(f"COMMIT {transaction}") : own.index("block(): nothing is half-done")]
            assert {f"ack of {member} for {transaction}" for member in "ABC"} <= set(behind)


def test_other_transactions_are_held_back_and_go_on_when_the_flush_is_over(bank: Bank) -> None:
    bank.open()
    bank.c_acquires_the_state()
    for name in "AB":
        own = bank.by(name)
        during = own[own.index("block() called") : own.index("gate unblock")]
        assert not any(what.startswith("PREPARE") for what in during)
    before = len(bank.done)
    bank.until(lambda: len(bank.done) > before + 20)


def test_once_all_acks_have_been_received_a_and_b_return_from_block_and_only_then_stop_sending(bank: Bank) -> None:
    bank.open()
    bank.c_acquires_the_state()
    for name in "AB":
        own = bank.by(name)
        assert own.index("block() called") < own.index("block(): nothing is half-done") < own.index("gate block")
        during = own[own.index("gate block") : own.index("gate unblock")]
        assert not any(what.startswith(("PREPARE", "COMMIT", "ROLLBACK")) for what in during)


def test_acks_which_another_members_block_waits_for_are_sent_although_ones_own_gate_is_shut(bank: Bank) -> None:
    bank.open()
    bank.c_acquires_the_state()  # C has no transactions: its gate is shut first
    shut = bank.log.index(("C", "gate block"))
    acks = [what for who, what in bank.log[shut:] if who == "C" and what.startswith("ACK")]
    opened = bank.log.index(("C", "gate unblock"))
    assert any(who == "C" and what.startswith("ACK") for who, what in bank.log[shut:opened]), acks


def test_the_state_that_c_acquires_contains_no_half_done_transaction(bank: Bank) -> None:
    bank.open()
    bank.c_acquires_the_state()
    assert ("A", "get_state() with 0 half-done") in bank.log
    assert ("C", "set_state(): 0 transactions are half-done") in bank.log
    bank.close()
    ledgers = list(bank.ledgers.values())
    assert all(ledger.accounts == ledgers[0].accounts for ledger in ledgers)
    assert ledgers[0].accounts["bob"] == len(bank.done)
    assert not any(ledger.prepared for ledger in ledgers)


def test_a_member_that_joins_with_the_state_gets_no_half_done_transaction_either(bank: Bank) -> None:
    bank.open()
    bank.until(lambda: bank.phases("A") == {"PREPARE", "COMMIT"} == bank.phases("B"))
    bank.ask("C", bank.boot("C").channel.connect(state=True))
    assert ("C", "set_state(): 0 transactions are half-done") in bank.log
    bank.close()
    ledgers = list(bank.ledgers.values())
    assert all(ledger.accounts == ledgers[0].accounts for ledger in ledgers)


def test_a_ledger_that_does_not_complete_its_transactions_in_block_would_give_away_half_done_ones() -> None:
    class Careless(Ledger):  # type: ignore[misc]
        def block(self) -> None:
            return None

    bank = Bank("FLUSH2", Careless)
    bank.open()
    bank.c_acquires_the_state()
    (half_done,) = [what for who, what in bank.log if who == "C" and what.startswith("set_state")]
    assert int(half_done.split()[1]) > 0


def test_a_member_that_crashes_while_block_waits_for_its_ack_holds_up_nobody_for_long(bank: Bank) -> None:
    bank.open()
    bank.ask("C", bank.boot("C").channel.connect(state=True))
    bank.until(lambda: bank.ledgers["A"].under_way and bank.ledgers["B"].under_way)
    bank.nodes["C"].crash(silent=True)
    del bank.ledgers["C"]
    bank.until(lambda: all(len(ledger.channel.view.members) == 2 for ledger in bank.ledgers.values()))
    before = len(bank.done)
    bank.until(lambda: len(bank.done) > before + 20)
    bank.close()
    a, b = bank.ledgers.values()
    assert a.accounts == b.accounts
    assert not a.prepared
    assert not b.prepared
