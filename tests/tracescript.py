"""Traces as a person writes them: one event a line, `NODE KIND key=value ...`.

    expect G3: B#1 delivered number 2 of A#1's multicasts, which was never sent
    # A comment.
    A view members=A,B welcomed=B:1
    A send n=1 to=all
    B deliver from=A n=1

Addresses and view ids may leave out `#1`. `n=5` is one sequence number, `n=5-7` a range; `from` is the sender, `view`
the view id, `pos` the position, `t` the time (0.01 s after the line before, unless said otherwise). A send or deliver
has the checksum `sum` (its number, unless said otherwise) and `count` 1. Other keys go into data: `a,b` is a list,
`a:1,b:2` a mapping, true and false and numbers are what they look like; `subgroups=1@A:A,B;1@C:C` are the views of a
merge. A view with `before`, or with the word `agreed`, is an agreed one; what a node does after an agreed view has that
view's id. Of broker events, `queue` is a queue, `n` its positions, and what is a list of ranges is written `1-3,5`:
`n=1-3,5`, `numbers=1-2`, `ready=4`; `held=C1:1-2;C2:5` and `accepts=q:1-2;r:3` are by holder and by queue, and
`enqueues=q:2` counts; `~` is a blank. A line `real` makes the events those of real nodes: they carry a wall clock.
`expect nothing` says that the trace is clean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from coterie.trace import Event, Json

LISTS = ("members", "live", "targets", "nodes", "waiting", "queues", "voters", "of")
RANGES = ("ranges", "numbers", "persistent", "redelivered", "letters", "refused", "unroutable", "ready")
BY_QUEUE = ("accepts", "rejects", "requeues")
WHOLES = ("sums", "counted")
ADDRESSES = (
    "from", "to", "peer", "start", "welcomed", "held", "leader", "digest", "before", "members", "live", "targets",
    "waiting", "queues", "enqueues", "source", "voters", "of",
)  # fmt: skip


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
    views: dict[tuple[str, int], str | None] = {}
    wall: float | None = None
    now = -0.01
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
            kind, *words = rest.split()
            pairs = {key: value if equals else "true" for key, equals, value in (pair.partition("=") for pair in words)}
            now = float(pairs.pop("t", round(now + 0.01, 6)))
            event = Event(name, *who, n, now, kind, wall)
            fill(event, pairs)
            if kind == "view":
                if "before" in event.data:
                    event.data["agreed"] = True
                views[who] = event.view if event.data.get("agreed") else None
            elif event.view is None:
                event.view = views.get(who)
            script.events.append(event)
    return script


def fill(event: Event, pairs: dict[str, str]) -> None:
    if "n" in pairs:
        found = ranges(pairs.pop("n"))
        event.first, event.last = found[0][0], found[-1][1]
        if "queue" in pairs:
            event.count = sum(last - first + 1 for first, last in found)
            if len(found) > 1:
                event.data["ranges"] = [[*each] for each in found]
    if "queue" in pairs:
        event.queue = full(pairs.pop("queue"))
    if event.kind in ("send", "deliver"):
        event.sum, event.count = int(pairs.pop("sum", event.first or 0)), int(pairs.pop("count", 1))
    elif event.kind in ("state_sent", "state_set"):
        event.sum, event.count = int(pairs.pop("sum")), int(pairs.pop("count"))
    if "from" in pairs:
        event.sender = str(value("from", pairs.pop("from")))
    elif event.kind in ("send", "stable"):
        event.sender = f"{event.node}#{event.inc}"
    if "view" in pairs:
        event.view = full(pairs.pop("view"))
    if "pos" in pairs:
        event.pos = int(pairs.pop("pos"))
    if event.kind == "dead_letter" and "to" in pairs:
        pairs["to"] = full(pairs["to"])
    event.data |= {key: value(key, text, event.kind) for key, text in pairs.items()}


def ranges(text: str) -> list[tuple[int, int]]:
    parts = (part.partition("-") for part in text.split(",") if part)
    return [(int(first), int(last or first)) for first, _, last in parts]


def value(key: str, text: str, kind: str = "") -> Json:
    if key in RANGES:
        return [[*each] for each in ranges(text)]
    if key in WHOLES:
        return [int(part) for part in text.split(",")]
    if key in BY_QUEUE or (key, kind) == ("held", "inventory"):
        name = full if key in BY_QUEUE else lambda text: text.replace("~", " ")
        held = (group.rpartition(":") for group in text.split(";") if group)
        return {name(who): [[*each] for each in ranges(listed)] for who, _, listed in held}
    if key == "held":  # who:what:amount
        who, what, amount = text.split(":")
        return {full(who): {what: int(amount)}}
    if key == "subgroups":
        groups = (group.split(":") for group in text.split(";"))
        return [[full(view), [full(member) for member in listed.split(",")]] for view, listed in groups]
    if ":" in text:
        return {full(k) if key in ADDRESSES else k: scalar(v) for k, v in (p.split(":") for p in text.split(","))}
    if key in LISTS:
        return [full(part) if key in ADDRESSES else part for part in text.split(",") if part]
    return full(text) if key in ADDRESSES else scalar(text)


def scalar(text: str) -> Json:
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    if "~" in text:
        return text.replace("~", " ")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else text


def full(text: str) -> str:
    return text if "#" in text or text in ("all", "") else f"{text}#1"
