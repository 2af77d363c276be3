"""Declaring, binding and deleting: what is refused, with which code, and what ends with what."""

from __future__ import annotations

import re

import pytest
from broker_rig import Rig, bodies

from coterie.amqp.wire.tables import Table
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import Binding
from coterie.errors import ProtocolError


class Refused:
    """`with Refused(406, "text"):` the code and a part of the text."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self._raises = pytest.raises(ProtocolError, match=re.escape(text))

    def __enter__(self) -> None:
        self._caught = self._raises.__enter__()

    def __exit__(self, *args: object) -> bool:
        result = self._raises.__exit__(*args)  # type: ignore[arg-type]
        assert self._caught.value.reply_code == self.code
        return bool(result)


# Arguments.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", 2**32), ("x-expires", 2**32), ("x-message-ttl", -1), ("x-message-ttl", "10"),
        ("x-message-ttl", True), ("x-message-ttl", 1.5),
        ("x-expires", 0), ("x-expires", -5), ("x-max-length", -1), ("x-max-length-bytes", "5"),
        ("x-overflow", "drop-tail"), ("x-overflow", 1), ("x-dead-letter-exchange", 5),
        ("x-dead-letter-routing-key", "without an exchange"), ("x-max-priority", 256), ("x-max-priority", -1),
        ("x-single-active-consumer", "true"), ("x-last-value-key", 1), ("x-queue-type", "stream"),
        ("x-queue-type", 1), ("x-queue-mode", "eager"), ("x-delivery-limit", -1), ("x-overflow", "ring"),
        ("x-replicated", 5), ("qpid.replicated", "maybe"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused(name: str, value: object) -> None:
    rig = Rig()
    with Refused(406, f"invalid arg '{name}' for queue 'q' in vhost '/'"):
        rig.declare(arguments={name: value})  # type: ignore[dict-item]
    assert "q" not in rig.vhost.queues


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 0}, {"x-expires": 1}, {"x-max-length": 0}, {"x-max-length-bytes": 0},
        {"x-max-length": 1, "x-overflow": "ring"}, {"x-dead-letter-exchange": ""}, {"x-max-priority": 255},
        {"x-max-priority": 0}, {"x-queue-type": "classic"}, {"x-queue-mode": "lazy"}, {"x-unknown": ["anything"]},
        {"x-dead-letter-exchange": "later", "x-dead-letter-routing-key": "k"}, {"x-replicated": False},
    ],
)  # fmt: skip
def test_a_right_argument_is_taken(arguments: Table) -> None:
    rig = Rig()
    assert rig.declare(arguments=arguments).spec.arguments == arguments
    rig.declare(arguments=arguments)


def test_a_quorum_queue_is_durable_and_nobodys_own() -> None:
    rig = Rig()
    arguments: Table = {"x-queue-type": "quorum"}
    with Refused(406, "non-durable"):
        rig.declare(arguments=arguments)
    with Refused(406, "exclusive"):
        rig.declare(arguments=arguments, durable=True, exclusive=True, owner="me")
    rig.declare(arguments=arguments, durable=True)


def test_replication_can_be_declined() -> None:
    rig = Rig()
    assert rig.declare("a").spec.replicated
    declined = rig.declare("b", {"x-replicated": False})
    assert not declined.spec.replicated
    assert declined.home is None  # a broker alone treats it as any other
    assert not rig.declare("c", {"qpid.replicated": "false"}).spec.replicated
    rig.exchange("x", arguments={"qpid.replicated": False})
    assert not rig.vhost.exchange("x").spec.replicated


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"x-message-ttl": 10}, {}, "received none but current is the value '10' of type 'signedint'"),
        ({}, {"x-message-ttl": 10}, "received the value '10' of type 'signedint' but current is none"),
        ({"x-max-priority": 1}, {"x-max-priority": 2}, "received the value '2'"),
        ({"x-max-length": 1}, {"x-max-length": True}, "of type 'bool'"),
        ({"x-dead-letter-exchange": "a"}, {"x-dead-letter-exchange": "b"}, "type 'longstr' but current"),
    ],
)
def test_a_second_declaration_must_agree_in_the_known_arguments(first: Table, second: Table, text: str) -> None:
    rig = Rig()
    rig.declare(arguments=first)
    with Refused(406, "inequivalent arg '"):
        rig.declare(arguments=second)
    with Refused(406, text):
        rig.declare(arguments=second)


def test_the_default_may_be_said_or_not() -> None:
    rig = Rig()
    assert rig.declare("a") is rig.declare("a", {"x-queue-type": "classic"})
    assert rig.declare("b", {"x-queue-mode": "default"}) is rig.declare("b")


def test_a_second_declaration_may_differ_in_unknown_arguments() -> None:
    rig = Rig()
    assert rig.declare(arguments={"mine": 1}) is rig.declare(arguments={"mine": 2})


def test_a_second_declaration_must_agree_in_durable_and_auto_delete() -> None:
    rig = Rig()
    rig.declare()
    with Refused(406, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"):
        rig.declare(durable=True)
    with Refused(406, "inequivalent arg 'auto_delete'"):
        rig.declare(auto_delete=True)


# Names and owners.


def test_a_queue_without_a_name_gets_one_of_its_own() -> None:
    rig = Rig()
    first, second = rig.declare(""), rig.declare("")
    assert first.name.startswith("amq.gen-")
    assert first.name != second.name
    assert rig.declare(first.name) is first


def test_reserved_names_are_refused() -> None:
    rig = Rig()
    with Refused(403, "queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        rig.declare("amq.mine")
    with Refused(403, "exchange name 'amq.mine' contains reserved prefix"):
        rig.exchange("amq.mine")


def test_passive_declarations_only_look() -> None:
    rig = Rig()
    with Refused(404, "no queue 'q' in vhost '/'"):
        rig.declare(passive=True)
    with Refused(404, "no exchange 'x' in vhost '/'"):
        rig.exchange("x", passive=True)
    queue = rig.declare(arguments={"x-max-length": 1})
    assert rig.declare(passive=True) is queue
    rig.exchange("amq.topic", "direct", passive=True)


def test_an_exclusive_queue_is_for_its_connection_alone() -> None:
    rig = Rig()
    mine, other = object(), object()
    queue = rig.declare(exclusive=True, owner=mine)
    assert rig.declare(exclusive=True, owner=mine) is queue
    with Refused(405, "cannot obtain exclusive access to locked queue 'q'"):
        rig.declare(exclusive=True, owner=other)
    with Refused(405, "locked"):
        rig.declare(owner=mine)
    with Refused(405, "locked"):
        rig.declare(passive=True, owner=other)
    with Refused(405, "locked"):
        rig.delete("q", owner=other)
    with Refused(405, "locked"):
        rig.ask(lambda done: rig.vhost.purge("q", done, other))
    with Refused(405, "locked"):
        rig.ask(lambda done: rig.vhost.get("q", "x", True, done, other))
    with Refused(405, "locked"):
        rig.vhost.queue("q", other)
    assert rig.vhost.queue("q") is rig.vhost.queue("q", mine) is queue


def test_a_queue_that_is_not_exclusive_does_not_become_so() -> None:
    rig = Rig()
    rig.declare()
    with Refused(405, "locked"):
        rig.declare(exclusive=True, owner=object())


def test_exclusive_queues_end_with_their_connection() -> None:
    rig = Rig()
    mine, other = object(), object()
    rig.declare("a", exclusive=True, owner=mine)
    rig.declare("b", exclusive=True, owner=other)
    rig.declare("c", owner=mine)
    rig.vhost.close_owner(mine)
    assert list(rig.vhost.queues) == ["b", "c"]


# Exchanges.


def test_the_predeclared_exchanges_are_there_and_cannot_be_deleted() -> None:
    rig = Rig()
    kinds = {name: exchange.spec.kind for name, exchange in rig.vhost.exchanges.items()}
    assert kinds == {
        "amq.direct": "direct", "amq.fanout": "fanout", "amq.headers": "headers", "amq.match": "headers",
        "amq.topic": "topic",
    }  # fmt: skip
    rig.exchange("amq.topic", "topic", durable=True)
    with Refused(403, "amq."):
        rig.ask(lambda done: rig.vhost.delete_exchange("amq.topic", False, done))


def test_the_default_exchange_is_nobodys_to_change() -> None:
    rig = Rig()
    rig.declare()
    text = "operation not permitted on the default exchange"
    with Refused(403, text):
        rig.exchange("")
    with Refused(403, text):
        rig.exchange("", passive=True)
    with Refused(403, text):
        rig.bind("", "q", "k")
    with Refused(403, text):
        rig.unbind("", "q", "q")
    with Refused(403, text):
        rig.bind("amq.topic", "", kind="exchange")
    with Refused(403, text):
        rig.ask(lambda done: rig.vhost.delete_exchange("", False, done))


def test_an_unknown_kind_of_exchange_is_refused() -> None:
    with Refused(503, "unknown exchange type 'x-delayed-message'"):
        Rig().exchange("x", "x-delayed-message")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"kind": "topic"}, "type"), ({"durable": True}, "durable"), ({"auto_delete": True}, "auto_delete"),
        ({"internal": True}, "internal"), ({"arguments": {"alternate-exchange": "y"}}, "alternate-exchange"),
    ],
)  # fmt: skip
def test_a_second_declaration_of_an_exchange_must_agree(change: dict[str, object], name: str) -> None:
    rig = Rig()
    rig.exchange("x")
    rig.exchange("x", arguments={"unknown": 1})
    with Refused(406, f"inequivalent arg '{name}' for exchange 'x' in vhost '/'"):
        rig.exchange("x", **change)  # type: ignore[arg-type]


def test_a_wrong_argument_of_an_exchange_is_refused() -> None:
    with Refused(406, "invalid arg 'alternate-exchange' for exchange 'x' in vhost '/'"):
        Rig().exchange("x", arguments={"alternate-exchange": 5})


def test_deleting_what_is_not_there_is_fine() -> None:
    rig = Rig()
    assert rig.delete("missing") == 0
    rig.ask(lambda done: rig.vhost.delete_exchange("missing", True, done))


def test_what_is_in_use_can_be_kept() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.exchange("x")
    rig.bind("x", "q", "k")
    with Refused(406, "exchange 'x' in vhost '/' in use"):
        rig.ask(lambda done: rig.vhost.delete_exchange("x", True, done))
    client = rig.consume(queue)
    with Refused(406, "queue 'q' in vhost '/' in use"):
        rig.delete("q", if_unused=True)
    client.cancel()
    rig.publish("a")
    with Refused(406, "queue 'q' in vhost '/' is not empty"):
        rig.delete("q", if_empty=True)
    assert rig.delete("q", if_unused=True) == 1
    rig.ask(lambda done: rig.vhost.delete_exchange("x", True, done))


# Bindings.


def test_both_ends_of_a_binding_must_be_there() -> None:
    rig = Rig()
    rig.declare()
    rig.exchange("x")
    with Refused(404, "no exchange 'y' in vhost '/'"):
        rig.bind("y", "q")
    with Refused(404, "no queue 'r' in vhost '/'"):
        rig.bind("x", "r")
    with Refused(404, "no exchange 'y' in vhost '/'"):
        rig.bind("x", "y", kind="exchange")


def test_unbinding_what_is_not_bound_or_not_there_is_fine() -> None:
    rig = Rig()
    rig.declare()
    for source, destination in (("amq.direct", "q"), ("missing", "q"), ("amq.direct", "missing")):
        rig.unbind(source, destination, "k")
        rig.unbind(source, destination, "k", kind="exchange")


def test_binding_and_unbinding_an_exclusive_queue_is_for_its_connection() -> None:
    rig = Rig()
    mine, other = object(), object()
    rig.declare(exclusive=True, owner=mine)
    binding = Binding("amq.direct", "queue", "q", "k")
    with Refused(405, "locked"):
        rig.ask(lambda done: rig.vhost.bind(binding, done, other))
    rig.ask(lambda done: rig.vhost.bind(binding, done, mine))
    with Refused(405, "locked"):
        rig.ask(lambda done: rig.vhost.unbind(binding, done, other))
    rig.ask(lambda done: rig.vhost.unbind(binding, done, mine))
    assert rig.vhost.binding_count == 0


def test_binding_twice_is_binding_once() -> None:
    rig = Rig()
    rig.declare()
    rig.exchange("x")
    for _ in range(2):
        rig.bind("x", "q", "k", {"a": 1, "b": [1, {"c": 2}]})
    rig.bind("x", "q", "k", {"b": [1, {"c": 2}], "a": 1})
    assert rig.vhost.binding_count == len(list(rig.vhost.bindings())) == 1
    rig.bind("x", "q", "k", {"a": 2})
    assert rig.vhost.binding_count == 2
    rig.unbind("x", "q", "k", {"a": 1, "b": [1, {"c": 2}]})
    rig.unbind("x", "q", "never bound")
    assert [binding.arguments for binding in rig.vhost.bindings()] == [{"a": 2}]


def test_a_queue_takes_its_bindings_with_it() -> None:
    rig = Rig()
    rig.declare()
    rig.bind("amq.topic", "q", "#")
    rig.delete("q")
    assert rig.vhost.binding_count == 0
    queue = rig.declare()
    assert rig.publish("a", exchange="amq.topic")[0].unroutable
    assert bodies(queue) == []


def test_an_exchange_takes_its_bindings_with_it_on_both_sides() -> None:
    rig = Rig()
    rig.declare()
    rig.exchange("x")
    rig.bind("x", "q")
    rig.bind("amq.fanout", "x", kind="exchange")
    rig.ask(lambda done: rig.vhost.delete_exchange("x", False, done))
    assert rig.vhost.binding_count == 0
    assert rig.publish("a", exchange="amq.fanout")[0].unroutable


def test_an_auto_delete_exchange_ends_with_its_last_binding_and_may_end_others() -> None:
    rig = Rig()
    rig.declare()
    for name in ("first", "second", "third"):
        rig.exchange(name, "fanout", auto_delete=True)
    rig.bind("first", "second", kind="exchange")
    rig.bind("second", "third", kind="exchange")
    rig.bind("third", "q", "1")
    rig.bind("third", "q", "2")
    rig.unbind("third", "q", "1")
    assert "third" in rig.vhost.exchanges
    rig.delete("q")
    assert [name for name in rig.vhost.exchanges if not name.startswith("amq.")] == []
    assert rig.vhost.binding_count == 0


def test_unbinding_the_last_one_ends_a_chain_of_auto_delete_exchanges() -> None:
    rig = Rig()
    rig.declare()
    count = 1500
    for number in range(count):
        rig.exchange(f"x{number}", "fanout", auto_delete=True)
        if number:
            rig.bind(f"x{number - 1}", f"x{number}", kind="exchange")
    rig.bind(f"x{count - 1}", "q")
    rig.unbind(f"x{count - 1}", "q")
    assert len(rig.vhost.exchanges) == 5


def test_an_auto_delete_exchange_that_was_never_bound_stays() -> None:
    rig = Rig()
    rig.exchange("x", auto_delete=True)
    rig.exchange("y")
    rig.bind("y", "x", kind="exchange")
    rig.unbind("y", "x", kind="exchange")
    assert {"x", "y"} <= set(rig.vhost.exchanges)


# Limits.


def test_there_is_a_limit_on_everything() -> None:
    rig = Rig(BrokerSettings(queues_max=1, exchanges_max=6, bindings_max=1, memory_high=0))
    rig.declare()
    rig.declare()
    with Refused(406, "limit of 1 queues"):
        rig.declare("r")
    rig.exchange("x")
    with Refused(406, "exchanges_max"):
        rig.exchange("y")
    rig.bind("x", "q", "1")
    with Refused(406, "bindings_max"):
        rig.bind("x", "q", "2")


def test_a_vhost_may_have_a_lower_limit() -> None:
    rig = Rig()
    rig.ask(lambda done: rig.vhost.set_limit("max-queues", 1, done))
    rig.declare()
    with Refused(406, "limit of 1 queues"):
        rig.declare("r")
    rig.ask(lambda done: rig.vhost.set_limit("max-queues", None, done))
    rig.declare("r")
    with Refused(530, "there are: max-queues, max-connections"):
        rig.ask(lambda done: rig.vhost.set_limit("max-beer", 1, done))


def test_a_move_to_itself_is_refused() -> None:
    rig = Rig()
    rig.declare()
    with Refused(406, "to itself"):
        rig.ask(lambda done: rig.vhost.move("q", "q", 1, done))
