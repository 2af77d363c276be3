"""The class `connection`: opening, tuning, staying alive, closing, and what is not AMQP at all."""

from __future__ import annotations

import time

import pytest
from raw_client import CAPABLE, Connect, Raw, frame

from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import encode_table

# connection.start


def test_start_names_the_version_the_mechanisms_and_what_the_broker_can_do(connect: Connect) -> None:
    start = connect().greet()
    assert (start["version_major"], start["version_minor"]) == (0, 9)
    mechanisms = start["mechanisms"]
    assert isinstance(mechanisms, bytes)
    assert {"PLAIN", "AMQPLAIN"} <= set(mechanisms.decode().split())
    assert start["locales"] == b"en_US"
    properties = start["server_properties"]
    assert isinstance(properties, dict)
    assert {"product", "version", "platform", "capabilities", "cluster_name"} <= set(properties)
    assert properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x0a\x00", b"AMQP\x00\x02\x00\x00", b"GET / HT", b"HELO you", b"\x16\x03\x01\x02\x00\x01\x00\x01"],
)
def test_another_protocol_is_answered_with_ours_and_the_end(connect: Connect, header: bytes) -> None:
    client = connect()
    client.raw(header)
    assert client.take(8) == b"AMQP\x00\x00\x09\x01"
    client.ended()


def test_the_header_of_0_9_is_as_good(connect: Connect) -> None:
    client = connect()
    client.raw(b"AMQP\x01\x01\x00\x09")
    assert client.expect(0, "connection.start")


# connection.start-ok


def test_a_wrong_password_is_told_to_clients_that_understand_it(connect: Connect) -> None:
    client = connect("guest", "wrong")
    client.greet()
    client.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="PLAIN", response=b"\0guest\0wrong")
    text = "Login was refused using authentication mechanism PLAIN"
    client.connection_closed(403, None, text)


def test_an_unknown_user_reads_like_a_wrong_password(connect: Connect) -> None:
    client = connect()
    client.greet()
    client.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="PLAIN", response=b"\0nobody\0wrong")
    client.connection_closed(403, None, "Login was refused using authentication mechanism PLAIN")


def test_a_wrong_password_of_a_client_that_does_not_understand_is_the_end(connect: Connect) -> None:
    client = connect()
    client.greet()
    client.send(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0wrong")
    client.ended()


def test_amqplain_logs_in(connect: Connect) -> None:
    client = connect()
    client.greet()
    response = encode_table({"LOGIN": client.user, "PASSWORD": client.password})[4:]
    client.send(0, "connection.start-ok", mechanism="AMQPLAIN", response=response, locale="en_US")
    client.expect(0, "connection.tune")


def test_a_mechanism_that_is_not_offered_is_refused(connect: Connect) -> None:
    client = connect()
    client.greet()
    client.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="MAGIC", response=b"")
    client.connection_closed(503, "connection.start-ok", "unknown authentication mechanism 'MAGIC'")


# connection.tune-ok


def test_tune_offers_limits(connect: Connect) -> None:
    client = connect()
    client.greet()
    tune = client.log_in()
    assert (tune["channel_max"], tune["frame_max"], tune["heartbeat"]) == (2047, 131_072, 60)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"frame_max": 131_073}, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ({"frame_max": 4095}, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ({"frame_max": 0}, "negotiated frame_max = 0 (no limit) is higher than the maximum allowed value"),
        ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ({"channel_max": 0}, "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value"),
    ],
)
def test_what_cannot_be_agreed_on_is_refused(connect: Connect, wrong: dict[str, int], text: str) -> None:
    client = connect()
    client.greet()
    client.log_in()
    client.tune(**wrong)
    client.connection_closed(530, "", text)


def test_a_smaller_frame_size_is_kept_to_by_the_broker(connect: Connect) -> None:
    client = connect().open(frame_max=4096)
    queue = client.queue()
    body = bytes(range(256)) * 40
    client.fill(queue, body)
    assert client.get(queue).body == body  # each frame's size is checked as it is read


