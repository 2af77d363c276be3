"""A state as bytes and back. Equal states have equal bytes; whatever no state encodes to is MalformedState.

What follows from the rest (byte counts, lanes, members of pools) is not in the bytes, and is made anew.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from coterie.broker.ranges import END, IntervalMap, Lengths, MalformedRanges, PositionSet, Runs
from coterie.broker.ranges.codec import Reader, write_uint
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.dedup_window import Window
from coterie.broker.state.effect_codec import MalformedEffects, read_ids, read_limits, write_ids, write_limits
from coterie.broker.state.holders import Holder, Pool
from coterie.broker.state.holding import NEW, TERMS, Terms, make_holder, new_of, set_terms, terms_of
from coterie.broker.state.leases import Piece
from coterie.broker.state.positions import LIST_MAX
from coterie.broker.state.queue_state import Cap, QueueState
from coterie.broker.state.sharing import read_config, write_config
from coterie.broker.state.vocabulary import Count, HolderKind, Kind, Reason
from coterie.errors import WireError

STATE_MAX: Final = 2**31
"""Bytes of an encoded state, unless the caller says otherwise."""
_VERSION: Final = 1
_LAST: Final = END - 1
T = TypeVar("T")


class MalformedState(WireError):
    """Bytes that are no state of this version."""


def encode(state: BrokerState) -> bytes:
    """Of everything."""
    return b"".join([encode_shared(state, len(state.queues)), *map(encode_one, sorted_queues(state))])


def sorted_queues(state: BrokerState) -> list[QueueState]:
    return [queue for _, queue in sorted(state.queues.items())]


def encode_shared(state: BrokerState, queues: int) -> bytes:
    """What comes before that many queues, by their numbers, each as `encode_one` writes it."""
    out = bytearray([_VERSION])
    write_uint(out, state.batch)
    out.append(state.ownership)
    write_uint(out, state.time)
    write_uint(out, len(state.pools))
    for (peer, number), pool in sorted(state.pools.items()):
        for value in (peer, number, pool.limit):
            write_uint(out, value)
    write_uint(out, len(state.unready))
    for peer, unready in sorted(state.unready.items()):
        write_uint(out, peer)
        _write_numbers(out, sorted(unready))
    write_uint(out, queues)
    return bytes(out)


def encode_one(queue: QueueState) -> bytes:
    out = bytearray()
    _write_blob(out, encode_queue(queue))
    return bytes(out)


def decode(data: bytes | memoryview, limit: int = STATE_MAX) -> BrokerState:
    """Raises MalformedState."""
    try:
        return _decode(data, limit)
    except (MalformedRanges, MalformedEffects, ValueError) as error:
        raise MalformedState(str(error)) from error


def _decode(data: bytes | memoryview, limit: int) -> BrokerState:
    reader = Reader(data, limit)
    _require(reader.uint(255) == _VERSION, "a state of another version")
    batch = reader.uint(LIST_MAX)
    _require(batch, "a batch of nothing")
    state = BrokerState(batch, bool(reader.uint(1)))
    state.time = reader.uint(_LAST)
    last: object = None
    for _ in range(reader.items(3)):
        key = reader.uint(_LAST), reader.uint(_LAST)
        _require(last is None or [*state.pools][-1] < key, "pools do not rise")
        state.pools[key] = Pool(key, reader.uint(_LAST))
        last = key
    for _ in range(reader.items(2)):
        peer = reader.uint(_LAST)
        _require(not state.unready or [*state.unready][-1] < peer, "brokers do not rise")
        state.unready[peer] = {*_read_numbers(reader)}
        _require(state.unready[peer], "no unready queue")
    for _ in range(reader.items(1)):
        queue = _decode_queue(reader.bytes(reader.uint(limit)), state, limit)
        _require(not state.queues or [*state.queues][-1] < queue.number, "queues do not rise")
        state.queues[queue.number] = queue
    reader.done()
    _require(all(pool.users for pool in state.pools.values()), "a pool that nobody uses")
    return state


# One queue.


def encode_queue(queue: QueueState) -> bytes:
    out = bytearray()
    write_uint(out, queue.number)
    write_config(out, queue.config)
    write_limits(out, queue.limits)
    write_uint(out, queue.next_position)
    write_uint(out, queue.next_holder)
    for part in (queue.ready, queue.runs, queue.lengths, queue.deliveries, queue.transient, queue.expires):
        _write_blob(out, part.encode())
    _write_blob(out, queue.priorities.encode())
    write_uint(out, len(queue.dying))
    for reason, dying in sorted(queue.dying.items()):
        write_uint(out, reason)
        _write_blob(out, dying.encode())
    write_uint(out, len(queue.caps))
    for cap in queue.caps:
        write_uint(out, cap.stop)
        write_uint(out, cap.time)
    _write_last_values(out, queue)
    out.append(queue.windows is not None)
    for window in queue.windows or ():
        _write_window(out, window)
    write_uint(out, len(queue.holders))
    for _, holder in sorted(queue.holders.items()):
        _write_holder(out, holder)
    write_uint(out, len(queue.rotation.turns))
    for priority, turns in sorted(queue.rotation.turns.items()):
        write_uint(out, priority + END)
        _write_numbers(out, turns)
    write_uint(out, queue.owner)
    write_uint(out, queue.tenure)
    _write_numbers(out, queue.circle)
    for count in queue.counts:
        write_uint(out, count)
    return bytes(out)


def _decode_queue(data: bytes, state: BrokerState, limit: int) -> QueueState:
    reader = Reader(data, limit)

    def part(decoder: Callable[[bytes, int], T]) -> T:
        return decoder(reader.bytes(reader.uint(limit)), limit)

    queue = QueueState(reader.uint(_LAST), read_config(reader), read_limits(reader))
    queue.next_position, queue.next_holder = reader.uint(), reader.uint(_LAST)
    queue.ready, queue.runs, queue.lengths = part(PositionSet.decode), part(Runs.decode), part(Lengths.decode)
    queue.deliveries, queue.transient = part(IntervalMap.decode), part(PositionSet.decode)
    queue.expires, queue.priorities = part(Runs.decode), part(IntervalMap.decode)
    for _ in range(reader.items(2)):
        reason = Reason(reader.uint(max(Reason)))
        _require(not queue.dying or max(queue.dying) < reason, "reasons do not rise")
        queue.dying[reason] = part(PositionSet.decode)
        _require(queue.dying[reason], "nothing is dying for a reason")
    queue.caps = tuple([Cap(reader.uint(), reader.uint(_LAST)) for _ in range(reader.items(2))])
    _read_last_values(reader, queue)
    if reader.uint(1):
        queue.windows = _read_window(reader), _read_window(reader)
        _require(queue.windows[0] or queue.windows[1], "ids are remembered, and none is")
    for _ in range(reader.items(8)):
        _read_holder(reader, state, queue, part)
    _read_turns(reader, queue)
    queue.owner, queue.tenure, queue.circle = (
        reader.uint(_LAST),
        reader.uint(_LAST),
        tuple(_read_numbers(reader, False)),
    )
    queue.counts = array("Q", [reader.uint(_LAST) for _ in Count])
    reader.done()
    _derive(queue)
    return queue


def _derive(queue: QueueState) -> None:
    """What follows from the rest; and whether it fits together."""
    parts = [queue.ready, *queue.dying.values(), *(holder.held for holder in queue.holders.values())]
    for part in parts:
        queue.live.add_all(part)
    live = queue.live
    _require(live.count == sum(part.count for part in parts), "a message is at two places")
    last = live.last()
    _require(last is None or last < queue.next_position, "messages beyond the next position")
    _require(queue.runs.stop <= queue.next_position, "runs beyond the next position")
    _require(queue.lengths.stop <= queue.next_position, "lengths beyond the next position")
    _require(queue.expires.stop <= queue.next_position, "times beyond the next position")
    _require(queue.transient.intersection(live).count == queue.transient.count, "a transient one that is not there")
    for numbers in (queue.deliveries, queue.priorities):
        _require(not numbers.positions().difference(live), "what is known of a message that is not there")
    _require(_covers(queue.runs, live), "a message of no event")
    _require(_known_lengths(queue.lengths, live), "a message without a length")
    for before, cap in zip(queue.caps, queue.caps[1:], strict=False):
        _require(before.stop <= cap.stop and before.time < cap.time, "caps do not rise")
    kind = queue.config.kind
    _require(kind is Kind.PRIORITY or not queue.priorities, "priorities in another kind of queue")
    _require(kind is Kind.LAST_VALUE or not queue.last_values, "keys in another kind of queue")
    _require(not queue.priorities.above(live, queue.config.max_priority), "a priority that is too high")
    queue.dying_count = sum(dying.count for dying in queue.dying.values())
    queue.ready_bytes = queue.lengths.sum_in(queue.ready)
    queue.dying_bytes = sum(queue.lengths.sum_in(dying) for dying in queue.dying.values())
    for holder in queue.holders.values():
        size = queue.lengths.sum_in(holder.held)
        queue.held_bytes += size
        if holder.kind is HolderKind.LEASE:
            queue.leased_count += holder.held.count
            queue.leased_bytes += size
    if kind is Kind.PRIORITY and queue.ready:
        for priority, some in queue.by_priority(queue.ready):
            queue.lane(priority).add_all(some)
    elif kind is Kind.RING:
        queue.loose = queue.ready.copy()
        for holder in queue.holders.values():
            if holder.kind is not HolderKind.LEASE:
                queue.loose.add_all(holder.held)


def _covers(runs: Runs, live: PositionSet) -> bool:
    return sum(live.count_in(run.first, run.stop) for run in runs) == live.count


def _known_lengths(lengths: Lengths, live: PositionSet) -> bool:
    return sum(live.count_in(first, stop) for first, stop in lengths.borders()) == live.count


def _write_last_values(out: bytearray, queue: QueueState) -> None:
    values = queue.last_values
    write_uint(out, len(values.keys))
    for position, key in sorted(values.keys.items()):
        write_uint(out, position)
        out.append(values.newest.get(key) == position)
        out += key


def _read_last_values(reader: Reader, queue: QueueState) -> None:
    values, last = queue.last_values, -1
    for _ in range(reader.items(18)):
        position, newest, key = reader.uint(_LAST), reader.uint(1), reader.bytes(16)
        _require(position > last, "positions of keys do not rise")
        _require(not newest or key not in values.newest, "two are the newest of a key")
        last = position
        values.keys[position] = key
        if newest:
            values.newest[key] = position


def _write_window(out: bytearray, window: Window) -> None:
    write_uint(out, len(window.spans))
    for time, ids in window.by_span():
        write_uint(out, time)
        write_ids(out, ids)


def _read_window(reader: Reader) -> Window:
    window, last = Window(), -1
    for _ in range(reader.items(17)):
        time, ids = reader.uint(_LAST), read_ids(reader)
        _require(time >= last, "times of ids fall")
        _require(not any(each in window for each in ids), "an id twice")
        window.remember(time, ids)
        last = time
    return window


def _write_holder(out: bytearray, holder: Holder) -> None:
    write_uint(out, holder.id)
    NEW.write(out, new_of(holder))
    TERMS.write(out, terms_of(holder))
    write_uint(out, holder.used)
    _write_blob(out, holder.held.encode())
    _write_blob(out, holder.owed.encode())
    if holder.lease is not None:
        write_uint(out, holder.lease.next)
        write_uint(out, len(holder.lease.pieces))
        for piece in holder.lease.pieces:
            for value in piece:
                write_uint(out, value)


def _read_holder(
    reader: Reader,
    state: BrokerState,
    queue: QueueState,
    part: Callable[[Callable[[bytes, int], PositionSet]], PositionSet],
) -> None:
    number = reader.uint(_LAST)
    _require(0 < number < queue.next_holder, "a holder that never came")
    _require(not queue.holders or [*queue.holders][-1] < number, "holders do not rise")
    holder = queue.holders[number] = make_holder(number, NEW.read(reader))
    terms: Terms = TERMS.read(reader)
    holder.used = reader.uint(_LAST)
    holder.held, holder.owed = part(PositionSet.decode), part(PositionSet.decode)
    if holder.kind is not HolderKind.CONSUMER:
        _require(terms == Terms(False, False, 0, None), "terms of somebody who is no consumer")
    if not holder.no_ack:
        _require(holder.used == holder.held.count + holder.owed.count, "an account that is wrong")
    _require(terms.pool is None or terms.pool in state.pools, "no such pool")
    if terms.pool is not None:
        _require(terms.ended or holder.number not in state.pools[terms.pool].members, "two consumers of one number")
    set_terms(state, queue, holder, terms)
    if holder.lease is not None:
        holder.lease.next = reader.uint(_LAST)
        for _ in range(reader.items(4)):
            piece = Piece(reader.uint(_LAST), reader.uint(_LAST), reader.uint(), bool(reader.uint(1)))
            low = holder.lease.pieces[-1].end if holder.lease.pieces else 0
            _require(piece.first < piece.stop and low <= piece.offset, "pieces of a lease do not rise")
            holder.lease.pieces.append(piece)
        _require(not holder.lease.pieces or holder.lease.pieces[-1].end <= holder.lease.next, "offsets to come")
        pieces = PositionSet([(piece.first, piece.stop) for piece in holder.lease.pieces])
        size = sum(piece.stop - piece.first for piece in holder.lease.pieces)
        _require(pieces == holder.held and size == pieces.count, "a lease does not hold what its pieces say")


def _read_turns(reader: Reader, queue: QueueState) -> None:
    turns: dict[int, list[int]] = {}
    for _ in range(reader.items(2)):
        priority = reader.uint(2 * END - 1) - END
        _require(not turns or max(turns) < priority, "priorities do not rise")
        turns[priority] = _read_numbers(reader, False)
        _require(turns[priority], "nobody's turn")
    for priority, holders in turns.items():
        for number in holders:
            holder = queue.holders.get(number)
            if holder is None or holder.hungry or holder.priority != priority or not holder.active:
                raise MalformedState("the turn of somebody who has none")
            queue.rotation.push(holder)


def _write_blob(out: bytearray, data: bytes) -> None:
    write_uint(out, len(data))
    out += data


def _write_numbers(out: bytearray, numbers: deque[int] | list[int] | tuple[int, ...]) -> None:
    write_uint(out, len(numbers))
    for each in numbers:
        write_uint(out, each)


def _read_numbers(reader: Reader, rising: bool = True) -> list[int]:
    found = [reader.uint(_LAST) for _ in range(reader.items(1))]
    _require(len({*found}) == len(found), "a number twice")
    _require(not rising or found == sorted(found), "numbers do not rise")
    return found


def _require(condition: object, why: str) -> None:
    if not condition:
        raise MalformedState(why)
