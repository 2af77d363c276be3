"""Positions as primitives take them: ranges that rise with something between them, or a set when there are many.

Which of the two is the caller's choice, by what is chosen and never by how a set looks in memory: effects have the
choice in their bytes, and must be the same at every broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coterie.broker.ranges import Lengths, PositionSet, Range

Positions = list[Range] | PositionSet

LIST_MAX: Final = 4096
"""More messages than this are chosen as a set."""


def put(into: PositionSet, positions: Positions) -> None:
    if isinstance(positions, list):
        for first, stop in positions:
            into.add(first, stop)
    else:
        into.add_all(positions)


def cut(out_of: PositionSet, positions: Positions) -> None:
    if isinstance(positions, list):
        for first, stop in positions:
            out_of.remove(first, stop)
    else:
        out_of.remove_all(positions)


def count_of(positions: Positions) -> int:
    if isinstance(positions, list):
        if len(positions) == 1:
            ((first, stop),) = positions
            return stop - first
        return sum([stop - first for first, stop in positions])
    return positions.count


def ranges_of(positions: Positions) -> Iterable[Range]:
    return positions if isinstance(positions, list) else positions.ranges()


def as_set(positions: Positions) -> PositionSet:
    return PositionSet(positions) if isinstance(positions, list) else positions


def common(positions: Positions, with_set: PositionSet) -> Positions:
    """Those that are in the set, in the form that they had."""
    if isinstance(positions, list):
        if len(positions) == 1:
            ((first, stop),) = positions
            if with_set.count_in(first, stop) == stop - first:
                return positions
        return [found for first, stop in positions for found in with_set.ranges(first, stop)]
    return positions.intersection(with_set)


def all_in(positions: Positions, in_set: PositionSet) -> bool:
    if isinstance(positions, list):
        return all(in_set.count_in(first, stop) == stop - first for first, stop in positions)
    return positions.intersection(in_set).count == positions.count


def none_in(positions: Positions, in_set: PositionSet) -> bool:
    if not in_set:
        return True
    if isinstance(positions, list):
        return not any(in_set.count_in(first, stop) for first, stop in positions)
    return positions.isdisjoint(in_set)


def first_of(positions: PositionSet, count: int) -> Positions:
    """The lowest ones."""
    if count <= LIST_MAX:
        return positions.first_ranges(count)
    if count >= positions.count:
        return positions.copy()
    return positions.within(0, positions.select(count))


def bytes_of(lengths: Lengths, positions: Positions) -> int:
    """Of their bodies."""
    if isinstance(positions, list):
        if len(positions) == 1:
            ((first, stop),) = positions
            return lengths.get(first) if stop - first == 1 else lengths.sum(first, stop)
        return sum([lengths.get(at) if end - at == 1 else lengths.sum(at, end) for at, end in positions])
    return lengths.sum_in(positions)
