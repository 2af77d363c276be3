"""Traces to audit: of simulated runs, of real processes, and of both with one thing wrong in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.audit import Checker, Violation, properties
from coterie.audit.files import Reading, find, parse, runs
from coterie.demo.cast import Cast
from coterie.runtime.aio import open_trace
from coterie.sim.profiles import profile
from coterie.sim.runner import run_plan
from coterie.trace import Event, Json

SEEDS = {"channel": 3, "vs": 0, "total": 0}
"""Short runs with faults in them: profile and seed."""

Verdict = list[tuple[str, str, tuple[str, ...]]]
"""Violations as property, text and proof, sorted."""


def simulate(folder: Path) -> None:
    """A simulated run of each profile, each in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in SEEDS.items():
        run_plan(profile(name).make(seed), str(folder))


def live(folder: Path) -> None:
    """Three real processes, one of which joins late and is killed: a file for each, and one for who watches."""
    folder.mkdir(parents=True, exist_ok=True)
    cast = Cast(("ada", "ben", "cy"), folder, "live", 0.0)
    world = open_trace(folder, "live", "world", 0, time.monotonic, time.time)
    try:
        cast.start("ada")
        cast.start("ben")
        cast.together("ada", "ben")
        cast.tell("load", rate=100, size=64)
        _delivered(cast, 20)
        cast.start("cy", state=True).state()
        cast.together("ada", "ben", "cy")
        _delivered(cast, 20)
        victim = cast.players.pop("cy")
        victim.kill()
        cast.together("ada", "ben")
        victim.end()
        cast.tell("rest")
        answers = cast.at_rest()
        cast.ask("hush")
        held: dict[str, Json] = {answer["address"]: dict(answer["held"]) for answer in answers.values()}
        world.emit("end", live=list(held), held=held)
    finally:
        cast.end()
        world.close()


def _delivered(cast: Cast, more: int) -> None:
    """Wait until everybody has delivered so many messages more."""
    before = {name: answer["delivered"] for name, answer in cast.ask("tell").items()}
    while any(answer["delivered"] < before[name] + more for name, answer in cast.ask("tell").items()):
        time.sleep(0.02)


