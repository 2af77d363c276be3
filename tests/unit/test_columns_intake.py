"""What a channel publishes becomes an event: what it says, and what it refuses, is what it was before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from amqp_rig import frame
from hypothesis import given
from hypothesis import strategies as st

from coterie.amqp.publishing import Inbound
from coterie.amqp.wire.codes import ACCESS_REFUSED, FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from coterie.amqp.wire.framing import FrameHandler, FrameReader, Repeat
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties, decode, encode
from coterie.broker.columns import EventBuilder, PublishEvent, Route
from coterie.broker.columns.intake import KNOWN_MAX, Intake
from coterie.broker.specs import REPLY_TO
from coterie.errors import ProtocolError

MESSAGE_MAX = 1000
USER = "guest"


def check(exchange: str, key: str) -> None:
    if exchange == "secret":
        raise ProtocolError(ACCESS_REFUSED, f"no access to {exchange} with {key}")


class Wiring:
    """Each key is a queue; `by headers` is an exchange that looks at the header `to`."""

    def __init__(self) -> None:
        self.version = 1
        self.queues = {"one": 1, "two": 2, "three": 3}
        self.asked = 0

    def find(
        self, exchange: str, keys: Sequence[str], headers: Callable[[], Mapping[str, object]]
    ) -> tuple[tuple[int, ...], bool]:
        self.asked += 1
        if exchange == "by headers":
            return (self.queues[str(headers()["to"])],), False
        return tuple(dict.fromkeys(self.queues[key] for key in keys if key in self.queues)), True


class Channel(FrameHandler):
    """Hands frames of channel 1 to an intake, or to today's."""

    def __init__(self, into: Intake[str] | Inbound) -> None:
        self._into = into
        self.error: ProtocolError | None = None

    def method(self, channel: int, payload: bytes) -> None:
        self._into.method(payload)

    def header(self, channel: int, payload: bytes) -> None:
        self._into.header(payload)

    def body(self, channel: int, payload: bytes) -> None:
        self._into.body(payload)

    def publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        return self._into.publish(method, header, body)

    def feed(self, *pieces: bytes) -> ProtocolError | None:
        reader = FrameReader(self, 4096)
        try:
            for piece in pieces:
                reader.feed(piece)
        except ProtocolError as error:
            return error
        return None


class Rig:
    def __init__(self) -> None:
        self.wiring = Wiring()
        self.builder: EventBuilder[str] = EventBuilder()
        self.intake = Intake(self.builder, "channel", self.wiring, MESSAGE_MAX, USER, check)

    def publish(self, *messages: bytes) -> PublishEvent:
        """All of them arrive in one piece."""
        error = Channel(self.intake).feed(b"".join(messages))
        if error is not None:
            raise error
        event, _ = self.builder.take()
        assert event is not None
        return event


def a_publish(
    key: str = "one",
    body: bytes = b"body",
    exchange: str = "",
    weight: int = 0,
    mandatory: bool = False,
    **properties: Any,
) -> bytes:
    method = METHODS["basic.publish"].encode(exchange=exchange, routing_key=key, mandatory=mandatory)
    header = encode(Properties(**properties), len(body))
    header = header[:2] + weight.to_bytes(2, "big") + header[4:]
    return raw_publish(method, header, body)


def raw_publish(method: bytes, header: bytes, body: bytes) -> bytes:
    frames = [frame(FRAME_METHOD, 1, method), frame(FRAME_HEADER, 1, header)]
    return b"".join(frames + ([frame(FRAME_BODY, 1, body)] if body else []))


properties = st.fixed_dictionaries(
    {},
    optional={
        "delivery_mode": st.sampled_from([0, 1, 2, 255]),
        "priority": st.integers(0, 255),
        "expiration": st.sampled_from(["0", "17", str(2**32 - 1), str(2**32), "-1", "", "1.5"]),
        "message_id": st.text(max_size=10),
        "user_id": st.sampled_from([USER, USER, "somebody"]),
        "headers": st.sampled_from([{}, {"a": 1}, {"CC": ["two"]}, {"CC": "two"}]),
        "reply_to": st.sampled_from(["queue", REPLY_TO]),
    },
)
publishes = st.builds(
    lambda key, exchange, body, mandatory, some: a_publish(key, body, exchange, mandatory=mandatory, **some),
    st.sampled_from(["one", "two", "three"]),
    st.sampled_from(["", "", "", "exchange", "secret"]),
    st.one_of(st.just(b"x" * 100), st.binary(max_size=20), st.just(b"x" * (MESSAGE_MAX + 1))),
    st.booleans(),
    st.one_of(st.just({"delivery_mode": 2}), properties),
)


