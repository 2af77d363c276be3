"""Long durable queues: their tail is on disk, and nobody notices."""

from __future__ import annotations

from collections.abc import Sequence

from broker_rig import Rig, Shelf, bodies, text
from queue_view import seen

from coterie.amqp.wire.tables import Table
from coterie.broker.leases import ACQUIRE, RELEASE, LeaseStep
from coterie.broker.queue import Queue
from coterie.broker.rows import Row
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage import Damaged
from coterie.broker.vhost import Got

SETTINGS = BrokerSettings(
    memory_high=0, queue_resident_max=100, page_batch=4, page_interval=0.1, page_retry=1.0, page_tries=3
)
COUNT = 50
"""Of bodies of ten bytes: five times what may stay in memory."""


def numbers(first: int, last: int) -> list[str]:
    return [f"{number:010}" for number in range(first, last)]


def paged(arguments: Table | None = None) -> tuple[Rig, Shelf, Queue]:
    """A queue of which all but the head is on disk."""
    store = Shelf()
    store.at_once = True
    rig = Rig(SETTINGS, store)
    queue = rig.declare(arguments=arguments, durable=True)
    rig.publish(*numbers(0, COUNT), delivery_mode=2)
    rig.run(0.2)
    assert queue.pager.resident <= 100
    assert queue.pager.paged == COUNT - 5
    return rig, store, queue


def lease(rig: Rig, queue: Queue, do: str, **more: int) -> None:
    asked = LeaseStep(do, "l", "me", session="s", **more)  # type: ignore[arg-type]
    assert isinstance(rig.ask(lambda done: queue.cluster.lease(queue, asked, done)), dict)


def test_all_but_the_head_is_paged_out_and_consumers_get_everything_in_order() -> None:
    rig, store, queue = paged()
    client = rig.consume(queue, prefetch=3)
    seen: list[str] = []
    while True:
        seen += client.bodies()
        client.accept()
        rig.run()
        if not client.held and not store.serve():
            break
    assert seen == numbers(0, COUNT)
    assert (queue.pager.paged, queue.pager.paged_bytes, queue.count) == (0, 0, 0)


def test_what_is_not_on_disk_yet_stays_in_memory_until_it_is() -> None:
    store = Shelf()
    rig = Rig(SETTINGS, store)
    store.at_once = True
    queue = rig.declare(durable=True)
    store.at_once = False
    store.sync()
    from broker_rig import message

    from coterie.broker.publish import Publish

    rig.vhost.publish([Publish(message(body, delivery_mode=2)) for body in numbers(0, COUNT)], lambda: None)
    rig.run(0.5)
    assert queue.pager.paged == 0
    store.sync()
    rig.run(0.5)
    assert queue.pager.paged == COUNT - 5


def test_transient_messages_cannot_be_paged_out() -> None:
    store = Shelf()
    store.at_once = True
    rig = Rig(SETTINGS, store)
    queue = rig.declare(durable=True)
    rig.publish(*numbers(0, COUNT))
    rig.run(1)
    assert queue.pager.paged == 0
    rig.publish(*numbers(0, COUNT), delivery_mode=2)
    rig.run(1)
    assert queue.pager.paged == COUNT


def test_a_queue_that_keeps_growing_stays_paged() -> None:
    rig, _, queue = paged()
    for _ in range(5):
        rig.publish(*numbers(0, COUNT), delivery_mode=2)
        rig.run(0.2)
        assert queue.pager.resident <= 100


def test_a_gap_in_the_positions_costs_nothing() -> None:
    """A replica takes the positions of its source, whatever has left that queue."""
    rig, _, queue = paged()
    queue.table.leap(1 << 60)
    rig.publish(*numbers(0, COUNT), delivery_mode=2)
    rig.run(0.2)
    assert queue.pager.resident <= 100


def test_get_waits_for_the_disk() -> None:
    rig, store, queue = paged()
    for number in range(5):
        got = rig.get(no_ack=True)
        assert got is not None
        assert text(got) == numbers(number, number + 1)[0]
    results: list[object] = []
    rig.vhost.get("q", "me", False, results.append)
    assert results == []
    store.serve()
    (result,) = results
    assert isinstance(result, Got)
    assert [message.body.decode() for message in result.delivery.messages] == numbers(5, 6)
    assert queue.unacked == 1


def test_purging_and_deleting_need_nothing_from_disk() -> None:
    rig, store, queue = paged()
    assert rig.purge() == COUNT
    assert (queue.pager.paged, queue.pager.paged_bytes, store.contents) == (0, 0, {})


def test_a_dead_letter_is_brought_from_disk_and_held_until_then() -> None:
    rig, store, queue = paged({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 60})
    grave = rig.declare("dead", durable=True)
    for _ in range(5):
        rig.get(no_ack=True)
    rig.publish(*numbers(50, 75), delivery_mode=2)
    assert (queue.ready, queue.unacked, grave.ready) == (60, 10, 0)
    store.serve()
    assert (queue.ready, queue.unacked) == (60, 0)
    assert bodies(grave) == numbers(5, 15)
    assert queue.pager.paged == COUNT - 15


def test_a_leased_message_on_disk_that_is_given_back_too_often_dies_when_it_is_brought() -> None:
    letters: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-delivery-limit": 1}
    rig, store, queue = paged(letters)
    grave = rig.declare("dead", durable=True)
    for _ in range(2):
        lease(rig, queue, ACQUIRE, rows=8)
        lease(rig, queue, RELEASE)
    while store.serve():
        rig.run()
    assert sorted(bodies(grave)) == numbers(0, 8)
    assert (queue.count, queue.unacked) == (COUNT - 8, 0)


