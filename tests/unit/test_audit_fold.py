"""The fold form: what is fed in which order does not matter beyond what a property asks for."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracescript import Script, events, load

from coterie.audit import Checker, Property, Split, Violation, check, properties, split
from coterie.audit.numbers import Line, Numbers
from coterie.trace import Event

SCRIPTS = load(Path(__file__).parent / "testdata" / "traces")
PEERS = ("A#1", "B#1")


def interleave(trace: list[Event], random: Random) -> list[Event]:
    """The same nodes' traces, merged in another way."""
    by_node: dict[tuple[str, int], list[Event]] = {}
    for event in trace:
        by_node.setdefault((event.node, event.inc), []).append(event)
    queues = [list(reversed(queue)) for queue in by_node.values()]
    merged = []
    while queues:
        queue = random.choice(queues)
        merged.append(queue.pop())
        queues = [q for q in queues if q]
    return merged


def verdict(trace: list[Event]) -> list[str]:
    return sorted(f"{v.property}: {v.text}" for v in check(trace, properties(causal=False)))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_any_interleaving_of_the_nodes_gives_the_same_verdict(script: Script) -> None:
    expected = verdict(script.events)
    for seed in range(50):
        assert verdict(interleave(script.events, Random(seed))) == expected


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Nonsense of two nodes, close enough to sense that properties have something to compare."""
    lines = ["world end live=A,B"] if draw(st.booleans()) else []
    lines += ["world fault fault=clock nodes=A values=rate:0.5"] if draw(st.booleans()) else []
    number = st.integers(1, 4)
    for _ in range(draw(st.integers(0, 25))):
        node, peer = draw(st.sampled_from((PEERS, PEERS[::-1])))
        n, conn = draw(number), draw(st.integers(0, 2))
        unicast = f"conn={conn}" if conn else ""
        line = draw(
            st.sampled_from(
                (
                    f"send n={n} to={peer if conn else 'all'} {unicast}",
                    f"deliver from={draw(st.sampled_from(PEERS))} n={n} {unicast}",
                    f"deliver from={peer} n={n} app=false {unicast}",
                    f"receive from={peer} n={n} {unicast}",
                    f"view members=A,B start={peer}:{n}",
                    f"view members=A,B welcomed={peer}:{n}",
                    f"view members={node}",
                    f"stable n={n}",
                    f"discard from={peer} n={n} reason=stable",
                    f"discard from={peer} n={n} reason=departed",
                    f"conn side=send peer={peer} conn={conn} state=CLOSED peer_left=false",
                    "start",
                    "stop",
                    "crash",
                    "truncated",
                )
            )
        )
        lines.append(f"{node} {line}")
    return events("\n".join(lines))


@st.composite
def agreed_traces(draw: st.DrawFn) -> list[Event]:
    """The same of two nodes with agreed views, total order, flushes and states."""
    lines = [*(f"{who} view view=1@A members=A,B agreed start=A:1,B:1 welcomed={who}:1" for who in PEERS)]
    number, mode = st.integers(1, 3), st.sampled_from(("view", "shared", "exclusive"))
    now = 1.0
    for _ in range(draw(st.integers(0, 30))):
        node, peer = draw(st.sampled_from((PEERS, PEERS[::-1])))
        n, pos, view, id = draw(number), draw(number), draw(number), draw(number)
        now = round(now + draw(st.sampled_from((0.0, 0.01, 0.7, 3.0))), 3)
        flush = f"leader={draw(st.sampled_from(PEERS))} number={n}"
        groups = f"subgroups=1@A:{node};2@A:{draw(st.sampled_from(PEERS))}"
        line = draw(
            st.sampled_from(
                (
                    f"send n={n} to=all",
                    f"deliver from={draw(st.sampled_from(PEERS))} n={n} pos={pos}",
                    f"deliver from={peer} n={n}",
                    f"receive from={peer} n={n}",
                    f"stable n={n}",
                    f"discard from={peer} n={n} reason=stable",
                    f"view view={view}@{peer} members=A,B before={draw(number)}@A start=A:{n},B:{pos}",
                    f"view view={view}@A members=A,B before=1@A",
                    f"view view=3@A members=A,B before={view}@A {groups}",
                    f"ordered from={draw(st.sampled_from(PEERS))} n={n} pos={pos}",
                    f"held pos={pos} by=majority members=A,B",
                    f"held pos={pos} by=all members={node}",
                    "block limit=1",
                    "unblock",
                    f"flush_joined {flush} mode={draw(mode)}",
                    f"flush_left {flush} reason=stop",
                    f"flush_held number={n} mode=shared targets=A,B",
                    "suspend reason=views timeout=1",
                    "resume reason=done",
                    f"state_cut id={id} role=provider digest=A:{n}",
                    f"state_cut id={id} role=requester digest=A:{n}",
                    f"state_sent id={id} count=1 sum={n}",
                    f"state_set id={id} count=1 sum={n}",
                    f"state_failed id={id}",
                    "crash",
                    "truncated",
                )
            )
        )
        lines.append(f"{node} {line} t={now}")
    return events("\n".join([*lines, "world end live=A,B"]))


@given(traces() | agreed_traces(), st.randoms(use_true_random=False))
def test_whatever_the_nodes_did_the_merge_does_not_change_the_verdict(trace: list[Event], random: Random) -> None:
    assert verdict(interleave(trace, random)) == verdict(trace)


@given(traces() | agreed_traces())
def test_whatever_the_nodes_did_splitting_does_not_change_the_verdict(trace: list[Event]) -> None:
    for causal in (False, True):
        for fold in properties(causal):
            parts = sorted(str(v) for part in split(trace, fold) for v in check(part, [fold]))
            assert parts == sorted(map(str, check(trace, [fold])))


class CountsSends(Property[list[int]]):
    name, title, sentence = "X1", "count", "Nobody sends."
    split_by = Split("run", lambda event: event.run)
    kinds = ("send",)

    def start(self) -> list[int]:
        return []

    def step(self, state: list[int], event: Event) -> None:
        assert event.kind == "send"
        state.append(event.n)

    def finish(self, state: list[int]) -> list[Violation]:
        return [Violation(self.name, f"{len(state)} sends", ())] if state else []


def test_a_checker_shows_a_property_only_the_kinds_that_it_reads() -> None:
    checker = Checker([CountsSends()])
    for event in events("A start\n A send n=1 to=all\n A stop\n A send n=2 to=all"):
        checker.feed(event)
    assert [str(v) for v in checker.finish()] == ["X1: 2 sends []"]
    assert checker.events == 4


def test_events_that_concern_everyone_reach_every_part_in_order() -> None:
    trace = events("A view members=A\n A deliver from=A n=1\n A deliver from=B n=1\n A view members=A,B")
    fold = next(p for p in properties() if p.name == "G8")
    assert [[e.n for e in part] for part in split(trace, fold)] == [[0, 1, 3], [0, 2, 3]]


def test_a_violation_reads_as_one_line() -> None:
    (violation,) = check(events("A start\n B view members=A,B\n B deliver from=A n=1 conn=1"), properties())
    assert str(violation) == (
        "G3: B#1 delivered number 1 of A#1's connection 1, which was never sent to it [B#1:1]"
    )  # fmt: skip


@given(st.lists(st.integers(0, 30)))
def test_numbers_are_a_set_that_knows_its_first_hole(added: list[int]) -> None:
    numbers, model = Numbers(), set[int]()
    for number in added:
        assert numbers.add(number) == (number not in model)
        model.add(number)
    assert [n for n in range(32) if n in numbers] == sorted(model)
    for first in range(32):
        holes = [n for n in range(first, 32) if n not in model]
        assert numbers.missing(first, 31) == (holes[0] if holes else None)


@given(st.permutations(range(1, 8)), st.sets(st.integers(1, 7)))
def test_a_line_complains_unless_everything_below_was_delivered(order: list[int], protocols: set[int]) -> None:
    """Whatever overtakes the application's bundles must belong to a protocol."""
    line, (event,) = Line(), events("A deliver from=A n=1")
    line.open(1)
    complaints = [line.deliver(number, number not in protocols, event) for number in order]
    done: set[int] = set()
    fine = True
    for number in order:
        fine = fine and (number in protocols or done >= set(range(1, number)))
        done.add(number)
    assert (not any(complaints)) == fine
