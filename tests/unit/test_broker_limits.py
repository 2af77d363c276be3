"""Limits of length and of time: who goes, when, and who is refused."""

from __future__ import annotations

import pytest
from broker_rig import Rig, bodies, message, text
from queue_view import in_order, seen

from coterie.broker.message import parse_ttl
from coterie.broker.publish import Publish
from coterie.errors import ProtocolError


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


# Length.


def test_a_queue_that_is_too_long_drops_its_head() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 3})
    diary = rig.watch(queue)
    rig.publish(*numbers(5))
    assert bodies(queue) == ["2", "3", "4"]
    assert diary.read() == ["enqueued 1,2,3,4,5", "dequeued maxlen 1,2"]


def test_a_queue_that_is_too_large_drops_its_head() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length-bytes": 5})
    rig.publish("aa", "bb", "cc")
    assert bodies(queue) == ["bb", "cc"]
    rig.publish("too large")
    assert bodies(queue) == []


def test_what_a_consumer_takes_at_once_was_never_too_much() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 1})
    client = rig.consume(queue, prefetch=4)
    rig.publish(*numbers(6))
    assert client.bodies() == ["0", "1", "2", "3"]
    assert bodies(queue) == ["5"]


def test_a_queue_of_length_zero_only_hands_over() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 0})
    rig.publish("lost")
    client = rig.consume(queue)
    rig.publish("seen")
    assert client.bodies() == ["seen"]


def test_what_is_held_does_not_count_until_it_comes_back() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 2})
    client = rig.consume(queue, prefetch=2)
    rig.publish(*numbers(4))
    assert (queue.ready, queue.unacked) == (2, 2)
    client.cancel()
    client.release()
    assert bodies(queue) == ["2", "3"]


def test_a_full_queue_may_refuse_instead() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    publishes = rig.publish("a", "b", "c")
    assert [publish.refused for publish in publishes] == [False, False, True]
    assert bodies(queue) == ["a", "b"]
    assert queue.counters.refused == 1
    rig.get(no_ack=True)
    assert not rig.publish("d")[0].refused


def test_a_queue_refuses_by_bytes() -> None:
    rig = Rig()
    rig.declare(arguments={"x-max-length-bytes": 4, "x-overflow": "reject-publish"})
    assert [publish.refused for publish in rig.publish("aaa", "bb", "c")] == [False, True, False]


def test_a_full_queue_refuses_nothing_while_its_consumers_have_room() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    client = rig.consume(queue, prefetch=3)
    publishes = rig.publish(*numbers(6))
    assert [publish.refused for publish in publishes] == [False] * 5 + [True]
    assert client.bodies() == ["0", "1", "2"]


def test_a_publish_that_one_of_two_queues_refuses_is_refused_and_is_in_the_other() -> None:
    rig = Rig()
    rig.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    free = rig.declare("free")
    for name in ("full", "free"):
        rig.bind("amq.fanout", name)
    assert rig.publish("a", exchange="amq.fanout")[0].refused
    assert bodies(free) == ["a"]


def test_a_ring_counts_what_is_held_and_lets_the_oldest_go() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 3, "x-overflow": "ring"})
    assert queue.kind == "ring"
    rig.publish("a", "b", "c")
    client = rig.consume(queue, prefetch=2)
    rig.publish("d")
    assert client.held["a"].state == "gone"
    assert client.held["b"].state == "acquired"
    assert (bodies(queue), queue.unacked) == (["c", "d"], 1)
    client.release()
    rig.run()
    assert list(client.held) == ["b", "c"]


def test_a_ring_of_bytes_makes_as_much_room_as_is_needed() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length-bytes": 6, "x-overflow": "ring"})
    rig.publish("aa", "bb", "cc", "dddd")
    assert bodies(queue) == ["cc", "dddd"]


def test_a_ring_forgets_what_is_gone_while_its_oldest_is_held() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 100, "x-overflow": "ring"})
    rig.publish("oldest")
    holder = rig.consume(queue, prefetch=1)
    holder.cancel()
    client = rig.consume(queue, no_ack=True)
    rig.publish(*numbers(1000))
    assert len(client.bodies()) == 1000
    assert list(seen(queue)) == [1]
    assert queue.table.state.lengths.pieces < 3
    assert len([*queue.table.contents]) == 1
    client.cancel()
    rig.publish(*numbers(99))
    oldest = holder.held["oldest"]
    assert oldest.state == "acquired"
    rig.publish("one too many")
    assert (oldest.state, queue.ready) == ("gone", 100)


# Time.


def test_a_message_older_than_the_queue_allows_expires_at_the_head() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-message-ttl": 1000})
    diary = rig.watch(queue)
    rig.publish("a")
    rig.run(0.6)
    rig.publish("b")
    rig.run(0.6)
    assert bodies(queue) == ["b"]
    rig.run(0.6)
    assert bodies(queue) == []
    assert diary.read() == ["enqueued 1", "enqueued 2", "dequeued expired 1", "dequeued expired 2"]


