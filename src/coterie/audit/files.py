"""Trace files as folds want them: runs put together from files, each incarnation's events in order and without holes.

Nothing here is fatal but the absence of any event: lines that are no events are counted, and where an incarnation's
numbers have a hole its trace is taken to end there (`truncated`), because what follows may depend on what is missing.
The trace of a real node that did not stop in good order ends the same way.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from coterie.errors import UserError
from coterie.trace import FIELDS, Event, Json

SUFFIX = ".jsonl"
PLACES_MAX = 10
"""Corrupt lines whose place is remembered."""
RANGE_MAX = 1_000_000
"""Sequence numbers that one event may concern: more is a corrupt line."""
WHOLE_MAX = 2**63
"""Whole numbers are below: tables have 64 bits for one."""
EXACT_MAX = 2**53
"""Whole numbers up to here are the same as floating-point numbers."""
DEPTH_MAX = 64
"""Objects and lists within each other in an event's data."""

_DATA: tuple[tuple[str, type], ...] = (
    ("conn", int), ("to", str), ("peer", str), ("leader", str), ("number", int), ("mode", str),
)  # fmt: skip
"""What folds use as keys, and what it has to be if it is there."""
ENDS = ("stop", "crash", "truncated", "end")
"""The last event of a real node's trace is one of these, if nothing of it is missing."""

_RUN = re.compile(r'"run":\s*("(?:[^"\\]|\\.)*")')


@dataclass(slots=True)
class Reading:
    """What happened while reading, for whoever has to trust the verdict."""

    events: int = 0
    corrupt: int = 0
    corrupt_places: list[str] = field(default_factory=list)
    ignored: int = 0
    """Events behind a hole, or there twice."""

    def note_corrupt(self, place: str) -> None:
        self.corrupt += 1
        if len(self.corrupt_places) < PLACES_MAX:
            self.corrupt_places.append(place)


@dataclass(slots=True)
class Run:
    """The events of one run, ready to be checked."""

    name: str
    events: list[Event]
    causal: bool
    """Nothing stands before its cause: the run was simulated, and is here as it was written."""


def find(paths: Sequence[str]) -> list[Path]:
    """The files behind names of files, folders (all *.jsonl below) and patterns. Raises UserError if one has none."""
    found: dict[Path, None] = {}
    for text in paths:
        path = Path(text)
        if path.is_dir():
            files = sorted(path.rglob(f"*{SUFFIX}"))
        elif path.exists():
            files = [path]
        else:
            files = sorted(Path(name) for name in glob.glob(text, recursive=True) if Path(name).is_file())
        if not files:
            what = f"no *{SUFFIX} file in that folder" if path.is_dir() else "there is no such file or folder"
            raise UserError(f"{text}: {what}: name the files or folders that traces were written to")
        found.update(dict.fromkeys(files))
    return list(found)


def runs(files: Sequence[Path], reading: Reading) -> Iterator[Run]:
    """Every run in those files, one after the other; only files that share a run are in memory together."""
    for group in _groups(files):
        events: dict[str, list[Event]] = {}
        homes: dict[str, set[Path]] = {}
        for file in group:
            for event in _read(file, reading):
                events.setdefault(event.run, []).append(event)
                homes.setdefault(event.run, set()).add(file)
        for name in list(events):
            yield put_together(name, events.pop(name), len(homes[name]) == 1, reading)


def _groups(files: Sequence[Path]) -> list[list[Path]]:
    """Files that share runs, together."""
    groups: list[tuple[list[Path], set[str]]] = []
    for file in files:
        with _open(file) as lines:
            names = {match[1] for line in lines if (match := _RUN.search(line))}
        together = [group for group in groups if not group[1].isdisjoint(names)]
        merged: tuple[list[Path], set[str]] = ([*(f for group in together for f in group[0]), file], names)
        for group in together:
            merged[1].update(group[1])
            groups.remove(group)
        groups.append(merged)
    return [group[0] for group in groups]


