"""The class `exchange`: kinds, declaring anew, deleting, and bindings from exchange to exchange."""

from __future__ import annotations

import pytest
from raw_client import Raw

from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Table, Value


def routed(client: Raw, queue: str) -> list[bytes]:
    """What is in a queue, which is empty then."""
    found = []
    while (heard := client.get(queue, no_ack=True)).name == "basic.get-ok":
        found.append(heard.body)
    return found


# exchange.declare


def test_direct_goes_by_the_whole_key(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="direct")
    queue = client.queue()
    for key in ("a", "b"):
        client.call(1, "queue.bind", queue=queue, exchange=name, routing_key=key)
    for key in ("a", "b", "c", "a.b", ""):
        client.publish(1, name, key, key.encode())
    assert routed(client, queue) == [b"a", b"b"]


def test_fanout_ignores_the_key(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="fanout")
    queues = [client.queue(), client.queue()]
    for queue in queues:
        client.call(1, "queue.bind", queue=queue, exchange=name, routing_key="whatever")
    client.publish(1, name, "x", b"x")
    assert [routed(client, queue) for queue in queues] == [[b"x"], [b"x"]]


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        ("a.b", ["a.b"]),
        ("a.*", ["a.", "a.b"]),
        ("*.b", ["a.b", "x.b"]),
        ("a.#", ["a", "a.", "a.b", "a.b.c"]),
        ("#", ["", "a", "a.", "a.b", "a.b.c", "x.b"]),
        ("#.b", ["a.b", "x.b"]),
        ("*", ["", "a"]),
        ("a.#.c", ["a.b.c"]),
    ],
)
def test_topic_goes_by_words(client: Raw, name: str, pattern: str, fitting: list[str]) -> None:
    client.call(1, "exchange.declare", exchange=name, type="topic")
    queue = client.queue()
    client.call(1, "queue.bind", queue=queue, exchange=name, routing_key=pattern)
    for key in ("", "a", "a.", "a.b", "a.b.c", "x.b"):
        client.publish(1, name, key, key.encode())
    expected = [key.encode() for key in fitting]
    if pattern == "*":  # brokers may differ in whether the empty key has a word
        assert routed(client, queue) in (expected, expected[1:])
    else:
        assert routed(client, queue) == expected


@pytest.mark.parametrize(
    ("arguments", "fitting"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, ["both"]),
        ({"x-match": "any", "a": 1, "b": "x"}, ["a", "b", "both"]),
        ({"a": 1, "b": "x"}, ["both"]),
        ({"a": None}, ["a", "both", "other"]),
        ({"x-match": "any"}, []),
        ({"x-match": "all"}, ["a", "b", "both", "none", "other"]),
    ],
)
def test_headers_go_by_the_headers(client: Raw, name: str, arguments: Table, fitting: list[str]) -> None:
    client.call(1, "exchange.declare", exchange=name, type="headers")
    queue = client.queue()
    client.call(1, "queue.bind", queue=queue, exchange=name, arguments=arguments)
    messages: dict[str, Table] = {
        "a": {"a": 1},
        "b": {"b": "x"},
        "both": {"a": 1, "b": "x"},
        "none": {},
        "other": {"a": 2},
    }
    for body, headers in messages.items():
        client.publish(1, name, "", body.encode(), Properties(headers=headers))
    assert routed(client, queue) == [body.encode() for body in fitting]


def test_the_usual_exchanges_are_there(client: Raw) -> None:
    kinds = {"direct": "direct", "fanout": "fanout", "topic": "topic", "headers": "headers", "match": "headers"}
    for name, kind in kinds.items():
        client.call(1, "exchange.declare", exchange=f"amq.{name}", type=kind, durable=True)


def test_declaring_the_same_again_is_fine(client: Raw, name: str) -> None:
    for _ in range(2):
        client.call(
            1, "exchange.declare", exchange=name, type="topic", durable=True, arguments={"alternate-exchange": "x"}
        )


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"type": "fanout"}, "inequivalent arg 'type' for exchange"),
        ({"durable": True}, "inequivalent arg 'durable'"),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete'"),
        ({"internal": True}, "inequivalent arg 'internal'"),
        ({"arguments": {"alternate-exchange": "x"}}, "inequivalent arg 'alternate-exchange'"),
    ],
)
def test_declaring_another_by_the_same_name_is_refused(
    client: Raw, name: str, other: dict[str, Value], text: str
) -> None:
    client.call(1, "exchange.declare", exchange=name, type="direct")
    client.send(1, "exchange.declare", **({"exchange": name, "type": "direct"} | other))
    client.channel_closed(1, 406, "exchange.declare", text)


def test_an_unknown_kind_is_refused(client: Raw, name: str) -> None:
    client.send(1, "exchange.declare", exchange=name, type="odd")
    client.connection_closed(503, "exchange.declare", "unknown exchange type 'odd'")


def test_reserved_names_are_refused(client: Raw) -> None:
    client.send(1, "exchange.declare", exchange="amq.mine", type="direct")
    client.channel_closed(1, 403, "exchange.declare", "contains reserved prefix 'amq.*'")


def test_the_default_exchange_cannot_be_declared(client: Raw) -> None:
    client.send(1, "exchange.declare", exchange="", type="direct")
    client.channel_closed(1, 403, "exchange.declare", "operation not permitted on the default exchange")


