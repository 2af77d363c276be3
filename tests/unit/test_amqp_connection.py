"""A connection's life: opening, being alive, being held back, ending; in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from amqp_rig import CAPABLE, LOGIN, Client, Heard, Rig, frame, publish_frames

from coterie.amqp.connection import TURN_COMMANDS
from coterie.amqp.heartbeat import HEARTBEAT
from coterie.amqp.settings import AmqpSettings
from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.tables import Table, Value, encode_table
from coterie.broker.broker import DISK
from coterie.broker.cluster import NullCluster
from coterie.broker.publish import Publish, Routed
from coterie.broker.settings import BrokerSettings
from coterie.broker.vhost import Vhost
from coterie.logs import facts_of

START_OK = METHODS["connection.start-ok"].frame(
    0, client_properties=CAPABLE, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
)
TUNE_OK = METHODS["connection.tune-ok"].frame(0, channel_max=2047, frame_max=131_072)
OPEN = METHODS["connection.open"].frame(0, virtual_host="/")


class Slow(NullCluster):
    """Publishes are safe when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        vhost.apply_publish(routed)
        self.waiting.append(done)

    def let_go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()


# Opening.


@pytest.mark.parametrize("pieces", [1, 3, 8])
def test_the_protocol_header_may_come_in_pieces(pieces: int) -> None:
    client = Client(Rig())
    for at in range(0, 8, 8 // pieces):
        client.raw(PROTOCOL_HEADER[at : at + 8 // pieces])
    (start,) = client.heard()
    assert (start.name, start["version_major"], start["version_minor"]) == ("connection.start", 0, 9)
    assert start["mechanisms"] == b"PLAIN AMQPLAIN"


def test_a_client_may_send_everything_at_once() -> None:
    rig = Rig()
    client = Client(rig)
    declare = METHODS["queue.declare"].frame(1, queue="q")
    client.raw(PROTOCOL_HEADER + START_OK + TUNE_OK + OPEN + METHODS["channel.open"].frame(1) + declare)
    rig.run(LOGIN)
    assert client.names()[2:] == ["connection.open-ok", "channel.open-ok", "queue.declare-ok"]


def test_what_a_client_sends_while_its_password_is_checked_waits() -> None:
    rig = Rig()
    client = Client(rig)
    client.raw(PROTOCOL_HEADER + START_OK + TUNE_OK)
    client.raw(OPEN)
    assert client.names() == ["connection.start"]
    assert not client.wire.reading
    rig.run(LOGIN)
    assert client.names() == ["connection.tune", "connection.open-ok"]
    assert client.wire.reading


@pytest.mark.parametrize("when", ["before the login", "while the password is checked"])
def test_a_broker_that_knows_no_users_for_it_is_being_updated_sends_clients_elsewhere(when: str) -> None:
    rig = Rig()
    client = Client(rig)
    client.raw(PROTOCOL_HEADER)
    if when == "while the password is checked":
        client.raw(START_OK)
    rig.server.unavailable = lambda: "it is being updated"
    rig.users.delete("guest", lambda _: None)
    if when == "before the login":
        client.raw(START_OK)
    rig.run(LOGIN)
    start, close = client.heard()
    assert (start.name, close.name, close["reply_code"]) == ("connection.start", "connection.close", 320)
    assert "it is being updated" in str(close["reply_text"])


def test_a_client_that_leaves_while_its_password_is_checked_leaves_nothing() -> None:
    rig = Rig()
    client = Client(rig)
    client.raw(PROTOCOL_HEADER + START_OK)
    client.gone()
    rig.run(LOGIN)
    assert rig.server.connections == {}


def test_whoever_does_not_open_in_time_is_dropped() -> None:
    rig = Rig(AmqpSettings(handshake_timeout=10.0))
    silent, slow = Client(rig), Client(rig)
    slow.raw(PROTOCOL_HEADER + START_OK)
    quick = rig.client()
    rig.run(9.9)
    assert not silent.wire.aborted
    rig.run(0.2)
    assert silent.wire.aborted
    assert slow.wire.aborted
    assert not quick.wire.closed


def test_amqplain_is_plain_in_other_words() -> None:
    rig = Rig()
    client = Client(rig)
    client.raw(PROTOCOL_HEADER)
    response = encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    client.send(0, "connection.start-ok", mechanism="AMQPLAIN", response=response)
    rig.run(LOGIN)
    assert client.names()[-1] == "connection.tune"


@pytest.mark.parametrize(
    ("form", "organization", "enters"),
    [("common_name", "O", True), ("distinguished_name", "O", False), ("common_name", "", True)],
)
def test_external_is_offered_to_whoever_shows_a_certificate(form: str, organization: str, enters: bool) -> None:
    rig = Rig(AmqpSettings(certificate_name=form))
    subject = (("organizationName", organization), ("commonName", "alice"))
    client = Client(rig, subject if organization else subject[1:])
    client.raw(PROTOCOL_HEADER)
    (start,) = client.heard()
    assert start["mechanisms"] == b"PLAIN AMQPLAIN EXTERNAL"
    client.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="EXTERNAL")
    assert client.names() == ["connection.tune" if enters else "connection.close"]


def test_external_is_not_for_those_without_a_certificate() -> None:
    client = Client(Rig())
    client.raw(PROTOCOL_HEADER)
    client.heard()
    client.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="EXTERNAL", response=b"guest")
    assert client.heard()[0]["reply_code"] == 503


def enter(client: Client) -> Heard:
    """The answer to connection.open."""
    client.raw(PROTOCOL_HEADER + START_OK + TUNE_OK + OPEN)
    client.rig.run(LOGIN)
    return client.heard()[-1]


def test_a_user_has_only_as_many_connections_and_channels_as_its_limits_say() -> None:
    rig = Rig()
    rig.users.limit("guest", "max-connections", 1, lambda _: None)
    rig.users.limit("guest", "max-channels", 2, lambda _: None)
    first = rig.client(channels=2)
    refused = enter(Client(rig))
    assert (refused["reply_code"], "user connection limit (1)" in str(refused["reply_text"])) == (530, True)
    Client(rig).open(user="alice")
    over = first.call(3, "channel.open")
    assert (over.name, over["reply_code"]) == ("connection.close", 530)


def test_a_user_that_is_deleted_loses_its_connections() -> None:
    rig = Rig()
    alice, guest = Client(rig).open(user="alice"), rig.client()
    rig.users.delete("alice", lambda _: None)
    rig.run()
    assert alice.heard()[0]["reply_code"] == 320
    assert guest.heard() == []


def test_a_vhost_has_only_as_many_connections_as_its_limit_says() -> None:
    rig = Rig()
    rig.broker.vhost("/").set_limit("max-connections", 1, lambda _: None)
    first = rig.client()
    refused = enter(Client(rig))
    assert (refused.name, refused["reply_code"]) == ("connection.close", 530)
    assert "connection limit (1) is reached" in str(refused["reply_text"])
    first.gone()
    rig.client()


def test_the_number_of_connections_is_limited() -> None:
    rig = Rig(AmqpSettings(connections_max=1))
    rig.client()
    assert enter(Client(rig))["reply_code"] == 530


@pytest.mark.parametrize("odd", [{"product": {"a": []}}, {"capabilities": ["x"]}, {"capabilities": {"basic.nack": {}}}])
def test_client_properties_may_be_anything(odd: Table) -> None:
    rig = Rig()
    assert rig.client(odd).call(1, "basic.qos").name == "basic.qos-ok"


# Being alive.


def test_a_side_that_has_nothing_to_say_sends_heartbeats() -> None:
    rig = Rig()
    client = rig.client(heartbeat=10)
    client.wire.written.clear()
    for _ in range(6):
        rig.run(5.0)
        client.raw(HEARTBEAT)
    assert bytes(client.wire.written) == HEARTBEAT * 5  # what the handshake said counts for the first one


def test_a_client_that_is_silent_for_two_intervals_is_dropped_and_what_it_held_goes_back() -> None:
    rig = Rig()
    client, other = rig.client(heartbeat=10), rig.client()
    other.call(1, "queue.declare", queue="q")
    other.publish(1, "", "q", b"x")
    assert client.call(1, "basic.get", queue="q").name == "basic.get-ok"
    rig.run(15.0)
    assert not client.wire.aborted
    rig.run(10.1)
    assert client.wire.aborted
    client.gone()
    assert other.call(1, "basic.get", queue="q")["redelivered"] is True


def test_without_heartbeats_silence_means_nothing() -> None:
    rig = Rig()
    client = rig.client(heartbeat=0)
    rig.run(10_000.0)
    assert client.heard() == []
    assert client.call(1, "basic.qos", prefetch_count=1).name == "basic.qos-ok"


# Being held back.


def test_publishers_are_blocked_while_an_alarm_is_on_and_consumers_are_not() -> None:
    rig = Rig()
    publisher, consumer = rig.client(), rig.client()
    consumer.call(1, "queue.declare", queue="q")
    consumer.call(1, "basic.consume", queue="q")
    rig.broker.set_alarm(DISK, True)
    rig.run()
    assert publisher.heard() == []  # it has not published
    publisher.publish(1, "", "q", b"one")
    (blocked,) = publisher.heard()
    assert (blocked.name, blocked["reason"]) == ("connection.blocked", "low on disk")
    assert not publisher.wire.reading
    assert publisher.connection.shown_state == "blocked"
    publisher.publish(1, "", "q", b"two")  # was under way
    assert [heard.body for heard in consumer.heard()] == [b"one"]
    consumer.call(1, "basic.qos", prefetch_count=1)
    rig.broker.set_alarm(DISK, False)
    rig.run()
    assert publisher.names() == ["connection.unblocked"]
    assert publisher.wire.reading
    assert [heard.body for heard in consumer.heard()] == [b"two"]


def test_a_blocked_publisher_that_does_not_understand_blocking_is_blocked_without_a_word() -> None:
    rig = Rig()
    publisher = rig.client({})
    rig.broker.set_alarm(DISK, True)
    publisher.publish(1, "", "q", b"x")
    assert publisher.heard() == []
    assert not publisher.wire.reading


def test_a_blocked_publisher_is_not_taken_for_dead() -> None:
    rig = Rig()
    publisher = rig.client(heartbeat=10)
    rig.broker.set_alarm(DISK, True)
    publisher.publish(1, "", "q", b"x")
    rig.run(1000.0)
    assert not publisher.wire.aborted
    rig.broker.set_alarm(DISK, False)
    rig.run(50.0)
    assert publisher.wire.aborted


def test_a_publisher_is_not_read_while_too_much_of_it_is_not_safe() -> None:
    slow = Slow()
    rig = Rig(AmqpSettings(publish_window=10_000), cluster=slow)
    client = rig.client()
    client.call(1, "confirm.select")
    client.publish(1, "", "q", bytes(9_000))
    assert client.wire.reading
    client.publish(1, "", "q", bytes(9_000))
    assert not client.wire.reading
    assert client.connection.shown_state == "flow"
    slow.waiting.pop(0)()
    rig.run()
    assert not client.wire.reading  # more than half of the window is still out
    slow.let_go()
    rig.run()
    assert client.wire.reading
    assert [heard["delivery_tag"] for heard in client.heard()] == [1, 2]


def test_a_slow_client_is_delivered_nothing_until_it_has_taken_what_waits_for_it() -> None:
    rig = Rig(AmqpSettings(write_high=20_000))
    consumer, publisher = rig.client(), rig.client()
    consumer.call(1, "queue.declare", queue="q")
    consumer.call(1, "basic.consume", queue="q", no_ack=True)
    consumer.wire.stuck = 0
    for _ in range(100):
        publisher.publish(1, "", "q", bytes(1000))
    taken = len(consumer.heard())
    assert 18 <= taken <= 22
    assert rig.broker.vhost("/").queues["q"].ready == 100 - taken
    consumer.call(1, "basic.qos", prefetch_count=1)  # answers are written all the same
    consumer.wire.stuck = 5_000
    consumer.connection.drained()
    rig.run()
    assert len(consumer.heard()) > 10
    consumer.wire.stuck = None
    rig.run(0.1)  # also if nobody says that it drained
    assert rig.broker.vhost("/").queues["q"].ready == 0


def test_a_burst_to_a_fast_consumer_is_written_in_chunks_not_in_one_piece() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.raw(publish_frames(1, "", "q", bytes(10_000)) * 200)
    before = client.wire.writes
    client.send(1, "basic.consume", queue="q", no_ack=True)
    assert len(client.heard()) == 201
    assert 4 <= client.wire.writes - before <= 10


def test_what_one_turn_writes_goes_out_in_one_piece() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.call(1, "confirm.select")
    before = client.wire.writes
    client.raw(publish_frames(1, "", "q", b"x") * 50 + METHODS["basic.get"].frame(1, queue="q"))
    assert client.names() == ["basic.ack", "basic.get-ok"]
    assert client.wire.writes == before + 1


def test_a_client_that_asks_very_much_at_once_lets_others_have_their_turn() -> None:
    rig = Rig()
    greedy, other = rig.client(), rig.client()
    greedy.connection.received(METHODS["basic.qos"].frame(1) * (3 * TURN_COMMANDS))
    other.connection.received(METHODS["basic.qos"].frame(1))
    assert len(greedy.connection.outbox.parts) == TURN_COMMANDS
    rig.run()
    assert len(greedy.heard()) == 3 * TURN_COMMANDS
    assert greedy.wire.reading


def fanned_out(rig: Rig, queues: int) -> None:
    maker = rig.client()
    maker.call(1, "exchange.declare", exchange="all", type="fanout")
    for number in range(queues):
        maker.call(1, "queue.declare", queue=f"q{number}")
        maker.call(1, "queue.bind", queue=f"q{number}", exchange="all")


def first(rig: Rig) -> int:
    return rig.broker.vhost("/").queues["q0"].ready


def test_messages_to_many_queues_are_carried_out_some_at_a_time_and_others_have_their_turns() -> None:
    rig = Rig(AmqpSettings(turn_work=500))
    fanned_out(rig, 100)
    greedy = rig.client()
    greedy.call(1, "confirm.select")
    greedy.connection.received(publish_frames(1, "all", "", b"x") * 23 + METHODS["basic.qos"].frame(1))
    assert first(rig) == 5
    assert greedy.connection.shown_state == "running"  # its turn has ended, nothing holds it back
    rig.run()
    assert first(rig) == 23
    assert [heard.name for heard in greedy.heard()][-1] == "basic.qos-ok"
    greedy.call(1, "channel.close", reply_code=200)
    cheap = rig.client()
    cheap.connection.received(publish_frames(1, "", "q0", b"x") * 1000)
    assert first(rig) == 1023


def test_a_key_that_takes_too_many_steps_ends_the_channel_and_not_the_turn_of_others() -> None:
    rig = Rig(broker_settings=BrokerSettings(topic_steps_max=1000))
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.call(1, "exchange.declare", exchange="t", type="topic")
    for number in range(20):
        client.call(1, "queue.bind", queue="q", exchange="t", routing_key=f"#.{'*.' * 50}{number}")
    client.publish(1, "t", "a.b.c", b"x")
    assert client.heard() == []
    client.publish(1, "t", ".".join("a" * 100), b"x")
    (close,) = client.heard()
    assert (close["reply_code"], "topic_steps_max" in str(close["reply_text"])) == (406, True)


def test_nothing_more_is_read_before_what_has_come_is_worked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    client = rig.client()
    answered: list[int] = []
    monkeypatch.setattr(client.wire, "resume_reading", lambda: answered.append(len(client.heard())))
    client.connection.received(METHODS["basic.qos"].frame(1) * (3 * TURN_COMMANDS))
    rig.run()
    assert answered == [3 * TURN_COMMANDS]


# Ending.


def test_a_client_that_closes_is_answered_and_ends_the_stream_or_is_left_after_a_while() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="mine", exclusive=True)
    assert client.call(0, "connection.close", reply_code=200).name == "connection.close-ok"
    assert not client.wire.closed
    assert rig.broker.vhost("/").queues == {}
    rig.run(AmqpSettings().close_timeout + 0.1)
    assert client.wire.closed
    assert not client.wire.aborted
    assert "mine" not in rig.broker.vhost("/").queues
    client.gone()
    assert rig.server.connections == {}


