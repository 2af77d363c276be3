"""Traces as a person writes them: one event a line, `NODE KIND key=value ...`.

    expect G3: B#1 delivered number 2 of A#1's multicasts, which was never sent
    # A comment.
    A view members=A,B welcomed=B:1
    A send n=1 to=all
    B deliver from=A n=1

Addresses may leave out `#1`. `n=5` is one sequence number, `n=5-7` a range; `from` is the sender, `view` the view id. A
send or deliver has the checksum `sum` (its number, unless said otherwise) and `count` 1. Other keys go into data:
`a,b` is a list, `a:1,b:2` a mapping, true and false and numbers are what they look like. A line `real` makes the events
those of real nodes: they carry a wall clock. `expect nothing` says that the trace is clean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from coterie.trace import Event, Json

ADDRESSES = ("from", "to", "peer", "members", "live", "start", "welcomed", "held")


@dataclass
class Script:
    name: str
    expected: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def load(folder: Path) -> list[Script]:
    return [parse(path.read_text(), path.stem) for path in sorted(folder.glob("*.txt"))]


def events(text: str) -> list[Event]:
    return parse(text, "test").events


def parse(text: str, name: str) -> Script:
    script = Script(name)
    numbers: dict[tuple[str, int], int] = {}
    wall: float | None = None
    for line in filter(None, (line.split(" # ")[0].strip() for line in text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "expect":
            script.expected += [rest] if rest != "nothing" else []
        elif word == "real":
            wall = 1.7e9
        elif not line.startswith("#"):
            node, _, inc = word.partition("#")
            who = (node, int(inc or 1))
            n = numbers.get(who, 0)
            numbers[who] = n + 1
            kind, *pairs = rest.split()
            event = Event(name, *who, n, len(script.events) * 0.01, kind, wall)
            fill(event, dict(pair.split("=", 1) for pair in pairs))
            script.events.append(event)
    return script


def fill(event: Event, pairs: dict[str, str]) -> None:
    if "n" in pairs:
        first, _, last = pairs.pop("n").partition("-")
        event.first, event.last = int(first), int(last or first)
    if event.kind in ("send", "deliver"):
        event.sum, event.count = int(pairs.pop("sum", event.first or 0)), int(pairs.pop("count", 1))
    if "from" in pairs:
        event.sender = str(value("from", pairs.pop("from")))
    elif event.kind in ("send", "stable"):
        event.sender = f"{event.node}#{event.inc}"
    event.view = pairs.pop("view", None)
    event.data = {key: value(key, text) for key, text in pairs.items()}


def value(key: str, text: str) -> Json:
    if key == "held":  # who:what:amount
        who, what, amount = text.split(":")
        return {full(who): {what: int(amount)}}
    if ":" in text:
        return {full(k) if key in ADDRESSES else k: scalar(v) for k, v in (p.split(":") for p in text.split(","))}
    if key in ("members", "live"):
        return [full(part) for part in text.split(",")]
    return full(text) if key in ADDRESSES else scalar(text)


def scalar(text: str) -> Json:
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def full(text: str) -> str:
    return text if "#" in text or text == "all" else f"{text}#1"
