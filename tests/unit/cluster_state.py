"""Everything that a clustered broker has because of the log, in a form that can be compared; also what its store was
told."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from cluster_rig import Host
from queue_view import Seen, seen

from coterie.broker import records
from coterie.broker.leases import Lease
from coterie.broker.log_store import LogStore
from coterie.broker.queue import Queue
from coterie.broker.state.queue_state import QueueState
from coterie.broker.vhost import Vhost
from coterie.cluster.consumers import Getter, Peer, Subscriber

Json = dict[str, Any]


def holder_of(entry: Seen) -> str:
    holder = entry.holder
    if isinstance(holder, (Subscriber, Getter)):
        return f"{type(holder).__name__} {holder.number} of {holder.peer.address}"
    return f"lease {holder.name} {holder.id}" if isinstance(holder, Lease) else repr(holder)


def subscriber(found: Subscriber) -> Json:
    pool = found.pool
    return {
        "number": found.number, "held": found.held, "limit": found.limit, "hungry": found.hungry,
        "active": found.active, "pool": None if pool is None else pool.number,
    }  # fmt: skip


def table_state(state: QueueState) -> Json:
    """What follows from what is in the queue, and must fit that."""
    return {
        "ready": [*state.ready.ranges()], "loose": [*state.loose.ranges()],
        "lanes": {priority: [*lane.ranges()] for priority, lane in state.lanes.items()},
        "newest": sorted(state.last_values.newest.items()), "keys": sorted(state.last_values.keys.items()),
        "held": [state.held_count, state.held_bytes], "caps": repr(state.caps),
    }  # fmt: skip


def queue_state(queue: Queue) -> Json:
    found: Json = {
        "number": queue.incarnation, "deleted": queue.deleted, "ready": queue.ready, "bytes": queue.bytes,
        "ready_bytes": queue.ready_bytes, "next": queue.next_position, "limits": repr(queue.limits),
        "policy": [queue.policy, queue.operator_policy], "home": [queue.home, queue.elsewhere],
        "messages": [
            [
                each.position, each.message and crc32(each.message.body), holder_of(each), each.redelivered,
                each.deliveries, each.size, each.expires,
            ]
            for each in seen(queue).values()
        ],
        "table": table_state(queue.table.state),
        "consumers": [subscriber(each) for each in queue.consumers if isinstance(each, Subscriber)],
        "turns": [each.tag for each in queue.rotation.turns()], "hungry": queue.rotation.hungry,
        "leases": queue.leases.records(), "leased": [queue.leases.count, queue.leases.bytes],
        "replica": None if queue.replica is None else queue.replica.record(queue),
        "counters": queue.counters.as_dict(), "mortal": queue.count > 0 and queue.expiry.mortal,
        "dispatcher": [queue.dispatcher._scheduled, queue.dispatcher._busy],
    }  # fmt: skip
    if queue.window is not None:
        window = queue.window
        found["window"] = [[persistent, *run] for persistent, run in window.runs()]
        found["seen"] = [sorted(memory.seen) for memory in (window.kept, window.fleeting)]
        found["wall"] = window._wall
        if window._pages is not None:
            found["pages"] = [[*window._pages._pages], [*window._pages._open], window._pages._slots]
    return found


def vhost_state(vhost: Vhost) -> Json:
    return {
        "queues": {name: queue_state(queue) for name, queue in sorted(vhost.queues.items())},
        "exchanges": {
            name: [
                repr(exchange.spec), exchange.policy, exchange.alternate,
                sorted(records.binding_key("", each) for each in exchange.bindings.values()),
                [sorted(exchange.route(key, {"h": key}, 100_000)[0]) for key in ("", "q", "a.b", "x")],
            ]
            for name, exchange in sorted(vhost.exchanges.items())
        },
        "policies": sorted(map(repr, (*vhost.policies.items(), *vhost.operator_policies.items()))),
        "limits": sorted(vhost.limits.items()), "gone": vhost.gone.as_dict(), "deleted": vhost.deleted,
        "bindings": vhost.binding_count,
        "leading": sorted((target, len(found)) for target, found in vhost._leading_to.items()),
        "owned": sorted(sorted(found) for found in vhost._owned.values()),
        "dying": len(vhost.graveyard._waiting),
    }  # fmt: skip


def peer_state(peer: Peer) -> Json:
    return {
        "subscribers": [subscriber(each) for _, each in sorted(peer.subscribers.items())],
        "pools": [[n, pool.limit, pool.held, sorted(pool.members)] for n, pool in sorted(peer.pools.items())],
        "owners": sorted(peer.owners),
        "held": {
            queue: sorted((holder, [*held.positions.ranges()]) for holder, held in by_holder.items())
            for queue, by_holder in sorted(peer.held.items())
        },
        "unready": sorted(peer.unready),
    }


def state(host: Host, local: bool = True) -> Json:
    """`local`: also what other brokers need not have alike."""
    member, broker, handler = host.member, host.broker, host.member.applier
    found: Json = {
        "vhosts": {name: vhost_state(vhost) for name, vhost in sorted(broker.vhosts.items())},
        "peers": {str(address): peer_state(peer) for address, peer in sorted(handler.peers.items())},
        "records": sorted((*key, repr(record)) for key, record in broker.records.items()),
        "queues": sorted(handler.queues),
        "voters": member.replica.voters,
    }
    if handler.owners is not None:
        found["owners"] = sorted(
            (queue.incarnation, None if each.owner is None else str(each.owner.address), each.tenure, len(each.circle))
            for queue, each in handler.owners._queues.items()
            if each.circle
        )
    if local:
        found["here"] = sorted(queue.name for queue in member.local_queues.here)
        if isinstance(host.store, LogStore):
            store = host.store
            found["unit"] = [store._unit.mark(), store.written(), store.index.next_part, store._depth]
            found["marks"] = sorted(
                (key, line.image(), [(part.number, part.next) for part in line.parts.values()])
                for key, line in store.index.lines.items()
            )
            found["known"] = sorted(queue.incarnation for queue in store._queues)
    return found


def difference(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            text
            for key in {**one, **other}
            for text in difference(one.get(key, "missing"), other.get(key, "missing"), f"{path}/{key}")
        ]
    return [] if one == other else [f"{path}: {one!r} became {other!r}"]


def shared(host: Host) -> Json:
    """What every broker has alike: neither clocks nor numbers of its own store."""
    found = state(host, local=False)
    for vhost in found["vhosts"].values():
        for queue in vhost["queues"].values():
            del queue["mortal"], queue["counters"]
            if queue["home"][0] is not None:
                queue.clear()
            else:
                queue["messages"] = [each[:-1] for each in queue["messages"]]
                del queue["table"]["caps"]
        del vhost["gone"]
    for peer in found["peers"].values():
        del peer["unready"], peer["owners"]  # of its own connections a broker knows before the log does
    return found
