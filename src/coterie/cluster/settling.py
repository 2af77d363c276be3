"""Events that settle messages, as bytes: what becomes of which positions of a queue, and who held them.

Since version 4 of the events a *share* names its holder, and has ranges: a message that is settled with its neighbours
costs nothing, and nobody searches for its holder. Before, there were positions, one by one. Which of the two it is, an
event's version says. A transaction is told in JSON, and says it by a name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coterie.broker.delivery import HeldRanges, positions_in, ranges_of
from coterie.broker.message_codec import Malformed, read_numbers, read_positions, write_numbers
from coterie.broker.ranges import END, Range
from coterie.cluster.consumers import GETTER, Subscriber
from coterie.cluster.wire import RANGES

if TYPE_CHECKING:
    from coterie.broker.queue import Queue

_QUEUE = struct.Struct(">Q")
_RELEASE = struct.Struct(">Q?")
_SHARE = struct.Struct(">QI")
"""The number of the holder, and how many ranges; the first position of each and the one behind its last follow."""
_RANGE_SIZE: Final = 16


class Share(NamedTuple):
    """What one holder held of a queue."""

    holder: int | None
    """The number of a consumer, or GETTER; None: an older event does not say whose they were."""
    ranges: Sequence[Range]


def share_of(holder: object, ranges: Sequence[Range]) -> Share:
    """As the log knows the holder."""
    return Share(holder.number if isinstance(holder, Subscriber) else GETTER, ranges)


# One queue.


def settle(queue: Queue, shares: Iterable[Share], version: int) -> bytes:
    """`version`: of the event."""
    return _QUEUE.pack(queue.incarnation) + _shares(shares, version)


def read_settle(event: memoryview, at: int) -> tuple[int, list[Share]]:
    """Raises Malformed, ValueError or struct.error: the event is void."""
    (queue,) = _QUEUE.unpack_from(event, at)
    return queue, _read_shares(event, at + _QUEUE.size)


def release(queue: Queue, shares: Iterable[Share], redelivered: bool, version: int) -> bytes:
    return _RELEASE.pack(queue.incarnation, redelivered) + _shares(shares, version)


def read_release(event: memoryview, at: int) -> tuple[int, bool, list[Share]]:
    queue, redelivered = _RELEASE.unpack_from(event, at)
    return queue, redelivered, _read_shares(event, at + _RELEASE.size)


def _shares(shares: Iterable[Share], version: int) -> bytes:
    if version < RANGES:
        return b"".join([write_numbers("Q", positions_in(ranges)) for _, ranges in shares])
    return b"".join(
        [
            _SHARE.pack(holder, len(ranges)) + write_numbers("Q", [each for pair in ranges for each in pair])
            for holder, ranges in shares
        ]
    )


def _read_shares(event: memoryview, at: int) -> list[Share]:
    if event[0] < RANGES:
        return [Share(None, ranges_of(read_positions(event[at:])))]
    found: list[Share] = []
    while at < len(event):
        holder, count = _SHARE.unpack_from(event, at)
        at += _SHARE.size
        stop = at + count * _RANGE_SIZE
        if stop > len(event):
            raise Malformed("ranges that end too early")
        numbers = read_numbers("Q", event[at:stop])
        found.append(Share(holder, _checked([*zip(numbers[::2], numbers[1::2], strict=True)])))
        at = stop
    return found


def _checked(ranges: list[Range]) -> list[Range]:
    for first, stop in ranges:
        if not 0 <= first < stop <= END:
            raise Malformed(f"no range of positions: {first} to {stop}")
    return ranges


# Transactions.

Settling = list[tuple[int, Share]]
"""By the numbers of queues, in the order in which they were settled."""


def encode_answers(answers: Iterable[Iterable[HeldRanges]], version: int) -> dict[str, object]:
    """What is accepted, what is rejected, and what goes back."""
    if version < RANGES:
        return {"answers": [[*_positions(part).items()] for part in answers]}
    return {
        "settled": [
            [[queue.incarnation, share_of(holder, ranges).holder, [*ranges]] for queue, holder, ranges in part]
            for part in answers
        ]
    }


def _positions(part: Iterable[HeldRanges]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for queue, _, ranges in part:
        found.setdefault(queue.incarnation, []).extend(positions_in(ranges))
    return found


def read_answers(said: dict[str, Any]) -> list[Settling]:
    """Raises whatever comes of it if it is none: the event is void."""
    answers = said.get("settled", said.get("answers"))
    if not isinstance(answers, list) or len(answers) != 3:
        raise Malformed("a transaction has three kinds of answers")
    if "settled" not in said:
        return [[(_whole(queue), Share(None, _old(found))) for queue, found in dict(part).items()] for part in answers]
    return [
        [
            (_whole(queue), Share(_whole(holder), _checked([(_whole(first), _whole(stop)) for first, stop in ranges])))
            for queue, holder, ranges in part
        ]
        for part in answers
    ]


def _old(positions: list[Any]) -> list[Range]:
    return _checked(ranges_of([*map(_whole, positions)]))


def _whole(value: object) -> int:
    if type(value) is not int:
        raise Malformed("a transaction settles what is no position of a queue")
    return value
