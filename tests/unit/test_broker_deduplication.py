"""Deduplication: a queue takes each message id once, as long as it remembers it, whatever crashes."""

from __future__ import annotations

import random

import pytest
from amqp_rig import Rig as AmqpRig
from amqp_rig import publish_frames
from broker_rig import Rig, Shelf, bodies, held_of, message, text
from cluster_rig import Cluster, Host
from queue_view import Seen, seen

from coterie.amqp.wire.properties import Properties, encode, message_id
from coterie.amqp.wire.tables import Table
from coterie.audit import check, properties
from coterie.broker.policy import Policy
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.errors import ProtocolError
from coterie.trace import Event

LENGTH: Table = {"x-deduplicate-length": 1000}


def send(rig: Rig, *ids: str, **more: object) -> None:
    """One batch; each message's body is its id."""
    made = [Publish(message(each, message_id=each, **more)) for each in ids]  # type: ignore[arg-type]
    confirmed: list[bool] = []
    rig.vhost.publish(made, lambda: confirmed.append(True))
    rig.run()
    assert confirmed == [True]
    assert not any(each.refused or each.unroutable for each in made)


def test_a_message_id_is_taken_once_within_a_batch_and_across_batches() -> None:
    rig = Rig()
    queue = rig.declare(arguments=LENGTH)
    send(rig, "a", "b", "a")
    send(rig, "b", "c")
    assert bodies(queue) == ["a", "b", "c"]
    assert queue.counters.duplicates == 2
    assert queue.next_position == 4


def test_messages_without_an_id_are_always_taken() -> None:
    rig = Rig()
    queue = rig.declare(arguments=LENGTH)
    rig.publish("x", "x")
    assert bodies(queue) == ["x", "x"]


def test_an_id_is_remembered_when_its_message_is_consumed() -> None:
    rig = Rig()
    queue = rig.declare(arguments=LENGTH)
    send(rig, "a")
    client = rig.consume(queue)
    client.accept()
    send(rig, "a", "b")
    assert client.bodies() == ["a", "b"]


def test_the_oldest_ids_are_forgotten_beyond_the_length() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-deduplicate-length": 3})
    send(rig, "a", "b", "c", "d")
    assert queue.window is not None
    assert len(queue.window) == 3
    send(rig, "b", "a")
    assert bodies(queue) == ["a", "b", "c", "d", "a"]


def test_ids_are_forgotten_after_their_time() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-deduplicate-ttl": 2000})
    send(rig, "a")
    rig.run(1.5)
    send(rig, "a", "b")
    rig.run(1.0)
    send(rig, "a", "b")
    assert bodies(queue) == ["a", "b", "a"]


def test_a_policy_switches_it_on_and_off_and_the_smaller_number_counts() -> None:
    rig = Rig()
    queue = rig.declare()
    send(rig, "a", "a")
    policy = Policy("p", "^q$", {"deduplicate-length": 2, "deduplicate-ttl": 60_000}, "queues")
    rig.ask(lambda done: rig.vhost.set_policy(policy, done))
    send(rig, "a", "a", "b")
    rig.ask(lambda done: rig.vhost.set_policy(Policy("op", "q", {"deduplicate-length": 1}), done, operator=True))
    send(rig, "c", "a", "c")
    rig.ask(lambda done: rig.vhost.clear_policy("p", done))
    rig.ask(lambda done: rig.vhost.clear_policy("op", done, operator=True))
    assert queue.window is None
    send(rig, "c")
    assert bodies(queue) == ["a", "a", "a", "b", "c", "a", "c"]


@pytest.mark.parametrize("value", [0, -1, "ten", 10**9])
def test_what_is_no_window_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError, match="x-deduplicate-length"):
        Rig().declare(arguments={"x-deduplicate-length": value})  # type: ignore[dict-item]


