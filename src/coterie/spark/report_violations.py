"""The part of the report that says what does not hold: counts, then each violation with its proof and how to see it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from json import dumps
from urllib.parse import unquote, urlsplit

from coterie.audit import properties
from coterie.sim.profiles import PROFILES
from coterie.spark import page
from coterie.spark.page import Alarm, Html, Number, many
from coterie.spark.report_data import FILES_SHOWN, Shown
from coterie.trace import Event, Json

TEXT_MAX = 2000
"""Characters of a violation's text, or of one line of a trace."""
WORDS_MAX = 300
"""Characters of what an event carries."""


def counts(by_property: Mapping[str, int]) -> Html:
    """Every property: those that are violated in sight."""
    known = {p.name: (p.title, p.sentence) for p in properties()}
    bad = [(name, Alarm(f"{count:,}"), *known.get(name, ("", ""))) for name, count in by_property.items() if count]
    good = [(name, *texts) for name, texts in known.items() if not by_property.get(name)]
    rest = page.table(("property", "title", "what holds"), good, "Properties that nothing contradicts")
    if not bad:
        return rest
    return page.join(
        page.table(("property", "violations", "title", "what should hold"), bad, "Properties that do not hold"),
        page.details(f"The other {many(len(good), 'property', 'properties')}", rest),
    )


def articles(
    shown: Sequence[Shown],
    by_property: Mapping[str, int],
    files: Mapping[str, Sequence[str]],
    diagrams: Mapping[str, str],
) -> Html:
    """The violations, under a heading for each property. `diagrams` are links by run."""
    titles = {p.name: f"{p.name} {p.title}" for p in properties()}
    others = {one.property: one.property for one in shown if one.property not in titles}
    parts: list[object] = []
    for name, title in {**titles, **others}.items():
        mine = [one for one in shown if one.property == name]
        if not mine:
            continue
        total = max(by_property.get(name, 0), len(mine))
        parts.append(page.heading(f"{title}: {many(total, 'violation')}"))
        for run, together in groupby(mine, key=lambda one: one.run):
            parts.append(_article([*together], files.get(run, ()), diagrams.get(run)))
        if total > len(mine):
            more = f"… and {total - len(mine):,} more of {name}: all are in the table "
            parts.append(page.paragraph(more, page.link("violations/", "violations"), "."))
    return page.join(*parts)


def _article(found: Sequence[Shown], files: Sequence[str], diagram: str | None) -> Html:
    """Violations of one property in one run."""
    run = found[0]
    where = page.text(f"{run.origin} run {run.run}, {many(run.events, 'event')}".strip())
    see = page.join(" · ", page.link(diagram, "space-time diagram")) if diagram else Html("")
    return page.join(
        Html(f'<article><p class="where">{where}{see}</p>\n'),
        *(_violation(one) for one in found),
        *(page.command(line) for line in commands(run, files)),
        Html("</article>\n"),
    )


def _violation(one: Shown) -> Html:
    known = [event for line in one.proof if (event := _event(line)) is not None]
    return page.join(
        Html(f"<h4>{page.text(one.text[:TEXT_MAX])}</h4>\n"),
        proof(known) if known else Html(""),
        page.details("The lines of the trace", Html(f"<pre><code>{_lines(one.proof)}</code></pre>\n")),
    )


def proof(events: Sequence[Event]) -> Html:
    rows = [(Number(when(e)), f"{e.node}#{e.inc}", e.n, e.kind, words(e)) for e in events]
    return page.table(("time", "node", "no.", "event", "what it says"), rows, "The events that prove it")


def commands(one: Shown, files: Sequence[str]) -> list[str]:
    """What to type to see it again."""
    found = []
    profile, _, seed = one.run.rpartition("-")
    if one.origin == "simulated" and profile in PROFILES and re.fullmatch(r"\d{1,18}", seed):
        found.append(f"coterie sim replay --profile {profile} {seed} --html run.html")
    if files and len(files) <= FILES_SHOWN:
        found.append(" ".join(["coterie check", *(shlex.quote(local_path(file)) for file in files)]))
    elif files:
        folder = local_path(files[0]).rpartition("/")[0] or "."
        found.append(f"coterie check {shlex.quote(folder)}")
    return found


def local_path(file: str) -> str:
    """A file's name as a shell knows it: Spark names files as addresses."""
    return unquote(urlsplit(file).path) if file.startswith("file:") else file


def when(event: Event) -> str:
    if event.wall is None:
        return f"{event.t:.6f} s"
    try:
        return datetime.fromtimestamp(event.wall, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    except (ValueError, OverflowError, OSError):
        return f"{event.t:.6f} s"


def words(event: Event) -> str:
    """What an event carries, in one line."""
    parts = []
    if event.first is not None:
        one = event.last is None or event.last == event.first
        parts.append(f"number {event.first}" if one else f"numbers {event.first} to {event.last}")
    elif event.last is not None:
        parts.append(f"up to {event.last}")
    if event.sender is not None:
        parts.append(f"of {event.sender}")
    if event.pos is not None:
        parts.append(f"at position {event.pos}")
    if event.view is not None:
        parts.append(f"in view {event.view}" if event.kind != "view" else event.view)
    more = [f"{name} {value}" for name in ("count", "queue") if (value := getattr(event, name)) is not None]
    more += [f"{key} {_value(value)}" for key, value in event.data.items()]
    text = ", ".join([" ".join(parts), *more] if parts else more)
    return text if len(text) <= WORDS_MAX else text[:WORDS_MAX] + " …"


def _value(value: Json) -> str:
    """Flat lists and mappings without their brackets."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return " ".join(map(str, value))
    if isinstance(value, dict) and value and all(isinstance(one, str | int) for one in value.values()):
        return " ".join(f"{key}:{one}" for key, one in value.items())
    return dumps(value, ensure_ascii=False)


def _event(line: str) -> Event | None:
    try:
        return Event.from_json(line)
    except (ValueError, TypeError, RecursionError):
        return None


def _lines(proof: Sequence[str]) -> Html:
    return page.text("\n".join(line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]} …" for line in proof))
