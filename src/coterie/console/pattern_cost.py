"""Whether the pattern of a policy is one that every broker can afford.

A policy is decided within one step: its pattern is searched for in the name of every queue while everybody else waits.
RE2 searches in linear time, but with a pattern that needs countless states a name takes hundreds of microseconds, where
a usual one takes two. So the broker that is asked tries it first, on names that there are and on texts that are made of
the pattern's own letters, and refuses what is slow. That is measured, so it is no part of what brokers must agree on;
and a pattern is refused only if it is slow every time that it is tried, as one search may take long for reasons of the
machine's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from heapq import nlargest
from itertools import islice, pairwise
from math import inf
from typing import Final

from coterie import patterns
from coterie.errors import UserError

SLOW: Final = 50e-6
"""Seconds of processor time for a name. The slowest that are usual take 3 µs, those that are meant to be slow 150."""
NAMES: Final = 32
"""Of the longest that there are, and as many of all."""
ALPHABETS: Final = 32
TEXTS: Final = 8
"""Of each alphabet."""
LENGTH: Final = 250
ROUNDS: Final = 4
"""The quickest counts: something else may have been in the way. Each has the pattern compiled anew, as RE2 remembers
what it has found out about a text."""
FEW: Final = 8
"""Fewer names than this count as so many: the first search sets RE2 up, which takes about as long as ten names."""


def check_cost(pattern: str, names: Collection[str]) -> None:
    """Raises UserError. For a pattern that was checked otherwise already."""
    for some in (nlargest(NAMES, names, key=len), _spread(names)):
        _refuse(pattern, _time(pattern, some))
    rng = random.Random(pattern)
    for letters in _alphabets(pattern):
        _refuse(pattern, _time(pattern, _texts(rng, letters)))


def _refuse(pattern: str, seconds: float) -> None:
    if seconds > SLOW:
        raise UserError(
            f"{pattern!r} takes too long to search for, {seconds * 1e6:.0f} µs for a name: begin it with ^, or leave "
            "out what is repeated a given number of times, as {100} does"
        )


def _time(pattern: str, texts: list[str]) -> float:
    """Seconds for one of them, in the quickest round."""
    count, quickest = max(FEW, len(texts)), inf
    for _ in range(ROUNDS):
        fits = patterns.compile_anew(pattern)
        began = time.thread_time()
        for text in texts:
            fits(text)
        quickest = min(quickest, time.thread_time() - began)
        if quickest <= SLOW * count:
            break
    return quickest / count


def _spread(names: Collection[str]) -> list[str]:
    return list(islice(names, 0, None, max(1, len(names) // NAMES)))


def _texts(rng: random.Random, letters: list[str]) -> list[str]:
    return ["".join(rng.choices(letters, k=LENGTH)) for _ in range(TEXTS)]


def _alphabets(pattern: str) -> Iterator[list[str]]:
    """All its letters, and any two that stand side by side in it."""
    letters = [each for each in pattern if each.isalnum()]
    yield sorted({*letters, "a", "b"})
    pairs = [pair for pair in pairwise(["a", "b", *letters]) if pair[0] != pair[1]]
    yield from islice(map(sorted, dict.fromkeys(map(frozenset, pairs))), ALPHABETS)
