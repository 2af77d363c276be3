"""The class `basic`: publishing, consuming, getting, settling."""

from __future__ import annotations

import pytest
from raw_client import Connect, Raw, content, frame

from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.tables import Table

# basic.publish, basic.return


def test_a_message_arrives_as_it_was_sent(client: Raw) -> None:
    queue = client.queue()
    properties = Properties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=1, priority=3, correlation_id="c",
        reply_to="r", expiration="100000", message_id="m", timestamp=1_700_000_000, type="t", user_id=client.user,
        app_id="a", cluster_id="x",
        headers={"text": "ü", "int": -1, "long": 1 << 40, "bool": True, "none": None, "list": [1, {"a": b"\xff"}]},
    )  # fmt: skip
    body = bytes(range(256))
    client.publish(1, "", queue, body, properties)
    got = client.get(queue)
    assert (got["exchange"], got["routing_key"], got["redelivered"], got.body) == ("", queue, False, body)
    assert got.header == encode(properties, len(body))  # to the byte


def test_properties_that_the_broker_does_not_know_the_meaning_of_stay_as_they_are(client: Raw) -> None:
    queue = client.queue()
    # One of each type that a table may hold, as other clients write them.
    fields = (
        b"\x01at\x01", b"\x01bb\xff", b"\x01cB\xff", b"\x01ds\xff\xfe", b"\x01eu\xff\xfe", b"\x01fI\xff\xff\xff\xff",
        b"\x01gi\xff\xff\xff\xff", b"\x01hl" + b"\xff" * 8, b"\x01if\x3f\x80\x00\x00", b"\x01jd" + bytes(8),
        b"\x01kD\x02\x00\x00\x00\x7b", b"\x01lS\x00\x00\x00\x01\xff", b"\x01mx\x00\x00\x00\x01\xff",
        b"\x01nT" + bytes(8), b"\x01oV", b"\x01pA\x00\x00\x00\x02t\x00", b"\x01qF\x00\x00\x00\x03\x01kV",
    )  # fmt: skip
    table = b"".join(fields)
    header = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    client.raw(METHODS["basic.publish"].frame(1, routing_key=queue) + frame(2, 1, header) + frame(3, 1, b"x"))
    assert client.get(queue).header == header


@pytest.mark.parametrize("size", [0, 1, 131_072 - 8, 131_072 - 7, 1_000_000])
def test_bodies_of_any_size_arrive(client: Raw, size: int) -> None:
    queue = client.queue()
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    client.publish(1, "", queue, body)
    assert client.get(queue).body == body


def test_a_body_may_come_in_many_small_frames(client: Raw) -> None:
    queue = client.queue()
    parts = b"".join(frame(3, 1, b"x" * size) for size in (1, 2, 0, 3))
    client.raw(METHODS["basic.publish"].frame(1, routing_key=queue) + frame(2, 1, encode(Properties(), 6)) + parts)
    assert client.get(queue).body == b"xxxxxx"


def test_messages_of_two_channels_may_be_interleaved(client: Raw) -> None:
    queue = client.queue()
    client.call(2, "channel.open")
    for channel in (1, 2):
        client.raw(METHODS["basic.publish"].frame(channel, routing_key=queue))
    for channel in (1, 2):
        client.raw(frame(2, channel, encode(Properties(), 4)))
    for channel in (1, 2, 2, 1):
        client.raw(frame(3, channel, b"%d" % channel * 2))
    client.nothing(1)
    client.nothing(2)
    assert sorted(client.get(queue).body for _ in range(2)) == [b"1111", b"2222"]


def test_publishing_to_an_exchange_that_is_not_there_is_refused(client: Raw) -> None:
    client.publish(1, "none", "k", b"x")
    client.channel_closed(1, 404, "basic.publish", "no exchange 'none' in vhost '/'")


def test_immediate_is_not_implemented(client: Raw) -> None:
    client.publish(1, "", "k", b"x", immediate=True)
    client.connection_closed(540, "basic.publish", "immediate=true")


def test_a_mandatory_message_that_reaches_no_queue_is_returned(client: Raw) -> None:
    properties = Properties(message_id="m", headers={"a": 1})
    client.publish(1, "amq.direct", "nobody", b"body", properties, mandatory=True)
    back = client.expect(1, "basic.return")
    assert (back["reply_code"], back["reply_text"]) == (312, "NO_ROUTE")
    assert (back["exchange"], back["routing_key"], back.body) == ("amq.direct", "nobody", b"body")
    assert back.header == encode(properties, 4)


