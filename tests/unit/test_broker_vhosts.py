"""The broker around its vhosts: what survives, when a publisher is told so, and alarms."""

from __future__ import annotations

import pytest
from broker_rig import Rig, Shelf, bodies, message, text
from queue_view import in_order, seen
from test_broker_policies import set_policy

from coterie.amqp.wire.tables import Table
from coterie.broker.memory import BESIDE
from coterie.broker.publish import Publish
from coterie.broker.settings import BrokerSettings
from coterie.errors import ProtocolError


def shelf() -> Shelf:
    store = Shelf()
    store.at_once = True
    return store


def drained(rig: Rig, store: Shelf, name: str = "q") -> list[str]:
    """Everything in a queue, brought from disk if need be."""
    found: list[str] = []
    client = rig.consume(rig.vhost.queues[name], no_ack=True)
    while store.serve():
        rig.run()
    found += client.bodies()
    return found


def test_what_is_durable_is_there_after_a_restart_and_nothing_else_is() -> None:
    store = shelf()
    rig = Rig(store=store)
    arguments: Table = {"x-max-priority": 3, "bytes": b"\xff", "nested": {"!bytes": [1.5, None, True]}}
    rig.declare("q", arguments, durable=True)
    rig.declare("transient")
    rig.declare("mine", durable=True, exclusive=True, owner=object())
    rig.exchange("x", "topic", durable=True, internal=True, arguments={"alternate-exchange": "amq.fanout"})
    rig.exchange("fleeting", "topic")
    rig.bind("x", "q", "a.*", {"n": 1})
    rig.bind("x", "transient", "a.*")
    rig.bind("fleeting", "q", "a.*")
    rig.bind("amq.topic", "x", "#", kind="exchange")
    set_policy(rig, "p", "^q", max_length=9)
    set_policy(rig, "o", "^q", operator=True, max_length=7)
    rig.ask(lambda done: rig.vhost.set_limit("max-queues", 12, done))
    rig.ask(lambda done: rig.broker.add_vhost("other", done))

    again = Rig(store=store)
    vhost = again.vhost
    assert list(again.broker.vhosts) == ["/", "other"]
    assert list(vhost.queues) == ["q"]
    assert vhost.queues["q"].spec == rig.vhost.queues["q"].spec
    assert vhost.queues["q"].incarnation == rig.vhost.queues["q"].incarnation
    assert vhost.exchange("x").spec == rig.vhost.exchange("x").spec
    assert "fleeting" not in vhost.exchanges
    assert [(b.source, b.destination, b.key, b.arguments) for b in vhost.bindings()] == [
        ("amq.topic", "x", "#", {}), ("x", "q", "a.*", {"n": 1}),
    ]  # fmt: skip
    assert vhost.queues["q"].limits.max_length == 7
    assert (vhost.policies, vhost.operator_policies) == (rig.vhost.policies, rig.vhost.operator_policies)
    assert vhost.limits == {"max-queues": 12}


def test_what_was_deleted_stays_deleted_after_a_restart() -> None:
    store = shelf()
    rig = Rig(store=store)
    for name in ("q", "r"):
        rig.declare(name, durable=True)
    rig.exchange("x", durable=True)
    rig.exchange("y", durable=True, auto_delete=True)
    for name in ("x", "y"):
        rig.bind(name, "q", "k")
    rig.bind("x", "r", "k")
    set_policy(rig, "p", "", max_length=9)
    rig.publish("a", delivery_mode=2)
    rig.delete("q")
    rig.unbind("x", "r", "k")
    rig.ask(lambda done: rig.vhost.delete_exchange("x", False, done))
    rig.ask(lambda done: rig.vhost.clear_policy("p", done))
    rig.ask(lambda done: rig.broker.add_vhost("other", done))
    rig.ask(lambda done: rig.broker.delete_vhost("other", done))
    again = Rig(store=store)
    assert list(again.broker.vhosts) == ["/"]
    assert list(again.vhost.queues) == ["r"]
    assert len(again.vhost.exchanges) == 5
    assert (list(again.vhost.bindings()), again.vhost.policies) == ([], {})
    assert not store.kept


