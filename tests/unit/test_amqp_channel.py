"""Channels: what only a test that sees inside can pin down. What any client can see is in tests/conformance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from amqp_rig import CAPABLE, Client, Rig, frame, publish_frames
from test_amqp_connection import Slow

from coterie.amqp.channel import COPY
from coterie.amqp.settings import AmqpSettings
from coterie.amqp.wire.codes import NOT_FOUND, PRECONDITION_FAILED
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties
from coterie.broker.cluster import NullCluster
from coterie.broker.delivery import Delivery
from coterie.broker.message import make_message
from coterie.broker.publish import Publish, Routed
from coterie.broker.queue import Queue
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import Change
from coterie.errors import ProtocolError

R = TypeVar("R")


class Deferring(NullCluster):
    """Decides about the wiring, and about basic.get, when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.at_once = True

    def wiring(self, vhost: Vhost, change: Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        self._later(lambda: super(Deferring, self).wiring(vhost, change, done))

    def get(
        self, queue: Queue, holder: object, no_ack: bool, done: Callable[[Delivery | ProtocolError | None], None]
    ) -> None:
        self._later(lambda: super(Deferring, self).get(queue, holder, no_ack, done))

    def _later(self, call: Callable[[], None]) -> None:
        if self.at_once:
            call()
        else:
            self.waiting.append(call)

    def decide(self) -> None:
        """One decision."""
        self.waiting.pop(0)()


def deferred(settings: AmqpSettings | None = None, channels: int = 1) -> tuple[Rig, Deferring, Client]:
    cluster = Deferring()
    rig = Rig(settings, cluster=cluster)
    client = rig.client(channels=channels)
    cluster.at_once = False
    return rig, cluster, client


# Order.


def test_what_waits_behind_a_command_lets_others_have_their_turns_if_it_makes_much_work() -> None:
    rig, cluster, client = deferred(AmqpSettings(turn_work=500))
    cluster.at_once = True
    client.call(1, "exchange.declare", exchange="all", type="fanout")
    for number in range(100):
        client.call(1, "queue.declare", queue=f"q{number}")
        client.call(1, "queue.bind", queue=f"q{number}", exchange="all")
    cluster.at_once = False
    queue = rig.broker.vhost("/").queues["q0"]
    qos = METHODS["basic.qos"].frame(1)
    client.connection.received(
        METHODS["queue.declare"].frame(1, queue="x") + publish_frames(1, "all", "", b"x") * 23 + qos
    )
    assert queue.ready == 0
    cluster.decide()
    assert queue.ready == 5
    client.connection.received(qos)  # it waits behind all of that
    assert queue.ready == 5
    rig.run()
    assert queue.ready == 23
    assert client.names() == ["queue.declare-ok", "basic.qos-ok", "basic.qos-ok"]


def test_everything_behind_a_command_that_is_being_decided_waits_for_it_in_its_order() -> None:
    rig, cluster, client = deferred(channels=2)
    client.raw(
        METHODS["queue.declare"].frame(1, queue="q")
        + METHODS["confirm.select"].frame(1)
        + publish_frames(1, "", "q", b"one")
        + publish_frames(1, "", "q", bytes(200_000))
        + METHODS["basic.get"].frame(1, queue="q", no_ack=True)
        + METHODS["basic.qos"].frame(2)
    )
    assert client.names() == ["basic.qos-ok"]  # of the other channel
    cluster.decide()
    rig.run()
    assert client.names() == ["queue.declare-ok", "confirm.select-ok", "basic.ack"]
    cluster.decide()
    rig.run()
    (got,) = client.heard()
    assert (got.body, got["message_count"]) == (b"one", 1)


def test_a_command_that_is_refused_later_closes_the_channel_and_what_waited_is_dropped() -> None:
    rig, cluster, client = deferred()
    client.raw(METHODS["queue.purge"].frame(1, queue="none") + METHODS["queue.declare"].frame(1, queue="q"))
    cluster.decide()
    rig.run()
    (close,) = client.heard()
    assert (close.name, close["reply_code"], close["class_id"], close["method_id"]) == ("channel.close", 404, 50, 30)
    assert cluster.waiting == []
    assert client.call(1, "channel.close").name == "channel.close-ok"


def test_any_number_of_commands_may_wait_behind_one_that_is_being_decided() -> None:
    rig, cluster, client = deferred()
    client.send(1, "queue.declare", queue="q")
    client.raw(METHODS["queue.declare"].frame(1, queue="other", no_wait=True) * 2000)
    client.send(1, "basic.qos")
    assert client.names() == []
    cluster.at_once = True
    cluster.decide()
    rig.run()
    assert client.names() == ["queue.declare-ok", "basic.qos-ok"]
    assert "other" in rig.broker.vhost("/").queues


def test_a_client_that_goes_on_while_a_command_is_being_decided_is_not_read_for_ever() -> None:
    rig, cluster, client = deferred(AmqpSettings(backlog_max=10_000), channels=2)
    client.send(1, "queue.declare", queue="q")
    for _ in range(9):
        client.publish(1, "", "q", bytes(1000))
    assert client.wire.reading
    client.publish(1, "", "q", bytes(1000))
    assert not client.wire.reading
    cluster.decide()
    rig.run()
    assert client.wire.reading
    assert rig.broker.vhost("/").queues["q"].ready == 10


def test_an_answer_that_comes_after_the_channel_has_closed_is_nobodys() -> None:
    rig, cluster, client = deferred(channels=2)
    client.send(1, "queue.declare", queue="q")
    client.connection.close("over")
    client.heard()
    cluster.decide()
    rig.run()
    assert client.heard() == []


class Refusing(NullCluster):
    """Takes no publish, once it is told so."""

    refuses = False

    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        if self.refuses:
            raise ProtocolError(PRECONDITION_FAILED, "refused")
        super().publish(vhost, routed, done, publishes)


def test_publishes_that_are_refused_while_the_connection_ends_do_not_keep_it_from_ending() -> None:
    cluster = Refusing()
    rig = Rig(cluster=cluster)
    client = rig.client(channels=2)
    client.call(1, "queue.declare", queue="q")
    for body in (b"1", b"2"):
        client.publish(1, "", "q", body)
    for channel in (1, 2):
        client.call(channel, "basic.get", queue="q")
    cluster.refuses = True
    client.raw(
        METHODS["basic.ack"].frame(1, delivery_tag=1)
        + publish_frames(1, "", "q", b"x")
        + publish_frames(2, "", "q", b"x")
        + bytes(9)  # no frame
    )
    assert client.names()[-1] == "connection.close"
    client.gone()
    queue = rig.broker.vhost("/").queues["q"]
    assert (queue.ready, queue.unacked) == (1, 0)
    assert list(rig.server.connections) == []


def test_a_message_that_was_got_too_late_goes_back_unseen() -> None:
    rig, cluster, client = deferred()
    cluster.at_once = True
    client.call(1, "queue.declare", queue="q")
    client.publish(1, "", "q", b"x")
    cluster.at_once = False
    client.send(1, "basic.get", queue="q")
    client.gone()
    cluster.decide()
    rig.run()
    queue = rig.broker.vhost("/").queues["q"]
    assert (queue.ready, queue.unacked) == (1, 0)
    cluster.at_once = True
    assert rig.client().call(1, "basic.get", queue="q")["redelivered"] is False


def test_a_command_sees_what_other_channels_of_the_connection_published_before_it() -> None:
    rig = Rig()
    client = rig.client(channels=2)
    client.call(1, "queue.declare", queue="q")
    client.raw(publish_frames(1, "", "q", b"x") * 3 + METHODS["queue.declare"].frame(2, queue="q", passive=True))
    (declared,) = client.heard()
    assert declared["message_count"] == 3


def test_a_permission_that_is_taken_away_counts_from_the_next_read_on() -> None:
    rig = Rig()
    client = rig.client()
    client.publish(1, "amq.fanout", "", b"x")
    rig.permit("guest", write="^nothing$")
    client.publish(1, "amq.fanout", "", b"x")
    (close,) = client.heard()
    assert (close.name, close["reply_code"]) == ("channel.close", 403)


def test_an_exchange_that_another_channel_deletes_is_gone_for_the_next_publish() -> None:
    client = Rig().client(channels=2)
    client.call(2, "exchange.declare", exchange="x", type="fanout")
    delete = METHODS["exchange.delete"].frame(2, exchange="x", no_wait=True)
    client.raw(publish_frames(1, "x", "", b"1") + delete + publish_frames(1, "x", "", b"2"))
    (close,) = client.heard()
    assert (close.name, close["reply_code"]) == ("channel.close", 404)


# Confirms.


def test_what_came_in_one_read_is_confirmed_in_one_frame() -> None:
    client = Rig().client()
    client.call(1, "confirm.select")
    client.raw(publish_frames(1, "", "q", b"x") * 20)
    client.raw(publish_frames(1, "", "q", b"x"))
    heard = client.heard()
    assert [(each["delivery_tag"], each["multiple"]) for each in heard] == [(20, True), (21, False)]


def test_nothing_is_confirmed_before_it_is_safe_and_returns_come_before_it() -> None:
    slow = Slow()
    rig = Rig(cluster=slow)
    client = rig.client()
    client.call(1, "confirm.select")
    client.raw(publish_frames(1, "", "none", b"x", mandatory=True) + publish_frames(1, "", "none", b"y"))
    assert client.names() == ["basic.return"]
    slow.let_go()
    rig.run()
    assert [(each.name, each["delivery_tag"]) for each in client.heard()] == [("basic.ack", 2)]


def test_what_was_published_before_confirm_mode_is_not_counted_in_it() -> None:
    slow = Slow()
    rig = Rig(cluster=slow)
    client = rig.client()
    client.publish(1, "", "q", b"unconfirmed")
    client.call(1, "confirm.select")
    client.publish(1, "", "q", b"confirmed")
    slow.let_go()
    rig.run()
    assert [each["delivery_tag"] for each in client.heard()] == [1]


def test_a_confirm_of_a_channel_that_is_over_is_not_sent_on_its_successor() -> None:
    slow = Slow()
    rig = Rig(cluster=slow)
    client = rig.client()
    client.call(1, "confirm.select")
    client.publish(1, "", "q", b"x")
    client.call(1, "channel.close")
    client.call(1, "channel.open")
    client.call(1, "confirm.select")
    slow.let_go()
    rig.run()
    assert client.heard() == []


@pytest.mark.parametrize(("free", "answers"), [
    (5, ["ack 5+"]),
    (3, ["ack 3+", "nack 4", "nack 5"]),
    (0, ["nack 1", "nack 2", "nack 3", "nack 4", "nack 5"]),
])  # fmt: skip
def test_what_a_full_queue_refuses_is_nacked_and_nothing_else_is(free: int, answers: list[str]) -> None:
    client = Rig().client()
    client.call(1, "queue.declare", queue="q", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    client.raw(publish_frames(1, "", "q", b"x") * (5 - free))
    client.call(1, "confirm.select")
    client.raw(publish_frames(1, "", "q", b"x") * 5)
    found = [(each.name[6:], each["delivery_tag"], each.arguments.get("multiple")) for each in client.heard()]
    assert [f"{name} {tag!r}{'+' if many else ''}" for name, tag, many in found] == answers


def test_a_batch_that_is_safe_before_an_earlier_one_is_told_after_it_and_as_its_own() -> None:
    slow = Slow()
    rig = Rig(cluster=slow)
    client = rig.client()
    client.call(1, "queue.declare", queue="q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    client.call(1, "confirm.select")
    client.raw(publish_frames(1, "", "q", b"x") * 2)
    client.raw(publish_frames(1, "", "q", b"x") * 2)  # these are refused
    first, second = slow.waiting
    second()
    rig.run()
    assert client.heard() == []
    first()
    rig.run()
    heard = [(each.name[6:], each["delivery_tag"]) for each in client.heard()]
    assert heard == [("ack", 2), ("nack", 3), ("nack", 4)]


# Content.


def test_contents_of_several_channels_may_be_interleaved() -> None:
    rig = Rig()
    client = rig.client(channels=2)
    client.call(1, "queue.declare", queue="q")
    frames = []
    for channel in (1, 2):
        data = publish_frames(channel, "", "q", b"%d" % channel * 10_000, frame_max=4096)
        mine = []
        while data:
            size = int.from_bytes(data[3:7], "big") + 8
            mine.append(data[:size])
            data = data[size:]
        frames.append(mine)
    client.raw(b"".join(piece for pair in zip(*frames, strict=True) for piece in pair))
    assert [client.call(1, "basic.get", queue="q").body for _ in range(2)] == [b"1" * 10_000, b"2" * 10_000]


def test_unfinished_messages_may_not_take_more_memory_than_allowed() -> None:
    rig = Rig(AmqpSettings(partial_max=250_000))
    client = rig.client(channels=2)
    last = 200_000 - (131_072 - 8) + 8
    client.raw(publish_frames(1, "", "q", bytes(200_000))[:-last])
    assert client.heard() == []
    client.raw(publish_frames(2, "", "q", bytes(200_000))[:-last])
    (close,) = client.heard()
    assert (close.name, close["reply_code"]) == ("connection.close", 506)


def test_memory_of_messages_that_will_never_be_finished_is_given_back() -> None:
    rig = Rig()
    client = rig.client(channels=2)
    client.raw(publish_frames(1, "", "q", bytes(200_000))[:-1000])
    assert client.connection.partial > 100_000
    client.raw(publish_frames(1, "", "q", bytes(200_000))[-1000:])
    assert client.connection.partial == 0


# Delivering.


def test_a_message_that_does_not_fit_into_a_frame_is_cut() -> None:
    rig = Rig()
    small = Client(rig).open(frame_max=4096)
    large = rig.client()
    large.call(1, "queue.declare", queue="q")
    body = bytes(range(256)) * 64
    for each in (b"", b"x", body[: 4096 - 8], body[: 4096 - 7], body):
        large.publish(1, "", "q", each, Properties(message_id=str(len(each))))
    small.send(1, "basic.consume", queue="q", no_ack=True)
    kinds = small.frames()
    assert max(len(payload) for _, _, payload in kinds) == 4096 - 8
    small.wire.written += b"".join(frame(*each) for each in kinds)
    heard = small.heard()[1:]
    assert [each.body for each in heard] == [b"", b"x", body[: 4096 - 8], body[: 4096 - 7], body]
    assert [each.properties.message_id for each in heard if each.properties] == [str(len(each.body)) for each in heard]


def test_the_same_properties_with_other_sizes_are_not_mixed_up() -> None:
    client = Rig().client()
    client.call(1, "queue.declare", queue="q")
    client.send(1, "basic.consume", queue="q", no_ack=True)
    bodies = [b"x" * size for size in (1, 2, 1, 3, 2, 1)]
    client.raw(b"".join(publish_frames(1, "", "q", body) for body in bodies))
    assert [each.body for each in client.heard()[1:]] == bodies


def test_routing_keys_and_properties_that_never_come_again_are_forgotten() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.call(1, "queue.bind", queue="q", exchange="amq.fanout")
    client.send(1, "basic.consume", queue="q", no_ack=True)
    for number in range(1000):
        properties = Properties(message_id=str(number))
        client.connection.received(publish_frames(1, "amq.fanout", f"key {number}", b"x", properties))
        rig.run()
    assert len(client.heard()) == 1001
    channel = client.connection.channels[1]
    (consumer,) = channel.consumers.values()
    sizes = [
        len(channel.inbound._routes),
        len(channel.inbound._headers),
        len(consumer.heads),
        len(channel.frames._middles),
    ]
    assert max(sizes) <= 256


def test_a_consumer_whose_messages_were_evicted_can_settle_them_and_gets_others() -> None:
    """A ring takes messages out of its consumers' hands; their credit must come back all the same."""
    client = Rig().client()
    client.call(1, "queue.declare", queue="q", arguments={"x-max-length": 2, "x-overflow": "ring"})
    client.call(1, "basic.qos", prefetch_count=2)
    client.call(1, "basic.consume", queue="q")
    client.raw(publish_frames(1, "", "q", b"x") * 2)
    assert len(client.heard()) == 2
    client.raw(publish_frames(1, "", "q", b"y") * 2)
    assert client.heard() == []
    client.send(1, "basic.ack", delivery_tag=2, multiple=True)
    assert [each.body for each in client.heard()] == [b"y", b"y"]


def test_acknowledging_what_was_got_makes_room_for_the_channels_consumers() -> None:
    client = Rig().client()
    client.call(1, "queue.declare", queue="q")
    client.raw(publish_frames(1, "", "q", b"x") * 3)
    client.call(1, "basic.qos", prefetch_count=1, **{"global": True})
    client.call(1, "basic.get", queue="q")
    client.call(1, "basic.consume", queue="q")
    assert client.heard() == []
    client.send(1, "basic.ack", delivery_tag=1)
    assert [each["delivery_tag"] for each in client.heard()] == [2]


@pytest.mark.parametrize(("product", "changes"), [("pika", False), ("py-amqp", True)])
def test_clients_that_expect_to_change_the_prefetch_of_a_running_consumer_do(product: str, changes: bool) -> None:
    """kombu does so without `global` unless the broker is called RabbitMQ."""
    client = Rig().client({**CAPABLE, "product": product})
    client.call(1, "queue.declare", queue="q")
    client.call(1, "basic.qos", prefetch_count=1)
    client.call(1, "basic.consume", queue="q")
    client.raw(publish_frames(1, "", "q", b"x") * 8)
    assert len(client.heard()) == 1
    client.send(1, "basic.qos", prefetch_count=4)
    assert client.names() == ["basic.qos-ok"] + (["basic.deliver"] * 3 if changes else [])
    client.send(1, "basic.qos", prefetch_count=2)
    assert client.names() == ["basic.qos-ok"]
    client.send(1, "basic.ack", delivery_tag=1)
    assert client.names() == ([] if changes else ["basic.deliver"])


@pytest.mark.parametrize("product", ["pika", "py-amqp"])
def test_each_consumer_of_a_channel_has_a_prefetch_of_its_own(product: str) -> None:
    """One that holds all that it may keeps nothing from another: nameko waits for an answer while it does so."""
    client = Rig().client({**CAPABLE, "product": product})
    for queue in ("calls", "answers"):
        client.call(1, "queue.declare", queue=queue)
        client.call(1, "basic.qos", prefetch_count=1)
        client.call(1, "basic.consume", queue=queue, consumer_tag=queue)
        client.raw(publish_frames(1, "", queue, b"x") * 2)
        assert [heard["consumer_tag"] for heard in client.heard()] == [queue]


def test_replies_to_a_client_that_takes_nothing_are_dropped() -> None:
    rig = Rig(AmqpSettings(write_high=4096))
    client = rig.client()
    client.call(1, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    client.wire.stuck = 0
    (name,) = rig.broker.vhost("/").pseudo
    other = rig.client()
    for _ in range(100):
        other.publish(1, "", name, bytes(1000))
    taken = len(client.heard())
    assert 28 <= taken <= 33
    replies = client.connection.channels[1].replies
    assert replies is not None
    assert replies.dropped == 100 - taken


def test_replies_end_with_their_channel() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    assert len(rig.broker.vhost("/").pseudo) == 1
    client.call(1, "channel.close")
    assert rig.broker.vhost("/").pseudo == {}


def test_a_message_made_by_the_broker_itself_is_delivered_like_any_other() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.call(1, "basic.consume", queue="q")
    rig.broker.vhost("/").queues["q"].enqueue([make_message("", "q", b"hello", Properties(type="greeting"))])
    rig.run()
    (heard,) = client.heard()
    assert heard.body == b"hello"
    assert heard.properties == Properties(type="greeting")


# Transactions.


def test_the_credit_of_what_is_settled_in_a_transaction_comes_back_with_the_commit() -> None:
    client = Rig().client()
    client.call(1, "queue.declare", queue="q")
    client.call(1, "basic.qos", prefetch_count=2)
    client.call(1, "basic.consume", queue="q")
    client.call(1, "tx.select")
    other = client.rig.client()
    other.raw(publish_frames(1, "", "q", b"x") * 4)
    assert len(client.heard()) == 2
    client.send(1, "basic.ack", delivery_tag=2, multiple=True)
    assert client.heard() == []
    client.send(1, "tx.commit")
    assert client.names() == ["tx.commit-ok", "basic.deliver", "basic.deliver"]


def test_what_was_settled_in_a_transaction_that_never_was_committed_goes_back_with_the_channel() -> None:
    rig = Rig()
    client = rig.client(channels=2)
    client.call(2, "queue.declare", queue="q")
    client.raw(publish_frames(2, "", "q", b"x") * 3)
    client.call(1, "tx.select")
    for _ in range(3):
        client.call(1, "basic.get", queue="q")
    client.send(1, "basic.ack", delivery_tag=1)
    client.send(1, "basic.reject", delivery_tag=2)
    client.publish(1, "", "q", b"never")
    client.call(1, "channel.close")
    queue = rig.broker.vhost("/").queues["q"]
    assert (queue.ready, queue.unacked) == (3, 0)


def test_a_transaction_may_not_grow_without_bounds() -> None:
    client = Rig(AmqpSettings(transaction_max=5000 + COPY)).client()
    client.call(1, "tx.select")
    client.publish(1, "", "q", bytes(5000))
    assert client.heard() == []
    client.publish(1, "", "q", b"x")
    (close,) = client.heard()
    assert (close.name, close["reply_code"]) == ("channel.close", 406)


def test_an_unexpected_code_of_the_broker_reaches_the_client() -> None:
    """Whatever a vhost refuses with is what the client is told."""
    rig, cluster, client = deferred()
    client.send(1, "exchange.declare", exchange="x", type="direct")
    cluster.waiting.clear()
    channel = client.connection.channels[1]
    done = channel.later(
        METHODS["exchange.declare"].decode(METHODS["exchange.declare"].encode(type="direct")), lambda _: None
    )
    done(ProtocolError(NOT_FOUND, "é" * 200))
    rig.run()
    (close,) = client.heard()
    text = str(close["reply_text"])
    assert text.startswith("NOT_FOUND - é")
    assert len(text.encode()) in (254, 255)
