"""What a client holds: the row of runs against a dictionary that does the same plainly."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from amqp_rig import Rig
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coterie.amqp.unsettled import Holder, Settled, Unsettled, Withdrawn
from coterie.broker.entry import Entry
from coterie.broker.queue import Queue
from coterie.errors import ProtocolError


@dataclass(eq=False)
class Hand:
    held: int = 0


def queues() -> list[Queue]:
    client = (rig := Rig()).client()
    for name in "ab":
        client.call(1, "queue.declare", queue=name)
    return list(rig.broker.vhost("/").queues.values())


QUEUES = queues()


class Model(RuleBasedStateMachine):
    """Deliveries to two consumers and by basic.get, settled in every way, in and out of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[Holder | None] = []
        self.real = Unsettled(self.freed.append, lambda: float(self.next_tag))
        self.hands = [Hand(), Hand()]
        self.model: dict[int, tuple[Hand | None, Entry]] = {}
        self.next_tag = 1
        self.delivered: dict[int, int] = {}
        """When, by tag; the time is told by the next tag."""
        self.withdrawn: list[Withdrawn] = []

    @rule(who=st.sampled_from([0, 1, None]), count=st.integers(1, 6))
    def deliver(self, who: int | None, count: int) -> None:
        hand = None if who is None else self.hands[who]
        if who is None:
            count = 1
        entries = [Entry(self.next_tag + n, None, QUEUES[who or 0], 0) for n in range(count)]
        assert self.real.next_tag == self.next_tag
        self.real.add(hand, entries)
        self.delivered.update(dict.fromkeys(range(self.next_tag, self.next_tag + count), self.next_tag))
        for entry in entries:
            self.model[self.next_tag] = hand, entry
            self.next_tag += 1

    @rule(count=st.integers(1, 5))
    def deliver_without_acknowledgement(self, count: int) -> None:
        self.real.skip(count)
        self.next_tag += count

    @rule(data=st.data(), multiple=st.booleans(), transaction=st.booleans())
    def settle(self, data: st.DataObject, multiple: bool, transaction: bool) -> None:
        live = sorted(self.model)
        tag = data.draw(st.integers(0, self.next_tag + 3))
        if live and tag % 2:
            tag = live[tag % len(live)]
        into: Settled = {}
        known = tag in self.model or (multiple and tag == 0)
        if not known:
            with pytest.raises(ProtocolError, match=f"unknown delivery tag {tag}") as caught:
                self.real.take(tag, multiple, into)
            assert caught.value.reply_code == 406
            assert into == {}
            return
        expected = [each for each in live if (each <= tag or tag == 0)] if multiple else [tag]
        entries = [self.model.pop(each) for each in expected]
        self.freed.clear()
        if transaction:
            taken = self.real.withdraw(tag, multiple)
            assert [(each.tag, each.holder, each.entry) for each in taken] == [
                (tag, *pair) for tag, pair in zip(expected, entries, strict=True)
            ]
            self.withdrawn += taken
            assert self.freed == []
        else:
            self.real.take(tag, multiple, into)
            for queue in QUEUES:
                assert into.get(queue, []) == [entry for _, entry in entries if entry.queue is queue]
            assert {id(hand) for hand in self.freed} == {id(hand) for hand, _ in entries}

    @rule()
    def commit(self) -> None:
        into: Settled = {}
        self.real.settle(self.withdrawn, into)
        assert sum(map(len, into.values())) == len(self.withdrawn)
        self.withdrawn = []

    @rule()
    def roll_back(self) -> None:
        self.real.restore(self.withdrawn)
        for tag, hand, entry, _ in self.withdrawn:
            assert hand is None or isinstance(hand, Hand)
            self.model[tag] = hand, entry
        self.withdrawn = []

    @invariant()
    def counts_are_right(self) -> None:
        pending = [(each.holder, each.entry) for each in self.withdrawn]
        everything = [*self.model.values(), *pending]
        assert self.real.count == len(everything)
        for hand in self.hands:
            assert hand.held == sum(holder is hand for holder, _ in everything)

    @invariant()
    def the_oldest_is_known(self) -> None:
        assert self.real.oldest == min((self.delivered[tag] for tag in self.model), default=None)


TestAgainstAModel = Model.TestCase
TestAgainstAModel.settings = hypothesis_settings(max_examples=200, stateful_step_count=60)


def entries(count: int) -> list[Entry]:
    return [Entry(number, None, QUEUES[0], 0) for number in range(count)]


def test_a_client_that_never_settles_the_first_one_costs_no_more_than_what_it_holds() -> None:
    unsettled = Unsettled(lambda _: None, lambda: 0.0)
    unsettled.add(None, entries(1))
    for _ in range(10_000):
        unsettled.skip(3)
        unsettled.add(None, entries(2))
        unsettled.take(unsettled.next_tag - 1, False, {})
        unsettled.take(unsettled.next_tag - 2, False, {})
    assert unsettled.count == 1
    assert len(unsettled._runs) < 200


def test_taking_everything_leaves_nothing() -> None:
    unsettled = Unsettled(lambda _: None, lambda: 0.0)
    unsettled.add(None, entries(3))
    unsettled.add(None, entries(2))
    assert len(unsettled.take_all()[QUEUES[0]]) == 5
    assert unsettled.take_all() == {}
    assert (unsettled.count, unsettled.next_tag) == (0, 6)
