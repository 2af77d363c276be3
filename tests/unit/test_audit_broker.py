"""The broker's properties (B1 to B12): what nearly violates them does not, and how a run is merged, cut or split does
not matter. The traces that do violate them are in testdata/traces."""

from __future__ import annotations

import pickle
import random
from functools import cache

import pytest
from tracescript import events

from coterie.audit import Checker, check, properties, split
from coterie.sim.profiles import broker_plan
from coterie.sim.runner import trace_plan
from coterie.trace import Event

CLUSTER = ("B6", "B7", "B8", "B10", "B13", "B14", "B15", "B16", "B17")
"""What they judge, a broker that stands alone does not do."""
BROKER = [fold for fold in properties() if fold.name.startswith("B") and fold.name not in CLUSTER]
SEEDS = (0, 4, 8, 9)


def verdict(text: str) -> list[str]:
    return [f"{v.property}: {v.text}" for v in check(events(text), BROKER)]


@cache
def simulated(seed: int) -> list[Event]:
    result, trace = trace_plan(broker_plan(seed))
    assert result.violations == []
    return trace


def merged(trace: list[Event], dice: random.Random) -> list[Event]:
    """The lives of all nodes, each in its order, mixed at random: even a successor before the one that it follows."""
    lives: dict[tuple[str, int], list[Event]] = {}
    for event in trace:
        lives.setdefault((event.node, event.inc), []).append(event)
    turns = [life for life, found in lives.items() for _ in found]
    dice.shuffle(turns)
    following = {life: iter(found) for life, found in lives.items()}
    return [next(following[life]) for life in turns]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_run_passes_however_its_lives_are_merged(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(3):
        assert check(merged(simulated(seed), dice), BROKER) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_run_passes_split_into_its_parts(seed: int) -> None:
    trace = simulated(seed)
    for fold in BROKER:
        parts = split(trace, fold)
        assert [v for part in parts for v in check(part, [fold])] == []
        assert len(parts) > 1 or fold.name in ("B5", "B9")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_run_passes_cut_off_anywhere(seed: int) -> None:
    """A real node that is killed loses its latest events: what it did all the same may show in its next life."""
    trace, dice = simulated(seed), random.Random(seed)
    lives = sorted({(event.node, event.inc) for event in trace if event.node != "world"})
    for _ in range(6):
        node, inc = dice.choice(lives)
        cut = dice.randrange(len([event for event in trace if (event.node, event.inc) == (node, inc)]))
        kept = [event for event in trace if (event.node, event.inc, cut) != (node, inc, min(event.n, cut))]
        last = Event(trace[0].run, node, inc, cut, trace[-1].t, "truncated")
        assert [str(v) for v in check([*kept, last], BROKER)] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checker_that_was_pickled_on_the_way_says_the_same(seed: int) -> None:
    checker = Checker(BROKER)
    trace = simulated(seed)
    for event in trace[: len(trace) // 2]:
        checker.feed(event)
    checker = pickle.loads(pickle.dumps(checker))
    for event in trace[len(trace) // 2 :]:
        checker.feed(event)
    assert checker.finish() == []


def test_queues_of_two_vhosts_with_one_name_are_two_queues() -> None:
    text = """
        B enqueue queue=q n=1
        B enqueue queue=q n=1 vhost=other
        B acquire queue=q n=1 holder=c
        B acquire queue=q n=1 holder=d vhost=other
    """
    assert verdict(text) == []
    assert verdict(text.replace(" vhost=other", ""))[0].startswith("B2")


def test_a_nacked_publish_is_owed_to_nobody() -> None:
    text = """
        B start
        B publish queue=q channel=c numbers=1-2
        B enqueue queue=q n=1 channel=c numbers=2
        B confirm n=1-2 channel=c {refused}
    """
    assert verdict(text.format(refused="refused=1")) == []
    assert len(verdict(text.format(refused=""))) == 1


def test_a_publish_that_is_not_confirmed_yet_is_owed_to_nobody() -> None:
    assert verdict("B start\n B publish queue=q channel=c numbers=1-2") == []


LOST = """
    B start
    B recovered damage=0 number=1 previous=0 queues=
    B queue queue=q state=declared durable
    B enqueue queue=q n=1 persistent=1 log=1
    B synced n=1
    B {end}
    B#{next} start
    B#{next} recovered damage={damage} number={number} previous={previous} queues=q
    B#{next} recovered queue=q next=9
"""


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ({}, 1),
        ({"end": "stop"}, 1),
        ({"end": "truncated"}, 0),
        ({"damage": 3}, 0),
        ({"next": 3, "number": 3, "previous": 2}, 0),  # another life lies between, of which there is no trace
        ({"next": 3, "number": 2, "previous": 1}, 1),  # and here it never got as far as the disk
    ],
)
def test_what_a_restart_lacks_counts_if_nothing_else_explains_it(what: dict[str, object], found: int) -> None:
    values: dict[str, object] = {"end": "crash", "damage": 0, "next": 2, "number": 2, "previous": 1}
    assert len(verdict(LOST.format(**(values | what)))) == found


def test_a_real_node_that_was_killed_is_not_blamed_for_what_its_trace_may_lack() -> None:
    values = {"end": "crash", "damage": 0, "next": 2, "number": 2, "previous": 1}
    assert verdict("real\n" + LOST.format(**values)) == []


def test_what_was_dequeued_a_moment_before_the_crash_may_be_there_or_not() -> None:
    text = LOST.replace("B {end}", "B accept queue=q n=1\n B dequeue queue=q n=1 reason=purged log=2\n B crash")
    values = {"damage": 0, "next": 2, "number": 2, "previous": 1}
    for there in ("", " n=1 redelivered=1"):
        again = text.replace("recovered queue=q next", f"recovered queue=q{there} next")
        assert verdict(again.format(**values)) == []


def test_what_a_client_has_of_a_deleted_queue_is_no_longer_compared_with_anything() -> None:
    """The queue has no inventory any more, and at each rest the client says again what it has not answered."""
    text = """
        B start
        B queue queue=q state=declared
        B enqueue queue=q n=1
        B acquire queue=q n=1 holder=c
        {deleted}
        B unsettled queue=q n=1 holder=c
        B unsettled queue=q n=1 holder=c
    """
    gone = "B dequeue queue=q n=1 reason=deleted\n B queue queue=q state=deleted"
    assert verdict(text.format(deleted=gone)) == []
    assert verdict(text.format(deleted="")) == ["B12: position 1 of q#1 is held by c and by c"]


def test_numbers_that_make_no_sense_are_no_reason_to_fail() -> None:
    trace = events(LOST.format(end="crash", damage=0, next=2, number=2, previous=1))
    for event in trace:
        event.data = {key: [[1, 10**12], [5], "x", None, [3, 1]] for key in event.data}
    for event in trace:
        event.data |= {"ranges": [[0, 10**12]], "sums": "x", "held": 5, "accepts": [1]}
    check(trace, BROKER)