@given(st.lists(publishes, min_size=1, max_size=8), st.data())
def test_what_comes_in_is_what_came_in_before(messages: list[bytes], data: st.DataObject) -> None:
    """The same messages, the same refusals, however the bytes are cut."""
    stream = b"".join(messages)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=4)))
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    rig, before = Rig(), Inbound(MESSAGE_MAX, USER, check, lambda route, kept: 1)
    rig.intake.replies_to("reply.1")
    before.replies_to("reply.1")
    error, error_before = Channel(rig.intake).feed(*pieces), Channel(before).feed(*pieces)
    assert (str(error), getattr(error, "reply_code", 0)) == (str(error_before), getattr(error_before, "reply_code", 0))
    sent, _, _ = before.take()
    event, _ = rig.builder.take()
    assert (event.count if event is not None else 0) == len(sent)
    for at, publish in enumerate(sent):
        assert event is not None
        message = publish.message
        route = event.route(at)
        flags, priority, expiry = event.flags(at, at + 1), event.priorities(at, at + 1), event.expiries(at, at + 1)
        assert (route.raw, route.mandatory) == (message.route, publish.mandatory)
        assert (event.header(at), bytes(event.body(at))) == (message.header, message.body)
        values = [each if isinstance(each, int) else each[0] for each in (flags, priority, expiry)]
        ttl = message.ttl
        assert values == [message.persistent | (0 if ttl is None else 2), message.priority, ttl or 0]


def test_messages_that_differ_in_their_bodies_only_are_asked_about_once() -> None:
    rig = Rig()
    event = rig.publish(*(a_publish(body=bytes((number,)) * 5, delivery_mode=2) for number in range(100)))
    assert [bytes(body)[:1] for body in event.bodies(0, 100)] == [bytes((number,)) for number in range(100)]
    assert event.columns.routes[0] == Route(b"\x00\x03one", False, (1,))
    assert (event.columns.block_count, rig.wiring.asked) == (1, 1)


def test_bodies_of_any_length_share_their_properties() -> None:
    event = Rig().publish(*(a_publish(body=b"x" * number, delivery_mode=2) for number in range(20)))
    assert event.columns.block_count == 1
    assert [*event.lengths(0, 20)] == [*range(20)]


def test_further_routing_keys_lead_to_further_queues_and_hidden_ones_are_hidden() -> None:
    rig = Rig()
    event = rig.publish(
        a_publish("one", headers={"CC": ["two"], "BCC": ["three"], "x": 1}),
        a_publish("one"),
        a_publish("one", headers={"CC": ["two"], "BCC": ["three"], "x": 1}),
    )
    assert event.by_queue() == {1: [(0, 3)], 2: [(0, 1), (2, 3)], 3: [(0, 1), (2, 3)]}
    assert decode(event.header(0)).headers == {"CC": ["two"], "x": 1}
    assert decode(event.header(1)).headers is None


def test_an_exchange_that_looks_at_headers_is_asked_for_each_kind_of_message() -> None:
    rig = Rig()
    event = rig.publish(
        a_publish(exchange="by headers", headers={"to": "two"}),
        a_publish(exchange="by headers", headers={"to": "two"}, body=b"again"),
        a_publish(exchange="by headers", headers={"to": "three"}),
    )
    assert event.by_queue() == {2: [(0, 2)], 3: [(2, 3)]}


def test_when_the_wiring_changes_so_do_routes() -> None:
    rig = Rig()
    assert rig.publish(a_publish()).by_queue() == {1: [(0, 1)]}
    rig.wiring.queues["one"] = 77
    rig.wiring.version += 1
    assert rig.publish(a_publish()).by_queue() == {77: [(0, 1)]}


