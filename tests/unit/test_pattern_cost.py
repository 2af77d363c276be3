"""Patterns of policies that no broker could afford are refused, and only those."""

from __future__ import annotations

import time

import pytest

from coterie.console import pattern_cost
from coterie.console.pattern_cost import ROUNDS, check_cost
from coterie.errors import UserError

SLOW = ["(a|b)*a(a|b){100}c", "([xy]*x[xy]{40}){3}!", ".*q.{20}!"]


class Hiccups:
    """The processor's time, of which each of the first measurements seems to have taken a second."""

    def __init__(self, many: int) -> None:
        self.left = 2 * many
        self.ahead = 0.0

    def thread_time(self) -> float:
        if self.left:
            self.left -= 1
            self.ahead += 0.5
        return time.thread_time() + self.ahead


@pytest.mark.parametrize("names", [[], ["q"], [f"queue.{number}" for number in range(1000)]])
def test_a_usual_pattern_is_taken_although_the_machine_is_slow_for_a_moment(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_cost, "time", Hiccups(ROUNDS - 1))
    for pattern in (".*", "", "^app\\.", "^(amq\\.|ha\\.).*$"):
        check_cost(pattern, names)


def test_what_is_slow_every_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_cost, "time", Hiccups(1000))
    with pytest.raises(UserError, match="takes too long to search for"):
        check_cost(".*", ["q"])


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_of_countless_states_is_refused_whatever_the_names(pattern: str) -> None:
    for names in ([], ["q"]):
        with pytest.raises(UserError, match="takes too long to search for"):
            check_cost(pattern, names)
