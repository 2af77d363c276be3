"""The class `queue`: declaring, binding, purging, deleting, and whose a queue is."""

from __future__ import annotations

import pytest
from raw_client import Raw

from coterie.amqp.wire.tables import Table, Value

# queue.declare


def test_a_queue_without_a_name_is_given_one(client: Raw) -> None:
    names = {client.queue() for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("amq.gen-") for name in names)


def test_declaring_tells_how_much_is_ready_and_how_many_consume(client: Raw, name: str) -> None:
    first = client.call(1, "queue.declare", queue=name)
    assert (first["queue"], first["message_count"], first["consumer_count"]) == (name, 0, 0)
    client.fill(name, b"1", b"2", b"3")
    client.get(name)
    client.qos(1)
    client.consume(name)
    client.expect(1, "basic.deliver")
    again = client.call(1, "queue.declare", queue=name)
    assert (again["message_count"], again["consumer_count"]) == (1, 1)


def test_declaring_the_same_again_is_fine(client: Raw, name: str) -> None:
    arguments: Table = {"x-message-ttl": 60_000, "x-max-length": 10}
    for _ in range(2):
        client.call(1, "queue.declare", queue=name, durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"durable": True}, "inequivalent arg 'durable' for queue"),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete' for queue"),
        ({"arguments": {"x-max-length": 6}}, "inequivalent arg 'x-max-length' for queue"),
        ({"arguments": {}}, "inequivalent arg 'x-max-length' for queue"),
        ({"arguments": {"x-max-length": 5, "x-message-ttl": 1}}, "inequivalent arg 'x-message-ttl' for queue"),
    ],
)
def test_declaring_another_by_the_same_name_is_refused(
    client: Raw, name: str, other: dict[str, Value], text: str
) -> None:
    same: dict[str, Value] = {"queue": name, "arguments": {"x-max-length": 5}}
    client.call(1, "queue.declare", **same)
    client.send(1, "queue.declare", **(same | other))
    client.channel_closed(1, 406, "queue.declare", text)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-max-length": -1},
        {"x-max-length-bytes": "many"},
        {"x-max-priority": 256},
        {"x-overflow": "elsewhere"},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-single-active-consumer": "yes"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(client: Raw, name: str, arguments: Table) -> None:
    client.send(1, "queue.declare", queue=name, arguments=arguments)
    client.channel_closed(1, 406, "queue.declare", f"queue '{name}' in vhost '/'")


def test_reserved_names_are_refused(client: Raw) -> None:
    client.send(1, "queue.declare", queue="amq.mine")
    client.channel_closed(1, 403, "queue.declare", "queue name 'amq.mine' contains reserved prefix 'amq.*'")


def test_passive_looks_and_does_not_make(client: Raw, name: str) -> None:
    client.send(1, "queue.declare", queue=name, passive=True)
    client.channel_closed(1, 404, "queue.declare", f"NOT_FOUND - no queue '{name}' in vhost '/'")
    client.reopen()
    client.call(1, "queue.declare", queue=name)
    client.call(1, "queue.declare", queue=name, passive=True, durable=True)


def test_passive_without_a_name_finds_nothing(client: Raw) -> None:
    client.queue()
    client.send(1, "queue.declare", passive=True)
    client.channel_closed(1, 404, "queue.declare", "no queue '' in vhost")


def test_line_ends_are_taken_out_of_names(client: Raw, name: str) -> None:
    assert client.call(1, "queue.declare", queue=f"{name}\r\n")["queue"] == name


def test_no_wait_gets_no_answer(client: Raw, name: str) -> None:
    client.send(1, "queue.declare", queue=name, no_wait=True)
    client.send(1, "queue.bind", queue=name, exchange="amq.direct", routing_key="k", no_wait=True)
    client.publish(1, "amq.direct", "k", b"x")
    client.nothing()
    client.send(1, "queue.purge", queue=name, no_wait=True)
    client.send(1, "queue.delete", queue=name, no_wait=True)
    client.nothing()
    client.send(1, "queue.declare", queue=name, passive=True)
    client.channel_closed(1, 404, "queue.declare")