def test_a_dead_letter_and_a_moved_message_are_no_duplicates() -> None:
    rig = Rig()
    retry: Table = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    rig.declare("later", retry)
    queue = rig.declare(arguments={**LENGTH, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"})
    send(rig, "a")
    client = rig.consume(queue)
    client.reject()
    rig.run(1.1)
    assert client.bodies() == ["a", "a"]
    client.cancel()
    rig.declare("aside")
    client.release()
    assert rig.ask(lambda done: rig.vhost.move("q", "aside", 1, done)) == 1
    assert rig.ask(lambda done: rig.vhost.move("aside", "q", 1, done)) == 1
    send(rig, "a")
    assert bodies(queue) == ["a"]
    assert queue.counters.duplicates == 1


def test_a_transaction_drops_duplicates_and_takes_effect_otherwise() -> None:
    rig = Rig()
    queue = rig.declare(arguments=LENGTH)
    send(rig, "a")
    first = rig.get()
    assert first is not None
    made = [Publish(message(each, message_id=each)) for each in ("a", "b")]
    rig.ask(lambda done: rig.vhost.transaction(made, held_of([first]), [], [], lambda _: done(None)))
    assert bodies(queue) == ["b"]
    assert queue.unacked == 0


def test_an_id_is_found_whatever_properties_stand_before_it() -> None:
    full = Properties(
        "text/plain", "gzip", {"a": 1, "b": "two"}, 2, 3, "correlated", "reply", "1000", "the id", 5, "type"
    )
    assert message_id(encode(full, 0)) == b"the id"
    assert message_id(encode(Properties(message_id="", delivery_mode=1), 0)) == b""
    assert message_id(encode(Properties(headers={"message_id": "x"}, timestamp=1), 0)) is None


# Restarts.


def restarted(shelf: Shelf) -> tuple[Rig, Queue]:
    rig = Rig(store=shelf)
    return rig, rig.vhost.queues["q"]


def shelf() -> Shelf:
    found = Shelf()
    found.at_once = True
    return found


def test_a_restart_forgets_no_id_of_what_was_persistent_and_those_of_what_is_lost() -> None:
    kept = shelf()
    rig = Rig(store=kept)
    rig.declare(arguments=LENGTH, durable=True)
    send(rig, "kept", delivery_mode=2)
    send(rig, "lost")
    rig, queue = restarted(kept)
    assert len(seen(queue)) == 1
    send(rig, "kept", "lost", "kept", delivery_mode=2)
    assert len(seen(queue)) == 2


@pytest.mark.parametrize("seed", range(8))
def test_what_is_dropped_after_a_restart_is_what_would_have_been_dropped_without(seed: int) -> None:
    """Against the plainest model there is: a list of the last ids."""
    dice = random.Random(seed)
    length = dice.choice((1, 5, 40, 400))
    kept = shelf()
    rig = Rig(store=kept)
    queue = rig.declare(arguments={"x-deduplicate-length": length}, durable=True)
    model: list[str] = []
    for _ in range(120):
        batch = [str(dice.randrange(600)) for _ in range(dice.choice((1, 1, 3, 20, 300)))]
        fresh = [each for each in dict.fromkeys(batch) if each not in model]
        model = [*model, *fresh][-length:]
        if dice.random() < 0.15:
            rig, queue = restarted(kept)
        before = queue.counters.duplicates
        send(rig, *batch, delivery_mode=2)
        assert queue.counters.duplicates - before == len(batch) - len(fresh)
        assert queue.window is not None
        assert len(queue.window) == len(model)


def test_records_of_ids_go_with_them_and_with_the_queue() -> None:
    kept = shelf()
    rig = Rig(store=kept)
    rig.declare(arguments={"x-deduplicate-length": 300}, durable=True)
    for number in range(3000):
        send(rig, str(number), delivery_mode=2)
    seen = [key for kind, key in kept.records if kind == "seen"]
    assert 0 < len(seen) < 60
    rig, queue = restarted(kept)
    send(rig, *(str(number) for number in range(2700, 3000)), delivery_mode=2)
    assert queue.counters.duplicates == 300
    rig.delete("q")
    assert [key for kind, key in kept.records if kind == "seen"] == []


# The trace.


def test_the_audit_knows_duplicates_of_publishes_and_of_transactions() -> None:
    events: list[Event] = []
    rig = AmqpRig(sink=events.append)
    client = rig.client(channels=2)
    client.call(1, "queue.declare", queue="q", arguments=LENGTH)
    client.call(1, "confirm.select")
    client.call(2, "tx.select")
    same = Properties(message_id="same")
    client.raw(publish_frames(1, "", "q", b"a", same) + publish_frames(1, "", "q", b"b", same))
    client.raw(publish_frames(2, "", "q", b"c", same))
    client.call(2, "tx.commit")
    client.gone()
    told = [(event.count, event.data.get("numbers")) for event in events if event.kind == "duplicate"]
    assert told == [(1, [[2, 2]]), (1, None)]
    assert check(events, properties()) == []
    without = [event for event in events if event.kind != "duplicate"]
    assert {violation.property for violation in check(without, properties())} == {"B1", "B9"}


# A cluster.


def publish(host: Host, *ids: str) -> None:
    made = [host.made(each, message_id=each) for each in ids]
    host.vhost.publish(made, lambda: host.confirmed.extend(ids))


def held(host: Host) -> list[str]:
    return [body for _, body, _, _ in host.content()]


def test_every_broker_of_a_cluster_drops_the_same_and_publishers_are_confirmed() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare(arguments=LENGTH)
    for host in (a, b, c):
        publish(host, "one", "two", host.name)
    cluster.settle()
    cluster.check_alike()
    assert sorted(held(a)) == ["a", "b", "c", "one", "two"]
    assert sum(len(host.confirmed) for host in (a, b, c)) == 9
    assert {host.queue().counters.duplicates for host in (a, b, c)} == {4}


def test_a_broker_that_is_updated_remembers_the_ids_also_on_its_disk() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare(arguments=LENGTH)
    publish(a, *(f"m{number}" for number in range(700)))
    cluster.settle()
    client = a.consume(prefetch=1000)
    cluster.settle()
    client.accept()
    cluster.settle()
    assert held(a) == []
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    publish(a, "meanwhile")
    cluster.settle()
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    publish(c, "m0", "meanwhile", "new")
    cluster.until(lambda: len(c.confirmed) == 3)
    cluster.check_alike()
    assert held(c) == ["meanwhile", "new"]
    for host in (a, b, c):
        host.kill()
    a, b, c = cluster.started()
    publish(b, "m699", "new", "last")
    cluster.until(lambda: len(b.confirmed) == 3)
    cluster.check_alike()
    assert held(c) == ["meanwhile", "new", "last"]


def test_all_brokers_forget_by_the_clock_of_the_log() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare(arguments={"x-deduplicate-ttl": 5000})
    publish(a, "x")
    cluster.run(3)
    publish(b, "x")
    cluster.settle()
    assert held(b) == ["x"]
    cluster.run(3)
    publish(b, "x")
    cluster.check_alike()
    assert held(a) == ["x", "x"]


def test_a_queue_that_is_at_home_on_one_broker_drops_what_others_repeat() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare(arguments={**LENGTH, "x-replicated": False})
    publish(a, "x")
    publish(b, "x", "y")
    cluster.settle()
    publish(a, "y")
    cluster.settle()
    assert [text(entry) for entry in entries(a)] == ["x", "y"]


def entries(host: Host) -> list[Seen]:
    return [*seen(host.queue()).values()]
