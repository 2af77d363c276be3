"""What the charts show, and the lines of the log that are kept."""

from __future__ import annotations

from coterie.console.history import COLUMNS, History, Totals
from coterie.console.logbook import FACT_MAX, Logbook
from coterie.durations import Durations
from coterie.logs import Log


def rows(history: History, after: int = 0) -> list[dict[str, object]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in history.after(after)]


def test_a_moment_has_the_rates_since_the_one_before_and_the_first_sample_makes_none() -> None:
    history = History(10, Durations(), Durations(), Durations())
    history.take(0.0, 100.0, (0, 0, 0, 0, 0), Totals())
    assert rows(history) == []
    history.take(2.0, 102.0, (20, 18, 10, 2, 8), Totals(ready=10, unacked=2))
    (row,) = rows(history)
    assert (row["number"], row["time"]) == (1, 102.0)
    assert [row[name] for name in ("publish", "confirm", "deliver", "redeliver", "ack")] == [10.0, 9.0, 5.0, 1.0, 4.0]
    assert (row["ready"], row["unacked"]) == (10, 2)


def test_latencies_are_mean_and_worst_of_that_time_alone_and_nothing_if_there_were_none() -> None:
    confirms = Durations()
    history = History(10, confirms, Durations(), Durations())
    history.take(0.0, 0.0, (0,) * 5, Totals())
    for seconds in (0.010, 0.030):
        confirms.add(seconds)
    history.take(1.0, 1.0, (0,) * 5, Totals())
    confirms.add(0.004)
    history.take(2.0, 2.0, (0,) * 5, Totals())
    history.take(3.0, 3.0, (0,) * 5, Totals())
    found = [(row["confirm_mean"], row["confirm_worst"]) for row in rows(history)]
    assert found == [(0.02, 0.03), (0.004, 0.004), (None, None)]


def test_only_so_many_moments_are_kept_and_one_asks_for_those_that_are_new() -> None:
    history = History(3, Durations(), Durations(), Durations())
    for second in range(8):
        history.take(second, second, (second,) * 5, Totals())
    assert [row["number"] for row in rows(history)] == [5, 6, 7]
    assert [row["number"] for row in rows(history, after=6)] == [7]
    assert rows(history, after=7) == []


def test_the_log_is_kept_in_a_ring_and_what_a_peer_makes_long_is_cut() -> None:
    book = Logbook(2)
    log = Log("coterie.test")
    book.open()
    try:
        for number in range(3):
            log.warning("something", number=number, text="x" * 10_000, table={"a": [1]})
    finally:
        book.close()
    log.warning("unheard")
    lines = list(book.after(0))
    assert [(line.number, line.facts["number"]) for line in lines] == [(2, "1"), (3, "2")]
    assert (lines[0].level, lines[0].logger, lines[0].event) == ("warning", "test", "something")
    assert len(lines[0].facts["text"]) == FACT_MAX
    assert lines[0].facts["table"] == '{"a": [1]}'
    assert [line.number for line in book.after(2)] == [3]
    assert book.last == 3