def test_an_operator_closes_a_connection_with_a_reason() -> None:
    rig = Rig()
    client = rig.client()
    client.connection.close("maintenance")
    rig.run()
    (close,) = client.heard()
    assert (close["reply_code"], close["reply_text"]) == (320, "CONNECTION_FORCED - maintenance")
    client.send(0, "connection.close-ok")
    assert client.wire.closed


def test_a_client_that_does_not_answer_a_close_is_dropped() -> None:
    rig = Rig(AmqpSettings(close_timeout=3.0))
    client = rig.client()
    client.connection.close("maintenance")
    client.send(1, "queue.declare", queue="too late")
    assert client.names() == ["connection.close"]
    rig.run(2.9)
    assert not client.wire.aborted
    rig.run(0.2)
    assert client.wire.aborted
    assert rig.broker.vhost("/").queues == {}


def test_two_closes_that_cross_are_both_answered() -> None:
    rig = Rig()
    client = rig.client()
    client.connection.close("maintenance")
    client.send(0, "connection.close", reply_code=200)
    assert client.names() == ["connection.close", "connection.close-ok"]
    assert client.wire.closed


def test_bad_bytes_close_the_connection_and_nothing_of_them_is_carried_out() -> None:
    rig = Rig()
    client = rig.client()
    good = METHODS["queue.declare"].frame(1, queue="before")
    client.raw(good + b"\x01\x00\x01\xff\xff\xff\xff" + METHODS["queue.declare"].frame(1, queue="after"))
    names = client.heard()
    assert [heard.name for heard in names] == ["queue.declare-ok", "connection.close"]
    assert names[-1]["reply_code"] == 501
    assert client.wire.closed
    assert list(rig.broker.vhost("/").queues) == ["before"]


