"""A run as a space-time diagram: one HTML page without anything from outside, for a person who asks what happened.

Members are horizontal lines, time goes to the right. Messages are arrows from where they were sent to where they
arrived; views are bands on the lines, in the colour of their membership, so that members agree where colours do; faults
are marked areas; what violates a property is ringed. The page draws what is in sight and says what it leaves out.
Here the trace becomes the page's model; diagram.js draws it, diagram.css says how it looks.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources

from coterie.audit import Violation, check, properties
from coterie.trace import Event, Json

EVENTS_MAX = 40_000
"""Events that one page holds; a browser stays quick with them."""
FIRST_SIGHT = 40
"""Moments of sending in the range that the page opens with: about as many as can be told apart."""
MOMENT = 0.0005
"""Seconds within which sends of one member are one moment: a burst."""
NOISE = ("ack", "buffers", "stable", "discard")
"""Kinds that are left out first when a run is too large."""
WORLD = "world"
"""Who writes what happens to the nodes from outside."""

Stream = tuple[str, Json, int]
"""Sender, connection (None for multicasts) and number: what names a bundle."""


def render(events: Sequence[Event], title: str, violations: Sequence[Violation] | None = None) -> str:
    """The page. Without `violations` the trace is checked here."""
    if violations is None:
        violations = check(events, properties(causal=all(event.wall is None for event in events)))
    kept, left_out = _select(events, violations)
    model = _Model(kept, violations)
    page = {
        "title": title,
        "run": events[0].run if events else "",
        "total": len(events),
        "leftOut": left_out,
        **model.build(),
    }
    text = json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(title), css=_resource("diagram.css"), js=_resource("diagram.js"), model=text
    )  # fmt: skip


def _select(events: Sequence[Event], violations: Sequence[Violation]) -> tuple[list[Event], list[str]]:
    """As much of the run as a page can hold, and what was left out of it, in words."""
    kept, left_out = sorted(events, key=lambda event: event.t), []
    if len(kept) > EVENTS_MAX:
        less = [event for event in kept if event.kind not in NOISE]
        left_out.append(f"{len(kept) - len(less):,} events of the kinds {', '.join(NOISE)}")
        kept = less
    if len(kept) > EVENTS_MAX:
        proof = [event for violation in violations for event in violation.events]
        focus = kept.index(proof[0]) if proof and proof[0] in kept else 0
        first = max(0, min(focus - EVENTS_MAX // 2, len(kept) - EVENTS_MAX))
        last = first + EVENTS_MAX - 1
        left_out.append(
            f"{len(kept) - EVENTS_MAX:,} events before {kept[first].t:.3f} s or after {kept[last].t:.3f} s"
        )  # fmt: skip
        kept = kept[first : last + 1]
    return kept, left_out


@dataclass(slots=True)
class _Life:
    """One incarnation of a node."""

    row: int
    inc: int
    start: float
    end: float | None = None
    how: str = ""
    members: tuple[str, ...] = ()
    """Of its present view."""


@dataclass(slots=True)
class _Model:
    """The page's data: rows, lives, views, arrows, marks and faults, all pointing into one list of events."""

    events: list[Event]
    violations: Sequence[Violation]
    rows: dict[str, int] = field(default_factory=dict)
    lives: dict[str, _Life] = field(default_factory=dict)
    views: list[dict[str, Json]] = field(default_factory=list)
    colours: dict[str, int] = field(default_factory=dict)
    """By member list: how many were seen before it."""
    arrows: list[tuple[int, ...]] = field(default_factory=list)
    sends: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """Event and the members that it should reach."""
    arrivals: dict[tuple[str, Stream], int] = field(default_factory=dict)
    """By receiver and bundle."""
    copies: dict[tuple[str, Stream], list[int]] = field(default_factory=dict)
    """By receiver and bundle: retransmissions."""

    def build(self) -> dict[str, Json]:
        names = {event.node: None for event in self.events if event.node != WORLD}
        self.rows = {name: row for row, name in enumerate(sorted(names))}
        begin = self.events[0].t if self.events else 0.0
        end = max([self.events[-1].t if self.events else 0.0, begin + 0.001])
        for index, event in enumerate(self.events):
            if event.node != WORLD:
                self._node_event(index, event)
        for life in self.lives.values():
            life.end = end if life.end is None else life.end
        for view in self.views:
            view["end"] = end if view["end"] is None else view["end"]
        self.arrows.extend(self._arrows())
        first, last = self._first_sight(begin, end)
        lives: list[Json] = [
            {"row": life.row, "inc": life.inc, "start": life.start, "end": life.end, "how": life.how}
            for life in self.lives.values()
        ]
        return {
            "begin": begin, "end": end, "first": first, "last": last, "members": list(self.rows), "lives": lives,
            "views": [*self.views], "memberships": list(self.colours), "arrows": [list(arrow) for arrow in self.arrows],
            "violations": [*self._violations()],
            "faults": list(self._faults(end)), "events": [_compact(event) for event in self.events],
        }  # fmt: skip

    def _node_event(self, index: int, event: Event) -> None:
        who, kind, data = f"{event.node}#{event.inc}", event.kind, event.data
        life = self.lives.get(who)
        if life is None:
            life = self.lives[who] = _Life(self.rows[event.node], event.inc, event.t)
        if kind in ("crash", "stop", "truncated"):
            life.end, life.how = event.t, kind
            self._end_view(life, event.t)
        elif kind == "view":
            self._view(index, event, life)
        elif kind == "send":
            to = data.get("to")
            self.sends.append((index, life.members if to == "all" else (str(to),)))
        elif kind in ("receive", "deliver"):
            for stream in _streams(event):
                self.arrivals.setdefault((who, stream), index)
        elif kind == "retransmit":
            for stream in _streams(event):
                self.copies.setdefault((str(data.get("to")), stream), []).append(index)

    def _view(self, index: int, event: Event, life: _Life) -> None:
        members = event.data.get("members")
        life.members = tuple(map(str, members)) if isinstance(members, list) else ()
        self._end_view(life, event.t)
        colour = self.colours.setdefault(" ".join(sorted(life.members)), len(self.colours))
        self.views.append({
            "row": life.row, "inc": life.inc, "start": event.t, "end": None, "id": event.view or "", "colour": colour,
            "event": index,
        })  # fmt: skip

    def _end_view(self, life: _Life, t: float) -> None:
        for view in reversed(self.views):
            if view["row"] == life.row and view["inc"] == life.inc:
                if view["end"] is None:
                    view["end"] = t
                return

    def _arrows(self) -> Iterator[tuple[int, ...]]:
        """(from row, to row, event it left with, event it arrived with or -1, unicast, again, for the application).

        Which copy of a bundle arrived is not in a trace: it is taken to be the last one that was sent before.
        """
        for index, receivers in self.sends:
            event = self.events[index]
            sender = f"{event.node}#{event.inc}"
            stream = next(iter(_streams(event)), None)
            unicast, app = int(event.data.get("conn") is not None), int(event.data.get("app") is not False)
            for receiver in receivers:
                if receiver == sender or stream is None or receiver.rpartition("#")[0] not in self.rows:
                    continue
                row = self.rows[receiver.rpartition("#")[0]]
                arrival = self.arrivals.get((receiver, stream), -1)
                sent = [index, *self.copies.get((receiver, stream), ())]
                arrived = max((copy for copy in sent if copy < arrival), default=index)
                for copy in sent:
                    origin = self.rows[self.events[copy].node]
                    yield origin, row, copy, arrival if copy == arrived else -1, unicast, int(copy != index), app

    def _violations(self) -> list[dict[str, Json]]:
        places = {(e.node, e.inc, e.n): index for index, e in enumerate(self.events)}
        found: list[dict[str, Json]] = []
        for violation in self.violations:
            marks: list[Json] = [places[key] for e in violation.events if (key := (e.node, e.inc, e.n)) in places]
            found.append({"property": violation.property, "text": violation.text, "events": marks})
        return found

    def _first_sight(self, begin: float, end: float) -> tuple[float, float]:
        """The range to open with: the first violation, or else the first fault while messages were under way."""
        moments = {(arrow[0], int(self.events[arrow[2]].t / MOMENT)) for arrow in self.arrows}
        times = sorted(moment * MOMENT for _, moment in moments)
        if len(times) <= FIRST_SIGHT:
            return begin, end
        proof = [e.t for violation in self.violations[:1] for e in violation.events if e.node != WORLD]
        faults = [event.t for event in self.events if event.kind == "fault" and event.t >= times[0]]
        focus = min(max([*proof[-1:], *([] if proof else faults[:1])], default=times[0]), end)
        after = next((i for i, t in enumerate(times) if t >= focus), len(times))
        first = max(0, min(after - FIRST_SIGHT // 3, len(times) - FIRST_SIGHT))
        start, stop = min(times[first], focus), max(times[first + FIRST_SIGHT - 1], focus)
        return max(begin, start - (stop - start) * 0.05), min(end, stop + (stop - start) * 0.05)

    def _faults(self, end: float) -> Iterator[Json]:
        """Faults and what ended them; a fault without a duration is a moment."""
        healed = {event.data.get("number"): event.t for event in self.events if event.kind == "heal"}
        for index, event in enumerate(self.events):
            data = event.data
            if event.kind == "heal" and data.get("last") is True:
                yield {"kind": "quiet", "start": event.t, "end": event.t, "rows": [], "what": "no more", "event": index}
            if event.kind != "fault":
                continue
            nodes = [str(node) for node in _list(data.get("nodes"))]
            links = self._links(_list(data.get("links")))
            duration = data.get("duration")
            stop = end if isinstance(duration, int | float) and duration > 0 else event.t
            rows: list[Json] = [self.rows[node] for node in nodes if node in self.rows]
            yield {
                "kind": str(data.get("fault")), "start": event.t, "end": healed.get(data.get("number"), stop),
                "rows": [] if links else rows, "what": ", ".join(links or nodes), "event": index,
            }  # fmt: skip

    def _links(self, links: list[Json]) -> list[str]:
        """Directions in few words."""
        pairs = {(str(link[0]), str(link[1])): None for link in links if isinstance(link, list) and len(link) == 2}
        if len(pairs) > 2 and len(pairs) == len(self.rows) * (len(self.rows) - 1):
            return ["all links"]
        words = []
        for one, other in pairs:
            if (other, one) not in pairs:
                words.append(f"{one} → {other}")
            elif one < other:
                words.append(f"{one} ↔ {other}")
        return words


def _streams(event: Event) -> list[Stream]:
    """The bundles that an event is about."""
    if event.sender is None or event.first is None:
        return []
    last = event.first if event.last is None else min(event.last, event.first + 1000)
    return [(event.sender, event.data.get("conn"), number) for number in range(event.first, last + 1)]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _compact(event: Event) -> Json:
    """[time, node, incarnation, n, kind, everything else]."""
    rest: dict[str, Json] = {}
    for name in ("view", "pos", "sender", "first", "last", "count", "sum", "queue"):
        value: Json = getattr(event, name)
        if value is not None:
            rest[name] = value
    rest.update((key, value) for key, value in event.data.items() if value is not None)
    return [round(event.t, 6), event.node, event.inc, event.n, event.kind, rest]


def _resource(name: str) -> str:
    return resources.files("coterie.sim").joinpath(name).read_text(encoding="utf-8")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<noscript>This page draws a trace with JavaScript, which is switched off.</noscript>
<script type="application/json" id="model">{model}</script>
<script>
{js}</script>
</body>
</html>
"""  # noqa: E501
