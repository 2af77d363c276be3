"""Operations on what queues share, and on the queues as such: the time of the log, limits of channels, ownership."""

from __future__ import annotations

from typing import Final

from coterie.broker.ranges.codec import Reader, write_uint
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.effect_codec import FLAG, LIMITS, MOMENT, NUMBER, NUMBERS, Field
from coterie.broker.state.holders import Pool
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.operations import Operation, require
from coterie.broker.state.queue_state import QueueConfig, QueueState
from coterie.broker.state.vocabulary import Kind

OWNERS_MAX: Final = 4096
"""Brokers that consume one queue."""


def write_config(out: bytearray, config: QueueConfig) -> None:
    out.append(config.kind)
    out.append(config.single_active)
    write_uint(out, config.max_priority)


def read_config(reader: Reader) -> QueueConfig:
    return QueueConfig(Kind(reader.uint(max(Kind))), bool(reader.uint(1)), reader.uint(255))


CONFIG: Final = Field(write_config, read_config)


def _time(state: BrokerState, queue: None, time: int) -> int:
    before, state.time = state.time, time
    return before


def _untime(state: BrokerState, queue: None, kept: int, time: int) -> None:
    state.time = kept


def _check_time(state: BrokerState, queue: None, time: int) -> None:
    require(time > state.time, "the time of the log falls")


def _create(state: BrokerState, queue: None, number: int, config: QueueConfig, limits: QueueLimits) -> None:
    state.queues[number] = QueueState(number, config, limits)


def _uncreate(
    state: BrokerState, queue: None, kept: None, number: int, config: QueueConfig, limits: QueueLimits
) -> None:
    del state.queues[number]


def _check_create(state: BrokerState, queue: None, number: int, config: QueueConfig, limits: QueueLimits) -> None:
    require(number not in state.queues, f"queue {number} is there already")


def _delete(state: BrokerState, queue: None, number: int) -> QueueState:
    gone = state.queues.pop(number)
    for holder in gone.holders.values():
        if holder.pool is not None:
            holder.pool.held -= holder.used
            holder.pool.users -= 1
            holder.pool.members.pop(holder.number, None)
    return gone


def _undelete(state: BrokerState, queue: None, kept: QueueState, number: int) -> None:
    state.queues[number] = kept
    for holder in kept.holders.values():
        if holder.pool is not None:
            holder.pool.held += holder.used
            holder.pool.users += 1
            if not holder.ended:
                holder.pool.members[holder.number] = number, holder.id


def _check_queue(state: BrokerState, queue: None, number: int) -> None:
    require(number in state.queues, f"no queue {number}")


def _pool(state: BrokerState, queue: None, peer: int, number: int, limit: int) -> int | None:
    key = peer, number
    pool = state.pools.get(key)
    if pool is None:
        state.pools[key] = Pool(key, limit)
        return None
    before, pool.limit = pool.limit, limit
    return before


def _unpool(state: BrokerState, queue: None, kept: int | None, peer: int, number: int, limit: int) -> None:
    if kept is None:
        del state.pools[peer, number]
    else:
        state.pools[peer, number].limit = kept


def _fits(state: BrokerState, queue: None, peer: int, number: int, limit: int) -> None:
    """Any value will do."""


def _unshare(state: BrokerState, queue: None, peer: int, number: int) -> Pool:
    return state.pools.pop((peer, number))


def _share_again(state: BrokerState, queue: None, kept: Pool, peer: int, number: int) -> None:
    state.pools[peer, number] = kept


def _check_unshare(state: BrokerState, queue: None, peer: int, number: int) -> None:
    pool = state.pools.get((peer, number))
    require(pool is not None and not pool.users, "no such pool, or somebody uses it")


def _unready(state: BrokerState, queue: None, peer: int, number: int, unready: bool) -> None:
    if unready:
        state.unready.setdefault(peer, set()).add(number)
    else:
        state.unready[peer].remove(number)
        if not state.unready[peer]:
            del state.unready[peer]


def _ununready(state: BrokerState, queue: None, kept: None, peer: int, number: int, unready: bool) -> None:
    _unready(state, queue, peer, number, not unready)


def _check_unready(state: BrokerState, queue: None, peer: int, number: int, unready: bool) -> None:
    require((number in state.unready.get(peer, ())) != unready, "it is so already")


def _own(
    state: BrokerState, queue: QueueState, owner: int, tenure: int, circle: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...]]:
    before = queue.owner, queue.tenure, queue.circle
    queue.owner, queue.tenure, queue.circle = owner, tenure, circle
    return before


def _unown(
    state: BrokerState, queue: QueueState, kept: tuple[int, int, tuple[int, ...]], owner: int, tenure: int,
    circle: tuple[int, ...],
) -> None:  # fmt: skip
    queue.owner, queue.tenure, queue.circle = kept


def _check_own(state: BrokerState, queue: QueueState, owner: int, tenure: int, circle: tuple[int, ...]) -> None:
    require(len({*circle}) == len(circle) <= OWNERS_MAX, "a broker is twice in the circle, or they are too many")


TIME: Final = Operation(33, "time", (MOMENT,), _time, _untime, _check_time, of_queue=False)
CREATE: Final = Operation(
    34, "create queue", (NUMBER, CONFIG, LIMITS), _create, _uncreate, _check_create, of_queue=False
)
DELETE: Final = Operation(35, "delete queue", (NUMBER,), _delete, _undelete, _check_queue, of_queue=False)
POOL: Final = Operation(36, "pool", (NUMBER, NUMBER, NUMBER), _pool, _unpool, _fits, of_queue=False)
DROP_POOL: Final = Operation(37, "drop pool", (NUMBER, NUMBER), _unshare, _share_again, _check_unshare, of_queue=False)
UNREADY: Final = Operation(38, "unready", (NUMBER, NUMBER, FLAG), _unready, _ununready, _check_unready, of_queue=False)
OWN: Final = Operation(27, "own", (NUMBER, NUMBER, NUMBERS), _own, _unown, _check_own)