def read(path: Path) -> list[Event]:
    return [parse(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, events: Sequence[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(event.to_json() + "\n" for event in events), encoding="utf-8")
    return path


def renamed(events: Sequence[Event], run: str) -> list[Event]:
    return [replace(event, run=run) for event in events]


def renumbered(events: Sequence[Event]) -> list[Event]:
    """Each incarnation's events counted again: what was taken out or put in leaves no hole."""
    numbers: dict[tuple[str, int], int] = {}
    counted = []
    for event in events:
        who = event.node, event.inc
        counted.append(replace(event, n=numbers.get(who, 0)))
        numbers[who] = counted[-1].n + 1
    return counted


def plain(*paths: Path) -> tuple[dict[str, Verdict], Reading]:
    """What `coterie check` says, by run."""
    reading = Reading()
    found: dict[str, Verdict] = {}
    for run in runs(find([str(path) for path in paths]), reading):
        checker = Checker(properties(run.causal))
        for event in run.events:
            checker.feed(event)
        found[run.name] = verdict(checker.finish())
    return found, reading


def verdict(violations: Sequence[Violation]) -> Verdict:
    return sorted((v.property, v.text, tuple(event.to_json() for event in v.events)) for v in violations)


def is_multicast(event: Event, kind: str = "deliver") -> bool:
    """Of the application or of a protocol."""
    return event.kind == kind and event.data.get("conn") is None


def is_bundle(event: Event, kind: str = "deliver") -> bool:
    """A multicast of the application."""
    return is_multicast(event, kind) and event.data.get("app") is not False


Fault = Callable[[list[Event]], list[Event]]
"""What a fault gives: the events that are concerned, changed in place in the list."""


def _in_the_middle(events: list[Event]) -> tuple[int, int, int]:
    """Where some member delivers two bundles of another one after the other, and then installs a view with others.

    The index of both deliveries, and of the view. No bundle of a protocol has a number between theirs, or comes between
    them, as it may: proofs would name that one.
    """
    for first, one in enumerate(events):
        if not is_bundle(one) or one.sender == f"{one.node}#{one.inc}":
            continue
        mine = [i for i in range(first + 1, len(events)) if (events[i].node, events[i].inc) == (one.node, one.inc)]
        second = next((i for i in mine if is_multicast(events[i]) and events[i].sender == one.sender), None)
        view = next((i for i in mine if events[i].kind == "view"), None)
        if second is None or view is None or second > view or not is_bundle(events[second]):
            continue
        if events[second].first != (one.first or 0) + 1:
            continue
        if len(_together(events, view)) > 1:
            return first, second, view
    raise AssertionError("no such place in this trace")


def _together(events: list[Event], view: int) -> list[Event]:
    """Those who go together with the one that installs that view."""
    there = events[view]
    return [
        event for event in events
        if event.kind == "view" and event.view == there.view and event.data.get("before") == there.data.get("before")
    ]  # fmt: skip


def dropped(events: list[Event]) -> list[Event]:
    first, second, _ = _in_the_middle(events)
    following = events[second]
    del events[first]
    return [following]


def own_dropped(events: list[Event]) -> list[Event]:
    first, _, _ = _in_the_middle(events)
    sender = events[first].sender
    at = next(
        i for i, e in enumerate(events)
        if is_bundle(e) and (e.sender, e.first) == (sender, events[first].first) and f"{e.node}#{e.inc}" == sender
    )  # fmt: skip
    sent = next(e for e in events if is_bundle(e, "send") and (e.sender, e.first) == (sender, events[at].first))
    del events[at]
    return [sent]


def duplicated(events: list[Event]) -> list[Event]:
    first, _, _ = _in_the_middle(events)
    events.insert(first + 1, replace(events[first]))
    return [events[first + 1]]


def reordered(events: list[Event]) -> list[Event]:
    first, second, _ = _in_the_middle(events)
    events[first], events[second] = events[second], events[first]
    return [events[first], events[second]]


def moved(events: list[Event]) -> list[Event]:
    """The last delivery before a view comes after it, and says so."""
    first, _, view = _in_the_middle(events)
    who = events[first].node, events[first].inc
    last = max(i for i in range(first, view) if (events[i].node, events[i].inc) == who and is_bundle(events[i]))
    late = replace(events[last], view=events[view].view)
    events.insert(view + 1, late)
    del events[last]
    return [late]


def altered(events: list[Event]) -> list[Event]:
    first, _, _ = _in_the_middle(events)
    other = events[first] = replace(events[first], sum=(events[first].sum or 0) ^ 1)
    sent = next(e for e in events if is_bundle(e, "send") and (e.sender, e.first) == (other.sender, other.first))
    return [sent, other]


FAULTS: dict[str, tuple[Fault, str]] = {
    "dropped": (dropped, "G8"),
    "own-dropped": (own_dropped, "G4"),
    "duplicated": (duplicated, "G3"),
    "reordered": (reordered, "G8"),
    "moved": (moved, "G5"),
    "altered": (altered, "G3"),
}
"""By name: what is done to a trace, and the property that has to show the events concerned."""


def damaged(events: Sequence[Event], run: str, fault: Fault) -> tuple[list[Event], list[tuple[str, int, str]]]:
    """The trace under that name with that fault, and the events concerned as node, incarnation and kind with number."""
    changed = renamed(events, run)
    concerned = fault(changed)
    marks = [(event.node, event.inc, f"{event.kind} {event.first}") for event in concerned]
    return renumbered(changed), marks


def mark(line: str) -> tuple[str, int, str]:
    event = json.loads(line)
    return event["node"], event["inc"], f"{event['kind']} {event.get('first')}"
