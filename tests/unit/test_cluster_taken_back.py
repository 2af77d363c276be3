"""A failed event leaves nothing: whatever raises, and wherever, a broker is as before, in memory and on disk (B15).

Mistakes are put into the code on purpose: at the n-th note of the journal, at the n-th call of the store, or in some
function inside. Each broker is compared with itself, just before an event and just after it was taken back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from cluster_rig import Cluster, Host
from cluster_state import difference, shared, state
from queue_view import seen

from coterie.broker.dispatch import Dispatcher
from coterie.broker.following import steps
from coterie.broker.following.followed_queue import Promote
from coterie.broker.journal import Journal
from coterie.broker.leases import Leases
from coterie.broker.log_store import LogStore
from coterie.broker.log_store.unit import Unit
from coterie.broker.message_table import MessageTable
from coterie.broker.policy import Policy
from coterie.broker.queue import Queue
from coterie.broker.rotation import Rotation
from coterie.broker.specs import FANOUT, TOPIC, Binding, ExchangeSpec, QueueSpec
from coterie.broker.switchboard import Switchboard
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import Change
from coterie.cluster.applier import Applier
from coterie.cluster.consumers import Peer

Event = Callable[[], None]
STORE = ("enqueued", "acquired", "dequeued", "deleted", "save", "opened")
INSIDE = (
    (Queue, "enqueue"), (Queue, "dequeue"), (Queue, "leave"), (Queue, "_leave"), (Queue, "_fit"), (Queue, "lease"),
    (Queue, "apply_release"), (Queue, "set_limits"), (Queue, "delete"), (Dispatcher, "_give"), (Dispatcher, "take"),
    (Dispatcher, "schedule"), (Rotation, "wake"), (Rotation, "rest"), (Rotation, "turn"), (Rotation, "add"),
    (Rotation, "remove"), (Peer, "deliver"), (Peer, "hold"), (Peer, "free"), (Peer, "settled"), (Peer, "add"),
    (Peer, "drop"), (Leases, "hold"), (Leases, "_drop"), (Switchboard, "_save"), (Switchboard, "_changed"),
    (Switchboard, "_unlink"), (Vhost, "bury"), (Applier, "opened"), (Applier, "deleted"), (Unit, "save"),
    (Unit, "arrive"), (Unit, "leave"), (MessageTable, "put"), (MessageTable, "stamp"), (MessageTable, "cap"),
    (MessageTable, "prioritise"), (MessageTable, "key"), (MessageTable, "acquire"), (MessageTable, "release"),
    (MessageTable, "flag"), (MessageTable, "leave"), (MessageTable, "let_go"), (MessageTable, "tie"),
    (MessageTable, "untie"),
)  # fmt: skip


class Mistake(Exception):
    """One of those that nobody knows of yet."""


class Curse:
    """Lets an event fail at a place in the code, at each broker alike; and looks whether anything is left of it."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.at: Callable[[Host], int] = lambda host: 0
        """At which step this event is to fail; 0: it is not."""
        self.failed = 0
        self.left: list[str] = []
        """What was left of events that failed."""
        self._host: Host | None = None
        self._left = 0
        self._apart = 0
        run, note, apart = Journal.run, Journal.note, Journal.apart

        def run_(journal: Journal, step: Callable[[], Any]) -> Any:
            if journal.on or self._host is not None:
                return run(journal, step)
            host = next(host for host in cluster.hosts if host.broker.journal is journal)
            self._host, self._left = host, self.at(host)
            if not self._left:
                self._host = None
                return run(journal, step)
            before = state(host)
            try:
                return run(journal, step)
            except Mistake:
                self.failed += 1
                self.left += difference(before, state(host))
                raise
            finally:
                self._host = None

        def note_(journal: Journal, *args: Any) -> None:
            self.step()
            note(journal, *args)

        def apart_(journal: Journal, *args: Any) -> bool:
            self._apart += 1
            try:
                return apart(journal, *args)
            finally:
                self._apart -= 1

        monkeypatch.setattr(Journal, "run", run_)
        monkeypatch.setattr(Journal, "note", note_)
        monkeypatch.setattr(Journal, "apart", apart_)

    def step(self) -> None:
        """One of those that may be the last. What is apart does not fail the event."""
        if self._host is not None and not self._apart and self._left:
            self._left -= 1
            if not self._left:
                raise Mistake

    def into(self, monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> None:
        """The end of each call of this is a step."""
        right = getattr(where, name)

        def wrong(*args: Any, **more: Any) -> Any:
            found = right(*args, **more)
            self.step()
            return found

        monkeypatch.setattr(where, name, wrong)


def spec(**arguments: Any) -> QueueSpec:
    return QueueSpec(True, False, False, {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()})


def nobody(_: object = None) -> None:
    pass


class World:
    """Three brokers with one of everything, and events of every kind."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.cluster = Cluster(**settings)
        self.hosts = self.a, self.b, self.c = self.cluster.started()
        self.rng = random.Random(seed)
        self.number = 0
        self.clients = []
        vhost = self.a.vhost
        kinds = {
            "q": spec(), "full": spec(max_length=3, dead_letter_exchange="", dead_letter_routing_key="q"),
            "priority": spec(max_priority=3), "ring": spec(overflow="ring", max_length=3),
            "last": spec(last_value_key="h"), "once": spec(deduplicate_length=3), "mortal": spec(message_ttl=100_000),
            "refusing": spec(max_length=2, overflow="reject-publish"), "limited": spec(delivery_limit=1),
            "alone": spec(replicated=False), "single": spec(single_active_consumer=True),
        }  # fmt: skip
        self.names = [*kinds]
        for name, kind in kinds.items():
            vhost.declare_queue(name, kind, False, None, nobody)
        vhost.declare_exchange(ExchangeSpec("fan", FANOUT, True), False, nobody)
        vhost.declare_exchange(ExchangeSpec("topic", TOPIC, True, auto_delete=True), False, nobody)
        self.cluster.settle()
        for name in ("q", "full", "last", "alone", "ring"):
            vhost.bind(Binding("fan", "queue", name, "", {}), nobody)
        vhost.bind(Binding("topic", "queue", "q", "a.*", {}), nobody)
        self.cluster.settle()
        for host in self.hosts:
            for name in ("q", "full", "priority", "last", "single", "mortal"):
                self.clients.append(host.consume(name, prefetch=2, pool=5))
        for _ in range(3):
            for name in self.names:
                self.publish(name)
        self.cluster.settle()
        self.a.lease("acquire", "q", "l", rows=2)
        self.cluster.settle()

    def publish(self, name: str = "", exchange: str = "") -> None:
        self.number += 1
        host, body = self.rng.choice(self.hosts), f"m{self.number}"
        host.publish(
            body, key=name or self.rng.choice(self.names), exchange=exchange, priority=self.number % 4,
            message_id=f"i{self.number % 7}", headers={"h": f"v{self.number % 3}"},
            delivery_mode=1 + (self.number % 3 > 0),
        )  # fmt: skip

    def change(self, change: Change[Any]) -> None:
        vhost = self.rng.choice(self.hosts).vhost
        vhost.change(change, nobody)

    def settle(self, how: str) -> None:
        holding = [client for client in self.clients if client.held]
        if holding:
            client = self.rng.choice(holding)
            getattr(client, how)(*self.rng.sample(sorted(client.held), self.rng.randint(1, len(client.held))))

    def transact(self) -> None:
        holding = [client for client in self.clients if client.held]
        client = self.rng.choice(holding or self.clients)
        taken = [client.take(body) for body in sorted(client.held)]
        host = client.host
        made = [host.made(f"t{self.number}", name) for name in self.rng.sample(self.names, 3)]
        self.number += 1
        host.vhost.transaction(made, taken[:1], taken[1:2], taken[2:], nobody)

    def consume(self) -> None:
        name = self.rng.choice(self.names)
        host = self.rng.choice(self.hosts)
        if name in host.vhost.queues and host.queue(name).home is None:
            client = host.consume(name, prefetch=self.rng.choice((0, 1, 3)), pool=self.rng.choice((0, 4)))
            self.clients.append(client)

    def cancel(self) -> None:
        client = self.rng.choice(self.clients)
        client.cancel()
        client.release()
        self.clients.remove(client)

    def get(self) -> None:
        host, name = self.rng.choice(self.hosts), self.rng.choice(self.names)
        if name in host.vhost.queues and host.queue(name).home is None:
            host.get(name, no_ack=True)

    def lease(self, do: str) -> None:
        if "q" in self.a.vhost.queues:
            self.rng.choice(self.hosts).lease(do, "q", self.rng.choice("lm"), rows=2, upto=3)

    def declare(self) -> None:
        host = self.rng.choice(self.hosts)
        exclusive = self.rng.random() < 0.3
        found = QueueSpec(True, False, exclusive, {} if exclusive else {"x-message-ttl": 100_000})
        name = f"new{self.rng.randint(1, 3)}"
        host.vhost.declare_queue(name, found, False, host if exclusive else None, nobody)

    def delete(self) -> None:
        name = self.rng.choice([*self.names, "new1", "new2", "new3"])
        self.rng.choice(self.hosts).vhost.delete_queue(name, False, False, nobody)

    def again(self) -> None:
        """What may have been deleted is declared again."""
        name = self.rng.choice(("q", "full", "last", "ring"))
        kind = {"q": spec(), "full": spec(max_length=3), "last": spec(last_value_key="h"), "ring": spec()}[name]
        self.a.vhost.declare_queue(name, kind, False, None, nobody)

    def bind(self) -> None:
        host = self.rng.choice(self.hosts)
        name = self.rng.choice([*host.vhost.queues])
        exchange = self.rng.choice(("fan", "topic", "amq.direct"))
        found = Binding(exchange, "queue", name, self.rng.choice(("a.b", "#", "x")), {})
        (host.vhost.bind if self.rng.random() < 0.6 else host.vhost.unbind)(found, nobody)

    def policy(self) -> None:
        vhost = self.rng.choice(self.hosts).vhost
        if self.rng.random() < 0.3:
            vhost.clear_policy("p", nobody)
        else:
            definition = self.rng.choice(
                ({"max-length": 1}, {"message-ttl": 50_000}, {"deduplicate-length": 2}, {"dead-letter-exchange": "fan"})
            )
            vhost.set_policy(Policy("p", self.rng.choice((".*", "q", "once")), definition), nobody)

    def administer(self) -> None:
        broker = self.rng.choice(self.hosts).broker
        if self.rng.random() < 0.5:
            broker.keep_record("user", "u", {"number": self.number}, None, nobody)
        elif "v" in broker.vhosts and self.rng.random() < 0.5:
            broker.delete_vhost("v", nobody)
        else:
            broker.add_vhost("v", nobody)

    def replicate(self) -> None:
        host = self.rng.choice(self.hosts)
        if self.rng.random() < 0.5:
            said: dict[str, Any] = {
                "queue": "follower", "incarnation": 1, "session": "s", "auto_delete": False, "arguments": {}
            }  # fmt: skip
            step = steps.encode(steps.BEGIN, "there", said)
        elif self.rng.random() < 0.6:
            self.number += 1
            step = steps.encode(
                steps.ENQUEUE, "there", {"queue": "follower", "session": "s"}, [self.number, self.number + 1],
                [host.made("r1", "follower").message, host.made("r2", "follower").message],
            )  # fmt: skip
        else:
            said = {"queue": "follower", "session": "s", "ranges": [[1, self.number - 1]]}
            step = steps.encode(steps.REMOVE, "there", said)
        host.vhost.cluster.replicate(host.vhost, step, nobody)

    def events(self) -> dict[str, Event]:
        return {
            "publish": self.publish, "fanout": partial(self.publish, exchange="fan"),
            "full": partial(self.publish, "full"), "ring": partial(self.publish, "ring"),
            "last": partial(self.publish, "last"), "once": partial(self.publish, "once"),
            "accept": partial(self.settle, "accept"), "release": partial(self.settle, "release"),
            "reject": partial(self.settle, "reject"), "transaction": self.transact, "consume": self.consume,
            "cancel": self.cancel, "get": self.get, "acquire": partial(self.lease, "acquire"),
            "retire": partial(self.lease, "retire"), "give back": partial(self.lease, "release"),
            "end": partial(self.lease, "end"), "declare": self.declare, "delete": self.delete, "again": self.again,
            "bind": self.bind, "policy": self.policy, "administer": self.administer, "replicate": self.replicate,
            "purge": lambda: self.rng.choice(self.hosts).vhost.purge(self.rng.choice(("q", "full", "last")), nobody),
            "move": lambda: self.rng.choice(self.hosts).vhost.move("mortal", "priority", 2, nobody),
            "limit": lambda: self.a.vhost.set_limit("max-queues", 1000 + self.number, nobody),
            "promote": lambda: self.change(Promote("follower")),
            "end owner": lambda: self.b.vhost.close_owner(self.b),
            "exchange": lambda: self.c.vhost.delete_exchange("topic", False, nobody),
        }  # fmt: skip

    def go(self, curse: Curse, at: Callable[[Host], int]) -> None:
        events = self.events()
        curse.at = at
        for _ in range(150):
            events[self.rng.choice([*events])]()
            if self.rng.random() < 0.5:
                self.cluster.run(0.02)
        self.cluster.settle()
        curse.at = lambda host: 0
        assert not curse.left, curse.left[:5]
        assert curse.failed > 10

    def judge(self) -> None:
        """All are alike, in memory and after a restart, and go on."""
        self.cluster.settle()
        assert all(host.serves for host in self.hosts)
        first = shared(self.a)
        for host in (self.b, self.c):
            assert not (left := difference(first, shared(host))), left
        assert len({(host.member.replica.progress, host.member.voids.sum) for host in self.hosts}) == 1
        self.let_go()
        before = kept(self.a)
        for host in list(self.cluster.hosts):
            host.kill()
        self.hosts = self.a, self.b, self.c = self.cluster.started()
        assert not (left := difference(before, kept(self.b))), left
        self.a.declare("afterwards")
        self.b.publish("hello", key="afterwards")
        client = self.c.consume("afterwards")
        self.cluster.settle()
        assert client.seen == ["hello"]
        assert self.b.confirmed == ["hello"]

    def let_go(self) -> None:
        """What is held is ready after a restart, and a queue may be too full for that: so nothing is to be held."""
        self.cluster.run(1.0)  # what must be is sent again
        for client in self.clients:
            client.cancel()
            client.accept()
        self.cluster.settle()
        for name in "lm":
            if "q" in self.a.vhost.queues:
                self.a.lease("end", "q", name)
        self.cluster.settle()
        held = [entry for queue in self.a.vhost.queues.values() for entry in seen(queue).values() if entry.holder]
        assert not [entry for entry in held if entry.queue.home is None], held


def kept(host: Host) -> dict[str, Any]:
    """What a restart of all leaves: durable wiring, and persistent messages."""
    found: dict[str, Any] = {}
    for vhost in host.broker.vhosts.values():
        for name, queue in vhost.queues.items():
            if queue.home is None:
                messages = [
                    (entry.position, entry.message.body)
                    for entry in seen(queue).values()
                    if entry.message is not None and entry.message.persistent
                ]
                replica = None if queue.replica is None else (queue.replica.mark, queue.replica.promoted)
                found[f"{vhost.name} {name}"] = [queue.incarnation, messages, repr(queue.limits), replica]
        found[f"{vhost.name} bindings"] = sorted(
            repr(each)
            for each in vhost.bindings()
            if each.destination in vhost.queues and vhost.queues[each.destination].home is None
        )
        found[f"{vhost.name} exchanges"] = sorted(vhost.exchanges)
        found[f"{vhost.name} policies"] = sorted(vhost.policies)
    return found


def by_place(seed: int, chance: float, most: int) -> Callable[[Host], int]:
    """The same at every broker: it follows from the place in the log."""

    def at(host: Host) -> int:
        rng = random.Random(f"{seed} {host.member.replica.progress}")
        return rng.randint(1, most) if rng.random() < chance else 0

    return at


@pytest.mark.parametrize("dispatch", ["credit", "ownership"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_note_an_event_fails_at_nothing_is_left_of_it(
    seed: int, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, dispatch=dispatch)
    curse = Curse(world.cluster, monkeypatch)
    world.go(curse, by_place(seed, 0.4, 25))
    world.judge()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_function_fails_nothing_is_left_of_its_event(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    note = Journal.note
    world = World(seed)
    curse = Curse(world.cluster, monkeypatch)
    monkeypatch.setattr(Journal, "note", note)
    for where, name in (*((LogStore, name) for name in STORE), *INSIDE):
        curse.into(monkeypatch, where, name)
    world.go(curse, by_place(seed, 0.5, 25))
    world.judge()


@pytest.mark.parametrize("kind", ["fanout", "policy", "delete"])
def test_at_whichever_step_an_event_fails_nothing_is_left_of_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, one after the other, until none is left to fail at."""
    world = World(3)
    curse = Curse(world.cluster, monkeypatch)
    for number in range(1, 400):
        curse.failed = 0
        curse.at = lambda host, number=number: number  # type: ignore[misc]
        world.rng.seed(11)
        world.events()[kind]()
        world.cluster.run(0.1)
        if not curse.failed:
            break
        curse.at = lambda host: 0
        world.cluster.settle()
    assert not curse.left, curse.left[:5]
    assert 2 < number < 399
    curse.at = lambda host: 0
    world.judge()