def test_a_message_that_reaches_no_queue_and_is_not_mandatory_is_dropped(client: Raw) -> None:
    client.publish(1, "amq.direct", "nobody", b"body")
    client.nothing()


def test_a_mandatory_message_that_reaches_a_queue_is_not_returned(client: Raw) -> None:
    queue = client.queue()
    client.publish(1, "", queue, b"body", mandatory=True)
    client.ready(queue, 1)


def test_a_user_may_only_name_itself(client: Raw) -> None:
    client.publish(1, "", "q", b"x", Properties(user_id=client.user))
    client.nothing()
    client.publish(1, "", "q", b"x", Properties(user_id="somebody"))
    text = f"user_id property set to 'somebody' but authenticated user was '{client.user}'"
    client.channel_closed(1, 406, "basic.publish", text)


@pytest.mark.parametrize("wrong", ["", "soon", "-1", "1.5"])
def test_an_expiration_is_a_number_of_milliseconds(client: Raw, wrong: str) -> None:
    client.publish(1, "", "q", b"x", Properties(expiration=wrong))
    client.channel_closed(1, 406, "basic.publish", f"invalid expiration '{wrong}'")


def test_a_content_header_of_another_class_is_refused(client: Raw) -> None:
    header = b"\x00\x32" + encode(Properties(), 0)[2:]
    client.raw(METHODS["basic.publish"].frame(1) + frame(2, 1, header))
    client.connection_closed(505, "basic.publish")


@pytest.mark.parametrize(
    "wrong",
    [
        METHODS["basic.publish"].frame(1) + frame(3, 1, b"x"),
        METHODS["basic.publish"].frame(1) + METHODS["basic.qos"].frame(1),
        METHODS["basic.publish"].frame(1) + METHODS["basic.publish"].frame(1),
        METHODS["basic.publish"].frame(1) + frame(2, 1, encode(Properties(), 5)) + METHODS["basic.qos"].frame(1),
        METHODS["basic.publish"].frame(1) + frame(2, 1, encode(Properties(), 5)) + frame(2, 1, encode(Properties(), 5)),
        frame(2, 1, encode(Properties(), 0)),
        frame(3, 1, b"x"),
    ],
    ids=["body first", "method", "publish", "method for body", "second header", "header alone", "body alone"],
)
def test_contents_that_are_not_in_their_order_are_refused(client: Raw, wrong: bytes) -> None:
    client.raw(wrong)
    client.connection_closed(505)


def test_a_body_that_is_longer_than_announced_is_refused(client: Raw) -> None:
    client.raw(METHODS["basic.publish"].frame(1) + frame(2, 1, encode(Properties(), 3)) + frame(3, 1, b"four"))
    client.connection_closed(505)


def test_properties_that_make_no_sense_are_refused(client: Raw) -> None:
    header = encode(Properties(), 0)[:-2] + b"\x80\x00\x09abc"
    client.raw(METHODS["basic.publish"].frame(1, routing_key="q") + frame(2, 1, header))
    client.connection_closed(502)


def test_a_message_that_is_too_large_is_refused_before_it_has_come(client: Raw) -> None:
    client.raw(METHODS["basic.publish"].frame(1, routing_key="q") + frame(2, 1, encode(Properties(), (128 << 20) + 1)))
    client.channel_closed(1, 406, "basic.publish", "is larger than")


# basic.qos


def test_the_prefetch_of_a_consumer_is_what_it_may_hold(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, *(b"%d" % n for n in range(6)))
    client.qos(2)
    client.consume(queue)
    first = client.expect_many(1, "basic.deliver", 2)
    client.nothing()
    client.send(1, "basic.ack", delivery_tag=first[0]["delivery_tag"])
    assert client.expect(1, "basic.deliver").body == b"2"
    client.send(1, "basic.nack", delivery_tag=first[1]["delivery_tag"], requeue=False)
    assert client.expect(1, "basic.deliver").body == b"3"
    client.nothing()


def test_each_consumer_has_the_prefetch_that_was_set_when_it_came(client: Raw) -> None:
    one, two = client.queue(), client.queue()
    client.fill(one, *[b"x"] * 5)
    client.fill(two, *[b"x"] * 5)
    client.qos(1)
    client.consume(one, "one")
    assert client.expect(1, "basic.deliver")["consumer_tag"] == "one"
    client.qos(3)
    client.consume(two, "two")
    assert {heard["consumer_tag"] for heard in client.expect_many(1, "basic.deliver", 3)} == {"two"}
    client.nothing()


