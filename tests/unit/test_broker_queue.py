"""The life of a message in a queue: every line of the state table."""

from __future__ import annotations

from broker_rig import Rig, bodies, text
from queue_view import seen, those

from coterie.broker.observer import QueueObserver
from coterie.broker.queue import Queue
from coterie.broker.restoring import Restored


def test_a_message_is_enqueued_acquired_and_accepted_and_observers_hear_each_step_as_one_batch() -> None:
    rig = Rig()
    queue = rig.declare()
    diary = rig.watch(queue)
    rig.publish("a", "b", "c")
    client = rig.consume(queue)
    assert client.bodies() == ["a", "b", "c"]
    client.accept()
    assert diary.read() == ["enqueued 1,2,3", "consumers 1", "acquired 1,2,3", "dequeued accepted 1,2,3"]
    assert (queue.ready, queue.unacked, queue.bytes, queue.ready_bytes) == (0, 0, 0, 0)


def test_a_message_waits_for_the_end_of_the_turn_in_which_it_was_published() -> None:
    rig = Rig()
    queue = rig.declare()
    client = rig.consume(queue)
    from broker_rig import message

    from coterie.broker.publish import Publish

    rig.vhost.publish([Publish(message("a"))], lambda: None)
    assert client.bodies() == []
    rig.run()
    assert client.bodies() == ["a"]


def test_what_is_released_comes_back_at_its_place_and_flagged() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    client = rig.consume(queue, prefetch=3)
    assert client.bodies() == ["a", "b", "c"]
    client.redelivered()
    client.accept("a")
    rig.run()
    assert client.bodies() == ["d"]
    client.cancel()
    client.release("c")
    client.release("d", "b")
    assert bodies(queue) == ["b", "c", "d"]
    again = rig.consume(queue)
    assert again.bodies() == ["b", "c", "d"]
    assert again.redelivered() == [True, True, True]


def test_a_release_of_what_nobody_has_seen_is_not_flagged() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    client = rig.consume(queue)
    client.cancel()
    client.release(redelivered=False)
    entry = rig.get()
    assert entry is not None
    assert not entry.redelivered
    assert entry.deliveries == 1


def test_a_rejected_message_is_gone_if_there_is_no_dead_letter_exchange() -> None:
    rig = Rig()
    queue = rig.declare()
    diary = rig.watch(queue)
    rig.publish("a", "b")
    client = rig.consume(queue)
    client.reject("a")
    assert diary.read()[-1] == "dequeued rejected 1"
    assert list(seen(queue)) == [2]


def test_what_is_gone_stays_gone_whatever_its_holder_does_next() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    client = rig.consume(queue)
    entries = client.take([])
    taken = [(1, 2)]
    queue.accept(client.consumer, taken)
    diary = rig.watch(queue)
    queue.accept(client.consumer, taken)
    queue.release(client.consumer, taken)
    queue.reject(client.consumer, taken)
    assert diary.read() == []
    assert entries[0].state == "gone"
    assert queue.ready == queue.unacked == 0


def test_a_ready_message_cannot_be_accepted() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    queue.accept(None, [(1, 2)])
    assert bodies(queue) == ["a"]


def test_nobody_settles_what_another_one_holds() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b")
    one, other = rig.consume(queue, prefetch=1), rig.consume(queue, prefetch=1)
    for settle in (queue.accept, queue.release, queue.reject):
        settle(one.consumer, [(2, 3)])
        settle(other.consumer, [(1, 2)])
    assert (list(one.held), list(other.held), queue.unacked) == (["a"], ["b"], 2)


def test_a_range_may_be_much_longer_than_what_is_held_of_it() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    client = rig.consume(queue, prefetch=2)
    assert queue.still_held(client.consumer, [(0, 2**63)]) == [(1, 3)]
    queue.accept(client.consumer, [(2, 2**63)])
    assert list(seen(queue)) == [1, 3]


def test_with_no_ack_a_message_is_gone_once_it_is_delivered() -> None:
    rig = Rig()
    queue = rig.declare()
    diary = rig.watch(queue)
    client = rig.consume(queue, no_ack=True)
    rig.publish("a", "b")
    assert client.bodies() == ["a", "b"]
    assert diary.read() == ["consumers 1", "enqueued 1,2", "acquired 1,2", "dequeued got 1,2"]
    assert queue.unacked == 0


def test_get_takes_the_head_for_whoever_asks() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    entry = rig.get(holder="channel 1")
    assert entry is not None
    assert text(entry) == "a"
    assert entry.holder == "channel 1"
    assert queue.unacked == 1
    assert rig.get(no_ack=True) is not None
    assert (queue.ready, queue.unacked) == (1, 1)
    queue.release("channel 1", [(1, 2)])
    assert bodies(queue) == ["a", "c"]
    assert (queue.counters.got, queue.counters.got_no_ack) == (1, 1)


