"""Rates from samples, by a clock that the test moves."""

from __future__ import annotations

from coterie.console.rates import Samples


def test_before_the_first_sample_every_rate_is_nothing() -> None:
    assert Samples(4, 2.5).rates(0.0, "q", (10, 5)) == (0.0, 0.0)


def test_a_rate_is_what_came_since_a_sample_by_the_time_since_then() -> None:
    samples = Samples(4, 2.5)
    samples.take(100.0, {"q": (10, 0)})
    assert samples.rates(105.0, "q", (60, 5)) == (10.0, 1.0)


def test_the_newest_sample_that_is_old_enough_counts() -> None:
    samples = Samples(4, 2.5)
    for time, count in ((100.0, 0), (105.0, 100), (110.0, 100)):
        samples.take(time, {"q": (count,)})
    assert samples.rates(111.0, "q", (106,)) == (1.0,)  # since 105: the one of 110 is too young
    assert samples.rates(113.0, "q", (106,)) == (2.0,)


def test_the_first_moments_do_not_make_a_huge_rate() -> None:
    samples = Samples(4, 2.5)
    samples.take(100.0, {})
    assert samples.rates(100.001, "q", (5,)) == (2.0,)


def test_what_is_new_began_at_nothing() -> None:
    samples = Samples(4, 2.5)
    samples.take(100.0, {"old": (7,)})
    assert samples.rates(110.0, "new", (20,)) == (2.0,)


def test_a_number_that_fell_belongs_to_something_new_of_the_same_name() -> None:
    samples = Samples(4, 2.5)
    samples.take(100.0, {"q": (1000,)})
    assert samples.rates(110.0, "q", (50,)) == (5.0,)


def test_only_so_many_samples_are_kept_and_what_did_not_change_is_kept_once() -> None:
    samples = Samples(3, 0.5)
    for second in range(10):
        samples.take(float(second), {"idle": (second // 100, 7)})
    ring = samples._ring
    assert [time for time, _ in ring] == [7.0, 8.0, 9.0]
    assert len({id(readings["idle"]) for _, readings in ring}) == 1