def test_of_two_times_the_shorter_one_counts() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-message-ttl": 1000})
    rig.publish("short", expiration="200")
    rig.run(0.3)
    assert bodies(queue) == []
    rig.publish("long", expiration="5000")
    rig.run(1.1)
    assert bodies(queue) == []


def test_a_message_that_expired_behind_another_is_not_delivered_and_goes_when_it_comes_to_the_head() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("stays")
    rig.publish("dies", expiration="100")
    rig.publish("also stays")
    rig.run(1)
    assert bodies(queue) == ["stays", "dies", "also stays"]
    client = rig.consume(queue)
    assert client.bodies() == ["stays", "also stays"]
    assert queue.counters.expired == 1


def test_a_message_expires_by_itself_once_it_has_come_to_the_head() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    rig.publish("b", expiration="100")
    rig.publish("c", expiration="100")
    rig.run(0.05)
    rig.get(no_ack=True)
    rig.run(0.06)
    assert bodies(queue) == []
    rig.publish("d")
    rig.publish("e", expiration="100")
    rig.run(1)
    rig.ask(lambda done: rig.vhost.move("q", rig.declare("r").name, 1, done))
    rig.run()
    assert bodies(queue) == []


def test_an_expired_message_is_not_given_to_get() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    rig.publish("b", expiration="100")
    rig.get(no_ack=True)
    rig.run(0.1)
    assert rig.get() is None
    assert queue.ready == 0


def test_what_is_held_does_not_expire_until_it_comes_back() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-message-ttl": 100})
    rig.publish("a")
    client = rig.consume(queue)
    rig.run(1)
    assert queue.unacked == 1
    client.cancel()
    client.release()
    rig.run(0.01)
    assert queue.ready == queue.unacked == 0


def test_a_message_without_any_time_is_delivered_at_once_or_never() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-message-ttl": 0})
    rig.publish("nobody is here")
    rig.run(0.01)
    assert bodies(queue) == []
    client = rig.consume(queue, prefetch=1)
    rig.publish("now", "too late")
    rig.run(0.01)
    assert client.bodies() == ["now"]
    client.accept()
    rig.run()
    assert client.bodies() == []


def test_the_longest_time_is_no_trouble() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", expiration="4294967295")
    rig.run(100_000)
    assert bodies(queue) == ["a"]


@pytest.mark.parametrize("expiration", ["", "-1", "1.5", "soon", "1" * 30, "4294967296", "٣"])
def test_an_expiration_must_be_a_whole_number_of_milliseconds(expiration: str) -> None:
    with pytest.raises(ProtocolError, match="invalid expiration") as caught:
        parse_ttl(expiration)
    assert caught.value.reply_code == 406


def test_expiration_in_a_priority_queue_does_not_wait_for_other_priorities() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-priority": 5})
    rig.publish("high", priority=5)
    rig.publish("low", priority=1, expiration="100")
    rig.run(0.2)
    assert bodies(queue) == ["high"]


def test_a_queue_that_nobody_uses_expires() -> None:
    rig = Rig()
    rig.declare(arguments={"x-expires": 1000})
    rig.run(0.9)
    assert "q" in rig.vhost.queues
    rig.run(0.2)
    assert "q" not in rig.vhost.queues


@pytest.mark.parametrize("use", ["declare", "passive", "get"])
def test_using_a_queue_puts_off_its_end_and_publishing_does_not(use: str) -> None:
    rig = Rig()
    arguments: dict[str, object] = {"x-expires": 1000}
    rig.declare(arguments=arguments)  # type: ignore[arg-type]
    rig.run(0.8)
    if use == "get":
        rig.get()
    else:
        rig.declare(arguments=arguments, passive=use == "passive")  # type: ignore[arg-type]
    rig.run(0.8)
    assert "q" in rig.vhost.queues
    rig.publish("a")
    rig.run(0.3)
    assert "q" not in rig.vhost.queues


def test_a_queue_with_a_consumer_does_not_expire_and_its_time_begins_when_that_goes() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-expires": 1000})
    client = rig.consume(queue)
    rig.run(5)
    client.close()
    rig.run(0.9)
    assert "q" in rig.vhost.queues
    rig.run(0.2)
    assert "q" not in rig.vhost.queues


# Deliveries.


def test_a_message_that_is_given_back_too_often_is_dead() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-delivery-limit": 2})
    rig.publish("poison")
    client = rig.consume(queue)
    for _ in range(3):
        assert client.bodies() == ["poison"]
        client.release()
        rig.run()
    assert client.bodies() == []
    assert queue.counters.exhausted == 1


def test_messages_of_one_batch_to_queues_with_and_without_limits_all_arrive() -> None:
    rig = Rig()
    limited, free = rig.declare("l", {"x-max-length": 2, "x-overflow": "reject-publish"}), rig.declare("f")
    batch = [Publish(message(str(number), key="l" if number % 2 else "f")) for number in range(10)]
    rig.vhost.publish(batch, lambda: None)
    assert [text(entry) for entry in in_order(free)] == ["0", "2", "4", "6", "8"]
    assert bodies(limited) == ["1", "3"]
    assert [publish.refused for publish in batch] == [False] * 5 + [True, False, True, False, True]