def test_persistent_messages_are_at_their_positions_after_a_restart() -> None:
    store = shelf()
    rig = Rig(store=store)
    queue = rig.declare(durable=True)
    rig.publish("a", "b", "c", "d", delivery_mode=2)
    rig.publish("transient")
    client = rig.consume(queue, prefetch=2)
    client.accept("a")
    rig.run()
    again = Rig(store=store)
    queue = again.vhost.queues["q"]
    assert [entry.position for entry in in_order(queue)] == [2, 3, 4]
    assert queue.next_position == 6
    flags = [entry.redelivered for entry in in_order(queue)]
    assert flags == [True, True, False]
    assert drained(again, store) == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-max-priority": 9}, ["c", "d", "b", "a"]),
        ({"x-last-value-key": "k"}, ["a", "d"]),
        ({"x-max-length": 2, "x-overflow": "ring"}, ["c", "d"]),
    ],
)
def test_a_kind_of_queue_is_itself_again_after_a_restart(arguments: Table, expected: list[str]) -> None:
    store = shelf()
    rig = Rig(store=store)
    rig.declare(arguments=arguments, durable=True)
    for body, key, priority in (("a", "x", 1), ("b", "y", 3), ("c", "y", 7), ("d", "y", 7)):
        rig.publish(body, delivery_mode=2, priority=priority, headers={"k": key})
    assert sorted(drained(Rig(store=store), store)) == sorted(expected)
    assert drained(Rig(store=store), store) == []
    rig = Rig(store=store)
    for body, key, priority in (("a", "x", 1), ("b", "y", 3), ("c", "y", 7), ("d", "y", 7)):
        rig.publish(body, delivery_mode=2, priority=priority, headers={"k": key})
    again = Rig(store=store)
    client = again.consume(again.vhost.queues["q"], prefetch=1)
    order: list[str] = []
    while store.serve() or client.held:
        order += client.bodies()
        client.accept()
        again.run()
    assert order == expected


def test_no_queue_after_a_restart_has_the_incarnation_of_one_before() -> None:
    store = shelf()
    seen = [Rig(store=store).declare("fleeting").incarnation for _ in range(3)]
    assert seen == sorted(set(seen))


def test_records_of_others_are_kept_for_them() -> None:
    store = shelf()
    store.save("user", "guest", {"tags": ["administrator"]})
    assert Rig(store=store).broker.records == {("user", "guest"): {"tags": ["administrator"]}}


def test_a_persistent_publish_is_confirmed_when_it_is_on_disk_and_what_comes_after_it_not_before() -> None:
    store = shelf()
    rig = Rig(store=store)
    rig.declare(durable=True)
    rig.declare("fleeting")
    store.at_once = False
    store.sync()
    confirmed: list[str] = []

    def publish(name: str, key: str, mode: int) -> None:
        rig.vhost.publish([Publish(message(name, key=key, delivery_mode=mode))], lambda: confirmed.append(name))

    publish("free", "fleeting", 1)
    assert confirmed == ["free"]
    publish("persistent", "q", 2)
    publish("after it", "fleeting", 1)
    publish("in memory", "fleeting", 2)
    assert confirmed == ["free"]
    store.sync()
    assert confirmed == ["free", "persistent", "after it", "in memory"]
    publish("free again", "q", 1)
    assert confirmed[-1] == "free again"


def test_a_durable_declaration_is_answered_when_it_is_on_disk() -> None:
    store = shelf()
    rig = Rig(store=store)
    store.at_once = False
    store.sync()
    answers: list[object] = []
    from coterie.broker.specs import QueueSpec

    rig.vhost.declare_queue("q", QueueSpec(durable=True), False, None, answers.append)
    assert answers == []
    store.sync()
    assert answers == [rig.vhost.queues["q"]]
    rig.vhost.declare_queue("q", QueueSpec(durable=True), False, None, answers.append)
    rig.vhost.declare_queue("r", QueueSpec(), False, None, answers.append)
    assert len(answers) == 3, "nothing was written"


