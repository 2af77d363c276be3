"""Space-time diagrams of the runs that went wrong: the first few of them, each around what proves the violation.

A page holds a bounded number of events. Of a run that has more, it gets those that say who was there (views, starts,
ends, faults) and then those nearest in time to the proof.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from coterie.audit import Violation
from coterie.sim.diagram import NOISE, render
from coterie.spark.audit_folder import DIAGRAMS
from coterie.spark.hops import moment
from coterie.spark.report_data import Shown, Tables
from coterie.spark.rows import events_of
from coterie.spark.schema import EVENT_COLUMNS, EVENTS
from coterie.trace import Event

DIAGRAMS_MAX = 10
EVENTS_MAX = 20_000
"""Of one diagram. All of them are in memory together."""
LIFE = ("view", "start", "stop", "crash", "restart", "truncated", "fault", "heal", "end")
"""Without these a diagram does not know who is there."""


def draw(tables: Tables, shown: Sequence[Shown]) -> dict[str, str]:
    """Writes diagrams of the first runs that went wrong; gives links to them, by run."""
    chosen: dict[str, list[Violation]] = {}
    for one in shown:
        proof = _events(one.proof)
        if one.run in chosen or (proof and len(chosen) < DIAGRAMS_MAX):
            chosen.setdefault(one.run, []).append(Violation(one.property, one.text, proof))
    if not chosen:
        return {}
    folder = tables.out / DIAGRAMS
    folder.mkdir(exist_ok=True)
    sizes = {one.run: one.events for one in shown}
    links = {}
    for run, events in _fetch(tables, chosen, sizes).items():
        title = run if sizes[run] <= len(events) else f"{run}: {len(events):,} of {sizes[run]:,} events"
        name = file_name(run)
        (folder / name).write_text(render(events, title, chosen[run]), encoding="utf-8")
        links[run] = f"{DIAGRAMS}/{name}"
    return links


def file_name(run: str) -> str:
    """A name that is safe in a folder and in a link, and different for different runs."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", run)[:100]
    if plain == run and re.match(r"[^.]", run):
        return f"{run}.html"
    return f"{plain.lstrip('.')}-{hashlib.sha256(run.encode(errors='replace')).hexdigest()[:12]}.html"


def _events(lines: Sequence[str]) -> tuple[Event, ...]:
    found = []
    for line in lines:
        try:
            found.append(Event.from_json(line))
        except (ValueError, TypeError, RecursionError):  # the report shows the line as it is
            continue
    return tuple(found)


def _fetch(
    tables: Tables, chosen: Mapping[str, Sequence[Violation]], sizes: Mapping[str, int]
) -> dict[str, list[Event]]:
    """Each chosen run's events, or as many of them as a page holds; all with one look at the table."""
    focus = {run: violations[0].events[0] for run, violations in chosen.items()}
    rows = [(run, float(e.t if e.wall is None else e.wall), sizes[run] > EVENTS_MAX) for run, e in focus.items()]
    around = tables.spark.createDataFrame(rows, "run string, focus double, large boolean")
    order = Window.partitionBy("run").orderBy(F.desc("life"), F.abs(moment() - F.col("focus")), "node", "inc", "n")
    table = (
        tables.read(EVENTS)
        .join(F.broadcast(around), "run")
        .where(~F.col("large") | ~F.col("kind").isin(*NOISE))
        .withColumn("life", F.col("kind").isin(*LIFE))
        .withColumn("place", F.row_number().over(order))
        .where(F.col("place") <= EVENTS_MAX)
        .select(*EVENT_COLUMNS)
        .toArrow()
    )
    found: dict[str, dict[tuple[str, int, int], Event]] = {}
    for event in (event for batch in table.to_batches() for event in events_of(batch)):
        found.setdefault(event.run, {})[event.node, event.inc, event.n] = event
    for run, violations in chosen.items():  # the proof itself is always there
        for event in (event for violation in violations for event in violation.events):
            found.setdefault(run, {}).setdefault((event.node, event.inc, event.n), event)
    return {run: _shared_time(list(events.values())) for run, events in found.items()}


def _shared_time(events: list[Event]) -> list[Event]:
    """Real nodes' events on the clock that they share, from the first on; in the order of time."""
    walls = [event.wall for event in events if event.wall is not None]
    begin = min(walls, default=0.0)
    moved = [event if event.wall is None else replace(event, t=event.wall - begin) for event in events]
    return sorted(moved, key=lambda event: (event.t, event.node, event.inc, event.n))
