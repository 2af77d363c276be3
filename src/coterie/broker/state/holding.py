"""Operations on holders: they come and go, take turns, and a lease's offsets are let go."""

from __future__ import annotations

from typing import Final, NamedTuple

from coterie.broker.ranges.codec import Reader, write_uint
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.effect_codec import NUMBER, TEXT, Field, MalformedEffects, read_text, write_text
from coterie.broker.state.holders import Holder, PoolKey
from coterie.broker.state.leases import Lease, Piece
from coterie.broker.state.operations import Operation, require
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.vocabulary import HolderKind

_LAST: Final = 2**63 - 1
_PRIORITY: Final = 2**63


class NewLease(NamedTuple):
    name: str
    id: int
    user: str
    session: str
    since: int


class NewHolder(NamedTuple):
    """As it comes."""

    kind: HolderKind
    peer: int = 0
    number: int = 0
    no_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    """Of a consumer: the higher, the earlier. From -2^63 to 2^63 - 1."""
    lease: NewLease | None = None


class Terms(NamedTuple):
    """Under which a consumer is given messages; they may change."""

    active: bool
    ended: bool
    limit: int
    pool: PoolKey | None


def terms_of(holder: Holder) -> Terms:
    return Terms(holder.active, holder.ended, holder.limit, None if holder.pool is None else holder.pool.key)


def _write_new(out: bytearray, new: NewHolder) -> None:
    for value in (new.kind, new.peer, new.number, new.no_ack | new.exclusive << 1, new.priority + _PRIORITY):
        write_uint(out, value)
    if new.lease is not None:
        name, id, user, session, since = new.lease
        for text in (name, user, session):
            write_text(out, text)
        write_uint(out, id)
        write_uint(out, since)


def read_new(reader: Reader) -> NewHolder:
    kind = HolderKind(reader.uint(max(HolderKind)))
    peer, of_peer, flags = reader.uint(_LAST), reader.uint(_LAST), reader.uint(3)
    priority = reader.uint(2 * _PRIORITY - 1) - _PRIORITY
    lease = None
    if kind is HolderKind.LEASE:
        name, user, session = read_text(reader), read_text(reader), read_text(reader)
        lease = NewLease(name, reader.uint(2**64 - 1), user, session, reader.uint(_LAST))
    if kind is not HolderKind.CONSUMER and (flags or priority):
        raise MalformedEffects("only a consumer has flags and a priority")
    return NewHolder(kind, peer, of_peer, bool(flags & 1), bool(flags & 2), priority, lease)


def make_holder(id: int, new: NewHolder) -> Holder:
    holder = Holder(id, new.kind, new.peer, new.number)
    holder.no_ack, holder.exclusive, holder.priority = new.no_ack, new.exclusive, new.priority
    if new.lease is not None:
        holder.lease = Lease(*new.lease)
    return holder


def new_of(holder: Holder) -> NewHolder:
    lease = holder.lease
    new = None if lease is None else NewLease(lease.name, lease.id, lease.user, lease.session, lease.since)
    return NewHolder(
        holder.kind, holder.peer, holder.number, holder.no_ack, holder.exclusive, holder.priority, new
    )  # fmt: skip


def _write_terms(out: bytearray, terms: Terms) -> None:
    out.append(terms.active | terms.ended << 1 | (terms.pool is not None) << 2)
    write_uint(out, terms.limit)
    if terms.pool is not None:
        write_uint(out, terms.pool[0])
        write_uint(out, terms.pool[1])


def read_terms(reader: Reader) -> Terms:
    flags, limit = reader.uint(7), reader.uint(_LAST)
    pool = (reader.uint(_LAST), reader.uint(_LAST)) if flags & 4 else None
    return Terms(bool(flags & 1), bool(flags & 2), limit, pool)


NEW: Final = Field(_write_new, read_new)
TERMS: Final = Field(_write_terms, read_terms)


# They come and go.


def _add(state: BrokerState, queue: QueueState, new: NewHolder) -> None:
    queue.holders[queue.next_holder] = make_holder(queue.next_holder, new)
    queue.next_holder += 1


def _unadd(state: BrokerState, queue: QueueState, kept: None, new: NewHolder) -> None:
    queue.next_holder -= 1
    del queue.holders[queue.next_holder]


def _check_add(state: BrokerState, queue: QueueState, new: NewHolder) -> None:
    require(queue.next_holder < _LAST, "holders beyond 2^63")
    if new.lease is not None:
        taken = any(each.lease and each.lease.name == new.lease.name for each in queue.leases())
        require(not taken, "two leases of one name")


def _remove(state: BrokerState, queue: QueueState, holder: int) -> Holder:
    return queue.holders.pop(holder)


def _unremove(state: BrokerState, queue: QueueState, kept: Holder, holder: int) -> None:
    queue.holders[holder] = kept
    queue.holders = dict(sorted(queue.holders.items()))


def _check_remove(state: BrokerState, queue: QueueState, holder: int) -> None:
    found = _known(queue, holder)
    require(
        not (found.held or found.owed or found.used or found.hungry or found.pool), "a holder goes that has something"
    )
    require(found.ended or found.kind is not HolderKind.CONSUMER, "a consumer goes that is not cancelled")


