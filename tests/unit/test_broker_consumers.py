"""Who gets what: turns, room, priorities, single active and exclusive consumers, auto-delete."""

from __future__ import annotations

import pytest
from broker_rig import Rig

from coterie.broker.consumer import consumer_priority
from coterie.errors import ProtocolError


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_consumers_take_turns() -> None:
    rig = Rig()
    queue = rig.declare()
    first, second = rig.consume(queue), rig.consume(queue)
    for number in numbers(6):
        rig.publish(number)
    assert first.bodies() == ["0", "2", "4"]
    assert second.bodies() == ["1", "3", "5"]


def test_a_backlog_is_shared_in_chunks() -> None:
    rig = Rig()
    queue = rig.declare()
    first, second = rig.consume(queue), rig.consume(queue)
    rig.publish(*numbers(1000))
    assert len(first.seen) + len(second.seen) == 1000
    assert abs(len(first.seen) - len(second.seen)) <= 64
    positions = [entry.position for entry in first.seen]
    assert positions == sorted(positions)


def test_nobody_is_given_more_than_it_has_room_for_and_the_rest_goes_to_others() -> None:
    rig = Rig()
    queue = rig.declare()
    small, large = rig.consume(queue, prefetch=2), rig.consume(queue, prefetch=5)
    rig.publish(*numbers(10))
    assert (len(small.seen), len(large.seen), queue.ready) == (2, 5, 3)


def test_a_full_consumer_gets_more_once_it_is_woken() -> None:
    rig = Rig()
    queue = rig.declare()
    client = rig.consume(queue, prefetch=1)
    rig.publish("a", "b")
    assert client.bodies() == ["a"]
    assert not client.consumer.hungry
    client.accept()
    rig.run()
    assert client.bodies() == ["b"]


def test_a_higher_priority_is_served_first_and_a_lower_one_only_when_it_is_full() -> None:
    rig = Rig()
    queue = rig.declare()
    low = rig.consume(queue, priority=-1)
    high = [rig.consume(queue, prefetch=2, priority=10) for _ in range(2)]
    rig.publish(*numbers(3))
    assert [len(client.seen) for client in (low, *high)] == [0, 2, 1]
    rig.publish(*numbers(3))
    assert [len(client.seen) for client in (low, *high)] == [2, 2, 2]


@pytest.mark.parametrize("value", ["high", True, 1.5, None])
def test_a_consumer_priority_must_be_a_whole_number(value: object) -> None:
    with pytest.raises(ProtocolError, match="x-priority") as caught:
        consumer_priority({"x-priority": value})
    assert caught.value.reply_code == 406
    assert consumer_priority({"x-priority": -5}) == -5
    assert consumer_priority({}) == 0


def test_of_single_active_consumers_one_gets_everything_until_it_goes() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-single-active-consumer": True})
    first, second, third = (rig.consume(queue, prefetch=10) for _ in range(3))
    rig.publish("a", "b")
    assert first.bodies() == ["a", "b"]
    assert [client.consumer.active for client in (first, second, third)] == [True, False, False]
    first.close()
    rig.run()
    assert second.bodies() == ["a", "b"]
    assert third.bodies() == []


def test_the_next_single_active_consumer_is_the_oldest_of_the_highest_priority_and_none_is_pushed_aside() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-single-active-consumer": True})
    first = rig.consume(queue)
    low, high, higher = (rig.consume(queue, priority=priority) for priority in (0, 5, 5))
    assert queue.rotation.active is first.consumer
    first.cancel()
    assert queue.rotation.active is high.consumer
    high.cancel()
    assert queue.rotation.active is higher.consumer
    higher.cancel()
    assert queue.rotation.active is low.consumer


def test_a_single_active_consumer_without_room_holds_up_the_queue() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-single-active-consumer": True})
    first, second = rig.consume(queue, prefetch=1), rig.consume(queue)
    rig.publish("a", "b")
    assert (first.bodies(), second.bodies()) == (["a"], [])


def test_an_exclusive_consumer_is_alone() -> None:
    rig = Rig()
    queue = rig.declare()
    alone = rig.consume(queue, exclusive=True)
    with pytest.raises(ProtocolError, match="in exclusive use") as caught:
        rig.consume(queue)
    assert caught.value.reply_code == 403
    alone.cancel()
    rig.consume(queue)
    with pytest.raises(ProtocolError, match="in exclusive use"):
        rig.consume(queue, exclusive=True)


def test_a_cancelled_consumer_keeps_what_it_holds_and_gets_nothing_more() -> None:
    rig = Rig()
    queue = rig.declare()
    client = rig.consume(queue)
    rig.publish("a")
    client.cancel()
    rig.publish("b")
    assert client.bodies() == ["a"]
    client.accept("a")
    assert (queue.ready, queue.unacked) == (1, 0)


def test_an_auto_delete_queue_ends_with_its_last_consumer_and_not_before_its_first() -> None:
    rig = Rig()
    queue = rig.declare(auto_delete=True)
    rig.publish("a")
    assert "q" in rig.vhost.queues
    first, second = rig.consume(queue), rig.consume(queue)
    first.close()
    assert "q" in rig.vhost.queues
    second.close()
    assert "q" not in rig.vhost.queues
    assert (first.cancellations, second.cancellations) == (0, 0)


def test_cancelling_twice_does_nothing() -> None:
    rig = Rig()
    queue = rig.declare()
    client = rig.consume(queue)
    client.cancel()
    client.cancel()
    assert queue.consumers == []


def test_consuming_from_a_queue_that_has_just_been_deleted_is_refused() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.delete("q")
    with pytest.raises(ProtocolError, match="no queue 'q'") as caught:
        rig.consume(queue)
    assert caught.value.reply_code == 404


def test_a_consumer_that_cancels_itself_within_a_delivery_gets_nothing_more() -> None:
    rig = Rig()
    queue = rig.declare()
    client, other = rig.consume(queue, prefetch=2), rig.consume(queue, prefetch=100)
    deliver = client.deliver

    def once(consumer: object, entries: list[object]) -> None:
        deliver(consumer, entries)  # type: ignore[arg-type]
        client.cancel()

    client.deliver = once  # type: ignore[method-assign,assignment]
    rig.publish(*numbers(20))
    assert len(client.seen) == 2
    assert len(other.seen) == 18
