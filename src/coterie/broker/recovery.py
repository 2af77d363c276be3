"""Recovery: a broker's vhosts, wiring and queues from what the store has kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.broker import records
from coterie.broker.following.followed_queue import Replica
from coterie.broker.leases import ranges_in
from coterie.broker.policy import Policy
from coterie.broker.queue import Queue
from coterie.broker.restoring import Restored
from coterie.broker.specs import EXCHANGE_KINDS, ExchangeSpec, QueueSpec
from coterie.broker.storage import Record, Recovered, RecoveredMessage
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import LIMITS
from coterie.errors import ProtocolError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.broker import Broker

log = Log(__name__)
_NONSENSE = (ProtocolError, AssertionError, KeyError, IndexError, ValueError, TypeError, AttributeError)
"""What reading a record raises that nobody should have written."""


def rebuild(broker: Broker, found: Recovered) -> dict[tuple[str, str], Record]:
    """Gives the records that are not the broker's own."""
    for name in ("/", *(records.parts_of(key)[0] for key in _of(found, records.VHOST))):
        if name not in broker.vhosts:
            broker.make_vhost(name)
    # Policies first: a queue is restored under the limits that it had.
    steps: dict[str, Callable[[Vhost, list[str], str, Record], None]] = {
        records.LIMIT: _limit,
        records.POLICY: _policy,
        records.OPERATOR_POLICY: _operator_policy,
        records.EXCHANGE: _exchange,
        records.QUEUE: _queue,
        records.REPLICA: _replica,
        records.BINDING: _binding,
    }
    for kind, step in steps.items():
        for key, record in _of(found, kind).items():
            parts = records.parts_of(key)
            vhost = broker.vhosts.get(parts[0])
            if vhost is None:
                log.warning("a record of a vhost that there is not", kind=kind, key=key)
                continue
            try:
                step(vhost, parts, key, record)
            except _NONSENSE as error:
                log.warning("a record that makes no sense is left out", kind=kind, key=key, error=repr(error))
    _windows(broker, _of(found, records.SEEN))
    traced = broker.traced
    if traced is not None:
        traced.recovered(found, (queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()))
    leases = _by_queue(_of(found, records.LEASE))
    for (vhost_name, name, incarnation), (next_position, messages) in found.queues.items():
        vhost = broker.vhosts.get(vhost_name)
        queue = None if vhost is None else vhost.queues.get(name)
        if queue is None or queue.incarnation != incarnation:
            log.warning("messages of a queue that there is not", vhost=vhost_name, queue=name, count=len(messages))
            continue
        queue.restore(_restored(queue, messages), next_position)
        _leases(queue, leases.pop((vhost_name, name, incarnation), []))
        if traced is not None:
            traced.restored(queue)
        queue.settle()
        if traced is not None:
            for lease in (lease for lease in queue.leases if lease.count):
                traced.acquired(queue, lease, ranges_in(lease.pieces))
    for (vhost_name, name, incarnation), found_leases in leases.items():  # of queues in which nothing is
        vhost = broker.vhosts.get(vhost_name)
        queue = None if vhost is None else vhost.queues.get(name)
        if queue is not None and queue.incarnation == incarnation:
            _leases(queue, found_leases)
    own = {records.VHOST, records.SEEN, records.LEASE, *steps}
    return {(kind, key): record for (kind, key), record in found.records.items() if kind not in own}


def _by_queue(found: dict[str, Record]) -> dict[tuple[str, str, int], list[Record]]:
    """Leases, by vhost, name and incarnation of their queues."""
    leases: dict[tuple[str, str, int], list[Record]] = {}
    for key, record in found.items():
        vhost, queue, _ = records.parts_of(key)
        incarnation = record["queue"]
        assert isinstance(incarnation, int)
        leases.setdefault((vhost, queue, incarnation), []).append(record)
    return leases


def _leases(queue: Queue, found: list[Record]) -> None:
    for record in found:
        queue.leases.restore(record)