def test_what_expires_on_disk_is_dropped_unread_if_nobody_wants_it() -> None:
    store = Shelf()
    store.at_once = True
    rig = Rig(SETTINGS, store)
    queue = rig.declare(arguments={"x-message-ttl": 1000}, durable=True)
    rig.publish(*numbers(0, COUNT), delivery_mode=2)
    rig.run(2)
    assert (len(seen(queue)), queue.pager.paged, store.serve()) == (0, 0, 0)


def test_reading_a_range_leaves_it_on_disk() -> None:
    _, store, queue = paged()
    found: list[str] = []

    def done(result: Sequence[Row] | Exception) -> None:
        assert not isinstance(result, Exception)
        found.extend(row.message.body.decode() for row in result)

    queue.read(3, 30, 20, done)
    store.serve()
    assert found == numbers(2, 22)
    assert queue.pager.paged == COUNT - 5


def test_reading_does_not_miss_what_left_the_queue_meanwhile() -> None:
    rig, store, queue = paged()
    results: list[object] = []
    queue.read(1, 30, 30, results.append)
    rig.purge()
    store.serve()
    (result,) = results
    assert isinstance(result, list)
    assert len(result) == 5


def test_what_the_disk_does_not_give_back_is_lost_after_some_tries_and_the_rest_goes_on() -> None:
    rig, store, queue = paged()
    client = rig.consume(queue, no_ack=True)
    assert client.bodies() == numbers(0, 5)
    store.broken = True
    for _ in range(3):
        store.serve()
        assert queue.ready == COUNT - 5 or queue.counters.lost == 4
        rig.run(1.1)
    assert queue.counters.lost == 4
    store.broken = False
    while store.serve():
        rig.run()
    assert client.bodies() == numbers(9, COUNT)
    assert queue.ready == 0


def test_what_is_damaged_for_good_is_lost_at_once_and_nothing_else_is() -> None:
    rig, store, queue = paged()
    client = rig.consume(queue, no_ack=True)
    for position in (7, 8):
        del store.contents[store.place(queue, position)]
    store.error = Damaged("no")
    while store.serve():
        rig.run()
    assert client.bodies() == [body for body in numbers(0, COUNT) if body not in numbers(6, 8)]
    assert (queue.ready, queue.counters.lost) == (0, 2)


def test_a_damaged_message_that_must_die_is_lost_and_the_others_are_letters() -> None:
    rig, store, queue = paged({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 50})
    grave = rig.declare("dead", durable=True)
    for _ in range(5):
        rig.get(no_ack=True)
    del store.contents[store.place(queue, 7)]
    store.error = Damaged("no")
    rig.publish(*numbers(50, 59), delivery_mode=2)
    while store.serve():
        rig.run()
    assert bodies(grave) == ["0000000005", "0000000007", "0000000008"]
    assert (queue.unacked, queue.counters.lost) == (0, 1)


def test_a_failing_disk_that_recovers_loses_nothing() -> None:
    rig, store, queue = paged()
    client = rig.consume(queue, no_ack=True)
    store.broken = True
    store.serve()
    rig.run(1.1)
    store.broken = False
    while store.serve():
        rig.run()
    assert client.bodies() == numbers(0, COUNT)
    assert queue.counters.lost == 0


def test_a_queue_deleted_while_its_messages_are_brought_stays_deleted() -> None:
    rig, store, queue = paged()
    client = rig.consume(queue, no_ack=True)
    rig.delete("q")
    store.serve()
    rig.run(2)
    assert client.bodies() == numbers(0, 5)
    assert (queue.pager.paged, seen(queue)) == (0, {})


def test_a_message_that_is_brought_for_a_consumer_and_to_die_at_the_same_time_is_counted_once() -> None:
    rig, store, queue = paged({"x-message-ttl": 500, "x-dead-letter-exchange": ""})
    client = rig.consume(queue, prefetch=10)
    rig.run()
    assert client.bodies() == numbers(0, 5)
    rig.run(1)  # what is being brought for the consumer has expired meanwhile
    while store.serve():
        rig.run()
    assert [text(entry) for entry in seen(queue).values()] == numbers(0, 5)
    assert (queue.pager.paged, queue.pager.paged_bytes, queue.pager.dying) == (0, 0, 0)


def test_what_a_ring_brings_from_disk_to_die_is_no_longer_in_the_way_and_dies_once() -> None:
    ring: Table = {
        "x-max-length": COUNT,
        "x-overflow": "ring",
        "x-dead-letter-exchange": "",
    }
    rig, store, queue = paged({**ring, "x-dead-letter-routing-key": "dead"})
    grave = rig.declare("dead")
    rig.publish(*numbers(50, 60), delivery_mode=2)  # ten must go; five of them are on disk only
    assert queue.pager.dying == 5
    rig.publish(*numbers(60, 62), delivery_mode=2)
    assert queue.pager.dying == 7
    assert len(seen(queue)) - queue.pager.dying == COUNT
    while store.serve():
        rig.run()
    assert [entry.position for entry in seen(queue).values()] == list(range(13, 63))
    assert sorted(bodies(grave)) == numbers(0, 12)