def test_an_exclusive_queue_is_for_its_connection_alone(client: Raw, other: Raw, name: str) -> None:
    queue = client.queue(queue=name)
    attempts: list[tuple[str, dict[str, Value]]] = [
        ("queue.declare", {"queue": queue, "exclusive": True}),
        ("queue.declare", {"queue": queue}),
        ("queue.declare", {"queue": queue, "passive": True}),
        ("queue.bind", {"queue": queue, "exchange": "amq.fanout"}),
        ("queue.purge", {"queue": queue}),
        ("queue.delete", {"queue": queue}),
        ("basic.get", {"queue": queue}),
        ("basic.consume", {"queue": queue}),
    ]
    for method, arguments in attempts:
        other.send(1, method, **arguments)
        other.channel_closed(1, 405, method, f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'")
        other.reopen()
    other.fill(queue, b"but anybody may publish to it")
    other.nothing()
    assert client.get(queue).body == b"but anybody may publish to it"


def test_declaring_an_exclusive_queue_as_another_kind_is_refused(client: Raw, name: str) -> None:
    client.queue(queue=name)
    client.send(1, "queue.declare", queue=name)
    client.channel_closed(1, 405, "queue.declare")


def test_an_auto_delete_queue_goes_with_its_last_consumer(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name, auto_delete=True)
    first, second = client.consume(name), client.consume(name)
    client.call(1, "basic.cancel", consumer_tag=first)
    client.call(1, "queue.declare", queue=name, passive=True)
    client.call(1, "basic.cancel", consumer_tag=second)
    client.send(1, "queue.declare", queue=name, passive=True)
    client.channel_closed(1, 404, "queue.declare")


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(client: Raw, other: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name, auto_delete=True)
    client.call(0, "connection.close", reply_code=200)
    other.call(1, "queue.declare", queue=name, passive=True)


# The queue that was declared last.


def test_an_empty_name_is_the_queue_that_was_declared_last(client: Raw) -> None:
    client.queue()
    queue = client.queue()
    client.call(1, "queue.bind", exchange="amq.direct")
    client.publish(1, "amq.direct", queue, b"1")
    client.publish(1, "amq.direct", queue, b"2")
    assert client.call(1, "basic.get").body == b"1"
    assert client.call(1, "queue.purge")["message_count"] == 1
    client.call(1, "basic.consume")
    client.call(1, "queue.unbind", exchange="amq.direct")
    assert client.call(1, "queue.delete")["message_count"] == 0
    assert client.expect(1, "basic.cancel")


@pytest.mark.parametrize("durable", [False, True])
def test_whoever_deletes_a_queue_hears_so_before_its_own_consumers_are_cancelled(
    client: Raw, name: str, durable: bool
) -> None:
    client.call(1, "queue.declare", queue=name, durable=durable)
    tags = {client.consume(name) for _ in range(3)}
    assert client.call(1, "queue.delete", queue=name)["message_count"] == 0
    assert {heard["consumer_tag"] for heard in client.expect_many(1, "basic.cancel", 3)} == tags
    client.nothing()


@pytest.mark.parametrize("method", ["queue.bind", "queue.purge", "queue.delete", "basic.get", "basic.consume"])
def test_an_empty_name_is_nothing_if_none_was_declared(client: Raw, method: str) -> None:
    client.send(1, method)
    client.channel_closed(1, 404, method, "no previously declared queue")


# queue.bind, queue.unbind


@pytest.mark.parametrize("method", ["queue.bind", "queue.unbind"])
def test_binding_to_an_exchange_that_is_not_there_is_refused(client: Raw, method: str) -> None:
    client.send(1, method, queue=client.queue(), exchange="none")
    if method == "queue.bind":
        client.channel_closed(1, 404, method, "no exchange 'none' in vhost")
    else:
        assert client.next().name in ("queue.unbind-ok", "channel.close")


def test_binding_a_queue_that_is_not_there_is_refused(client: Raw) -> None:
    client.send(1, "queue.bind", queue="none", exchange="amq.fanout")
    client.channel_closed(1, 404, "queue.bind", "no queue 'none' in vhost")


def test_binding_to_the_default_exchange_is_refused(client: Raw) -> None:
    client.send(1, "queue.bind", queue=client.queue(), exchange="", routing_key="k")
    client.channel_closed(1, 403, "queue.bind", "operation not permitted on the default exchange")


def test_binding_twice_is_binding_once(client: Raw) -> None:
    queue = client.queue()
    for _ in range(2):
        client.call(1, "queue.bind", queue=queue, exchange="amq.direct", routing_key=queue)
    client.publish(1, "amq.direct", queue, b"x")
    client.ready(queue, 1)
    client.call(1, "queue.unbind", queue=queue, exchange="amq.direct", routing_key=queue)
    client.publish(1, "amq.direct", queue, b"x")
    client.ready(queue, 1)


def test_unbinding_what_is_not_bound_is_fine(client: Raw) -> None:
    client.call(1, "queue.unbind", queue=client.queue(), exchange="amq.direct", routing_key="never")


# queue.purge


def test_purging_drops_what_is_ready_and_not_what_is_held(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"held", b"1", b"2")
    held = client.get(queue)
    assert client.call(1, "queue.purge", queue=queue)["message_count"] == 2
    client.send(1, "basic.nack", delivery_tag=held["delivery_tag"], requeue=True)
    assert client.get(queue).body == b"held"


def test_purging_what_is_not_there_is_refused(client: Raw) -> None:
    client.send(1, "queue.purge", queue="none")
    client.channel_closed(1, 404, "queue.purge", "no queue 'none' in vhost '/'")


# queue.delete


def test_deleting_tells_how_much_was_in_it(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name)
    client.fill(name, b"1", b"2")
    assert client.call(1, "queue.delete", queue=name)["message_count"] == 2


def test_deleting_what_is_not_there_is_fine(client: Raw, name: str) -> None:
    assert client.call(1, "queue.delete", queue=name)["message_count"] == 0


def test_deleting_if_unused(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name)
    tag = client.consume(name)
    client.send(1, "queue.delete", queue=name, if_unused=True)
    client.channel_closed(1, 406, "queue.delete", f"queue '{name}' in vhost '/' in use")
    client.reopen()
    assert tag
    client.call(1, "queue.delete", queue=name, if_unused=True)


def test_deleting_if_empty(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name)
    client.fill(name, b"x")
    client.send(1, "queue.delete", queue=name, if_empty=True)
    client.channel_closed(1, 406, "queue.delete", f"queue '{name}' in vhost '/' ")
    client.reopen()
    client.call(1, "queue.purge", queue=name)
    client.call(1, "queue.delete", queue=name, if_empty=True)


def test_a_queue_that_is_declared_again_is_another_one(client: Raw, name: str) -> None:
    client.call(1, "queue.declare", queue=name)
    client.call(1, "queue.bind", queue=name, exchange="amq.direct", routing_key=name)
    client.fill(name, b"old")
    held = client.get(name)
    client.call(1, "queue.delete", queue=name)
    client.call(1, "queue.declare", queue=name)
    client.publish(1, "amq.direct", name, b"the binding is gone too")
    client.send(1, "basic.nack", delivery_tag=held["delivery_tag"], requeue=True)
    client.ready(name, 0)