def _of(found: Recovered, kind: str) -> dict[str, Record]:
    return {key: record for (each, key), record in found.records.items() if each == kind}


def _limit(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    value = record["value"]
    assert isinstance(value, int)
    if parts[1] in LIMITS:
        vhost.put_limit(parts[1], max(0, value), save=False)


def _policy(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    _put_policy(vhost, parts[1], record, operator=False)


def _operator_policy(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    _put_policy(vhost, parts[1], record, operator=True)


def _put_policy(vhost: Vhost, name: str, record: Record, operator: bool) -> None:
    policy = sound_policy(vhost, name, record, operator)
    if policy is not None:
        vhost.put_policy(name, policy, operator, save=False)


def sound_policy(vhost: Vhost, name: str, record: Record, operator: bool) -> Policy | None:
    """What can be meant of a policy that a store or another broker has."""
    policy, problems = records.policy_of(name, record).sound(operator)
    if problems:
        log.warning("a policy is not as it may be", vhost=vhost.name, policy=name, ignored="; ".join(problems))
    return policy


def _exchange(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    vhost.add_exchange(sound_exchange(vhost, records.exchange_of(parts[1], record)), save=False)


def _queue(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    spec, incarnation = records.queue_of(record)
    vhost.add_queue(parts[1], sound_queue(vhost, parts[1], spec), incarnation=incarnation)


def sound_queue(vhost: Vhost, name: str, spec: QueueSpec) -> QueueSpec:
    """As it may be, of one that a store or another broker has: what is wrong with it counts for nothing."""
    found, problems = spec.sound()
    if problems:
        log.warning(
            "arguments of a queue are not as they may be", queue=name, vhost=vhost.name, wrong="; ".join(problems)
        )
    return found


def sound_exchange(vhost: Vhost, spec: ExchangeSpec) -> ExchangeSpec:
    """The same of an exchange. Raises ProtocolError if it is of no kind that there is."""
    if spec.kind not in EXCHANGE_KINDS:
        raise ProtocolError(PRECONDITION_FAILED, f"unknown exchange type '{spec.kind}'")
    found, problems = spec.sound()
    if problems:
        log.warning(
            "arguments of an exchange are not as they may be", exchange=spec.name, vhost=vhost.name,
            wrong="; ".join(problems),
        )  # fmt: skip
    return found


def _replica(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    queue = vhost.queues.get(parts[1])
    if queue is not None and queue.incarnation == record["queue"]:
        vhost.follow(queue, Replica.of(record))


def _binding(vhost: Vhost, parts: list[str], key: str, record: Record) -> None:
    _, binding = records.binding_of(key)
    there = vhost.queues if binding.kind == "queue" else vhost.exchanges
    if binding.source in vhost.exchanges and binding.destination in there:
        binding.check()
        vhost.exchanges[binding.source].check(binding)
        vhost.add_binding(binding, save=False)
    else:
        log.warning("a binding without its ends", vhost=vhost.name, source=binding.source, to=binding.destination)


def _windows(broker: Broker, found: dict[str, Record]) -> None:
    """What queues remember of message ids."""
    by_queue: dict[Queue, dict[str, Record]] = {}
    for key, record in found.items():
        vhost_name, name, part = records.parts_of(key)
        vhost = broker.vhosts.get(vhost_name)
        queue = None if vhost is None else vhost.queues.get(name)
        if queue is not None and queue.window is not None and queue.incarnation == record["queue"]:
            by_queue.setdefault(queue, {})[part] = record
    for queue, parts in by_queue.items():
        assert queue.window is not None
        queue.window.recover(parts)


def _restored(queue: Queue, messages: Iterable[RecoveredMessage]) -> Restored:
    found = Restored()
    lead = queue.cluster.lead()
    for each in messages:
        found.add(each.position, each.size, each.message)
        if each.redelivered:
            found.flag(each.position)
        if each.expires is not None:
            found.expires.append((each.position, each.expires - lead))
        if each.mark is not None:
            found.marks.append((each.position, each.mark))
    return found