def test_get_tells_how_many_are_left_and_gives_nothing_if_there_is_nothing() -> None:
    rig = Rig()
    rig.declare()
    rig.publish("a", "b")
    got = rig.ask(lambda done: rig.vhost.get("q", "me", True, done))
    assert got is not None
    assert got.left == 1
    rig.get(no_ack=True)
    assert rig.get() is None


def test_purge_drops_what_is_ready_and_leaves_what_is_held() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    client = rig.consume(queue, prefetch=1)
    assert rig.purge() == 2
    assert (queue.ready, queue.unacked) == (0, 1)
    client.release()
    rig.run()
    assert list(client.held) == ["a"]


def test_positions_rise_and_are_never_given_twice() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b")
    rig.purge()
    rig.publish("c")
    assert list(seen(queue)) == [3]
    assert queue.next_position == 4


def test_whoever_watches_is_told_of_positions_that_others_have_given() -> None:
    class Watch(QueueObserver):
        def leapt(self, queue: Queue) -> None:
            heard.append(queue.next_position)

    heard: list[int] = []
    queue = Rig().declare()
    queue.observers.append(Watch())
    queue.restore(Restored(), 5000)
    queue.leap(70_000)
    queue.leap(6)
    assert heard == [5000, 70_000, 70_000]


def test_a_queue_that_is_declared_anew_is_another_incarnation() -> None:
    rig = Rig()
    first = rig.declare()
    rig.publish("a")
    rig.delete("q")
    second = rig.declare()
    assert second.incarnation > first.incarnation
    assert second.next_position == 1


def test_deleting_a_queue_cancels_its_consumers_and_ends_what_they_hold() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b")
    client = rig.consume(queue, prefetch=1)
    diary = rig.watch(queue)
    assert rig.delete("q") == 1
    assert client.cancellations == 1
    assert diary.read() == ["dequeued deleted 1,2", "deleted"]
    client.accept()
    client.close()
    assert diary.read() == []


def test_browsing_changes_nothing_and_sees_what_is_held_too() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    client = rig.consume(queue, prefetch=1)
    assert [text(entry) for entry in those(queue, queue.browse(1, 3, 10))] == ["a", "b", "c"]
    assert [text(entry) for entry in those(queue, queue.browse(2, 2**62, 2))] == ["b", "c"]
    assert queue.browse(5, 9, 10) == []
    assert queue.browse(1, 9, 0) == []
    assert (queue.ready, queue.unacked) == (3, 1)
    client.accept()
    rig.run()
    assert [entry.position for entry in those(queue, queue.browse(0, 2**63 - 1, 100))] == [2, 3, 4]


def test_browsing_a_sparse_queue_finds_what_there_is() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    for value in range(300):
        rig.publish(str(value), headers={"k": value % 3})
    assert [text(entry) for entry in those(queue, queue.browse(1, 2**63, 2))] == ["297", "298"]


def test_reading_gives_the_messages_of_a_range() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    found: list[str] = []
    queue.read(2, 9, 10, lambda result: found.extend(row.message.body.decode() for row in result))  # type: ignore[union-attr]
    assert found == ["b", "c"]


def test_moving_takes_from_one_head_to_the_other_tail() -> None:
    rig = Rig()
    source, target = rig.declare("q"), rig.declare("t")
    rig.publish("x", key="t")
    rig.publish("a", "b", "c")
    diary = rig.watch(source)
    assert rig.ask(lambda done: rig.vhost.move("q", "t", 2, done)) == 2
    assert (bodies(source), bodies(target)) == (["c"], ["x", "a", "b"])
    assert diary.read() == ["dequeued moved 1,2"]


def test_a_consumer_that_answers_within_its_delivery_gets_everything_once() -> None:
    rig = Rig()
    queue = rig.declare()
    client = rig.consume(queue, prefetch=2)
    deliver = client.deliver
    seen: list[str] = []

    def at_once(consumer: object, entries: list[object]) -> None:
        deliver(consumer, entries)  # type: ignore[arg-type]
        seen.extend(client.held)
        client.accept()

    client.deliver = at_once  # type: ignore[method-assign,assignment]
    rig.publish(*(str(number) for number in range(9)))
    assert seen == [str(number) for number in range(9)]
    assert not queue.count


def test_counters_tell_what_happened() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    client = rig.consume(queue, prefetch=3)
    client.accept("a")
    client.cancel()
    client.reject("b")
    client.release("c")
    rig.consume(queue)
    found = {name: count for name, count in queue.counters.as_dict().items() if count}
    assert found == {"enqueued": 4, "delivered": 5, "redelivered": 1, "accepted": 1, "rejected": 1, "released": 1}
