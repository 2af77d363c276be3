"""The broker's trace: what is written, in which order, and that nothing is without being asked for."""

from __future__ import annotations

import pytest
from amqp_rig import Client, Rig, publish_frames
from broker_rig import Shelf

from coterie.amqp.wire.properties import Properties
from coterie.audit.queues import spans
from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore
from coterie.broker.traced import pairs
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import KINDS, Event


class Traced:
    """A broker with a trace, and one client."""

    def __init__(self, store: Shelf | None = None) -> None:
        self.events: list[Event] = []
        self.rig = Rig(sink=self.events.append, store=store)
        self.client = self.rig.client(channels=3)
        self.read()

    def read(self, *kinds: str) -> list[str]:
        """What was written since the last look, in short; of these kinds, if any are named."""
        found, self.events[:] = list(self.events), []
        assert {event.kind for event in found} <= set(KINDS)
        return [told(event) for event in found if not kinds or event.kind in kinds]

    def declare(self, name: str, **arguments: object) -> None:
        self.client.call(1, "queue.declare", queue=name, arguments={f"x-{k}": v for k, v in arguments.items()})  # type: ignore[misc]
        self.read()


def told(event: Event) -> str:
    """`kind queue positions key=value...`, without what differs from run to run."""
    where = "" if event.queue is None else f" {event.queue.partition('#')[0]}"
    ranges = event.data.get("ranges")
    found = [*spans(ranges)] if ranges is not None else []
    if ranges is None and event.first is not None and event.last is not None:
        found = [(event.first, event.last)]
    n = " " + ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in found) if found else ""
    left_out = ("ranges", "sums", "log", "channel", "holder", "tx", "to", "source")
    data = {key: value for key, value in event.data.items() if key not in left_out}
    return f"{event.kind}{where}{n}" + "".join(f" {key}={value}" for key, value in data.items())


def publishes(*bodies: bytes, key: str = "q") -> bytes:
    return b"".join(publish_frames(1, "", key, body) for body in bodies)


def test_without_a_trace_the_broker_has_no_observer_more() -> None:
    rig = Rig()
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    assert rig.broker.traced is None
    assert rig.broker.vhosts["/"].queues["q"].observers == []
    assert next(iter(rig.server.connections.values())).channels[1].traced_as == ""


def test_a_batch_is_one_event_of_each_kind_and_a_confirm_comes_after_what_it_confirms() -> None:
    traced = Traced()
    traced.declare("q")
    traced.client.call(1, "confirm.select")
    traced.client.raw(publishes(b"a", b"b", b"c") + publishes(b"d", key="nowhere"))
    assert traced.read() == [
        "enqueue q 1-3 numbers=[[1, 3]]",
        "publish q 1-3 numbers=[[1, 3]]",
        "publish unroutable=[[4, 4]] vhost=/",
        "confirm 1-4",
    ]


def test_what_a_full_queue_refuses_is_in_the_publish_and_in_the_confirm() -> None:
    traced = Traced()
    traced.declare("q", **{"max-length": 1, "overflow": "reject-publish"})
    traced.client.call(1, "confirm.select")
    traced.client.raw(publishes(b"a", b"b"))
    assert traced.read("publish", "confirm") == [
        "publish q 1 numbers=[[1, 1]]",
        "publish refused=[[2, 2]] vhost=/",
        "confirm 1-2 refused=[[2, 2]]",
    ]


def test_a_channel_without_confirms_may_publish_what_nobody_takes() -> None:
    traced = Traced()
    traced.declare("q", **{"max-length": 0, "overflow": "reject-publish"})
    traced.client.raw(publishes(b"a", key="nowhere") + publishes(b"b"))
    assert traced.read() == []
    assert traced.client.call(1, "queue.declare", queue="q", passive=True)["message_count"] == 0  # and is not closed