def test_what_came_before_an_error_in_the_same_read_is_carried_out() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.raw(publish_frames(1, "", "q", b"good") * 3 + publish_frames(1, "nowhere", "q", b"bad") + frame(9, 0, b""))
    assert [(heard.name, heard["reply_code"]) for heard in client.heard()] == [
        ("channel.close", 404),
        ("connection.close", 501),
    ]
    assert rig.broker.vhost("/").queues["q"].ready == 3


def test_a_connection_that_is_lost_gives_back_what_it_held_and_ends_its_exclusive_queues() -> None:
    rig = Rig()
    client, other = rig.client(channels=2), rig.client()
    client.call(1, "queue.declare", queue="mine", exclusive=True)
    other.call(1, "queue.declare", queue="q")
    client.send(2, "basic.consume", queue="q")
    for number in range(3):
        other.publish(1, "", "q", b"%d" % number)
    assert len(client.heard()) == 4
    client.gone()
    assert list(rig.broker.vhost("/").queues) == ["q"]
    bodies = [other.call(1, "basic.get", queue="q") for _ in range(3)]
    assert [(heard.body, heard["redelivered"]) for heard in bodies] == [(b"0", True), (b"1", True), (b"2", True)]


def test_a_server_that_stops_closes_everyone_and_says_when_they_are_gone() -> None:
    rig = Rig()
    one, two, opening = rig.client(), rig.client(), Client(rig)
    stopped: list[str] = []
    rig.server.stop(lambda: stopped.append("stopped"))
    rig.run()
    assert one.heard()[0]["reply_code"] == two.heard()[0]["reply_code"] == 320
    assert opening.wire.closed
    for client in (one, two, opening):
        assert stopped == []
        client.gone()
    assert stopped == ["stopped"]