def test_messages_that_go_nowhere_are_told_with_their_place() -> None:
    rig = Rig()
    stream = [
        a_publish(),
        a_publish("lost", b"a", mandatory=True),
        a_publish("lost", b"b", mandatory=True),
        a_publish(),
    ]
    event = rig.publish(*stream)
    assert event.count == 2
    assert [(each.before, each.body, each.route.mandatory) for each in rig.intake.nowhere] == [
        (1, b"a", True), (1, b"b", True),
    ]  # fmt: skip
    rig.intake.clear()
    assert rig.intake.nowhere == []


def test_a_publisher_gets_back_what_it_has_sent() -> None:
    rig = Rig()
    rig.publish(a_publish(), a_publish("lost", headers={"BCC": ["lost too"]}, mandatory=True))
    (nowhere,) = rig.intake.nowhere
    assert decode(b"\0" * 12 + nowhere.block.raw).headers == {"BCC": ["lost too"]}


@pytest.mark.parametrize("expiration", ["-1", "1"])
def test_a_message_that_is_too_large_is_refused_before_its_properties_are_read(expiration: str) -> None:
    rig = Rig()
    with pytest.raises(ProtocolError, match="larger than configured"):
        rig.publish(a_publish(body=b"." * (MESSAGE_MAX + 1), expiration=expiration))


def test_the_name_of_a_direct_reply_is_put_in() -> None:
    rig = Rig()
    with pytest.raises(ProtocolError, match="fast reply consumer does not exist"):
        rig.publish(a_publish(reply_to=REPLY_TO))
    rig.intake.replies_to("amq.reply.17")
    assert decode(rig.publish(a_publish(reply_to=REPLY_TO)).header(0)).reply_to == "amq.reply.17"
    rig.intake.replies_to("amq.reply.18")
    assert decode(rig.publish(a_publish(reply_to=REPLY_TO)).header(0)).reply_to == "amq.reply.18"


def test_a_weight_that_the_specification_forbids_is_not_passed_on() -> None:
    assert Rig().publish(a_publish(weight=7)).header(0)[:4] == b"\x00\x3c\x00\x00"


@pytest.mark.parametrize(
    ("method", "header", "body", "says"),
    [
        (METHODS["basic.publish"].encode(immediate=True), encode(Properties(), 1), b"x", "immediate"),
        (METHODS["basic.publish"].encode()[:-1], encode(Properties(), 1), b"x", "basic.publish"),
        (METHODS["basic.publish"].encode(), b"\x00\x3d" + encode(Properties(), 1)[2:], b"x", "class 60"),
        (METHODS["basic.publish"].encode(), encode(Properties(), 2), b"x", "its header says 2"),
        (METHODS["basic.publish"].encode(), encode(Properties(), 1)[:11], b"x", "too early"),
        (METHODS["basic.publish"].encode(), b"", b"", "too early"),
        (METHODS["basic.publish"].encode(), encode(Properties(), 1) + b"x", b"x", "something behind"),
    ],
)
def test_a_message_that_is_none_is_refused_and_leaves_nothing(
    method: bytes, header: bytes, body: bytes, says: str
) -> None:
    rig = Rig()
    with pytest.raises(ProtocolError, match=says):
        rig.intake.publish(method, header, body)
    assert rig.builder.take() == (None, [])
    assert rig.intake.nowhere == []


def test_frames_out_of_turn_are_refused() -> None:
    rig = Rig()
    with pytest.raises(ProtocolError, match="no publish announced"):
        rig.intake.header(encode(Properties(), 1))
    with pytest.raises(ProtocolError, match="no content header announced"):
        rig.intake.body(b"x")
    rig.intake.method(METHODS["basic.publish"].encode(routing_key="one"))
    with pytest.raises(ProtocolError, match="too early"):
        rig.intake.header(b"\x00\x3c")
    rig.intake.header(encode(Properties(), 3))
    assert rig.intake.body(b"ab") is False
    with pytest.raises(ProtocolError, match="2 bytes longer"):
        rig.intake.body(b"abc")


def test_what_never_comes_again_is_forgotten() -> None:
    rig = Rig()
    for number in range(3 * KNOWN_MAX):
        rig.wiring.queues[f"key{number}"] = number
        rig.publish(a_publish(f"key{number}", message_id=str(number)))
    assert max(len(rig.intake._targets), len(rig.intake._kept)) <= KNOWN_MAX
