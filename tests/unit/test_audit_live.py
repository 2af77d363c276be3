"""A run as it arrives gets the verdict of its files, however it is cut, shuffled, doubled or altered on its way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracescript import Script, events, load

from coterie.audit import Checker, Violation, live, properties
from coterie.audit.files import Reading, put_together
from coterie.audit.live import LiveRun, Patience
from coterie.errors import UserError
from coterie.sim.profiles import profile
from coterie.sim.runner import trace_plan
from coterie.trace import Event

SCRIPTS = load(Path(__file__).parent / "testdata" / "traces")
PATIENCE = Patience(lateness=10, idle=100)
Chunk = tuple[str, list[Event]]


@cache
def simulated(name: str, seed: int) -> list[Event]:
    """The first events of a simulated run, with its end."""
    whole = trace_plan(profile(name).make(seed))[1]
    return [*whole[:3000], *(event for event in whole[3000:] if event.kind in ("end", "crash"))]


def batch(trace: Sequence[Event], one_file: bool) -> tuple[list[str], int]:
    """What `coterie check` says of the trace, and how many events it ignored."""
    reading = Reading()
    run = put_together("run", list(trace), one_file, reading)
    checker = Checker(properties(run.causal))
    for event in run.events:
        checker.feed(event)
    return told(checker.finish()), reading.ignored


def told(violations: Iterable[Violation]) -> list[str]:
    return sorted(f"{violation.property}: {violation.text}" for violation in violations)


def real(trace: Iterable[Event]) -> list[Event]:
    return [replace(event, wall=1.7e9 + event.t) for event in trace]


def streamed(batches: Iterable[Sequence[Chunk]], saved: bool = False) -> tuple[list[str], LiveRun]:
    """Feed one batch a second; the verdict is what was certain on the way, and the rest."""
    run = LiveRun("run", PATIENCE)
    found: list[Violation] = []
    for now, chunks in enumerate(batches, 1):
        assert run.feed(chunks, now) == []
        found += run.certain()
        if saved:
            run = live.load(live.dump(run))
    assert run.advance(1e6)
    return told([*found, *run.finish()]), run


def shuffled(trace: Sequence[Event], dice: random.Random) -> Iterator[list[Chunk]]:
    """Cut into segments of each node, which come in any order, some of them twice, a few at a time."""
    nodes: dict[str, list[Event]] = {}
    for event in trace:
        nodes.setdefault(f"{event.node}-{event.inc}", []).append(event)
    chunks: list[Chunk] = []
    for name, mine in nodes.items():
        cuts = sorted({0, len(mine), *(dice.randrange(len(mine)) for _ in range(dice.randrange(6)))})
        chunks += [(f"{name}.{a}", mine[a:b]) for a, b in pairwise(cuts)]
    chunks += [(f"copy of {name}", mine) for name, mine in dice.sample(chunks, min(2, len(chunks)))]
    dice.shuffle(chunks)
    while chunks:
        count = dice.randint(1, 4)
        yield chunks[:count]
        del chunks[:count]


def altered(trace: Sequence[Event], dice: random.Random, times: int) -> list[Event]:
    """The same trace, with events that say something else, are gone, or are cut off at the end."""
    result = list(trace)
    for _ in range(times):
        at = dice.randrange(len(result))
        event = result[at]
        match dice.randrange(6):
            case 0:
                del result[at]
            case 1:
                result[at] = replace(event, sum=7, count=99)
            case 2 if event.first is not None:
                result[at] = replace(event, first=event.first + 1, last=None)
            case 3:
                result[at] = replace(event, kind=dice.choice(("deliver", "block", "stop", "suspend", "ordered")))
            case 4 if event.kind != "send":  # of two nodes that number bundles of one sender, folds believe the first
                result[at] = replace(event, sender=dice.choice(trace).sender, view=dice.choice(trace).view)
            case _:
                who = (event.node, event.inc)
                result = [e for e in result if (e.node, e.inc) != who or e.n <= event.n]
    return result


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_trace_in_one_file_has_the_violations_that_it_expects(script: Script) -> None:
    verdict, run = streamed([[("run.jsonl", script.events)]])
    assert verdict == sorted(script.expected)
    assert (run.events, run.files, run.late) == (len(script.events), 1, 0)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
@pytest.mark.parametrize("seed", range(3))
def test_segments_in_any_order_and_twice_give_the_verdict_of_the_files(script: Script, seed: int) -> None:
    expected, _ = batch(script.events, one_file=False)
    batches = list(shuffled(script.events, random.Random(seed)))
    verdict, run = streamed(batches, saved=True)
    assert verdict == expected
    assert run.ignored == sum(len(chunk) for one in batches for _, chunk in one) - len(script.events)


@given(
    st.sampled_from([("vs", 3), ("total", 5), ("channel", 4)]), st.booleans(), st.integers(0, 6), st.integers(0, 2**32)
)
@settings(max_examples=30)
def test_simulated_runs_altered_and_shuffled_give_the_verdict_of_the_files(
    which: tuple[str, int], wall: bool, times: int, seed: int
) -> None:
    dice = random.Random(seed)
    trace = altered(simulated(*which), dice, times)
    trace = real(trace) if wall else trace
    verdict, run = streamed(shuffled(trace, dice))
    expected, _ = batch(trace, one_file=False)
    # Of more violations than a fold spells out, which ones it does depends on the order.
    if max(Counter(text.partition(":")[0] for text in expected).values(), default=0) < 25:
        assert verdict == expected
    else:
        assert Counter(text[:3] for text in verdict) == Counter(text[:3] for text in expected)
    assert not run.causal


@given(st.sampled_from([("vs", 3), ("total", 5), ("channel", 4)]), st.integers(0, 6), st.integers(0, 2**32))
@settings(max_examples=20)
def test_a_simulated_run_in_one_file_is_judged_as_strictly_as_its_file(
    which: tuple[str, int], times: int, seed: int
) -> None:
    dice = random.Random(seed)
    trace = altered(simulated(*which), dice, times)
    middle = dice.randrange(len(trace))
    verdict, run = streamed([[("run.jsonl", trace[:middle]), ("run.jsonl", trace[middle:])]])
    expected, ignored = batch(trace, one_file=True)
    assert (verdict, run.ignored) == (expected, ignored)


def test_two_different_events_of_one_number_end_a_trace_before_them_as_in_files() -> None:
    trace = events("A start\n A view members=A\n A send n=1 to=all\n A send n=2 to=all")
    other = replace(trace[2], sum=99)
    expected, ignored = batch([*trace, other], one_file=False)
    verdict, run = streamed([[("1.jsonl", trace), ("2.jsonl", [other])]])
    assert (verdict, run.ignored) == (expected, ignored)
    assert run.feed([("3.jsonl", trace[3:])], 3) == trace[3:]


def test_a_violation_that_nothing_can_undo_is_told_at_once_and_once() -> None:
    trace = events("A view members=A,B\n A send n=1 to=all\n B view members=A,B start=A:1\n B deliver from=A n=1 sum=9")
    run = LiveRun("run", PATIENCE)
    run.feed([("b.jsonl", trace[2:])], 1)
    assert run.certain() == []
    run.feed([("a.jsonl", trace[:2])], 2)
    assert told(run.certain()) == ["G3: B#1 delivered number 1 of A#1's multicasts with another content than was sent"]
    assert run.certain() == []
    assert run.finish() == []


def test_a_broken_run_tells_as_many_violations_in_all_as_its_file() -> None:
    text = "A view members=A\n" + "\n".join(f"A deliver from=A n={n} sum=9\nA send n={n} to=all" for n in range(1, 60))
    trace = real(events(text))
    run = LiveRun("run", PATIENCE)
    found: list[Violation] = []
    for event in trace:
        run.feed([("a.jsonl", [event])], 1)
        found += run.certain()
    verdict = told([*found, *run.finish()])
    assert verdict == batch(trace, one_file=True)[0]
    assert any("and 33 more violations like these" in line for line in verdict)


def test_a_gap_that_does_not_close_in_time_is_a_hole_and_what_comes_behind_it_is_late() -> None:
    trace = real(events("A start\n A view members=A\n A send n=1 to=all\n A deliver from=A n=1\n A stop"))
    run = LiveRun("run", PATIENCE)
    run.feed([("1.jsonl", trace[:1]), ("3.jsonl", trace[2:4])], 100)
    assert run.due == 110
    assert not run.advance(109)
    run.advance(110)
    assert run.feed([("2.jsonl", trace[1:2])], 111) == trace[1:2]
    assert run.feed([("4.jsonl", trace[4:])], 112) == trace[4:]
    assert (run.late, run.ignored) == (2, 4)
    assert told(run.finish()) == batch(trace[:1], one_file=False)[0] == []


def test_a_gap_that_closes_in_time_leaves_no_trace() -> None:
    trace = real(events("A start\n A view members=A\n A send n=1 to=all\n A deliver from=A n=1 sum=2\n A stop"))
    run = LiveRun("run", PATIENCE)
    run.feed([("2.jsonl", trace[2:])], 100)
    run.advance(109)
    run.feed([("1.jsonl", trace[:2])], 109.5)
    assert run.ignored == 0
    assert len(run.certain()) == 1
    assert run.due == 119.5


def test_no_more_waits_behind_a_gap_than_the_bound() -> None:
    trace = [Event("run", "A", 1, n, 0.0, "ack", 1.0) for n in range(1, 40)]
    run = LiveRun("run", Patience(lateness=10, idle=100, waiting_max=30))
    run.feed([("1.jsonl", trace[:20])], 100)
    run.advance(100)
    assert run.ignored == 0
    run.feed([("2.jsonl", trace[20:])], 101)
    run.advance(101)
    assert run.ignored == 39


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("A start\n B start\n A stop", 100),
        ("A start\n B start\n A stop\n B stop", 10),
        ("A start\n B start\n A crash\n B stop", 10),
        ("A start\n world end live=A", 10),
    ],
)
def test_a_run_is_over_soon_after_it_has_ended_and_else_when_nothing_has_come_for_long(text: str, wait: float) -> None:
    run = LiveRun("run", PATIENCE)
    run.feed([("run.jsonl", real(events(text)))], 50)
    assert run.due == 50 + wait
    assert not run.advance(49.9 + wait)
    assert run.advance(50 + wait)


def test_a_simulated_run_in_one_file_is_over_with_its_end() -> None:
    run = LiveRun("run", PATIENCE)
    run.feed([("run.jsonl", simulated("vs", 3))], 50)
    assert run.causal
    assert run.advance(50)


def test_a_saved_run_goes_on_where_it_was_and_of_another_version_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = live.dump(LiveRun("run"))
    assert live.load(data).name == "run"
    monkeypatch.setattr(live, "__version__", "0.0.0")
    with pytest.raises(UserError, match="begin a new one"):
        live.load(data)
