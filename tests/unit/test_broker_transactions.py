"""Transactions: everything together, and in one unit of the store."""

from __future__ import annotations

import pytest
from broker_rig import Rig, Shelf, bodies, message
from queue_view import seen
from test_broker_dead_letters import Units, ring

from coterie.broker.publish import Publish
from coterie.errors import ProtocolError


def test_publishes_and_answers_take_effect_together() -> None:
    rig = Rig()
    queue, other = rig.declare("q"), rig.declare("r")
    rig.publish("a", "b", "c")
    client = rig.consume(queue, prefetch=3)
    client.cancel()
    accepted, rejected, requeued = client.settle("a"), client.settle("b"), client.settle("c")
    done: list[bool] = []
    publishes = [Publish(message("d", key="r")), Publish(message("lost", key="nowhere"))]
    rig.vhost.transaction(publishes, accepted, rejected, requeued, lambda _: done.append(True))
    assert done == [True]
    assert (bodies(queue), bodies(other)) == (["c"], ["d"])
    assert [publish.unroutable for publish in publishes] == [False, True]
    assert queue.unacked == 0


def test_the_store_is_told_of_a_transaction_as_one_unit() -> None:
    store = Units()
    rig = Rig(store=store)
    queue = rig.declare(durable=True)
    rig.declare("r", durable=True)
    rig.publish("a", "b")
    client = rig.consume(queue)
    store.units.clear()
    batch = [Publish(message(body, key=key)) for body, key in (("c", "r"), ("d", "q"), ("e", "r"))]
    rig.vhost.transaction(batch, client.settle("a"), client.settle("b"), [], lambda _: None)
    assert store.units == [["+r:2", "+q:1", "-q:1", "-q:1"]]


def test_a_transaction_is_done_when_it_is_on_disk() -> None:
    store = Shelf()
    store.at_once = True
    rig = Rig(store=store)
    queue = rig.declare(durable=True)
    rig.publish("a", delivery_mode=2)
    client = rig.consume(queue)
    store.sync()
    store.at_once = False
    done: list[bool] = []
    rig.vhost.transaction([], client.settle("a"), [], [], lambda _: done.append(True))
    assert done == []
    store.sync()
    assert done == [True]


def test_a_transaction_of_which_a_queue_refuses_a_part_does_nothing_and_gives_everything_back() -> None:
    rig = Rig()
    full = rig.declare("full", {"x-max-length": 2, "x-overflow": "reject-publish"})
    queue = rig.declare("q")
    rig.publish("a", "b", "c")
    client = rig.consume(queue, prefetch=3)
    client.cancel()
    batch = [Publish(message("x", key=key)) for key in ("q", "full", "full", "full")]
    accepts, rejects, requeues = (client.settle(body) for body in ("a", "b", "c"))
    done: list[bool] = []
    rig.vhost.transaction(batch, accepts, rejects, requeues, lambda _: done.append(True))
    assert [publish.refused for publish in batch] == [False, False, False, True]
    assert done == [True]
    assert (bodies(full), bodies(queue), queue.unacked) == ([], ["a", "b", "c"], 0)
    assert full.counters.refused == 1


def test_what_is_gone_already_does_not_hinder_a_transaction() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 1, "x-overflow": "ring"})
    client = rig.consume(queue, prefetch=2)
    rig.publish("a")
    rig.publish("b")
    rig.vhost.transaction([], client.settle("a", "b"), [], [], lambda _: None)
    assert not seen(queue)


def test_a_transaction_that_fails_does_nothing_and_gives_everything_back() -> None:
    """Its reject would go round for ever: there are more queues that keep nothing than a letter can tell deaths."""
    rig = Rig()
    ring(rig)
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring0"})
    rig.publish("a", "b", "c")
    client = rig.consume(queue)
    answers = client.settle("a"), client.settle("b"), client.settle("c")
    with pytest.raises(ProtocolError, match="too many for one step"):
        rig.vhost.transaction([Publish(message("d"))], *answers, lambda _: None)
    client.cancel()
    rig.run()
    assert bodies(queue) == ["a", "b", "c"]
    assert queue.unacked == 0