def test_the_prefetch_of_a_channel_is_shared_by_its_consumers(client: Raw) -> None:
    one, two = client.queue(), client.queue()
    client.fill(one, *[b"x"] * 5)
    client.fill(two, *[b"x"] * 5)
    client.qos(3, everyone=True)
    client.consume(one)
    client.expect_many(1, "basic.deliver", 3)
    client.send(1, "basic.consume", queue=two)
    client.expect(1, "basic.consume-ok")
    client.nothing()
    client.send(1, "basic.ack", delivery_tag=3, multiple=True)
    client.expect_many(1, "basic.deliver", 3)
    client.nothing()


def test_the_prefetch_of_a_channel_may_be_changed_at_any_time(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, *[b"x"] * 5)
    client.qos(1, everyone=True)
    client.consume(queue)
    client.expect(1, "basic.deliver")
    client.nothing()
    client.send(1, "basic.qos", prefetch_count=3, **{"global": True})
    names = [client.next().name for _ in range(3)]
    assert sorted(names) == ["basic.deliver", "basic.deliver", "basic.qos-ok"]
    client.nothing()
    client.send(1, "basic.qos", prefetch_count=0, **{"global": True})
    names = [client.next().name for _ in range(3)]
    assert sorted(names) == ["basic.deliver", "basic.deliver", "basic.qos-ok"]


def test_a_prefetch_of_consumers_ends_that_of_the_channel(client: Raw) -> None:
    one, two = client.queue(), client.queue()
    client.fill(one, *[b"x"] * 5)
    client.fill(two, *[b"x"] * 5)
    client.qos(1, everyone=True)
    client.qos(2)
    client.consume(one)
    client.expect_many(1, "basic.deliver", 2)
    client.nothing()
    client.consume(two)
    client.expect_many(1, "basic.deliver", 2)
    client.nothing()


def test_a_prefetch_in_bytes_is_not_implemented(client: Raw) -> None:
    client.send(1, "basic.qos", prefetch_size=1000)
    client.connection_closed(540, "basic.qos", "prefetch_size!=0 (1000)")


def test_prefetch_means_nothing_to_a_consumer_that_does_not_acknowledge(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, *[b"x"] * 5)
    client.qos(1)
    client.consume(queue, no_ack=True)
    client.expect_many(1, "basic.deliver", 5)
    client.ready(queue, 0)


# basic.consume, basic.cancel


def test_deliveries_have_rising_tags_and_name_their_consumer(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"1", b"2")
    assert client.consume(queue, "mine") == "mine"
    client.fill(queue, b"3")
    heard = client.expect_many(1, "basic.deliver", 3)
    assert [(each["consumer_tag"], each["delivery_tag"], each.body) for each in heard] == [
        ("mine", 1, b"1"), ("mine", 2, b"2"), ("mine", 3, b"3"),
    ]  # fmt: skip


def test_a_consumer_without_a_tag_is_given_one(client: Raw) -> None:
    queue = client.queue()
    tags = {client.consume(queue) for _ in range(3)}
    assert len(tags) == 3
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_a_tag_is_used_once_on_a_channel(client: Raw) -> None:
    queue = client.queue()
    client.call(2, "channel.open")
    client.consume(queue, "tag")
    client.consume(queue, "tag", channel=2)
    client.send(1, "basic.consume", queue=queue, consumer_tag="tag")
    client.connection_closed(530, "basic.consume", "attempt to reuse consumer tag 'tag'")


def test_consuming_from_a_queue_that_is_not_there_is_refused(client: Raw) -> None:
    client.send(1, "basic.consume", queue="none")
    client.channel_closed(1, 404, "basic.consume", "no queue 'none' in vhost '/'")


def test_no_wait_gets_no_answer(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"x")
    client.send(1, "basic.consume", queue=queue, consumer_tag="t", no_wait=True)
    client.expect(1, "basic.deliver")
    client.send(1, "basic.cancel", consumer_tag="t", no_wait=True)
    client.nothing()


def test_an_exclusive_consumer_is_alone(client: Raw, other: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name)
    tag = client.consume(name, exclusive=True)
    for exclusive in (False, True):
        other.send(1, "basic.consume", queue=name, exclusive=exclusive)
        other.channel_closed(1, 403, "basic.consume", f"queue '{name}' in vhost '/' in exclusive use")
        other.reopen()
    client.call(1, "basic.cancel", consumer_tag=tag)
    other.consume(name)
    client.send(1, "basic.consume", queue=name, exclusive=True)
    client.channel_closed(1, 403, "basic.consume", "in exclusive use")


