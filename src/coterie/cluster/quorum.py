"""Quorum arithmetic: how many voters are a majority, whether some are one, and what a majority has reached.

It is here and nowhere else. A voter that is not heard of counts as one that has reached nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def needed(voters: Collection[str]) -> int:
    """The smallest number of voters that is more than half of them."""
    return len(voters) // 2 + 1


def majority(voters: Collection[str], present: Collection[str]) -> bool:
    """Whether more than half of the voters are there. Nobody is a majority of no voters."""
    return sum(name in present for name in voters) >= needed(voters)


def reached(voters: Collection[str], reports: Mapping[str, float], nothing: float = 0) -> float:
    """The greatest value that each of a majority has reached or passed; `nothing` without voters."""
    found = sorted([reports.get(name, nothing) for name in voters])
    return found[-needed(voters)] if found else nothing