class _open:
    """The lines of a file; bytes that are no text make their line corrupt, not the reading fail."""

    def __init__(self, file: Path) -> None:
        if not file.exists():  # a segment that was being written, and has got its own name since it was found
            file = file.with_name(file.name.removeprefix("."))
        try:
            self._stream = file.open(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from None

    def __enter__(self) -> Iterable[str]:
        return self._stream

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _read(file: Path, reading: Reading) -> Iterator[Event]:
    with _open(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = parse(line.removesuffix("\n"))
            except ValueError as error:
                reading.note_corrupt(f"{file}:{number}: {error}")
            else:
                reading.events += 1
                yield event


def parse(line: str) -> Event:
    """The event that a line holds. Raises ValueError if it holds none that a fold, or a table, could take."""
    try:
        event = Event.from_json(line)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    check(event)
    if line.count("{") + line.count("[") > DEPTH_MAX and _deeper(event.data, DEPTH_MAX):
        raise ValueError(f"data: more than {DEPTH_MAX} objects and lists within each other")
    if event.t.__class__ is int or event.wall.__class__ is int:
        event = replace(event, t=_clock(event.t), wall=None if event.wall is None else _clock(event.wall))
    if "\\u" in line and not event.is_text:
        raise ValueError("half a surrogate pair is no text")
    return event


def _clock(value: float) -> float:
    """As a table has it: a whole number that is too large for a floating-point one is rounded."""
    return value if abs(value) <= EXACT_MAX else float(value)


def check(event: Event) -> None:
    """What `from_json` does not know: the shape of what folds use as keys and as ranges. Raises ValueError."""
    for value in (event.inc, event.n, event.pos, event.first, event.last, event.count, event.sum):
        if value is not None and not -WHOLE_MAX <= value < WHOLE_MAX:
            raise ValueError(f"{_named(event, value)}: {value!r} is not a whole number of 64 bits")
    for clock in (event.t, event.wall):
        if clock is not None and not -WHOLE_MAX < clock < WHOLE_MAX:
            raise ValueError(f"{_named(event, clock)}: {clock!r} is no time")
    if event.data:
        for key, kind in _DATA:
            word = event.data.get(key)
            if word is not None and (word.__class__ is not kind or (isinstance(word, int) and abs(word) >= WHOLE_MAX)):
                raise ValueError(f"data.{key}: {word!r} is not what it should be")
    if event.first is not None and event.last is not None and not 0 <= event.last - event.first < RANGE_MAX:
        raise ValueError(f"numbers {event.first} to {event.last} are no range")


def _named(event: Event, value: object) -> str:
    return next(name for name in FIELDS if getattr(event, name) is value)


def _deeper(value: Json, levels: int) -> bool:
    """Whether there are more levels than these."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(each, levels - 1) for each in inner)


def put_together(name: str, events: list[Event], one_file: bool, reading: Reading) -> Run:
    """Cut every incarnation at its first hole. The order of the file stays, if it is one file and nothing is wrong."""
    real = any(event.wall is not None for event in events)
    if one_file and not real and _in_order(events):
        return Run(name, events, causal=True)
    whole: list[Event] = []
    for (node, inc), group in groupby(sorted(events, key=_place), key=lambda event: (event.node, event.inc)):
        found = list(group)
        kept, cut = _until_hole(found, reading)
        whole += kept
        last = kept[-1] if kept else found[0]
        if cut or (real and last.kind not in ENDS):
            whole.append(Event(name, node, inc, len(kept), last.t, "truncated", last.wall))
    return Run(name, whole, causal=False)


def _place(event: Event) -> tuple[str, int, int]:
    return event.node, event.inc, event.n


def _in_order(events: list[Event]) -> bool:
    """Whether each incarnation's numbers are 0, 1, 2, ..."""
    due: dict[tuple[str, int], int] = {}
    for event in events:
        who = (event.node, event.inc)
        if event.n != due.get(who, 0):
            return False
        due[who] = event.n + 1
    return True


def _until_hole(events: list[Event], reading: Reading) -> tuple[list[Event], bool]:
    """The events up to the first missing number, and whether there is one. The same event twice counts once.

    Two different events of one number cannot both be true, and nothing says which is: the trace ends before them.
    """
    kept: list[Event] = []
    cut = False
    for event in events:
        if event.n == len(kept):
            kept.append(event)
        elif not kept or event != kept[-1]:
            cut = True
            if kept and event.n == kept[-1].n:
                kept.pop()
            break
    reading.ignored += len(events) - len(kept)
    return kept, cut