def test_a_vhost_that_is_deleted_takes_its_connections_with_it() -> None:
    rig = Rig()
    rig.broker.add_vhost("v", lambda _: None)
    rig.permit("guest", "v")
    inside, outside = Client(rig).open(vhost="v"), rig.client()
    rig.broker.delete_vhost("v", lambda _: None)
    rig.run()
    assert inside.heard()[0]["reply_code"] == 320
    assert outside.heard() == []


def test_a_new_secret_changes_nothing_and_is_answered_at_once() -> None:
    """It is no password: nobody is asked whether it is good, and nobody has to wait for that."""
    rig = Rig()
    client = rig.client()
    user = client.connection.user
    for secret in (b"guest", b"wrong", b"", bytes(255)):
        ok = client.call(0, "connection.update-secret", new_secret=secret, reason="rotated")
        assert ok.name == "connection.update-secret-ok"
    assert client.connection.user is user


# What the log says.


def test_every_line_of_a_client_has_the_name_that_it_gave_itself(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    caplog.set_level("INFO", "coterie")
    client = rig.client({**CAPABLE, "connection_name": "the shop"})
    client.call(0, "connection.update-secret", new_secret=b"x", reason="rotated")
    client.send(1, "queue.declare", queue="none", passive=True)
    rig.run()
    client.send(1, "basic.ack", delivery_tag=1)
    client.raw(b"garbage" * 10)
    rig.run()
    said = {record.getMessage(): facts_of(record) for record in caplog.records if "client" in facts_of(record)}
    assert {"client connected", "client has a new secret", "channel closed", "connection closed"} <= said.keys()
    assert {facts["client"] for facts in said.values()} == {f"{client.connection.name} - the shop"}


@pytest.mark.parametrize("given", ["", b"bytes", 5, None, "x" * 5000])
def test_a_name_that_is_none_or_without_end_does_no_harm_to_the_log(given: Value) -> None:
    client = Rig().client({**CAPABLE, "connection_name": given})
    assert len(client.connection.shown_name) <= len(client.connection.name) + 3 + 255
    assert client.connection.shown_name.startswith(client.connection.name)


# What the console sees.


def test_a_connection_shows_who_it_is_and_what_it_does() -> None:
    rig = Rig()
    client = rig.client({**CAPABLE, "product": "test"}, channels=2)
    client.call(1, "queue.declare", queue="q")
    client.call(1, "basic.qos", prefetch_count=7)
    client.call(1, "basic.qos", prefetch_count=9, **{"global": True})
    client.call(1, "basic.consume", queue="q", consumer_tag="t")
    client.call(2, "confirm.select")
    client.raw(publish_frames(2, "", "q", b"x") * 3 + publish_frames(2, "", "no", b"x", mandatory=True))
    client.send(1, "basic.ack", delivery_tag=1)
    client.send(1, "basic.reject", delivery_tag=2)
    connection = client.connection
    assert connection.name == "127.0.0.1:40000 -> 127.0.0.1:5672"
    assert (connection.user.name, connection.vhost.name, connection.shown_state) == ("guest", "/", "running")
    assert connection.client_properties["product"] == "test"
    assert connection.received_bytes > 0
    assert connection.sent_bytes == connection.outbox.sent > 0
    one, two = connection.channels.values()
    assert (one.prefetch, one.prefetch_all, list(one.consumers), one.deliveries.count) == (7, 9, ["t"], 1)
    assert two.confirms is not None
    assert (two.confirms.published, two.confirms.confirmed) == (4, 4)
    expected = {
        "published": 4,
        "to_confirm": 4,
        "confirmed": 4,
        "returned": 1,
        "delivered": 3,
        "acked": 1,
        "rejected": 1,
    }
    assert {name: count for name, count in connection.traffic.as_dict().items() if count} == expected
    client.call(2, "channel.close")
    client.gone()
    assert {name: count for name, count in rig.server.traffic.as_dict().items() if count} == expected
