"""The classes `confirm` and `tx`: the two ways to know that a message is safe."""

from __future__ import annotations

import pytest
from raw_client import Raw

from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties

# confirm


def confirmed(client: Raw, count: int) -> list[int]:
    """Read confirms until so many publishes are settled; which of them were refused."""
    settled = 0
    refused: list[int] = []
    while settled < count:
        heard = client.next()
        assert heard.name in ("basic.ack", "basic.nack")
        tag = heard.number("delivery_tag")
        if heard.name == "basic.nack":
            refused += range(settled + 1, tag + 1) if heard["multiple"] else [tag]
        settled = max(settled, tag) if heard["multiple"] else settled + 1
    return refused


def test_every_publish_is_confirmed(client: Raw) -> None:
    queue = client.queue()
    client.call(1, "confirm.select")
    for _ in range(100):
        client.publish(1, "", queue, b"x")
    assert confirmed(client, 100) == []
    client.ready(queue, 100)


def test_persistent_messages_are_confirmed(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name, durable=True)
    client.call(1, "confirm.select")
    for _ in range(10):
        client.publish(1, "", name, b"x", Properties(delivery_mode=2))
    assert confirmed(client, 10) == []


def test_what_reaches_no_queue_is_confirmed_too_and_returned_before(client: Raw) -> None:
    client.call(1, "confirm.select")
    client.publish(1, "", "nowhere", b"x", mandatory=True)
    client.expect(1, "basic.return")
    assert client.expect(1, "basic.ack")["delivery_tag"] == 1
    client.publish(1, "", "nowhere", b"x")
    assert client.expect(1, "basic.ack")["delivery_tag"] == 2


def test_counting_begins_with_confirm_mode(client: Raw) -> None:
    client.publish(1, "", "nowhere", b"x")
    client.call(1, "confirm.select")
    client.call(1, "confirm.select")
    client.publish(1, "", "nowhere", b"x")
    assert client.expect(1, "basic.ack")["delivery_tag"] == 1


def test_a_full_queue_refuses_with_a_nack(client: Raw) -> None:
    queue = client.queue(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    client.call(1, "confirm.select")
    for _ in range(4):
        client.publish(1, "", queue, b"x")
    assert confirmed(client, 4) == [3, 4]


def test_no_wait_gets_no_answer(client: Raw) -> None:
    client.send(1, "confirm.select", no_wait=True)
    client.publish(1, "", "nowhere", b"x")
    client.expect(1, "basic.ack")


def test_confirms_and_transactions_do_not_mix(client: Raw) -> None:
    client.call(1, "confirm.select")
    client.send(1, "tx.select")
    client.channel_closed(1, 406, "tx.select", "cannot switch from confirm to tx mode")
    client.reopen()
    client.call(1, "tx.select")
    client.send(1, "confirm.select")
    client.channel_closed(1, 406, "confirm.select", "cannot switch from tx to confirm mode")


# tx


@pytest.mark.parametrize("method", ["tx.commit", "tx.rollback"])
def test_there_is_nothing_to_end_before_a_transaction_is_begun(client: Raw, method: str) -> None:
    client.send(1, method)
    client.channel_closed(1, 406, method, "channel is not transactional")


def test_publishes_take_effect_with_the_commit(client: Raw) -> None:
    queue = client.queue()
    client.call(2, "channel.open")
    client.call(1, "tx.select")
    client.call(1, "tx.select")
    client.fill(queue, b"1", b"2")
    client.nothing()
    client.ready(queue, 0, channel=2)
    client.call(1, "tx.commit")
    client.ready(queue, 2, channel=2)


def test_publishes_are_forgotten_with_a_rollback(client: Raw) -> None:
    queue = client.queue()
    client.call(1, "tx.select")
    client.fill(queue, b"1")
    client.call(1, "tx.rollback")
    client.fill(queue, b"2")
    client.call(1, "tx.commit")
    assert client.get(queue, no_ack=True).body == b"2"
    client.ready(queue, 0)


def test_acks_take_effect_with_the_commit(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"1", b"2", b"3", b"4")
    client.call(1, "tx.select")
    for _ in range(4):
        client.get(queue)
    client.send(1, "basic.ack", delivery_tag=1)
    client.send(1, "basic.nack", delivery_tag=2, requeue=True)
    client.send(1, "basic.reject", delivery_tag=3, requeue=False)
    client.call(2, "channel.open")
    client.ready(queue, 0, channel=2)
    client.call(1, "tx.commit")
    assert client.get(queue, channel=2).body == b"2"
    client.call(1, "channel.close", reply_code=200)
    assert client.get(queue, channel=2).body == b"4"
    assert client.get(queue, channel=2).name == "basic.get-empty"


def test_what_was_settled_is_the_clients_again_after_a_rollback(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"1", b"2", b"3")
    client.call(1, "tx.select")
    for _ in range(3):
        client.get(queue)
    client.send(1, "basic.ack", delivery_tag=2, multiple=True)
    client.send(1, "basic.reject", delivery_tag=3)
    client.send(1, "basic.ack", delivery_tag=1)
    client.channel_closed(1, 406, "basic.ack", "unknown delivery tag 1")
    client.reopen()
    client.call(1, "tx.select")
    for _ in range(3):
        client.get(queue)
    client.send(1, "basic.ack", delivery_tag=3, multiple=True)
    client.call(1, "tx.rollback")
    client.send(1, "basic.ack", delivery_tag=2, multiple=True)
    client.call(1, "tx.commit")
    client.call(1, "channel.close", reply_code=200)
    client.reopen()
    assert client.get(queue).body == b"3"
    assert client.get(queue).name == "basic.get-empty"


def test_mandatory_messages_are_returned_with_the_commit(client: Raw) -> None:
    client.call(1, "tx.select")
    client.publish(1, "", "nowhere", b"x", mandatory=True)
    client.nothing()
    client.send(1, "tx.commit")
    client.expect(1, "basic.return")
    client.expect(1, "tx.commit-ok")


def test_a_transaction_ends_with_its_channel(client: Raw) -> None:
    queue = client.queue()
    client.call(2, "channel.open")
    client.call(1, "tx.select")
    client.fill(queue, b"x")
    client.call(1, "channel.close", reply_code=200)
    client.ready(queue, 0, channel=2)


def test_an_empty_transaction_can_be_committed(client: Raw) -> None:
    client.call(1, "tx.select")
    for _ in range(3):
        client.call(1, "tx.commit")


def test_commits_may_be_sent_without_waiting(client: Raw) -> None:
    queue = client.queue()
    client.call(1, "tx.select")
    client.fill(queue, b"1")
    client.raw(METHODS["tx.commit"].frame(1))
    client.expect(1, "tx.commit-ok")
    client.ready(queue, 1)


def test_a_full_queue_makes_a_commit_fail(client: Raw) -> None:
    queue = client.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call(1, "tx.select")
    client.fill(queue, b"1", b"2")
    client.send(1, "tx.commit")
    client.channel_closed(1, 406, "tx.commit", "partial tx completion")
