"""The fields of effects as bytes. There is one encoding of a value, and whatever else comes is MalformedEffects."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from coterie.broker.ranges import END, PositionSet, Range
from coterie.broker.ranges.codec import Reader, write_array, write_uint
from coterie.broker.ranges.lengths import LENGTH_MAX
from coterie.broker.ranges.row_codec import read_row, write_row
from coterie.broker.ranges.runs import COUNT_MAX
from coterie.broker.state.dedup_window import DIGEST
from coterie.broker.state.limits import NUMBER_MAX, QueueLimits
from coterie.broker.state.positions import LIST_MAX, Positions
from coterie.broker.state.vocabulary import Overflow
from coterie.errors import WireError

EFFECTS_MAX: Final = 2**28
"""Bytes of the effects of one event."""
TEXT_MAX: Final = 255 * 4
"""Bytes of a name."""
_WIDTHS: Final = {1: "B", 2: "H", 4: "I"}
_LAST: Final = END - 1
_MOMENT: Final = Struct("<Q")

Sizes: TypeAlias = "Range | array[int]"
"""Lengths of messages in a row: (count, length) if they are all the same, else the length of each."""


class MalformedEffects(WireError):
    """Bytes that no step of this version has written, or that do not fit the state."""


class Field(NamedTuple):
    write: Callable[[bytearray, Any], None]
    read: Callable[[Reader], Any]


def number(most: int = _LAST) -> Field:
    return Field(write_uint, lambda reader: reader.uint(most))


def word(words: type[Any]) -> Field:
    """One of an enumeration."""
    known = {int(each): each for each in words}

    def read(reader: Reader) -> Any:
        value = reader.uint(255)
        if value not in known:
            raise MalformedEffects(f"{value} is no {words.__name__}")
        return known[value]

    return Field(write_uint, read)


def write_text(out: bytearray, value: str) -> None:
    data = value.encode("utf-8", "surrogateescape")
    write_uint(out, len(data))
    out += data


def read_text(reader: Reader) -> str:
    data = reader.bytes(reader.uint(TEXT_MAX))
    found = data.decode("utf-8", "surrogateescape")
    if found.encode("utf-8", "surrogateescape") != data:
        raise MalformedEffects("a text in effects has two spellings")
    return found


def write_positions(out: bytearray, positions: Positions) -> None:
    """How many ranges, then the gap before each and its size; 0, and a set."""
    if isinstance(positions, PositionSet):
        out.append(0)
        write_row(out, positions)
        return
    if len(positions) == 1:
        ((first, stop),) = positions
        out.append(1)
        write_uint(out, first)
        write_uint(out, stop - first)
        return
    write_uint(out, len(positions))
    end = 0
    for first, stop in positions:
        write_uint(out, first - end)
        write_uint(out, stop - first)
        end = stop


def read_positions(reader: Reader) -> Positions:
    count = reader.items(0)
    if not count:
        found = PositionSet()
        read_row(reader, found)
        if not found:
            raise MalformedEffects("an effect on no position")
        return found
    if count > LIST_MAX:
        raise MalformedEffects(f"{count} ranges that should be a set")
    ranges: list[Range] = []
    end = 0
    for _ in range(count):
        gap, size = reader.uint(_LAST), reader.uint(_LAST)
        if not size or (not gap and ranges) or end + gap + size > END:
            raise MalformedEffects("ranges in effects are empty, touch, or go beyond 2^63")
        ranges.append((end + gap, end + gap + size))
        end += gap + size
    return ranges


def write_sizes(out: bytearray, sizes: Sizes) -> None:
    if isinstance(sizes, tuple):
        write_uint(out, sizes[0])
        out.append(0)
        write_uint(out, sizes[1])
        return
    most = max(sizes)
    width = 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4
    write_uint(out, len(sizes))
    out.append(width)
    write_array(out, sizes if width == 4 else array(_WIDTHS[width], sizes))


def read_sizes(reader: Reader) -> Sizes:
    count, width = reader.uint(COUNT_MAX), reader.uint(4)
    if not count:
        raise MalformedEffects("a run of no messages")
    if not width:
        return count, reader.uint(LENGTH_MAX)
    if width not in _WIDTHS:
        raise MalformedEffects(f"lengths of {width} bytes")
    found = array("I", reader.array(_WIDTHS[width], count))
    most = max(found)
    if min(found) == most or width != (1 if most < 1 << 8 else 2 if most < 1 << 16 else 4):
        raise MalformedEffects("lengths are not written as short as they can be")
    return found


def write_optional(out: bytearray, value: int | None) -> None:
    write_uint(out, 0 if value is None else value + 1)


def read_optional(reader: Reader) -> int | None:
    value = reader.uint(NUMBER_MAX + 1)
    return value - 1 if value else None


def write_limits(out: bytearray, limits: QueueLimits) -> None:
    for value in limits[:6]:
        write_optional(out, value)
    out.append(limits.overflow)
    out.append(limits.dead)


def read_limits(reader: Reader) -> QueueLimits:
    ttl, length, size, deliveries, ids, ids_ttl = [read_optional(reader) for _ in range(6)]
    overflow, dead = Overflow(reader.uint(max(Overflow))), bool(reader.uint(1))
    return QueueLimits(ttl, length, size, deliveries, ids, ids_ttl, overflow, dead)


def _write_keyed(out: bytearray, keyed: list[tuple[int, bytes]]) -> None:
    write_uint(out, len(keyed))
    for position, key in keyed:
        write_uint(out, position)
        out += key


def _read_keyed(reader: Reader) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    last = -1
    for _ in range(reader.items(DIGEST + 1)):
        position = reader.uint(_LAST)
        if position <= last:
            raise MalformedEffects("positions of keys do not rise")
        found.append((last := position, reader.bytes(DIGEST)))
    if not found:
        raise MalformedEffects("no keys")
    return found


def write_ids(out: bytearray, ids: list[bytes]) -> None:
    write_uint(out, len(ids))
    out += b"".join(ids)


def read_ids(reader: Reader) -> list[bytes]:
    count = reader.items(DIGEST)
    data = reader.bytes(count * DIGEST)
    found = [data[at : at + DIGEST] for at in range(0, len(data), DIGEST)]
    if not found or len({*found}) != count:
        raise MalformedEffects("no message ids, or one twice")
    return found


def _write_numbers(out: bytearray, numbers: tuple[int, ...]) -> None:
    write_uint(out, len(numbers))
    for each in numbers:
        write_uint(out, each)


def _read_numbers(reader: Reader) -> tuple[int, ...]:
    return tuple([reader.uint(_LAST) for _ in range(reader.items(1))])


def _read_moment(reader: Reader) -> int:
    (found,) = _MOMENT.unpack(reader.bytes(8))
    if found > _LAST:
        raise MalformedEffects("a time beyond 2^63")
    return int(found)


NUMBER: Final = number()
MOMENT: Final = Field(lambda out, value: out.extend(_MOMENT.pack(value)), _read_moment)
"""A time: always large, so that its size is fixed."""
FLAG: Final = Field(lambda out, value: out.append(value), lambda reader: bool(reader.uint(1)))
TEXT: Final = Field(write_text, read_text)
POSITIONS: Final = Field(write_positions, read_positions)
SIZES: Final = Field(write_sizes, read_sizes)
LIMITS: Final = Field(write_limits, read_limits)
KEYED: Final = Field(_write_keyed, _read_keyed)
IDS: Final = Field(write_ids, read_ids)
NUMBERS: Final = Field(_write_numbers, _read_numbers)
