"""Another broker's state becomes this one's: wiring first, the index of messages as it comes, then consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.broker import records
from coterie.broker.following.followed_queue import restore
from coterie.broker.message_codec import Routes
from coterie.broker.queue_copy import QueueInstallation
from coterie.broker.recovery import sound_exchange, sound_policy, sound_queue
from coterie.broker.specs import ExchangeSpec, QueueSpec
from coterie.cluster.catchup.snapshot import Json, Told, owner_of, peer_of, read_chunk, read_ids, shares_of
from coterie.cluster.consumers import GETTER, Holder, Peer, Subscriber

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.queue import Queue
    from coterie.cluster.applier import Applier


class Installation:
    """Of one snapshot, into a broker that has been emptied."""

    def __init__(self, broker: Broker, applier: Applier, outline: Json, now: float) -> None:
        self._broker = broker
        self._applier = applier
        self._outline = outline
        self._now = now
        """The time by which messages expire, where the state was cut."""
        self._queues: dict[int, QueueInstallation] = {}
        self._routes = Routes()
        self.messages: Told = {}
        """All of them, bodiless."""
        for said in outline["vhosts"]:
            self._vhost(said)
        broker.put_records(outline["records"])

    def _vhost(self, said: Json) -> None:
        broker = self._broker
        vhost = broker.vhosts.get(said["name"]) or broker.keep_vhost(said["name"])
        for name, value in said["limits"].items():
            vhost.put_limit(name, value)
        for operator, policies in ((False, said["policies"]), (True, said["operator"])):
            for name, record in policies:
                policy = sound_policy(vhost, name, record, operator)
                if policy is not None:
                    vhost.put_policy(name, policy, operator)
        for name, kind, durable, auto_delete, internal, arguments in said["exchanges"]:
            exchange = ExchangeSpec(name, kind, durable, auto_delete, internal, _table(arguments))
            vhost.add_exchange(sound_exchange(vhost, exchange))
        for queue in said["queues"]:
            durable, auto_delete, exclusive, arguments = queue["spec"]
            spec = sound_queue(vhost, queue["name"], QueueSpec(durable, auto_delete, exclusive, _table(arguments)))
            owner = owner_of(self._applier, queue["owner"])
            self._applier.declaring = queue["home"] or ""
            made = vhost.add_queue(queue["name"], spec, owner, queue["number"], save=True)
            if queue.get("replica") is not None:
                restore(made, queue["replica"])
            if queue["home"] is None:
                self._queues[queue["number"]] = QueueInstallation(made)
        self._applier.declaring = None
        for binding in said["bindings"]:
            vhost.add_binding(records.binding_of(binding)[1])

    def chunk(self, data: memoryview) -> None:
        if read_ids(data, self._applier.queues):
            return
        number, rows = read_chunk(data, self._applier.queues, self._routes, self.messages, self._now)
        self._queues[number].add(rows)

    def finish(self) -> None:
        holders = {said["address"]: self._peer(said) for said in self._outline["peers"]}
        for vhost in self._outline["vhosts"]:
            for said in vhost["queues"]:
                if said["home"] is not None:
                    continue
                queue = self._applier.queues[said["number"]]
                self._queues.pop(said["number"]).finish(said["next"], said.get("leases", []))
                _consumers(queue, said, holders)
                if self._applier.owners is not None:
                    found = self._applier.owners.of(queue)
                    owner, circle, found.tenure = said["ownership"]
                    found.circle = [peer_of(self._applier, address) for address in circle]
                    found.owner = None if owner is None else peer_of(self._applier, owner)

    def _peer(self, said: Json) -> dict[int, Subscriber]:
        """Its consumers; and what it holds of each queue is noted."""
        peer = peer_of(self._applier, said["address"])
        peer.events = said["events"]
        peer.unready = {*said["unready"]}
        for number, limit, held in said["pools"]:
            pool = peer.pool(number, limit)
            assert pool is not None
            pool.held = held
        known: dict[int, Subscriber] = {}
        for each in said["subscribers"]:
            known[each["number"]] = subscriber = self._subscriber(peer, each)
            peer.add(subscriber)
        for each in said["cancelled"]:
            if each["queue"] in self._applier.queues:
                known[each["number"]] = self._subscriber(peer, each)
        for queue, number, ranges in shares_of(said):
            holder: Holder | None = peer.getter if number == GETTER else known.get(number)
            if holder is None:
                continue
            peer.hold(queue, holder, ranges)
            if queue in self._queues:
                self._queues[queue].hold(holder, ranges)
        return known

    def _subscriber(self, peer: Peer, said: Json) -> Subscriber:
        no_ack, exclusive = said["flags"]
        subscriber = Subscriber(
            said["tag"], self._applier.queues[said["queue"]], peer, no_ack, exclusive, said["priority"],
            _table(said["args"]), peer, said["number"], said["limit"], peer.pools.get(said["pool"]),
            said.get("details", {}),
        )  # fmt: skip
        subscriber.held = said["held"]
        return subscriber


def _consumers(queue: Queue, said: Json, holders: dict[str, dict[int, Subscriber]]) -> None:
    def found(keys: list[Any]) -> list[Subscriber]:
        return [holders[address][number] for address, number in keys]

    for consumer in found(said["active"]):
        consumer.active = True
    queue.rotation.restore(found(said["consumers"]), found(said["turns"]))


def _table(packed: object) -> dict[str, Any]:
    table = records.unpack(packed)
    assert isinstance(table, dict)
    return table
