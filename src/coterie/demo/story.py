"""The story of the demonstration: four processes become a group; one is killed under load, and comes back."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coterie.audit import check, files, properties
from coterie.errors import CoterieError
from coterie.workers import Message, Worker, free_ports

NAMES = ("ada", "ben", "cy", "dee")
VICTIM = "cy"
PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""

Say = Callable[[str], None]


class Member:
    """One process, and what it said last."""

    def __init__(self, name: str, arguments: Message) -> None:
        self.name = name
        self.worker = Worker("coterie.demo.member", arguments)
        self.view: list[str] = []
        self.view_at = 0.0
        self._answers: queue.Queue[Message] = queue.Queue()
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = self.worker.hear()
            except (CoterieError, ValueError):  # it ended, as it was told to or was made to
                return
            if "view" in message:
                with self._changed:
                    self.view, self.view_at = message["view"], message["at"]
                    self._changed.notify_all()
            else:
                self._answers.put(message)

    def ask(self, what: str) -> Message:
        self.worker.tell({"do": what})
        return self._answers.get(timeout=PATIENCE)

    def wait_for_view(self, fits: Callable[[list[str]], bool]) -> float:
        """When it had a view that fits."""
        with self._changed:
            if not self._changed.wait_for(lambda: fits(self.view), PATIENCE):
                raise CoterieError(f"{self.name} still sees {', '.join(self.view)} after {PATIENCE:g} s")
            return self.view_at


@dataclass
class Outcome:
    """What the demonstration measured."""

    complete_ms: float = 0.0
    removed_ms: dict[str, float] = field(default_factory=dict)
    returned_ms: float = 0.0
    delivered: int = 0
    wrong: int = 0
    events: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.wrong and not self.violations


def tell(folder: Path, rate: float, size: int, say: Say) -> Outcome:
    """Run it. Traces go to `folder`, which exists."""
    for old in folder.glob("*.jsonl"):
        old.unlink()
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    outcome = Outcome()

    def start(name: str) -> Member:
        peers = [port for other, port in ports.items() if other != name]
        return Member(name, {"name": name, "port": ports[name], "peers": peers, "trace": str(folder), "run": "demo"})

    began = time.monotonic()
    members = {name: start(name) for name in NAMES}
    try:
        complete = max(m.wait_for_view(lambda view: len(view) == len(NAMES)) for m in members.values())
        outcome.complete_ms = (complete - began) * 1000
        say(f"{', '.join(NAMES)} are a group, {outcome.complete_ms:.0f} ms after the first was started")
        for member in members.values():
            member.worker.tell({"do": "load", "rate": rate, "size": size})
        say(f"each multicasts {rate:g} messages of {size} bytes a second to all")
        time.sleep(1.5)

        victim = members.pop(VICTIM)
        killed = time.monotonic()
        victim.worker.kill()
        for member in members.values():
            at = member.wait_for_view(lambda view: not any(m.startswith(f"{VICTIM}#") for m in view))
            outcome.removed_ms[member.name] = (at - killed) * 1000
        told = ", ".join(f"{name} after {ms:.1f} ms" for name, ms in outcome.removed_ms.items())
        say(f"kill -9 {VICTIM}: the others go on without it ({told})")
        time.sleep(1.0)

        again = time.monotonic()
        members[VICTIM] = start(VICTIM)
        back = max(m.wait_for_view(lambda view: len(view) == len(NAMES)) for m in members.values())
        outcome.returned_ms = (back - again) * 1000
        say(f"{VICTIM} is started again, and is back as a new incarnation after {outcome.returned_ms:.0f} ms")
        members[VICTIM].worker.tell({"do": "load", "rate": rate, "size": size})
        time.sleep(1.0)

        _compare(members, outcome)
        say(
            f"all at rest: {outcome.delivered:,} deliveries, "
            + (
                f"{outcome.wrong} WRONG"
                if outcome.wrong
                else "nothing lost, doubled or out of order; everybody has the same"
            )
        )
    finally:
        for member in members.values():
            member.worker.end()
    _check(folder, outcome)
    say(f"checked {outcome.events:,} trace events of {folder}: {len(outcome.violations) or 'no'} violations")
    return outcome


def _compare(members: dict[str, Member], outcome: Outcome) -> None:
    """Stop the load, wait until nothing is held back, and compare what everybody has."""
    for member in members.values():
        member.worker.tell({"do": "rest"})
    deadline = time.monotonic() + PATIENCE
    answers: dict[str, Message] = {}
    while time.monotonic() < deadline:
        answers = {name: member.ask("streams") for name, member in members.items()}
        if not any(amount for answer in answers.values() for amount in answer["held"].values()):
            break
        time.sleep(0.05)
    live = next(iter(members.values())).view
    for sender in live:
        streams = [answer["streams"][sender] for answer in answers.values()]
        outcome.delivered += sum(last - start + 1 for start, last, _ in streams)
        outcome.wrong += sum(wrong for _, _, wrong in streams)
        outcome.wrong += len({last for _, last, _ in streams}) - 1


def _check(folder: Path, outcome: Outcome) -> None:
    reading = files.Reading()
    for run in files.runs(files.find([str(folder)]), reading):
        outcome.violations += [str(violation) for violation in check(run.events, properties(run.causal))]
    outcome.events = reading.events