def test_fewer_channels_are_kept_to(connect: Connect) -> None:
    client = connect().open(channels=2, channel_max=2)
    client.send(3, "channel.open")
    client.connection_closed(530, "", "number of channels opened (2) has reached the negotiated channel_max (2)")


# connection.open


def test_a_vhost_that_does_not_exist_is_refused(connect: Connect) -> None:
    client = connect()
    client.greet()
    client.log_in()
    client.tune()
    client.send(0, "connection.open", virtual_host="no such vhost")
    client.connection_closed(530, "connection.open", "no such vhost")


def test_a_vhost_that_the_user_has_no_rights_in_is_refused(connect: Connect) -> None:
    client = connect("limited", "limited")
    client.greet()
    client.log_in()
    client.tune()
    client.send(0, "connection.open", virtual_host="closed")
    client.connection_closed(530, "connection.open", "access to vhost 'closed' refused for user 'limited'")


@pytest.mark.parametrize("step", ["start", "tune"])
def test_channels_must_wait_until_the_client_has_introduced_itself(connect: Connect, step: str) -> None:
    client = connect()
    client.greet()
    if step == "tune":
        client.log_in()
    client.send(1, "channel.open")
    client.connection_closed(505)


def test_channels_must_wait_until_the_connection_is_open(connect: Connect) -> None:
    client = connect()
    client.greet()
    client.log_in()
    client.tune()
    client.send(1, "channel.open")
    client.connection_closed(505)


def test_a_step_that_is_not_due_is_refused(connect: Connect) -> None:
    client = connect()
    client.greet()
    client.log_in()
    client.send(0, "connection.open", virtual_host="/")
    client.connection_closed(504, "connection.open")


# Running.


@pytest.mark.parametrize(
    "method", ["connection.tune-ok", "connection.open", "connection.start-ok", "connection.open-ok"]
)
def test_steps_of_the_handshake_are_refused_later(client: Raw, method: str) -> None:
    client.send(0, method)
    client.connection_closed(504, method)


def test_methods_of_channels_do_not_belong_on_channel_0(client: Raw) -> None:
    client.send(0, "queue.declare", queue="q")
    client.connection_closed(504, "queue.declare")


@pytest.mark.parametrize("kind", [2, 3])
def test_content_does_not_belong_on_channel_0(client: Raw, kind: int) -> None:
    client.raw(frame(kind, 0, bytes(14)))
    client.connection_closed(505)


def test_methods_of_the_connection_do_not_belong_on_a_channel(client: Raw) -> None:
    client.send(1, "connection.close", reply_code=200)
    client.connection_closed(503, "connection.close")


def test_a_method_that_does_not_exist_is_refused(client: Raw) -> None:
    client.raw(frame(1, 1, b"\x00\x3c\x03\xe7"))
    client.connection_closed(503)


def test_a_class_that_does_not_exist_is_refused(client: Raw) -> None:
    client.raw(frame(1, 1, b"\x03\xe7\x00\x0a"))
    client.connection_closed(503)


@pytest.mark.parametrize(
    "payload", [b"\x00\x32\x00\x0a", b"\x00\x32\x00\x0a\x00\x00\x05abc", b"\x00\x3c\x00\x50" + bytes(4)]
)
def test_a_method_with_too_few_arguments_is_refused(client: Raw, payload: bytes) -> None:
    client.raw(frame(1, 1, payload))
    client.connection_closed(501)


def test_a_method_with_something_behind_it_is_refused(client: Raw) -> None:
    client.raw(frame(1, 1, METHODS["basic.qos"].encode() + b"x"))
    client.connection_closed(501, "basic.qos")


def test_a_table_that_makes_no_sense_is_refused(client: Raw) -> None:
    payload = METHODS["queue.declare"].encode(queue="q")
    client.raw(frame(1, 1, payload[:-4] + b"\x00\x00\x00\x03\x01k?"))
    client.connection_closed(502)


