"""The story of the demonstration: a group forms, grows, falls apart, comes together, loses members, and loses nothing.

All in real processes over loopback. The partition is made by the fault layer CUT in each process's stack: it loses
every packet between the two parts, in both directions. The rest (a join, a leave, kill -9) is the real thing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from coterie.audit import Violation, check, files, properties
from coterie.demo.cast import Cast
from coterie.runtime.aio import Segments, open_trace
from coterie.sim.diagram import render
from coterie.trace import Event, Json

FOUNDERS = ("ada", "ben", "cy", "dee")
JOINER = "eve"
LARGER, SMALLER = ("ada", "ben", "cy"), ("dee", "eve")
PARTED = 1.0
"""Seconds that both parts have for themselves."""
VICTIM = "cy"
DIAGRAM = "demo.html"

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What the demonstration measured."""

    complete_ms: float = 0.0
    joined_ms: float = 0.0
    state_bytes: int = 0
    apart_ms: float = 0.0
    merged_ms: float = 0.0
    left_ms: float = 0.0
    removed_ms: dict[str, float] = field(default_factory=dict)
    returned_ms: float = 0.0
    held_up_ms: float = 0.0
    """The longest time that any member's multicasts had to wait for a flush."""
    delivered: int = 0
    wrong: int = 0
    """Holes in what a member delivered, and books that differ."""
    events: int = 0
    properties: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    diagram: str = ""

    @property
    def good(self) -> bool:
        return not self.wrong and not self.violations