def test_the_life_of_a_message_with_a_consumer_that_is_lost() -> None:
    traced = Traced()
    traced.declare("q")
    traced.client.raw(publishes(b"a", b"b", b"c"))
    other = Client(traced.rig).open()
    traced.read()
    other.send(1, "basic.qos", prefetch_count=2)
    other.send(1, "basic.consume", queue="q", consumer_tag="t")
    other.send(1, "basic.ack", delivery_tag=1)
    other.gone()
    assert traced.read() == [
        "client q what=consumer state=opened tag=t",
        "acquire q 1-2 tag=t",
        "handed q 1-2",
        "accept q 1",
        "dequeue q 1 reason=accepted",
        "acquire q 3 tag=t",
        "handed q 3",
        "release q 2-3 redelivered=[[2, 3]]",
        "client what=channel state=closed",
    ]
    got = traced.client.call(1, "basic.get", queue="q", no_ack=True)
    assert got["redelivered"]
    assert traced.read() == [
        "acquire q 2 redelivered=[[2, 2]]",
        "dequeue q 2 reason=got",
        "handed q 2 redelivered=[[2, 2]]",
    ]


def test_a_channel_that_is_opened_again_has_another_name() -> None:
    traced = Traced()
    (connection,) = traced.rig.server.connections.values()
    first = connection.channels[1].traced_as
    assert first.startswith("broker#1/1.1.")
    traced.client.call(1, "channel.close", reply_code=200, reply_text="")
    traced.client.call(1, "channel.open")
    assert connection.channels[1].traced_as != first


def test_dead_letters_are_followed_from_queue_to_queue_and_into_nothing() -> None:
    traced = Traced()
    traced.client.call(1, "exchange.declare", exchange="dlx", type="fanout")
    traced.declare("q", **{"dead-letter-exchange": "dlx"})
    traced.declare("dead")
    traced.client.raw(publishes(b"a", b"b"))
    traced.client.call(1, "basic.get", queue="q")
    traced.read()
    traced.client.send(1, "basic.reject", delivery_tag=1, requeue=False)
    traced.client.call(1, "queue.bind", queue="dead", exchange="dlx")
    traced.client.call(1, "basic.get", queue="q")
    traced.client.send(1, "basic.reject", delivery_tag=2, requeue=False)
    assert traced.read("reject", "dequeue", "dead_letter", "enqueue") == [
        "reject q 1",
        "dequeue q 1 reason=rejected dies=True",
        "dead_letter q 1 reason=rejected",
        "reject q 2",
        "dequeue q 2 reason=rejected dies=True",
        "dead_letter q 2 reason=rejected",
        "enqueue dead 1 letters=[[2, 2]]",
    ]


def test_a_transaction_says_what_it_does_before_and_what_it_did_within() -> None:
    traced = Traced()
    traced.declare("q")
    traced.client.raw(publishes(b"a", b"b"))
    traced.client.call(2, "tx.select")
    for _ in range(2):
        traced.client.call(2, "basic.get", queue="q")
    traced.client.raw(publish_frames(2, "", "q", b"c"))
    traced.client.send(2, "basic.ack", delivery_tag=1)
    traced.client.send(2, "basic.nack", delivery_tag=2, requeue=True)
    traced.read()
    traced.client.call(2, "tx.commit")
    begins, *others = traced.events
    assert begins.data["state"] == "begins"
    assert [list(value.values()) for value in begins.data.values() if isinstance(value, dict)] == [
        [1], [[[1, 1]]], [], [[[2, 2]]],
    ]  # fmt: skip
    name = begins.data["tx"]
    assert [(e.kind, e.data.get("state")) for e in others if e.data.get("tx") == name] == [
        ("enqueue", None), ("dequeue", None), ("release", None), ("tx", "ends"), ("tx", "committed"),
    ]  # fmt: skip


def test_at_rest_the_trace_says_what_channels_and_queues_hold() -> None:
    traced = Traced()
    traced.declare("q")
    traced.client.raw(publishes(b"a", b"b", b"c"))
    traced.client.call(1, "basic.get", queue="q")
    traced.client.call(2, "tx.select")
    traced.client.call(2, "basic.get", queue="q")
    traced.client.send(2, "basic.ack", delivery_tag=1)  # not committed
    traced.read()
    traced.rig.server.trace_rest()
    first, second, inventory = traced.events
    assert (first.first, second.first) == (1, 2)
    assert inventory.data["ready"] == [[3, 3]]
    assert inventory.data["counted"] == [1, 2]
    assert list(inventory.data["held"].values()) == [[[1, 1]], [[2, 2]]]  # type: ignore[union-attr]


