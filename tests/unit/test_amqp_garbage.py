"""Whatever a client sends, it gets a proper close or nothing, and nobody else notices."""

from __future__ import annotations

from amqp_rig import CAPABLE, LOGIN, Client, Rig, frame, publish_frames
from hypothesis import given
from hypothesis import strategies as st
from test_amqp_methods import KINDS

from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Value

names = st.sampled_from(["", "q", "q2", "amq.fanout", "amq.rabbitmq.reply-to", "none"])
OVERRIDES: dict[str, st.SearchStrategy[Value]] = {
    "queue": names,
    "exchange": names,
    "source": names,
    "destination": names,
    "routing_key": names,
    "consumer_tag": st.sampled_from(["", "t", "u"]),
    "type": st.sampled_from(["direct", "topic", "headers", "fanout", "odd"]),
    "delivery_tag": st.integers(0, 6),
    "arguments": st.just({}) | KINDS["table"] | st.just({"x-max-length": 2, "x-overflow": "reject-publish"}),
}


@st.composite
def methods(draw: st.DrawFn) -> bytes:
    """Any method with plausible arguments, on any channel."""
    method = METHODS[draw(st.sampled_from(sorted(METHODS)))]
    arguments = {field: draw(OVERRIDES.get(field, KINDS[kind])) for kind, field in method.fields}
    return method.frame(draw(st.integers(0, 3)), **arguments)


publishes = st.builds(
    publish_frames,
    st.integers(0, 3),
    names,
    names,
    st.binary(max_size=20),
    st.builds(
        Properties,
        expiration=st.none() | st.sampled_from(["0", "5", "x"]),
        reply_to=st.none() | names,
        user_id=st.none() | st.sampled_from(["guest", "other"]),
        priority=st.none() | st.integers(0, 255),
    ),
    mandatory=st.booleans(),
    immediate=st.booleans(),
)
frames = st.builds(frame, st.integers(0, 9), st.integers(0, 3), st.binary(max_size=30))
anything = st.lists(methods() | methods() | publishes | publishes | frames, max_size=30)


def check(rig: Rig, client: Client, other: Client) -> None:
    """What was sent back is sound, the connection lives or was closed properly, and the other one does not care."""
    heard = client.heard()
    closes = [each for each in heard if each.name == "connection.close"]
    assert len(closes) <= 1
    for close in closes:
        assert 300 < int(str(close["reply_code"])) < 600
        assert str(close["reply_text"])
    client.gone()
    assert len(rig.server.connections) == 1
    assert not rig.broker.vhost("/").pseudo
    assert other.call(1, "queue.declare", queue="sound", exclusive=True).name == "queue.declare-ok"
    for queue in rig.broker.vhost("/").queues.values():
        assert queue.unacked == 0
        assert queue.consumers == []
        assert queue.owner in (None, other.connection)


@given(anything, st.booleans())
def test_a_running_connection_survives_garbage_or_is_closed_properly(sent: list[bytes], at_once: bool) -> None:
    rig = Rig()
    client, other = rig.client(channels=2), rig.client()
    other.call(1, "queue.declare", queue="q")
    for data in [b"".join(sent)] if at_once else sent:
        client.raw(data)
    check(rig, client, other)


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_garbage_of_whoever_has_not_logged_in_is_answered_properly(pieces: list[bytes], header: bool) -> None:
    rig = Rig()
    other, client = rig.client(), Client(rig)
    if header:
        client.raw(PROTOCOL_HEADER)
    for piece in pieces:
        client.raw(piece)
    if header:
        check(rig, client, other)
    client.gone()
    assert len(rig.server.connections) == 1


@given(st.lists(methods(), max_size=4))
def test_methods_out_of_their_order_fuzz_during_the_handshake(sent: list[bytes]) -> None:
    rig = Rig()
    other, client = rig.client(), Client(rig)
    client.raw(PROTOCOL_HEADER + b"".join(sent))
    client.send(
        0, "connection.start-ok", client_properties=CAPABLE, mechanism="PLAIN", response=b"\0guest\0guest", locale="x"
    )
    rig.run(LOGIN)
    check(rig, client, other)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_an_altered_session_fuzz_harms_nobody_else(place: int, byte: int) -> None:
    rig = Rig()
    client, other = rig.client(channels=2), rig.client()
    session = bytearray(
        METHODS["queue.declare"].frame(1, queue="q", arguments={"x-max-priority": 3})
        + METHODS["basic.consume"].frame(1, queue="q", consumer_tag="t")
        + METHODS["confirm.select"].frame(2)
        + publish_frames(2, "", "q", b"one", Properties(headers={"a": [1, {"b": "c"}]}, delivery_mode=2)) * 2
        + publish_frames(2, "amq.headers", "q", b"two", Properties(headers={"a": 1}))
        + METHODS["basic.ack"].frame(1, delivery_tag=1)
        + METHODS["tx.select"].frame(1)
        + METHODS["basic.nack"].frame(1, delivery_tag=0, multiple=True, requeue=True)
        + METHODS["tx.commit"].frame(1)
    )
    session[place % len(session)] = byte
    client.raw(bytes(session))
    check(rig, client, other)
