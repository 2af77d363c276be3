"""Quorum arithmetic."""

from __future__ import annotations

from itertools import combinations

import pytest

from coterie.cluster.quorum import majority, needed, reached

VOTERS = ["a", "b", "c", "d", "e", "f", "g"]


@pytest.mark.parametrize("count", range(8))
def test_two_majorities_have_a_voter_in_common_and_one_fewer_need_not(count: int) -> None:
    voters = VOTERS[:count]
    for size in range(count + 1):
        for some in combinations(voters, size):
            rest = [name for name in voters if name not in some]
            assert majority(voters, some) == (size >= needed(voters))
            assert not (majority(voters, some) and majority(voters, rest))
    assert 2 * needed(voters) > count >= 2 * (needed(voters) - 1)


def test_who_has_no_vote_makes_no_majority() -> None:
    assert not majority(["a", "b", "c"], ["a", "x", "y", "z"])


@pytest.mark.parametrize(
    ("reports", "upto"),
    [
        ({}, 0),
        ({"a": 9}, 0),
        ({"a": 9, "b": 4}, 4),
        ({"a": 9, "b": 4, "c": 7}, 7),
        ({"a": 9, "x": 8, "y": 8}, 0),
    ],
)
def test_what_a_majority_has_reached(reports: dict[str, float], upto: float) -> None:
    voters = ["a", "b", "c"]
    assert reached(voters, reports) == upto
    assert majority(voters, [name for name, value in reports.items() if value >= upto]) or upto == 0


def test_of_four_voters_three_must_have_reached_it() -> None:
    assert reached(["a", "b", "c", "d"], {"a": 9, "b": 9}) == 0
    assert reached(["a", "b", "c", "d"], {"a": 9, "b": 9, "c": 5}) == 5


def test_without_voters_nothing_is_reached() -> None:
    assert reached([], {"a": 9}, nothing=-1) == -1