def test_a_confirm_is_written_out_before_it_can_be_read_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    traced.declare("q")
    traced.client.call(1, "confirm.select")
    heard: list[tuple[str, int]] = []
    written = traced.client.wire.written
    monkeypatch.setattr(
        traced.rig.runtime.trace, "_flush", lambda: heard.append((traced.events[-1].kind, len(written)))
    )
    assert written == b""
    traced.client.raw(publishes(b"a"))
    assert heard == [("confirm", 0)]
    assert len(written) > 0


def test_what_the_store_writes_is_in_the_trace_before_and_a_restart_says_what_it_found() -> None:
    events: list[Event] = []
    world = World(1, "store", events.append)
    node = Node(world, Fabric(world), "b")
    for start in (1, 2):
        runtime = node.boot()
        flushed: list[int] = []
        runtime.trace._flush = lambda: flushed.append(len(events))  # noqa: B023
        broker = Broker(runtime, store=LogStore(runtime))
        broker.start(lambda _: None)
        world.run(world.time + 1)
        assert flushed, "before the first record"
        if start == 1:
            rig_publish(broker)
            before = len(events)
            world.run(world.time)  # the turn is over: the store appends
            assert flushed[-1] >= before
            world.run(world.time + 1)
            node.crash()
    told_again = [told(event) for event in events if event.kind == "recovered" and event.inc == 2]
    assert told_again[0].startswith("recovered clean=False damage=0 number=2 previous=1 queues=['q#")
    assert told_again[1] == "recovered q 1-2 next=65537 redelivered=[[1, 2]]"
    places = [event.data["log"] for event in events if event.kind == "enqueue"]
    synced = [event.last for event in events if event.kind == "synced" and event.inc == 1]
    assert isinstance(places[0], int)
    assert (synced[-1] or 0) >= places[0]


def rig_publish(broker: Broker) -> None:
    from broker_rig import message

    from coterie.broker.publish import Publish
    from coterie.broker.specs import QueueSpec

    vhost = broker.vhosts["/"]
    vhost.declare_queue("q", QueueSpec(durable=True), False, None, lambda _: None)
    vhost.publish([Publish(message("a", delivery_mode=2)), Publish(message("b", delivery_mode=2))], lambda: None)


def test_a_stop_is_the_last_event_and_comes_after_the_inventory() -> None:
    traced = Traced()
    traced.declare("q")
    traced.rig.server.stop(lambda: traced.rig.broker.stop(lambda: None))
    traced.client.gone()
    traced.rig.run(1)
    assert [event.kind for event in traced.events[-2:]] == ["inventory", "stop"]


def test_numbers_are_told_as_ranges_in_their_order() -> None:
    assert pairs([]) == []
    assert pairs([3, 4, 5, 9, 1, 2]) == [[3, 5], [9, 9], [1, 2]]


def test_a_persistent_message_in_a_durable_queue_is_told_apart() -> None:
    shelf = Shelf()
    shelf.at_once = True
    traced = Traced(shelf)
    traced.client.send(1, "queue.declare", queue="q", durable=True)
    traced.rig.run()
    traced.read()
    kept = Properties(delivery_mode=2)
    frames = [publish_frames(1, "", "q", b"x", kept if keep else None) for keep in (True, False, True)]
    traced.client.raw(b"".join(frames))
    assert traced.read("enqueue") == ["enqueue q 1-3 persistent=[[1, 1], [3, 3]]"]


def test_a_message_whose_hidden_copies_are_taken_out_is_still_the_one_that_was_published() -> None:
    traced = Traced()
    traced.declare("q")
    traced.client.call(1, "confirm.select")
    traced.read()
    hidden = publish_frames(1, "", "q", b"a", Properties(headers={"BCC": ["nowhere"]}))
    traced.client.raw(hidden + publishes(b"b"))
    assert [line for line in traced.read("publish", "enqueue") if "numbers=[[1, 2]]" not in line] == []
