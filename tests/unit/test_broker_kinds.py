"""Priority and last-value queues."""

from __future__ import annotations

import pytest
from broker_rig import Client, Rig, bodies
from queue_view import in_order, seen, those

from coterie.errors import ProtocolError


def test_the_highest_priority_goes_first_and_the_older_one_among_equals() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-priority": 5})
    for body, priority in (("a", 1), ("b", 5), ("c", 3), ("d", 5), ("e", None)):
        rig.publish(body, priority=priority)
    assert bodies(queue) == ["b", "d", "c", "a", "e"]
    assert rig.consume(queue).bodies() == ["b", "d", "c", "a", "e"]


def test_more_than_the_highest_priority_is_the_highest() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-priority": 2})
    rig.publish("a", priority=2)
    rig.publish("b", priority=200)
    assert bodies(queue) == ["a", "b"]


def test_what_comes_back_to_a_priority_queue_has_its_old_place_in_its_priority() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-priority": 9})
    rig.publish("a", "b", priority=4)
    rig.publish("c", "d", priority=7)
    client = rig.consume(queue, prefetch=3)
    client.cancel()
    client.release("d", "a")
    client.release("c")
    assert bodies(queue) == ["c", "d", "a", "b"]


def test_a_full_priority_queue_drops_its_head_which_is_of_the_highest_priority() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-priority": 9, "x-max-length": 2})
    rig.publish("low", priority=1)
    rig.publish("high", priority=9)
    rig.publish("middle", priority=5)
    assert bodies(queue) == ["middle", "low"]


def test_positions_of_a_priority_queue_are_those_of_arrival() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-priority": 9})
    rig.publish("low", priority=1)
    rig.publish("high", priority=9)
    assert [entry.position for entry in those(queue, queue.browse(1, 9, 9))] == [1, 2]
    assert [entry.position for entry in in_order(queue)] == [2, 1]


def put(rig: Rig, body: str, key: object) -> None:
    rig.publish(body, headers={"k": key})


def test_a_newer_value_replaces_the_older_one_of_its_key_and_stands_at_the_tail() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    diary = rig.watch(queue)
    put(rig, "a1", "a")
    put(rig, "b1", "b")
    put(rig, "a2", "a")
    assert bodies(queue) == ["b1", "a2"]
    assert diary.read() == ["enqueued 1", "enqueued 2", "enqueued 3", "dequeued replaced 1"]


def test_values_of_one_batch_replace_each_other() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    rig.publish("1", "2", "3", headers={"k": "a"})
    assert bodies(queue) == ["3"]


def test_messages_without_the_key_are_left_alone() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    rig.publish("1", "2")
    rig.publish("3", "4", headers={"other": 1})
    rig.publish("5", "6", headers={"k": ["a list"]})
    assert bodies(queue) == ["1", "2", "3", "4", "5", "6"]


def test_keys_of_different_types_are_different_keys() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    for key in (1, "1", True, b"1", 1.0):
        put(rig, repr(key), key)
    assert len(bodies(queue)) == 5
    put(rig, "again", 1)
    assert bodies(queue) == ["'1'", "True", "b'1'", "1.0", "again"]


def held_old_value() -> tuple[Rig, Client]:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    put(rig, "old", "a")
    client = rig.consume(queue, prefetch=1)
    put(rig, "new", "a")
    assert client.bodies() == ["old"]
    assert client.held["old"].state == "gone"
    return rig, client


def test_an_old_value_that_is_given_back_never_comes_after_the_new_one() -> None:
    rig, client = held_old_value()
    client.release()
    rig.run()
    assert client.bodies() == ["new"]
    client.accept()
    rig.run()
    assert client.bodies() == []
    assert not seen(client.queue)


def test_accepting_an_old_value_leaves_the_new_one() -> None:
    rig, client = held_old_value()
    client.accept()
    rig.run()
    assert client.bodies() == ["new"]


def test_a_key_is_forgotten_with_its_last_message() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    for key in range(100):
        put(rig, str(key), key)
    rig.purge()
    assert not queue.table.state.last_values.newest


def test_nothing_is_kept_of_what_was_replaced() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-last-value-key": "k"})
    for value in range(1000):
        put(rig, str(value), "one key")
    assert bodies(queue) == ["999"]
    state = queue.table.state
    assert (state.live.pieces, state.lengths.pieces, len(state.last_values.keys)) == (1, 1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-priority": 5, "x-last-value-key": "k"},
        {"x-max-priority": 5, "x-overflow": "ring", "x-max-length": 5},
        {"x-last-value-key": "k", "x-overflow": "ring", "x-max-length": 5},
    ],
)
def test_a_queue_is_of_one_kind(arguments: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="one kind") as caught:
        Rig().declare(arguments=arguments)  # type: ignore[arg-type]
    assert caught.value.reply_code == 406