def test_vhosts_know_nothing_of_each_other() -> None:
    rig = Rig()
    rig.declare()
    other = rig.ask(lambda done: rig.broker.add_vhost("other", done))
    assert other.queues == {}
    with pytest.raises(ProtocolError, match="vhost missing not found") as caught:
        rig.broker.vhost("missing")
    assert caught.value.reply_code == 530
    assert rig.ask(lambda done: rig.broker.add_vhost("other", done)) is other


def test_deleting_a_vhost_ends_everything_in_it() -> None:
    rig = Rig()
    rig.ask(lambda done: rig.broker.add_vhost("other", done))
    told: list[str] = []
    rig.broker.deleting_vhost.append(lambda vhost: told.append(f"{vhost.name} {len(vhost.queues)}"))
    queue = rig.declare()
    client = rig.consume(queue)
    rig.ask(lambda done: rig.broker.delete_vhost("/", done))
    assert (told, client.cancellations, list(rig.broker.vhosts)) == (["/ 1"], 1, ["other"])
    with pytest.raises(ProtocolError, match="not found"):
        rig.ask(lambda done: rig.broker.delete_vhost("/", done))


def test_there_is_a_limit_on_vhosts() -> None:
    rig = Rig(BrokerSettings(vhosts_max=1))
    with pytest.raises(ProtocolError, match="vhosts_max"):
        rig.ask(lambda done: rig.broker.add_vhost("other", done))


def test_too_much_in_memory_is_an_alarm_until_enough_is_gone() -> None:
    rig = Rig(BrokerSettings(memory_high=100 + 2 * BESIDE, memory_low=0.5, alarm_interval=0.1))
    told: list[str] = []
    rig.broker.watch_alarms(told.append)
    rig.declare()
    rig.publish("x" * 60, "x" * 60)
    rig.run(0.2)
    assert (told, rig.broker.blocked) == (["low on memory"], "low on memory")
    rig.get(no_ack=True)
    rig.run(0.2)
    assert rig.broker.counted_memory == 60 + BESIDE
    assert rig.broker.blocked == "low on memory", "above the low mark"
    rig.get(no_ack=True)
    rig.run(0.2)
    assert told == ["low on memory", ""]
    rig.broker.unwatch_alarms(told.append)


def test_a_full_disk_is_an_alarm_beside_others() -> None:
    store = shelf()
    rig = Rig(store=store)
    assert store.alarm is not None
    told: list[str] = []
    rig.broker.watch_alarms(told.append)
    store.alarm(True)
    store.alarm(True)
    rig.broker.set_alarm("memory", True)
    store.alarm(False)
    assert told == ["low on disk", "low on disk and memory", "low on memory"]


def test_a_store_that_cannot_be_read_stops_the_start() -> None:
    from coterie.broker.broker import Broker
    from coterie.errors import DiskError

    class Unreadable(Shelf):
        def recover(self, done: object) -> None:
            done(DiskError("unreadable"))  # type: ignore[operator]

    results: list[Exception | None] = []
    broker = Broker(Rig().runtime, store=Unreadable())
    broker.start(results.append)
    assert isinstance(results[0], DiskError)
    assert broker.vhosts == {}


def test_a_stopped_broker_does_nothing_more() -> None:
    rig = Rig(BrokerSettings())
    queue = rig.declare(arguments={"x-message-ttl": 100, "x-expires": 200})
    rig.publish("a")
    stopped: list[bool] = []
    rig.broker.stop(lambda: stopped.append(True))
    assert stopped == [True]
    rig.run(10)
    assert [text(entry) for entry in in_order(queue)] == ["a"]
    assert rig.world.idle


def test_transient_messages_of_a_durable_queue_are_gone_after_a_restart() -> None:
    store = shelf()
    rig = Rig(store=store)
    queue = rig.declare(durable=True)
    rig.publish("a")
    assert bodies(queue) == ["a"]
    assert not seen(Rig(store=store).vhost.queues["q"])
