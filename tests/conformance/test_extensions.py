"""RabbitMQ's extensions that a client sees: direct reply-to, dead letters, time to live, limits, priorities."""

from __future__ import annotations

import pytest
from raw_client import Raw

from coterie.amqp.wire.properties import Properties

REPLY_TO = "amq.rabbitmq.reply-to"

# Direct reply-to


def test_a_reply_comes_back_through_no_queue(client: Raw, other: Raw, name: str) -> None:
    other.call(1, "queue.declare", queue=name)
    client.consume(REPLY_TO, "replies", no_ack=True)
    client.publish(1, "", name, b"question", Properties(reply_to=REPLY_TO, correlation_id="7"))
    client.nothing()
    question = other.get(name, no_ack=True)
    address = question.properties.reply_to
    assert address is not None
    assert address.startswith(f"{REPLY_TO}.")
    assert (question.body, question.properties.correlation_id) == (b"question", "7")
    assert other.call(1, "queue.declare", queue=address, passive=True)["consumer_count"] == 1
    other.publish(1, "", address, b"answer", Properties(correlation_id="7"))
    answer = client.expect(1, "basic.deliver")
    assert (answer["consumer_tag"], answer["routing_key"], answer.body) == ("replies", address, b"answer")
    client.send(1, "basic.ack", delivery_tag=answer["delivery_tag"])
    client.channel_closed(1, 406, "basic.ack")
    other.nothing()
    other.send(1, "queue.declare", queue=address, passive=True)
    other.channel_closed(1, 404, "queue.declare")


def test_whoever_wants_replies_must_consume_them_first(client: Raw) -> None:
    client.publish(1, "", "q", b"x", Properties(reply_to=REPLY_TO))
    client.channel_closed(1, 406, "basic.publish", "fast reply consumer does not exist")


def test_replies_cannot_be_acknowledged(client: Raw) -> None:
    client.send(1, "basic.consume", queue=REPLY_TO)
    client.channel_closed(1, 406, "basic.consume", "reply consumer cannot acknowledge")


def test_a_channel_has_one_consumer_of_replies(client: Raw) -> None:
    client.consume(REPLY_TO, "one", no_ack=True)
    client.send(1, "basic.consume", queue=REPLY_TO, consumer_tag="two", no_ack=True)
    client.channel_closed(1, 406, "basic.consume", "reply consumer already set")


def test_a_consumer_of_replies_can_be_cancelled(client: Raw) -> None:
    client.consume(REPLY_TO, "one", no_ack=True)
    client.call(1, "basic.cancel", consumer_tag="one")
    client.consume(REPLY_TO, "two", no_ack=True)


# Dead letters and time to live


def test_a_rejected_message_becomes_a_dead_letter(client: Raw) -> None:
    dead = client.queue()
    queue = client.queue(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    client.publish(1, "", queue, b"x", Properties(message_id="m", headers={"mine": 1}))
    got = client.get(queue)
    client.send(1, "basic.reject", delivery_tag=got["delivery_tag"], requeue=False)
    client.nothing()
    letter = client.get(dead)
    headers = letter.properties.headers
    assert headers is not None
    assert (letter.body, letter.properties.message_id, headers["mine"]) == (b"x", "m", 1)
    deaths = headers["x-death"]
    assert isinstance(deaths, list)
    (death,) = deaths
    assert isinstance(death, dict)
    assert (death["reason"], death["queue"], death["count"], death["routing-keys"]) == ("rejected", queue, 1, [queue])
    assert (headers["x-first-death-reason"], headers["x-first-death-queue"]) == ("rejected", queue)


@pytest.mark.parametrize("how", ["queue", "message"])
def test_a_message_whose_time_is_over_becomes_a_dead_letter(client: Raw, how: str) -> None:
    dead = client.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = client.queue(arguments=arguments | ({"x-message-ttl": 50} if how == "queue" else {}))
    client.consume(dead, no_ack=True)
    client.publish(1, "", queue, b"x", Properties(expiration="50") if how == "message" else Properties())
    letter = client.expect(1, "basic.deliver")
    headers = letter.properties.headers
    assert headers is not None
    assert headers["x-first-death-reason"] == "expired"
    assert letter.properties.expiration is None
    client.ready(queue, 0)


def test_a_queue_that_is_too_long_drops_its_oldest(client: Raw) -> None:
    queue = client.queue(arguments={"x-max-length": 2})
    client.fill(queue, b"1", b"2", b"3")
    assert [client.get(queue).body for _ in range(2)] == [b"2", b"3"]


def test_an_unused_queue_expires(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name, arguments={"x-expires": 50})
    tag = client.consume(name)
    client.nothing()
    client.call(1, "basic.cancel", consumer_tag=tag)
    for _ in range(1000):
        client.publish(1, "", name, b"x", mandatory=True)
        client.send(1, "channel.flow", active=True)
        heard = client.next()
        if heard.name == "basic.return":
            return
    pytest.fail("it is still there")


# Priorities and single active consumers


def test_messages_of_a_higher_priority_come_first(client: Raw) -> None:
    queue = client.queue(arguments={"x-max-priority": 5})
    for priority in (1, 5, None, 9, 3):
        client.publish(1, "", queue, f"{priority}".encode(), Properties(priority=priority))
    assert [client.get(queue).body for _ in range(5)] == [b"5", b"9", b"3", b"1", b"None"]


def test_consumers_of_a_higher_priority_come_first(client: Raw) -> None:
    queue = client.queue()
    client.qos(2)
    client.consume(queue, "low")
    client.consume(queue, "high", arguments={"x-priority": 10})
    client.fill(queue, *[b"x"] * 4)
    tags = [heard["consumer_tag"] for heard in client.expect_many(1, "basic.deliver", 4)]
    assert tags == ["high", "high", "low", "low"]


def test_a_single_active_consumer_is_followed_by_the_next(client: Raw) -> None:
    queue = client.queue(arguments={"x-single-active-consumer": True})
    client.consume(queue, "first")
    client.consume(queue, "second")
    client.fill(queue, b"1", b"2")
    assert [heard["consumer_tag"] for heard in client.expect_many(1, "basic.deliver", 2)] == ["first", "first"]
    client.call(1, "basic.cancel", consumer_tag="first")
    client.fill(queue, b"3")
    assert client.expect(1, "basic.deliver")["consumer_tag"] == "second"


def test_further_routing_keys_in_headers_are_followed(client: Raw) -> None:
    one, two, three = client.queue(), client.queue(), client.queue()
    client.publish(1, "", one, b"x", Properties(headers={"CC": [two], "BCC": [three]}))
    for queue in (one, two, three):
        got = client.get(queue)
        headers = got.properties.headers
        assert headers is not None
        assert headers["CC"] == [two]
        assert "BCC" not in headers