def test_passive_looks_and_does_not_make(client: Raw, name: str) -> None:
    client.send(1, "exchange.declare", exchange=name, type="direct", passive=True)
    client.channel_closed(1, 404, "exchange.declare", f"no exchange '{name}' in vhost")
    client.reopen()
    client.call(1, "exchange.declare", exchange=name, type="direct")
    client.call(1, "exchange.declare", exchange=name, type="topic", durable=True, passive=True)


def test_an_internal_exchange_cannot_be_published_to(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="direct", internal=True)
    client.publish(1, name, "", b"x")
    client.channel_closed(1, 403, "basic.publish", f"cannot publish to internal exchange '{name}' in vhost")


def test_no_wait_gets_no_answer(client: Raw, name: str) -> None:
    client.send(1, "exchange.declare", exchange=name, type="direct", no_wait=True)
    client.nothing()
    client.call(1, "exchange.declare", exchange=name, type="direct", passive=True)
    client.send(1, "exchange.delete", exchange=name, no_wait=True)
    client.nothing()
    client.send(1, "exchange.declare", exchange=name, type="direct", passive=True)
    client.channel_closed(1, 404, "exchange.declare")


def test_an_auto_delete_exchange_goes_with_its_last_binding(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="fanout", auto_delete=True)
    queue = client.queue()
    client.call(1, "queue.bind", queue=queue, exchange=name)
    client.call(1, "queue.unbind", queue=queue, exchange=name)
    client.send(1, "exchange.declare", exchange=name, type="fanout", passive=True)
    client.channel_closed(1, 404, "exchange.declare")


def test_an_alternate_exchange_gets_what_leads_nowhere(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="direct", arguments={"alternate-exchange": "amq.fanout"})
    normal, rest = client.queue(), client.queue()
    client.call(1, "queue.bind", queue=normal, exchange=name, routing_key="known")
    client.call(1, "queue.bind", queue=rest, exchange="amq.fanout")
    client.publish(1, name, "known", b"1")
    client.publish(1, name, "unknown", b"2", mandatory=True)
    client.nothing()
    assert (routed(client, normal), routed(client, rest)) == ([b"1"], [b"2"])


# exchange.delete


def test_deleting_ends_the_exchange(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="direct")
    client.call(1, "exchange.delete", exchange=name)
    client.publish(1, name, "x", b"x")
    client.channel_closed(1, 404, "basic.publish", f"no exchange '{name}' in vhost")


def test_deleting_what_is_not_there_is_fine(client: Raw, name: str) -> None:
    client.call(1, "exchange.delete", exchange=name)


def test_deleting_if_unused(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="direct")
    queue = client.queue()
    client.call(1, "queue.bind", queue=queue, exchange=name, routing_key="k")
    client.send(1, "exchange.delete", exchange=name, if_unused=True)
    client.channel_closed(1, 406, "exchange.delete", f"exchange '{name}' in vhost '/' in use")
    client.reopen()
    client.call(1, "queue.unbind", queue=queue, exchange=name, routing_key="k")
    client.call(1, "exchange.delete", exchange=name, if_unused=True)


@pytest.mark.parametrize("name", ["", "amq.direct"])
def test_the_brokers_own_exchanges_cannot_be_deleted(client: Raw, name: str) -> None:
    client.send(1, "exchange.delete", exchange=name)
    client.channel_closed(1, 403, "exchange.delete")


# exchange.bind, exchange.unbind


def test_exchanges_can_be_bound_to_each_other_and_unbound(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="topic")
    queue = client.queue()
    client.call(1, "queue.bind", queue=queue, exchange=name, routing_key="#")
    client.call(1, "exchange.bind", destination=name, source="amq.direct", routing_key="k")
    client.publish(1, "amq.direct", "k", b"1")
    client.call(1, "exchange.unbind", destination=name, source="amq.direct", routing_key="k")
    client.publish(1, "amq.direct", "k", b"2")
    assert routed(client, queue) == [b"1"]


def test_a_circle_of_bindings_delivers_once(client: Raw, name: str) -> None:
    client.call(1, "exchange.declare", exchange=name, type="fanout")
    queue = client.queue()
    client.call(1, "queue.bind", queue=queue, exchange=name)
    client.call(1, "exchange.bind", destination=name, source=name)
    client.call(1, "queue.bind", queue=queue, exchange=name, routing_key="twice")
    client.publish(1, name, "", b"x")
    assert routed(client, queue) == [b"x"]


@pytest.mark.parametrize(("source", "destination"), [("none", "amq.fanout"), ("amq.fanout", "none")])
@pytest.mark.parametrize("method", ["exchange.bind", "exchange.unbind"])
def test_binding_what_is_not_there_is_refused(client: Raw, method: str, source: str, destination: str) -> None:
    client.send(1, method, source=source, destination=destination)
    if method == "exchange.bind":
        client.channel_closed(1, 404, method, "no exchange 'none' in vhost")
    else:
        heard = client.next()
        assert heard.name in ("exchange.unbind-ok", "channel.close")


@pytest.mark.parametrize(("source", "destination"), [("", "amq.fanout"), ("amq.fanout", "")])
def test_the_default_exchange_cannot_be_bound(client: Raw, source: str, destination: str) -> None:
    client.send(1, "exchange.bind", source=source, destination=destination)
    client.channel_closed(1, 403, "exchange.bind", "operation not permitted on the default exchange")