def test_consumers_take_turns(client: Raw) -> None:
    queue = client.queue()
    client.qos(3)
    for tag in ("a", "b"):
        client.consume(queue, tag)
    client.fill(queue, *[b"x"] * 6)
    tags = [str(heard["consumer_tag"]) for heard in client.expect_many(1, "basic.deliver", 6)]
    assert sorted(tags) == ["a"] * 3 + ["b"] * 3


def test_a_consumer_that_is_cancelled_gets_nothing_more_and_keeps_what_it_has(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"1")
    tag = client.consume(queue)
    held = client.expect(1, "basic.deliver")
    assert client.call(1, "basic.cancel", consumer_tag=tag)["consumer_tag"] == tag
    client.fill(queue, b"2")
    client.ready(queue, 1)
    client.send(1, "basic.ack", delivery_tag=held["delivery_tag"])
    client.nothing()


def test_cancelling_what_is_not_there_is_fine(client: Raw) -> None:
    assert client.call(1, "basic.cancel", consumer_tag="none")["consumer_tag"] == "none"


def test_a_consumer_is_told_when_its_queue_is_deleted(client: Raw, other: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name)
    tag = client.consume(name)
    other.call(1, "queue.delete", queue=name)
    assert client.expect(1, "basic.cancel")["consumer_tag"] == tag
    client.call(1, "queue.declare", queue=name)
    client.consume(name, tag)


def test_a_consumer_that_does_not_understand_cancels_is_not_told(connect: Connect, other: Raw, name: str) -> None:
    client = connect().open(properties={})
    client.call(1, "queue.declare", queue=name)
    client.consume(name)
    other.call(1, "queue.delete", queue=name)
    client.nothing()


@pytest.mark.parametrize("arguments", [{"x-priority": "high"}, {"x-priority": 1.5}])
def test_a_consumers_priority_is_a_number(client: Raw, arguments: Table) -> None:
    client.send(1, "basic.consume", queue=client.queue(), arguments=arguments)
    client.channel_closed(1, 406, "basic.consume")


# basic.get


def test_get_gives_one_message_and_how_many_are_left(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"1", b"2", b"3")
    got = [client.get(queue) for _ in range(3)]
    assert [(each["delivery_tag"], each.body, each["message_count"]) for each in got] == [
        (1, b"1", 2), (2, b"2", 1), (3, b"3", 0),
    ]  # fmt: skip
    assert client.get(queue).name == "basic.get-empty"


def test_what_was_got_without_acknowledgement_is_gone(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"1")
    client.get(queue, no_ack=True)
    client.send(1, "basic.recover", requeue=True)
    client.expect(1, "basic.recover-ok")
    assert client.get(queue).name == "basic.get-empty"


def test_getting_from_a_queue_that_is_not_there_is_refused(client: Raw) -> None:
    client.send(1, "basic.get", queue="none")
    client.channel_closed(1, 404, "basic.get", "no queue 'none' in vhost '/'")


# basic.ack


def held(client: Raw, count: int) -> str:
    """A queue, with so many messages of it in the client's hands."""
    queue = client.queue()
    client.fill(queue, *(b"%d" % n for n in range(count)))
    client.consume(queue, "t")
    client.expect_many(1, "basic.deliver", count)
    client.call(1, "basic.cancel", consumer_tag="t")
    return queue


def back(client: Raw, queue: str) -> list[bytes]:
    """What comes back to the queue when the client gives up what it holds."""
    client.call(1, "basic.recover", requeue=True)
    bodies = []
    while (heard := client.get(queue)).name == "basic.get-ok":
        assert heard["redelivered"] is True
        bodies.append(heard.body)
    return bodies


def test_an_ack_settles_one(client: Raw) -> None:
    queue = held(client, 3)
    client.send(1, "basic.ack", delivery_tag=2)
    assert back(client, queue) == [b"0", b"2"]


def test_a_multiple_ack_settles_all_up_to_it(client: Raw) -> None:
    queue = held(client, 5)
    client.send(1, "basic.ack", delivery_tag=3, multiple=True)
    assert back(client, queue) == [b"3", b"4"]


