"""Named leases: what they take, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from broker_rig import Rig, Shelf, bodies, message
from queue_view import seen, those

from coterie.audit import check, properties
from coterie.broker.broker import Broker
from coterie.broker.leases import ACQUIRE, END, RELEASE, RETIRE, TAKE, Gone, LeaseStep, Piece, ranges_in
from coterie.broker.log_store import LogStore
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.reading import LeaseRead
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import QueueSpec
from coterie.errors import ProtocolError
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event


def step(rig: Rig, queue: Queue, do: str, name: str = "l", user: str = "me", **more: Any) -> dict[str, Any]:
    """What the lease is then."""
    asked = LeaseStep(do, name, user, **{"session": "s", **more})
    answer = rig.ask(lambda done: queue.cluster.lease(queue, asked, done))
    assert isinstance(answer, dict)
    return answer


def held(queue: Queue, name: str = "l") -> list[tuple[int, str]]:
    """By offset."""
    lease = queue.leases.get(name)
    assert lease is not None
    found = []
    for piece in lease.pieces:
        for entry in those(queue, ranges_in([piece])):
            assert entry.holder is lease
            assert entry.redelivered == piece.redelivered
            assert entry.message is not None
            found.append((piece.offset + entry.position - piece.first, entry.message.body.decode()))
    assert len(found) == lease.count
    assert sum(len(body) for _, body in found) == lease.bytes
    return found


def test_a_lease_takes_the_next_ready_ones_and_nobody_else_gets_them() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    answer = step(rig, queue, ACQUIRE, rows=2)
    assert (answer["acquired"], answer["more"], answer["first"], answer["next"]) == (2, True, 0, 2)
    assert answer["pieces"] == [[0, 1, 2, False]]
    assert (answer["count"], answer["bytes"], answer["first_position"], answer["last_position"]) == (2, 2, 1, 2)
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (2, 2, 2)
    assert rig.consume(queue).bodies() == ["c", "d"]
    assert held(queue) == [(0, "a"), (1, "b")]


def test_bytes_limit_what_is_taken_but_one_is_always() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("aaaa", "bb", "cc", "d")
    assert step(rig, queue, ACQUIRE, bytes=1)["acquired"] == 1
    assert step(rig, queue, ACQUIRE, bytes=4)["acquired"] == 2
    assert step(rig, queue, ACQUIRE, bytes=4) == step(rig, queue, ACQUIRE) | {"acquired": 1}


def test_a_lease_tells_what_fits_into_so_many_bytes() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("aaaa", "bb", "cc", "d", "e", "f")
    step(rig, queue, ACQUIRE, rows=4)
    step(rig, queue, RELEASE, first=3)
    step(rig, queue, ACQUIRE)  # d, e and f at offsets 4 to 6: 3 is in no piece
    lease = queue.leases.get("l")
    assert lease is not None
    assert [lease.fits(0, size, 100) for size in (0, 1, 5, 6, 8, 9, 10, 11, 1000)] == [1, 1, 1, 2, 3, 5, 6, 7, 7]
    assert [lease.fits(first, 2, 100) for first in range(8)] == [1, 2, 3, 6, 6, 7, 7, 7]
    assert [lease.fits(0, 1000, most) for most in (1, 2, 4, 6)] == [1, 2, 5, 7], "of very small ones so many at most"


def test_what_is_retired_is_gone_and_offsets_go_on() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    step(rig, queue, ACQUIRE)
    answer = step(rig, queue, RETIRE, upto=2)
    assert (answer["first"], answer["next"], answer["count"]) == (2, 3, 1)
    assert step(rig, queue, RETIRE, upto=2) == answer
    assert held(queue) == [(2, "c")]
    rig.publish("d")
    assert step(rig, queue, ACQUIRE)["pieces"] == [[2, 3, 4, False]]
    assert queue.counters.accepted == 2


def test_what_is_released_is_ready_at_its_place_flagged_and_its_offsets_are_never_given_again() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    step(rig, queue, ACQUIRE, rows=3)
    answer = step(rig, queue, RELEASE, first=1)
    assert (answer["first"], answer["next"], answer["count"]) == (0, 3, 1)
    assert bodies(queue) == ["b", "c", "d"]
    answer = step(rig, queue, ACQUIRE)
    assert answer["pieces"] == [[0, 1, 1, False], [3, 2, 3, True], [5, 4, 4, False]]
    assert held(queue) == [(0, "a"), (3, "b"), (4, "c"), (5, "d")]


def test_what_another_consumer_gives_back_comes_after_what_the_lease_has() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    client = rig.consume(queue, prefetch=1)
    assert step(rig, queue, ACQUIRE)["pieces"] == [[0, 2, 3, False]]
    client.close()
    assert step(rig, queue, ACQUIRE)["pieces"] == [[0, 2, 3, False], [2, 1, 1, True]]
    assert held(queue) == [(0, "b"), (1, "c"), (2, "a")]
    assert step(rig, queue, RETIRE, upto=3)["count"] == 0
    assert not seen(queue)


def test_an_acquire_that_is_repeated_takes_nothing_twice() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c")
    first = step(rig, queue, ACQUIRE, rows=1, after=0)
    again = step(rig, queue, ACQUIRE, rows=1, after=0)
    assert (first["acquired"], again["acquired"]) == (1, 0)
    assert again["pieces"] == first["pieces"]
    assert step(rig, queue, ACQUIRE, rows=1, after=1)["acquired"] == 1


def test_only_positions_between_limits_are_taken() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    answer = step(rig, queue, ACQUIRE, first=2, last=3)
    assert (answer["pieces"], answer["more"]) == ([[0, 2, 3, False]], False)
    assert bodies(queue) == ["a", "d"]
    assert rig.consume(queue).bodies() == ["a", "d"]


def test_a_step_concerns_so_many_messages_and_says_that_there_is_more() -> None:
    rig = Rig(BrokerSettings(memory_high=0, lease_rows_max=2))
    queue = rig.declare()
    rig.publish(*"abcde")
    assert [step(rig, queue, ACQUIRE)["more"] for _ in range(3)] == [True, True, False]
    assert step(rig, queue, RETIRE, upto=3)["more"]
    answer = step(rig, queue, RETIRE, upto=3)
    assert (answer["more"], answer["first"]) == (False, 3)
    rig.publish("f")
    step(rig, queue, ACQUIRE)
    assert step(rig, queue, RELEASE)["more"]
    assert held(queue) == [(3, "d")]
    assert not step(rig, queue, RELEASE)["more"]
    assert bodies(queue) == ["d", "e", "f"]


def test_another_session_must_take_it_over_first_and_another_user_may_not() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b")
    step(rig, queue, ACQUIRE, rows=1)
    for do in (ACQUIRE, RETIRE, RELEASE, END):
        with pytest.raises(ProtocolError, match="another session"):
            step(rig, queue, do, session="t", upto=1)
    assert step(rig, queue, TAKE, session="t")["session"] == "t"
    with pytest.raises(ProtocolError, match="another session"):
        step(rig, queue, RETIRE, upto=1)
    assert step(rig, queue, RETIRE, session="t", upto=1)["count"] == 0
    for do in (ACQUIRE, RETIRE, RELEASE, TAKE, END):
        with pytest.raises(ProtocolError, match="that of the user 'me'"):
            step(rig, queue, do, user="you", session="t")


def test_an_operator_releases_and_ends_what_is_somebody_elses() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b")
    step(rig, queue, ACQUIRE)
    with pytest.raises(ProtocolError, match="another session"):
        step(rig, queue, RETIRE, user="boss", operator=True, session=None, upto=2)
    step(rig, queue, RELEASE, user="boss", operator=True, session=None, first=1)
    assert bodies(queue) == ["b"]
    step(rig, queue, END, user="boss", operator=True, session=None)
    assert bodies(queue) == ["a", "b"]
    assert not queue.leases


def test_a_lease_that_ended_is_another_one_when_it_begins_again() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    first = step(rig, queue, ACQUIRE)
    step(rig, queue, END)
    with pytest.raises(ProtocolError, match="no lease 'l'"):
        step(rig, queue, RETIRE, upto=1)
    with pytest.raises(Gone):
        step(rig, queue, ACQUIRE, id=first["id"])
    second = step(rig, queue, ACQUIRE)
    assert second["id"] != first["id"]
    assert (second["next"], second["pieces"]) == (1, [[0, 1, 1, True]])
    with pytest.raises(Gone):
        step(rig, queue, RETIRE, id=first["id"], upto=1)


def test_time_and_length_limits_leave_leased_ones_alone() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-message-ttl": 1000, "x-max-length": 2})
    rig.publish("a", "b")
    step(rig, queue, ACQUIRE)
    rig.publish("c", "d")
    rig.run(2)
    assert held(queue) == [(0, "a"), (1, "b")]
    assert queue.ready == 0
    step(rig, queue, RELEASE)
    rig.run(0.1)
    assert not seen(queue)  # their time was over while they were leased


def test_what_has_expired_is_not_taken() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    rig.publish("b", expiration="1000")
    rig.publish("c")
    rig.run(2)
    step(rig, queue, ACQUIRE)
    assert [body for _, body in held(queue)] == ["a", "c"]


def test_a_ring_keeps_what_is_leased_and_does_not_count_it() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-overflow": "ring", "x-max-length": 2})
    rig.publish("a", "b")
    step(rig, queue, ACQUIRE, rows=1)
    rig.publish("c", "d", "e")
    assert held(queue) == [(0, "a")]
    assert bodies(queue) == ["d", "e"]
    step(rig, queue, RELEASE)
    assert bodies(queue) == ["d", "e"]  # it is the oldest, and counts again
    step(rig, queue, ACQUIRE)
    rig.publish("f", "g", "h")
    step(rig, queue, RETIRE, upto=99)
    assert bodies(queue) == ["g", "h"]


def test_a_leased_last_value_stays_and_is_dropped_when_it_is_given_back() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-last-value-key": "k"})
    rig.publish("old", headers={"k": 1})
    rig.publish("other", headers={"k": 2})
    step(rig, queue, ACQUIRE)
    rig.publish("new", headers={"k": 1})
    assert held(queue) == [(0, "old"), (1, "other")]
    assert bodies(queue) == ["new"]
    step(rig, queue, RELEASE)
    assert bodies(queue) == ["other", "new"]
    rig.publish("newer", headers={"k": 1})
    assert bodies(queue) == ["other", "newer"]


def test_a_priority_queue_gives_the_urgent_ones_first() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-max-priority": 5})
    rig.publish("a", "b")
    rig.publish("urgent", priority=5)
    step(rig, queue, ACQUIRE, rows=2)
    assert held(queue) == [(0, "urgent"), (1, "a")]
    assert step(rig, queue, ACQUIRE)["pieces"] == [[0, 3, 3, False], [1, 1, 2, False]]


def test_purge_leaves_leased_ones_and_delete_ends_the_lease() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b")
    step(rig, queue, ACQUIRE, rows=1)
    assert rig.purge() == 1
    assert held(queue) == [(0, "a")]
    for condition in ({"if_unused": True}, {"if_empty": True}):
        with pytest.raises(ProtocolError):
            rig.delete("q", **condition)
    rig.delete("q")
    assert not queue.leases
    assert not seen(queue)
    with pytest.raises(ProtocolError):
        step(rig, queue, RETIRE, upto=1)


def test_a_queue_that_would_expire_stays_as_long_as_it_has_a_lease() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-expires": 1000})
    rig.publish("a")
    step(rig, queue, ACQUIRE)
    rig.run(5)
    assert not queue.deleted
    step(rig, queue, END)
    rig.run(5)
    assert queue.deleted


def expiring(seconds: float, **settings: int) -> Rig:
    return Rig(BrokerSettings(memory_high=0, lease_expires=seconds, **settings))


def test_a_lease_that_nobody_uses_ends_and_what_it_held_is_ready_again() -> None:
    rig = expiring(100, lease_rows_max=2)
    queue = rig.declare()
    rig.publish(*"abcde")
    for _ in range(3):
        step(rig, queue, ACQUIRE)
    answer = step(rig, queue, RETIRE, upto=1)
    assert (answer["idle"], answer["expires_after"]) == (0, 100)
    rig.run(90)
    lease = queue.leases.get("l")
    assert lease is not None
    assert (lease.shape()["idle"], queue.ready) == (90, 0)
    rig.run(20)
    assert not queue.leases
    assert bodies(queue) == ["b", "c", "d", "e"]
    assert all(entry.redelivered for entry in seen(queue).values())


@pytest.mark.parametrize("use", [{"do": TAKE}, {"do": ACQUIRE}, {"do": RETIRE, "upto": 0}, {"do": RELEASE, "first": 9}])
def test_every_step_of_a_lease_is_a_use(use: dict[str, Any]) -> None:
    rig = expiring(100)
    queue = rig.declare()
    rig.publish("a")
    step(rig, queue, ACQUIRE)
    for _ in range(5):
        rig.run(60)
        step(rig, queue, **use)
    assert held(queue) == [(0, "a")]
    with pytest.raises(ProtocolError):
        step(rig, queue, RETIRE, upto=1, session="another")
    rig.run(101)
    assert not queue.leases, "what was refused was none"


def test_leases_stay_for_ever_where_none_expires_and_each_has_its_own_time_where_they_do() -> None:
    rig = expiring(0)
    queue = rig.declare()
    step(rig, queue, ACQUIRE)
    rig.run(1e8)
    assert queue.leases
    rig = expiring(100)
    queue = rig.declare()
    step(rig, queue, ACQUIRE, "old")
    rig.run(60)
    step(rig, queue, ACQUIRE, "new")
    rig.run(60)
    assert [lease.name for lease in queue.leases] == ["new"]
    rig.run(60)
    assert not queue.leases


def test_a_lease_is_as_good_as_new_after_a_restart_and_expires_then() -> None:
    shelf = Shelf()
    shelf.at_once = True
    settings = BrokerSettings(memory_high=0, lease_expires=100)
    rig = Rig(settings, store=shelf)
    step(rig, rig.declare(durable=True), ACQUIRE)
    rig.run(60)
    again = Rig(settings, store=shelf)
    queue = again.vhost.queues["q"]
    again.run(60)
    assert queue.leases
    again.run(60)
    assert not queue.leases


def test_what_was_released_too_often_is_a_dead_letter() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"})
    dead = rig.declare("d")
    rig.publish("a")
    for _ in range(2):
        step(rig, queue, ACQUIRE)
        step(rig, queue, RELEASE)
    assert bodies(dead) == ["a"]


def test_an_exclusive_queue_cannot_be_leased_and_there_are_not_too_many_leases() -> None:
    rig = Rig(BrokerSettings(memory_high=0, leases_max=1))
    exclusive = rig.declare("mine", exclusive=True, owner=rig)
    with pytest.raises(ProtocolError, match="cannot be leased"):
        step(rig, exclusive, ACQUIRE)
    queue = rig.declare()
    step(rig, queue, ACQUIRE)
    with pytest.raises(ProtocolError, match="leases_max"):
        step(rig, queue, ACQUIRE, name="another")


def test_leases_of_durable_queues_outlive_the_broker_with_offsets_and_flags() -> None:
    shelf = Shelf()
    shelf.at_once = True
    rig = Rig(store=shelf)
    queue = rig.declare(durable=True)
    rig.declare("empty", durable=True)
    rig.publish("a", "b", "c", "d", delivery_mode=2)
    rig.publish("gone", delivery_mode=1)
    rig.publish("e", "f", delivery_mode=2)
    step(rig, queue, ACQUIRE, rows=2)
    step(rig, queue, RELEASE, first=1)
    before = step(rig, queue, ACQUIRE, rows=5)
    step(rig, queue, RETIRE, upto=1)
    step(rig, rig.vhost.queues["empty"], ACQUIRE, name="idle")
    assert before["pieces"] == [[0, 1, 1, False], [2, 2, 2, True], [3, 3, 6, False]]

    again = Rig(store=shelf)
    queue = again.vhost.queues["q"]
    lease = queue.leases.get("l")
    assert lease is not None
    assert (lease.id, lease.user, lease.session, lease.since) == (before["id"], "me", "s", before["since"])
    assert lease.next == 7
    assert lease.pieces == [Piece(2, 2, 2, True), Piece(3, 3, 4, False), Piece(6, 6, 6, False)]
    assert (queue.ready, queue.unacked) == (1, 4)
    assert again.vhost.queues["empty"].leases.get("idle") is not None
    assert step(again, queue, ACQUIRE)["pieces"][-1] == [6, 6, 7, False]
    step(again, queue, RETIRE, upto=99)
    assert not seen(queue)
    step(again, queue, END)
    assert not Rig(store=shelf).vhost.queues["q"].leases


def test_what_is_leased_may_be_paged_out() -> None:
    shelf = Shelf()
    shelf.at_once = True
    rig = Rig(BrokerSettings(memory_high=0, queue_resident_max=10), shelf)
    queue = rig.declare(durable=True)
    rig.publish(*("x" * 10 for _ in range(5)), delivery_mode=2)
    step(rig, queue, ACQUIRE)
    rig.run(1)
    assert queue.pager.paged == 5
    step(rig, queue, RETIRE, upto=2)
    assert (queue.pager.paged, queue.pager.paged_bytes) == (3, 30)
    step(rig, queue, RELEASE)
    client = rig.consume(queue)
    while shelf.serve():
        rig.run()
    assert client.bodies() == ["x" * 10] * 3


def test_a_trace_with_leases_satisfies_every_property_over_kills() -> None:
    """A real store; each life acquires, reads, retires and releases, and is killed."""
    events: list[Event] = []
    world = World(1, "leases", events.append)
    node = Node(world, Fabric(world), "a")
    published = 0
    for life in range(4):
        runtime = node.boot()
        broker = Broker(runtime, BrokerSettings(memory_high=0), LogStore(runtime))
        broker.start(lambda _: None)
        world.run(world.time + 1)
        vhost = broker.vhosts["/"]
        vhost.declare_queue("q", QueueSpec(durable=True), False, None, lambda _: None)
        world.run(world.time + 1)
        queue = vhost.queues["q"]
        if life:
            lease = queue.leases.get("l")
            assert lease is not None
            assert lease.count == 2 * life
        made = [message(f"m{published + n}", delivery_mode=2) for n in range(6)]
        published += 6
        vhost.publish([Publish(each) for each in made], lambda: None)
        for asked in (
            LeaseStep(ACQUIRE, "l", "me", session="s", rows=5),
            LeaseStep(RETIRE, "l", "me", session="s", upto=3 * (life + 1)),
        ):
            answers: list[Any] = []
            queue.cluster.lease(queue, asked, answers.append)
            world.run(world.time + 1)
            lease = queue.leases.get("l")
            assert lease is not None
            assert answers[0]["next"] == lease.next
            parts: list[Any] = []
            LeaseRead(lease, lease.first, lease.next, 1000).next(parts.append)
            world.run(world.time + 1)  # from disk, perhaps
            assert len(parts[0].rows) == lease.count
        assert broker.traced is not None
        broker.traced.inventory(broker.vhosts.values())
        node.crash()
    kinds = {event.kind for event in events}
    assert {"acquire", "read", "dequeue", "recovered", "inventory"} <= kinds
    folds = [fold for fold in properties() if fold.name.startswith("B")]
    assert [f"{found.property}: {found.text}" for found in check(events, folds)] == []