def test_a_frame_larger_than_agreed_is_refused(connect: Connect) -> None:
    client = connect().open(frame_max=4096)
    client.raw(b"\x01\x00\x01" + (4096 + 1).to_bytes(4, "big"))
    client.connection_closed(501)


def test_a_frame_without_its_end_is_refused(client: Raw) -> None:
    client.raw(METHODS["basic.qos"].frame(1)[:-1] + b"\x00")
    client.connection_closed(501)


def test_a_frame_of_an_unknown_type_is_refused(client: Raw) -> None:
    client.raw(frame(5, 1, b""))
    client.connection_closed(501)


def test_a_heartbeat_on_a_channel_is_refused(client: Raw) -> None:
    client.raw(frame(8, 1, b""))
    client.connection_closed(505)


def test_bad_frames_touch_nobody_else(client: Raw, other: Raw) -> None:
    queue = other.queue()
    client.raw(frame(5, 1, b""))
    client.connection_closed(501)
    other.fill(queue, b"still here")
    assert other.get(queue).body == b"still here"


# Heartbeats.


def test_a_broker_with_nothing_to_say_sends_heartbeats(connect: Connect) -> None:
    client = connect().open(heartbeat=1)
    client.raw(frame(8, 0, b""))
    while client.heartbeats < 2:
        kind, channel, payload = client.frame()
        assert (kind, channel, payload) == (8, 0, b"")
        client.heartbeats += 1
        client.raw(frame(8, 0, b""))


def test_a_client_with_nothing_to_say_is_dropped(connect: Connect) -> None:
    client = connect().open(heartbeat=1)
    began = time.monotonic()
    client.dropped()
    assert 1.0 <= time.monotonic() - began <= 6.0


# connection.close


def test_close_is_answered(client: Raw) -> None:
    client.call(0, "connection.close", reply_code=200, reply_text="bye")


def test_it_is_the_client_that_ends_the_connection_once_its_close_is_answered(client: Raw) -> None:
    """Some take an end that comes right behind the answer for a connection that broke."""
    client.call(0, "connection.close", reply_code=200, reply_text="bye")
    client.silent(0.3)


def test_close_may_come_at_any_time_after_opening_even_in_the_middle_of_a_message(client: Raw) -> None:
    client.raw(METHODS["basic.publish"].frame(1, routing_key="q"))
    client.call(0, "connection.close", reply_code=200)


def test_what_follows_a_close_is_ignored(client: Raw, other: Raw, name: str) -> None:
    late = METHODS["queue.declare"].frame(1, queue=name)
    client.raw(METHODS["connection.close"].frame(0, reply_code=200) + late)
    client.expect(0, "connection.close-ok")
    other.send(1, "queue.declare", queue=name, passive=True)
    other.channel_closed(1, 404, "queue.declare")


def test_exclusive_queues_end_with_their_connection(client: Raw, other: Raw) -> None:
    queue = client.queue()
    client.call(0, "connection.close", reply_code=200)
    other.send(1, "queue.declare", queue=queue, passive=True)
    other.channel_closed(1, 404, "queue.declare", f"no queue '{queue}' in vhost")


def test_what_a_lost_connection_held_is_redelivered(client: Raw, other: Raw, name: str) -> None:
    other.call(1, "queue.declare", queue=name)
    other.fill(name, b"one", b"two")
    client.consume(name)
    client.expect_many(1, "basic.deliver", 2)
    client.close()
    other.consume(name)
    back = other.expect_many(1, "basic.deliver", 2)
    assert [(heard.body, heard["redelivered"]) for heard in back] == [(b"one", True), (b"two", True)]


@pytest.mark.parametrize("secret", ["guest", "anything else", "", "x" * 5000])
def test_any_new_secret_is_taken(client: Raw, secret: str) -> None:
    """It is for tokens that run out. Who the client is was decided when it logged in, and a password has no end."""
    client.call(0, "connection.update-secret", new_secret=secret.encode(), reason="rotated")
    client.publish(1, "", "nowhere", b"x", Properties(user_id=client.user))
    client.nothing()
