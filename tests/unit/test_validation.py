"""What comes in is validated: the checks raise nothing, and what they let through does no harm later."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from broker_rig import Rig, message
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_view import in_order, seen

from coterie.amqp.publishing import Inbound
from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import NESTING_MAX, FarMoment, RawText, Table, encode_table, skip_table
from coterie.broker import records, validation
from coterie.broker.arguments import EXCHANGE_CHECKS, QUEUE_CHECKS
from coterie.broker.dead_letter import make_letter
from coterie.broker.following import steps
from coterie.broker.leases import LeaseStep
from coterie.broker.message import Message, make_message
from coterie.broker.message_codec import Malformed, Routes
from coterie.broker.observer import Reason
from coterie.broker.policy import Policy
from coterie.broker.specs import Binding, QueueSpec
from coterie.broker.users import Users, UserSettings
from coterie.broker.wiring import Bind, DeclareExchange, DeclareQueue
from coterie.console.import_check import Checker
from coterie.errors import ProtocolError, UserError
from coterie.sim.hostile import Hostile, complaints

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=300)
    | st.binary(max_size=20)
    | st.builds(RawText, st.binary(max_size=5))
    | st.integers(-5, 2**64 + 5).map(FarMoment)
    | st.decimals()
    | st.just(datetime(2026, 1, 1, tzinfo=UTC))
    | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=300), inner, max_size=4)
    ),
    max_leaves=12,
)
known = st.sampled_from(sorted({*QUEUE_CHECKS, *EXCHANGE_CHECKS, "x-anything"}))
arguments = st.dictionaries(known | st.text(st.characters(), max_size=300), anything, max_size=5)


# The checks.


@given(anything)
def test_a_check_raises_nothing(value: object) -> None:
    checks: list[validation.Check] = [*QUEUE_CHECKS.values(), *EXCHANGE_CHECKS.values(), validation.Whole()]
    checks += [validation.name, validation.short_text, validation.text, validation.table, validation.flag]
    checks.append(lambda each: validation.copies({"CC": each}))
    for check in checks:
        assert isinstance(check(value), str)


@given(st.dictionaries(st.text(st.characters(), max_size=300), anything, max_size=4))
def test_a_table_that_passes_can_be_written_and_read_and_kept(table: dict[str, Any]) -> None:
    if validation.table(table):
        return
    raw = encode_table(table)
    assert skip_table(raw, 0) == len(raw)
    packed = json.loads(json.dumps(records.pack(table)))
    assert encode_table(records.unpack(packed)) == raw  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "table",
    [
        {"a" * 256: 1}, {"n": 2**63}, {"n": -(2**63) - 1}, {"n": 10**5000}, {"t": "\ud800"}, {"\ud800": 1},
        {"d": Decimal("1e9")}, {"d": Decimal("sNaN")}, {"o": object()}, {"many": [None] * 10_001}, {"f": FarMoment(-1)},
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_written_is_found(table: dict[str, Any]) -> None:
    assert validation.table(table)
    if "many" not in table:
        with pytest.raises((ProtocolError, ValueError, TypeError, struct.error)):
            encode_table(table)


def test_a_table_may_be_nested_as_deeply_as_one_that_is_read() -> None:
    def nested(depth: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for _ in range(depth):
            table = {"t": table}
        return table

    assert not validation.table(nested(NESTING_MAX))
    assert "nested" in validation.table(nested(NESTING_MAX + 1))
    assert "nested" in validation.table(nested(900))
    deep: list[Any] = []
    for _ in range(NESTING_MAX):
        deep = [deep]
    assert "nested" in validation.table({"a": deep})


@given(
    st.recursive(st.text(max_size=5) | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_the_depth_of_json_is_seen_without_reading_it(value: object) -> None:
    def depth(value: object) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    assert validation.depth_of(json.dumps(value).encode()) == depth(value)
    assert validation.depth_of(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")) == depth(value)


# Queues.


@pytest.mark.parametrize("name", ["x-dead-letter-routing-key", "x-dead-letter-exchange", "x-last-value-key"])
def test_a_text_of_256_bytes_where_a_name_is_due_is_refused(name: str) -> None:
    rig = Rig()
    for text in ("k" * 256, "ä" * 128):
        with pytest.raises(ProtocolError, match=f"invalid arg '{name}' for queue 'q'.*255 bytes, and has 256") as found:
            rig.declare("q", {"x-dead-letter-exchange": "dlx", name: text})
        assert found.value.reply_code == 406
    assert "q" not in rig.vhost.queues
    with pytest.raises(UserError, match="255 bytes"):
        Policy("p", ".*", {"dead-letter-routing-key": "k" * 256}).check()


@settings(max_examples=300)
@given(arguments)
def test_a_queue_that_was_let_in_takes_messages_and_buries_them(given_arguments: dict[str, Any]) -> None:
    rig = Rig()
    rig.declare("dead")
    given_arguments = {**given_arguments, "x-dead-letter-exchange": ""}
    try:
        queue = rig.declare("q", given_arguments)
    except ProtocolError:
        return
    if queue.limits.dead_key is None:
        return  # it would come back
    rig.publish("a", headers={"k": 1}, priority=9, expiration="1")
    rig.run(0.1)
    for entry in [*seen(queue).values()]:
        there = [(entry.position, entry.position + 1)]
        queue.lease(there, rig)
        queue.reject(rig, there)
    assert queue.counters.unwritable == 0


@settings(max_examples=300)
@given(arguments)
def test_of_what_an_old_store_has_is_left_what_can_be_meant(given_arguments: dict[str, Any]) -> None:
    spec, problems = QueueSpec(True, arguments=given_arguments).sound()
    again, none = spec.sound()
    assert (again, none) == (spec, [])
    assert not validation.table(spec.arguments)
    for name, check in QUEUE_CHECKS.items():
        assert name not in spec.arguments or not check(spec.arguments[name])
    assert problems or spec.arguments == given_arguments
    assert isinstance(spec.max_priority, int)


def test_a_number_out_of_its_range_is_the_nearest_one() -> None:
    spec, problems = QueueSpec(
        True, arguments={"x-message-ttl": 2**40, "x-max-priority": 300, "x-max-length": -1}
    ).sound()
    assert spec.arguments == {"x-message-ttl": 2**32 - 1, "x-max-priority": 255, "x-max-length": 0}
    assert len(problems) == 3


@given(
    st.text(st.characters(), max_size=300), st.text(st.characters(), max_size=30),
    st.dictionaries(st.sampled_from(["message-ttl", "max-length", "dead-letter-routing-key", "no"]), anything),
    st.sampled_from(["all", "queues", "nobody"]), st.integers(), st.booleans(),
)  # fmt: skip
def test_of_a_policy_is_left_what_can_be_meant(
    name: str, pattern: str, definition: dict[str, Any], apply_to: str, priority: int, operator: bool
) -> None:
    policy, problems = Policy(name, pattern, definition, apply_to, priority).sound(operator)
    if policy is not None:
        policy.check(operator)
        rig = Rig()
        rig.vhost.put_policy(name, policy, operator)
        rig.declare("q")
    else:
        assert problems


@pytest.mark.parametrize(
    "binding",
    [
        Binding("amq.direct", "queue", "q", "k" * 256), Binding("amq.direct", "queue", "q", "\ud800"),
        Binding("amq.direct", "queue", "q", "k", {"n": 2**70}), Binding("amq.direct", "queue", "q" * 256),
        Binding("x" * 256, "queue", "q"),
    ],
)  # fmt: skip
def test_a_binding_that_cannot_be_one_is_refused(binding: Binding) -> None:
    rig = Rig()
    rig.declare("q")
    answers: list[object] = []
    rig.vhost.bind(binding, answers.append)
    rig.vhost.unbind(binding, answers.append)
    assert [error.reply_code for error in answers if isinstance(error, ProtocolError)] == [406, 406]


@pytest.mark.parametrize("name", ["q" * 256, "\ud800", ""])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    rig = Rig()
    answers: list[object] = []
    rig.broker.add_vhost(name, answers.append)
    if name:
        rig.vhost.declare_queue(name, QueueSpec(True), False, None, answers.append)
    assert all(isinstance(answer, ProtocolError) and answer.reply_code == 406 for answer in answers)


# Messages.


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_whatever_headers_a_client_sends_a_letter_can_be_made_of_it(seed: int) -> None:
    properties = Hostile(seed).properties()
    try:
        one = make_message("", "q", b"body", properties)
    except (ProtocolError, ValueError, OverflowError, struct.error):
        return  # no client can write it
    for _ in range(3):
        one, keys = make_letter(one, "q", Reason.EXPIRED, "", "k", 1.0, 5)
        assert keys == ["k"]
        told: Any = (one.properties().headers or {})["x-death"]
        assert told[0]["queue"] == "q"


@pytest.mark.parametrize("count", [2**63 - 1, 2**63 - 2])
def test_a_count_of_deaths_ends_at_the_largest_number(count: int) -> None:
    death: Table = {"queue": "q", "reason": "rejected", "count": count}
    letter, _ = make_letter(
        message("a", headers={"x-death": [death]}), "q", Reason.REJECTED, "", None, 1.0, 5
    )  # fmt: skip
    found: Any = (letter.properties().headers or {})["x-death"]
    assert found[0]["count"] == 2**63 - 1


@pytest.mark.parametrize("count", [True, "3", FarMoment(2**64 - 1), -5, 1.5, None, [1]])
def test_a_count_of_deaths_that_is_none_counts_for_nothing(count: Any) -> None:
    death: Table = {"queue": "q", "reason": "rejected", "count": count}
    letter, _ = make_letter(
        message("a", headers={"x-death": [death, "x", 1, []]}), "q", Reason.REJECTED, "", None, 1.0, 5
    )  # fmt: skip
    found: Any = (letter.properties().headers or {})["x-death"]
    assert [each["count"] for each in found] == [1]


def test_a_letter_that_cannot_be_written_is_dropped_once_and_counted() -> None:
    """As an older version has let it in: nothing else is hurt."""
    rig = Rig()
    rig.declare("dead")
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    object.__setattr__(queue.limits, "dead_key", "k" * 256)
    rig.publish("a", "b")
    client = rig.consume(queue)
    client.reject("a")
    assert (queue.counters.unwritable, queue.counters.rejected) == (1, 1)
    object.__setattr__(queue.limits, "dead_key", "dead")
    client.reject("b")
    assert (queue.counters.unwritable, rig.vhost.queues["dead"].ready) == (1, 1)


def test_a_header_that_makes_no_sense_and_is_there_all_the_same_does_no_harm() -> None:
    rig = Rig()
    rig.declare("dead")
    queue = rig.declare(
        "q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-last-value-key": "k"}
    )
    header = struct.pack(">HHQH", 60, 0, 1, 0x2000) + b"\0\0\0\4CCCC"
    queue.enqueue([Message("", "q", b"\0\1q", header, b"a", True, 0, None)])
    rig.consume(queue).reject()
    (letter,) = in_order(rig.vhost.queues["dead"])
    assert letter.message is not None
    assert letter.message.persistent


@pytest.mark.parametrize("value", ["b", 1, {"a": 1}, None, True])
@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_further_routing_keys_are_a_list(name: str, value: Any) -> None:
    inbound = Inbound(1000, "me", lambda exchange, key: None, lambda route, kept: 1)
    publish = bytes.fromhex("003c0028 0000 00 01") + b"q" + b"\0"
    header = make_message("", "q", b"x", Properties(headers={name: value})).header
    with pytest.raises(ProtocolError, match=f"invalid message: header '{name}' must be an array, not a ") as found:
        inbound.publish(publish, header, b"x")
    assert found.value.reply_code == 406
    fine = make_message("", "q", b"x", Properties(headers={name: [1, "b"]})).header
    inbound.publish(publish, fine, b"x")


# Definitions.


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_definitions_are_refused_with_every_problem_or_can_be_made(seed: int) -> None:
    rig = Rig()
    users = Users(rig.runtime, rig.broker.store, UserSettings())
    try:
        plan = Checker(rig.broker, users, "/", lambda shape: "").check(Hostile(seed).definitions())
    except UserError:
        return
    answers: list[object] = []
    for _, policy in plan.policies:
        rig.vhost.set_policy(policy, answers.append)
    for _, exchange in plan.exchanges:
        rig.vhost.change(DeclareExchange(exchange), answers.append)
    for _, name, queue in plan.queues:
        rig.vhost.change(DeclareQueue(name, queue, None, chosen=True), answers.append)
    for _, binding in plan.bindings:
        rig.vhost.change(Bind(binding), answers.append)
    assert not any(isinstance(answer, ProtocolError) for answer in answers)
    assert [*complaints(rig.broker)] == []


# Steps of links, and of leases.


@settings(max_examples=500)
@given(st.integers(0, 2**32))
def test_a_step_of_a_link_is_refused_or_does_no_harm(seed: int) -> None:
    rig = Rig()
    rig.declare("mine")
    hostile = Hostile(seed)
    for _ in range(4):
        answer = rig.vhost.apply_step(hostile.step())
        assert isinstance(answer, dict)
    for queue in [*rig.vhost.queues.values()]:
        assert not validation.name(queue.name)
        queue.spec.check("it")
        assert queue.next_position < 2**63


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_kept_by_its_name(value: float) -> None:
    packed = json.dumps(records.pack({"a": [value]}), allow_nan=False)
    assert repr(records.unpack(json.loads(packed))) == repr({"a": [value]})


@pytest.mark.parametrize("text", ["many", [1], None, 10**400])
def test_a_number_that_is_none_is_not_unpacked(text: object) -> None:
    with pytest.raises(ValueError, match="float"):
        records.unpack({"!float": text})


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "k" * 256}, {"a": {"!decimal": "nonsense"}},
        {"a": {"!bytes": 5}}, {"a": {"!time": 1e300}}, {"a" * 256: 1}, {"x-max-priority": "high"}, {"n": 2**64},
    ],
)  # fmt: skip
def test_a_queue_with_nonsense_for_arguments_is_not_followed(arguments: dict[str, Any]) -> None:
    rig = Rig()
    said = {"queue": "q", "incarnation": 7, "session": "s", "auto_delete": False, "arguments": arguments}
    assert "error" in rig.vhost.apply_step(steps.encode(steps.BEGIN, "source", said))
    assert not rig.vhost.queues


def test_a_step_that_is_nested_too_deeply_is_none() -> None:
    text = b'{"do":"list","source":"s","after":"","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(Malformed, match="nested"):
        steps.decode(struct.pack(">I", len(text)) + text, Routes())


def test_positions_cannot_be_used_up() -> None:
    rig = Rig()
    for incarnation in (1, 2, 3):
        said: dict[str, object] = {"queue": "q", "session": "s"}
        begin = said | {"incarnation": incarnation, "auto_delete": False, "arguments": {}}
        rig.vhost.apply_step(steps.encode(steps.BEGIN, "source", begin))
        answer = rig.vhost.apply_step(steps.encode(steps.ENQUEUE, "source", said, [2**62 - 1], [message("a")]))
        assert ("error" in answer) == (incarnation > 1)
    assert rig.vhost.queues["q"].next_position == 2**62


def test_a_message_of_a_step_is_what_its_header_says() -> None:
    rig = Rig()
    said: dict[str, object] = {"queue": "q", "session": "s"}
    begin = said | {"incarnation": 1, "auto_delete": False, "arguments": {}}
    rig.vhost.apply_step(steps.encode(steps.BEGIN, "source", begin))
    for change in ({"ttl": 2**62}, {"priority": 200}, {"header": b"", "body": b""}, {"route": b"\0\1qx"}):
        one = message("a")
        for name, value in change.items():
            setattr(one, name, value)
        assert "error" in rig.vhost.apply_step(steps.encode(steps.ENQUEUE, "source", said, [1], [one])), change
    assert not seen(rig.vhost.queues["q"])


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_a_step_of_a_lease_is_refused_or_does_no_harm(seed: int) -> None:
    rig = Rig()
    queue = rig.declare("q")
    rig.publish("a", "b", "c")
    hostile = Hostile(seed)
    for _ in range(6):
        try:
            LeaseStep.of(hostile.lease()).apply(queue)
        except (ProtocolError, TypeError):
            pass
    for lease in queue.leases:
        assert 0 < len(lease.name) <= 255
    assert queue.ready + queue.leases.count == len(seen(queue))