class Story:
    """Tells it. Traces and diagram go to `folder`, which exists."""

    def __init__(self, folder: Path, rate: float, size: int, say: Say, segment_seconds: float = 0.0) -> None:
        self._folder, self._rate, self._size, self._say = folder, rate, size, say
        for old in (*folder.glob("*.jsonl"), folder / DIAGRAM):
            old.unlink(missing_ok=True)
        # Whoever reads the traces as they come may have seen another demonstration before: each is a run of its own.
        run = f"demo-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        self._cast = Cast((*FOUNDERS, JOINER), folder, run, segment_seconds)
        segments = Segments(segment_seconds) if segment_seconds else None
        self._world = open_trace(folder, run, "world", 0, time.monotonic, time.time, segments)
        self.outcome = Outcome()

    def tell(self) -> Outcome:
        try:
            for part in (self._found, self._join, self._part, self._leave, self._kill, self._return, self._compare):
                part()
        finally:
            self._cast.end()
            self._world.close()
        self._check()
        return self.outcome

    def _load(self, *names: str) -> None:
        for name in names:
            self._cast.players[name].tell("load", rate=self._rate, size=self._size)

    def _found(self) -> None:
        began = time.monotonic()
        for name in FOUNDERS:
            self._cast.start(name)
        self.outcome.complete_ms = (self._cast.together(*FOUNDERS) - began) * 1000
        self._say(f"{', '.join(FOUNDERS)} are a group, {self.outcome.complete_ms:.0f} ms after the first was started")
        self._load(*FOUNDERS)
        self._say(f"each multicasts {self._rate:g} messages of {self._size} bytes a second; all deliver one order")
        time.sleep(1.5)

    def _join(self) -> None:
        eve = self._cast.start(JOINER, state=True)
        given = eve.state()
        self._cast.together(*FOUNDERS, JOINER)
        self.outcome.joined_ms, self.outcome.state_bytes = given["seconds"] * 1000, given["state"]
        self._say(
            f"{JOINER} joins, and has {given['from']}'s book of {given['state'] / 1e6:.1f} MB "
            f"{self.outcome.joined_ms:.0f} ms after it began to connect"
        )
        self._load(JOINER)
        time.sleep(1.0)

    def _part(self) -> None:
        cast = self._cast
        links: list[Json] = [[a, b] for one in LARGER for other in SMALLER for a, b in ((one, other), (other, one))]
        began = time.monotonic()
        self._world.emit("fault", fault="partition", number=1, duration=PARTED, nodes=[], links=links)
        self._world.seal()
        cast.cut(LARGER, SMALLER)
        apart = max(cast.together(*LARGER), cast.together(*SMALLER))
        self.outcome.apart_ms = (apart - began) * 1000
        parts = f"{', '.join(LARGER)} | {', '.join(SMALLER)}"
        self._say(f"the network is cut: {parts} go on in views of their own after {self.outcome.apart_ms:.0f} ms")
        time.sleep(PARTED)
        began = time.monotonic()
        cast.tell("heal")
        self._world.emit("heal", fault="partition", number=1)
        self._world.seal()
        self.outcome.merged_ms = (cast.together(*LARGER, *SMALLER) - began) * 1000
        given = [cast.players[name].state() for name in SMALLER]
        self._say(
            f"the network heals: one view of all after {self.outcome.merged_ms:.0f} ms; {' and '.join(SMALLER)} take "
            f"over the larger part's book, {max(message['seconds'] for message in given) * 1000:.0f} ms later"
        )
        time.sleep(0.5)

    def _leave(self) -> None:
        began = time.monotonic()
        eve = self._cast.players.pop(JOINER)
        eve.ask("leave")
        self.outcome.left_ms = (self._cast.together(*FOUNDERS) - began) * 1000
        eve.end()
        self._say(f"{JOINER} leaves: the others' next view is there after {self.outcome.left_ms:.0f} ms")
        time.sleep(0.5)

    def _kill(self) -> None:
        others = [name for name in FOUNDERS if name != VICTIM]
        victim = self._cast.players.pop(VICTIM)
        killed = time.monotonic()
        victim.kill()
        self._world.emit("fault", fault="kill -9", number=2, nodes=[VICTIM])
        self._world.seal()
        for name in others:
            self.outcome.removed_ms[name] = (self._cast.players[name].wait_for_view(others) - killed) * 1000
        told = ", ".join(f"{name} after {ms:.1f} ms" for name, ms in self.outcome.removed_ms.items())
        self._say(f"kill -9 {VICTIM}: the others agree on a view without it ({told})")
        time.sleep(0.5)

    def _return(self) -> None:
        began = time.monotonic()
        given = self._cast.start(VICTIM, state=True).state()
        self.outcome.returned_ms = (self._cast.together(*FOUNDERS) - began) * 1000
        self._say(
            f"{VICTIM} is started again: back as a new incarnation, with {given['from']}'s book, after "
            f"{self.outcome.returned_ms:.0f} ms"
        )
        self._load(VICTIM)
        time.sleep(0.5)

    def _compare(self) -> None:
        """Stop the load, wait until nothing is held back, and compare the books."""
        self._cast.tell("rest")
        answers = self._cast.at_rest()
        outcome = self.outcome
        outcome.delivered = sum(answer["delivered"] for answer in answers.values())
        holes = sum(answer["wrong"] for answer in answers.values())
        books = {(answer["bytes"], answer["sum"]) for answer in answers.values()}
        outcome.wrong = holes + len(books) - 1
        size = next(iter(answers.values()))["bytes"]
        told = f"{len(answers)} books of {size / 1e6:.1f} MB, equal to the byte; nothing lost, doubled or out of order"
        if outcome.wrong:
            told = f"{len(books)} DIFFERENT books, {holes} HOLES in what was delivered"
        self._say(f"all at rest after {outcome.delivered:,} deliveries: {told}")
        self._cast.ask("hush")
        held: dict[str, Json] = {answer["address"]: dict(answer["held"]) for answer in answers.values()}
        self._world.emit("end", live=list(held), held=held)
        self._world.seal()

    def _check(self) -> None:
        reading, outcome = files.Reading(), self.outcome
        events: list[Event] = []
        violations: list[Violation] = []
        for run in files.runs(files.find([str(self._folder)]), reading):
            folds = properties(run.causal)
            outcome.properties = [fold.name for fold in folds]
            violations += check(run.events, folds)
            events += run.events
        outcome.events, outcome.violations = reading.events, [str(violation) for violation in violations]
        outcome.held_up_ms = longest_block(events) * 1000
        self._say(
            f"checked {outcome.events:,} trace events for {len(outcome.properties)} properties "
            f"({outcome.properties[0]} to {outcome.properties[-1]}): {len(violations) or 'no'} violations; "
            f"no flush held anybody up for longer than {outcome.held_up_ms:.0f} ms"
        )
        began = min(event.t for event in events)
        for event in events:
            event.t -= began
        page = self._folder / DIAGRAM
        page.write_text(render(events, "coterie demo", violations), encoding="utf-8")
        outcome.diagram = str(page)
        self._say(f"what happened, as a picture: {page}")


def longest_block(events: list[Event]) -> float:
    """For how long a gate was shut at most, in seconds."""
    shut: dict[tuple[str, int], float] = {}
    longest = 0.0
    for event in events:
        who = (event.node, event.inc)
        if event.kind == "block":
            shut.setdefault(who, event.t)
        elif event.kind == "unblock" and who in shut:
            longest = max(longest, event.t - shut.pop(who))
    return longest
