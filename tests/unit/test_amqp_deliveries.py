"""What a client holds, and whose it is: accounts of two consumers and of basic.get, against a dictionary that does the
same plainly."""

from __future__ import annotations

import pytest
from amqp_rig import Rig
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coterie.amqp.deliveries import Deliveries, Settled, held_ranges
from coterie.amqp.subscription import Subscription
from coterie.broker.delivery import Delivery, HeldRanges, count_of, positions_in, ranges_of
from coterie.broker.message import make_message
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.errors import ProtocolError

MESSAGE = make_message("", "q", b"")


def subscriptions() -> list[Subscription]:
    client = (rig := Rig()).client()
    for name in "ab":
        client.call(1, "queue.declare", queue=name)
        client.send(1, "basic.consume", queue=name, consumer_tag=name)
    (connection,) = rig.server.connections.values()
    return list(connection.channels[1].consumers.values())


def delivery(queue: Queue, holder: object, positions: list[int]) -> Delivery:
    return Delivery(queue, holder, ranges_of(positions), [MESSAGE] * len(positions))


Item = tuple[Queue, object, int]


def items(found: list[HeldRanges]) -> list[Item]:
    return [(queue, holder, position) for queue, holder, ranges in found for position in positions_in(ranges)]


def by_holder(found: list[Item]) -> dict[tuple[Queue, object], list[int]]:
    sorted_out: dict[tuple[Queue, object], list[int]] = {}
    for queue, holder, position in found:
        sorted_out.setdefault((queue, holder), []).append(position)
    return sorted_out


class Model(RuleBasedStateMachine):
    """Deliveries to two consumers and by basic.get, settled in every way, in and out of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[Subscription | None] = []
        self.consumers = subscriptions()
        self.holders = object(), object()
        """What the consumers are on the log."""
        self.real = Deliveries(self.freed.append, lambda: float(self.next_tag))
        self.model: dict[int, tuple[Subscription | None, Item]] = {}
        self.next_tag = 1
        self.next_position = 1
        self.withdrawn: list[Range] = []
        self.withdrawn_model: dict[int, tuple[Subscription | None, Item]] = {}

    @rule(who=st.sampled_from([0, 1]), backwards=st.booleans(), count=st.integers(1, 6))
    def deliver(self, who: int, backwards: bool, count: int) -> None:
        consumer = self.consumers[who]
        positions = [*range(self.next_position, self.next_position + count)][:: -1 if backwards else 1]
        self.next_position += count + 1
        self._give(consumer, consumer.queue, self.holders[who], positions)

    @rule(who=st.sampled_from([0, 1]), getter=st.sampled_from(["one", "other"]))
    def get(self, who: int, getter: str) -> None:
        self._give(None, self.consumers[who].queue, getter, [self.next_position])
        self.next_position += 1

    def _give(self, consumer: Subscription | None, queue: Queue, holder: object, positions: list[int]) -> None:
        assert self.real.tags.next_tag == self.next_tag
        self.real.add(consumer, delivery(queue, holder, positions))
        for position in positions:
            self.model[self.next_tag] = consumer, (queue, holder, position)
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
        if tag not in self.model and not (multiple and tag == 0):
            with pytest.raises(ProtocolError, match=f"unknown delivery tag {tag}") as caught:
                self.real.take(tag, multiple, into)
            assert caught.value.reply_code == 406
            assert into == {}
            return
        tags = [each for each in live if each == tag or (multiple and (each <= tag or not tag))]
        expected = {each: self.model.pop(each) for each in tags}
        self.freed.clear()
        if transaction:
            self.withdrawn += self.real.withdraw(tag, multiple)
            self.withdrawn_model |= expected
            assert self.freed == []
        else:
            self.real.take(tag, multiple, into)
            assert by_holder(items(held_ranges(into))) == by_holder([item for _, item in expected.values()])
            assert {*self.freed} == {consumer for consumer, _ in expected.values()}

    @rule()
    def commit(self) -> None:
        settled = items(self.real.settle(self.withdrawn))
        assert by_holder(settled) == by_holder([item for _, item in self.withdrawn_model.values()])
        self.withdrawn, self.withdrawn_model = [], {}

    @rule()
    def roll_back(self) -> None:
        self.real.restore(self.withdrawn)
        self.model |= self.withdrawn_model
        self.withdrawn, self.withdrawn_model = [], {}

    @invariant()
    def everybody_holds_what_he_should(self) -> None:
        everything = [*self.model.values(), *self.withdrawn_model.values()]
        assert self.real.count == len(everything)
        assert sorted(items(self.real.held()), key=str) == sorted([item for _, item in everything], key=str)
        for consumer in self.consumers:
            assert consumer.held == sum(each is consumer for each, _ in everything)

    @invariant()
    def nothing_is_kept_of_those_who_hold_nothing(self) -> None:
        holders = {item[:2] for _, item in (*self.model.values(), *self.withdrawn_model.values())}
        assert len(self.real._accounts) == len(holders)
        assert len(self.real._getters) == sum(holder in ("one", "other") for _, holder in holders)


TestAgainstAModel = Model.TestCase
TestAgainstAModel.settings = hypothesis_settings(max_examples=100, stateful_step_count=40)


def test_taking_everything_leaves_nothing() -> None:
    one, other = subscriptions()
    deliveries = Deliveries(lambda _: None, lambda: 0.0)
    deliveries.add(one, delivery(one.queue, one, [1, 2, 3]))
    deliveries.add(None, delivery(one.queue, "getter", [4]))
    deliveries.add(other, delivery(other.queue, other, [7, 5]))
    held = deliveries.take_all()
    assert held == [
        (one.queue, one, [(1, 4)]),
        (one.queue, "getter", [(4, 5)]),
        (other.queue, other, [(7, 8), (5, 6)]),
    ]
    assert deliveries.take_all() == []
    assert (deliveries.count, deliveries.tags.next_tag, one.held, other.held) == (0, 7, 0, 0)


def test_many_that_a_consumer_holds_are_settled_as_few_ranges() -> None:
    (consumer, _) = subscriptions()
    deliveries = Deliveries(lambda _: None, lambda: 0.0)
    deliveries.add(consumer, delivery(consumer.queue, consumer, [*range(1, 1001)]))
    into: Settled = {}
    for tag in range(1, 501):
        deliveries.take(tag, False, into)
    ((_, _, ranges),) = held_ranges(into)
    assert ranges == [(1, 501)]
    assert count_of(ranges) == 500