def _update(state: BrokerState, queue: QueueState, holder: int, terms: Terms) -> Terms:
    found = queue.holders[holder]
    before = terms_of(found)
    set_terms(state, queue, found, terms)
    return before


def set_terms(state: BrokerState, queue: QueueState, holder: Holder, terms: Terms) -> None:
    pool = None if terms.pool is None else state.pools[terms.pool]
    if holder.pool is not None:
        holder.pool.held -= holder.used
        holder.pool.users -= 1
        holder.pool.members.pop(holder.number, None)
    holder.active, holder.ended, holder.limit, holder.pool = terms.active, terms.ended, terms.limit, pool
    if pool is not None:
        pool.held += holder.used
        pool.users += 1
        if not terms.ended:
            pool.members[holder.number] = queue.number, holder.id


def _unupdate(state: BrokerState, queue: QueueState, kept: Terms, holder: int, terms: Terms) -> None:
    set_terms(state, queue, queue.holders[holder], kept)


def _check_update(state: BrokerState, queue: QueueState, holder: int, terms: Terms) -> None:
    found = _known(queue, holder)
    require(found.kind is HolderKind.CONSUMER, "only a consumer has terms")
    require(terms.active or not found.hungry, "it is in the rotation, and is not to be served")
    require(not (terms.active and terms.ended), "it is cancelled, and is to be served")
    require(terms.pool is None or terms.pool in state.pools, "no such pool")
    if terms.pool is not None:
        taken = state.pools[terms.pool].members.get(queue.holders[holder].number)
        require(taken in (None, (queue.number, holder)), "two consumers of one number")


def _known(queue: QueueState, holder: int) -> Holder:
    found = queue.holders.get(holder)
    if found is None:
        raise MalformedEffects(f"no holder {holder}")
    return found


# Turns.


def _wake(state: BrokerState, queue: QueueState, holder: int) -> None:
    queue.rotation.push(queue.holders[holder])


def _unwake(state: BrokerState, queue: QueueState, kept: None, holder: int) -> None:
    queue.rotation.remove(queue.holders[holder])


def _check_wake(state: BrokerState, queue: QueueState, holder: int) -> None:
    found = _known(queue, holder)
    require(found.active and not found.hungry, "it is in the rotation already, or is not to be served")


def _rest(state: BrokerState, queue: QueueState, holder: int) -> int:
    return queue.rotation.remove(queue.holders[holder])


def _unrest(state: BrokerState, queue: QueueState, kept: int, holder: int) -> None:
    queue.rotation.insert(queue.holders[holder], kept)


def _check_hungry(state: BrokerState, queue: QueueState, holder: int) -> None:
    require(_known(queue, holder).hungry, "it is not in the rotation")


def _turn(state: BrokerState, queue: QueueState, holder: int) -> None:
    queue.rotation.turn(queue.holders[holder].priority)


def _unturn(state: BrokerState, queue: QueueState, kept: None, holder: int) -> None:
    queue.rotation.turn(queue.holders[holder].priority, 1)


def _check_turn(state: BrokerState, queue: QueueState, holder: int) -> None:
    _check_hungry(state, queue, holder)
    require(queue.rotation.turns[queue.holders[holder].priority][0] == holder, "it is not its turn")


# Leases.


def _shrink(state: BrokerState, queue: QueueState, holder: int, low: int, high: int) -> list[Piece]:
    return _lease(queue, holder).drop(low, high)


def _unshrink(state: BrokerState, queue: QueueState, kept: list[Piece], holder: int, low: int, high: int) -> None:
    _lease(queue, holder).pieces = kept


def _check_shrink(state: BrokerState, queue: QueueState, holder: int, low: int, high: int) -> None:
    require(low < high <= _lease(queue, holder).next, "offsets that the lease never had")


def _session(state: BrokerState, queue: QueueState, holder: int, session: str) -> str:
    lease = _lease(queue, holder)
    before, lease.session = lease.session, session
    return before


def _unsession(state: BrokerState, queue: QueueState, kept: str, holder: int, session: str) -> None:
    _lease(queue, holder).session = kept


def _check_session(state: BrokerState, queue: QueueState, holder: int, session: str) -> None:
    _lease(queue, holder)


def _lease(queue: QueueState, holder: int) -> Lease:
    lease = _known(queue, holder).lease
    if lease is None:
        raise MalformedEffects(f"holder {holder} is no lease")
    return lease


ADD: Final = Operation(19, "add holder", (NEW,), _add, _unadd, _check_add)
REMOVE: Final = Operation(20, "remove holder", (NUMBER,), _remove, _unremove, _check_remove)
UPDATE: Final = Operation(21, "update holder", (NUMBER, TERMS), _update, _unupdate, _check_update)
WAKE: Final = Operation(22, "wake", (NUMBER,), _wake, _unwake, _check_wake)
REST: Final = Operation(23, "rest", (NUMBER,), _rest, _unrest, _check_hungry)
TURN: Final = Operation(24, "turn", (NUMBER,), _turn, _unturn, _check_turn)
SHRINK: Final = Operation(25, "shrink lease", (NUMBER, NUMBER, NUMBER), _shrink, _unshrink, _check_shrink)
SESSION: Final = Operation(26, "take lease", (NUMBER, TEXT), _session, _unsession, _check_session)