def test_a_multiple_ack_of_0_settles_everything(client: Raw) -> None:
    queue = held(client, 3)
    client.send(1, "basic.ack", delivery_tag=0, multiple=True)
    assert back(client, queue) == []
    client.send(1, "basic.ack", delivery_tag=0, multiple=True)  # also if there is nothing
    client.nothing()


@pytest.mark.parametrize("tag", [0, 4, 1 << 40])
@pytest.mark.parametrize("method", ["basic.ack", "basic.nack", "basic.reject"])
def test_a_tag_that_was_not_given_is_refused(client: Raw, method: str, tag: int) -> None:
    held(client, 3)
    client.send(1, method, delivery_tag=tag)
    client.channel_closed(1, 406, method, f"unknown delivery tag {tag}")


def test_a_tag_is_settled_once(client: Raw) -> None:
    held(client, 3)
    client.send(1, "basic.ack", delivery_tag=2)
    client.send(1, "basic.ack", delivery_tag=2)
    client.channel_closed(1, 406, "basic.ack", "unknown delivery tag 2")


def test_a_multiple_ack_needs_a_tag_that_is_unsettled(client: Raw) -> None:
    held(client, 3)
    client.send(1, "basic.ack", delivery_tag=2)
    client.send(1, "basic.ack", delivery_tag=2, multiple=True)
    client.channel_closed(1, 406, "basic.ack", "unknown delivery tag 2")


def test_a_delivery_without_acknowledgement_cannot_be_acknowledged(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"x")
    client.consume(queue, no_ack=True)
    client.expect(1, "basic.deliver")
    client.send(1, "basic.ack", delivery_tag=1)
    client.channel_closed(1, 406, "basic.ack", "unknown delivery tag 1")


def test_tags_belong_to_their_channel(client: Raw) -> None:
    held(client, 1)
    client.call(2, "channel.open")
    client.send(2, "basic.ack", delivery_tag=1)
    client.channel_closed(2, 406, "basic.ack", "unknown delivery tag 1")


# basic.reject, basic.nack, basic.recover


def test_a_rejected_message_goes_back_to_its_place_or_is_dropped(client: Raw) -> None:
    queue = held(client, 4)
    client.send(1, "basic.reject", delivery_tag=2, requeue=True)
    client.send(1, "basic.reject", delivery_tag=1, requeue=False)
    client.send(1, "basic.nack", delivery_tag=4, multiple=True, requeue=True)
    assert [client.get(queue).body for _ in range(3)] == [b"1", b"2", b"3"]
    assert client.get(queue).name == "basic.get-empty"


def test_a_multiple_nack_of_0_refuses_everything(client: Raw) -> None:
    queue = held(client, 3)
    client.send(1, "basic.nack", delivery_tag=0, multiple=True, requeue=False)
    assert back(client, queue) == []


def test_a_requeued_message_is_redelivered_and_marked(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"x")
    client.consume(queue)
    first = client.expect(1, "basic.deliver")
    client.send(1, "basic.reject", delivery_tag=first["delivery_tag"], requeue=True)
    again = client.expect(1, "basic.deliver")
    assert (first["redelivered"], again["redelivered"]) == (False, True)
    assert (first["delivery_tag"], again["delivery_tag"]) == (1, 2)


@pytest.mark.parametrize("method", ["basic.recover", "basic.recover-async"])
def test_recover_gives_everything_back_to_be_delivered_again(client: Raw, method: str) -> None:
    queue = client.queue()
    client.fill(queue, b"1", b"2")
    client.consume(queue)
    client.expect_many(1, "basic.deliver", 2)
    client.send(1, method, requeue=True)
    heard = [client.next() for _ in range(3 if method == "basic.recover" else 2)]
    again = [each for each in heard if each.name == "basic.deliver"]
    assert [(each.body, each["redelivered"]) for each in again] == [(b"1", True), (b"2", True)]
    assert len(heard) - len(again) == (method == "basic.recover")


@pytest.mark.parametrize("method", ["basic.recover", "basic.recover-async"])
def test_recover_without_requeueing_is_not_implemented(client: Raw, method: str) -> None:
    client.send(1, method, requeue=False)
    client.connection_closed(540, method, "requeue=false")


def test_content_may_follow_its_method_in_any_pieces(client: Raw) -> None:
    queue = client.queue()
    data = METHODS["basic.publish"].frame(1, routing_key=queue) + content(1, b"pieces", Properties(message_id="m"))
    for at in range(len(data)):
        client.raw(data[at : at + 1])
    assert client.get(queue).body == b"pieces"
