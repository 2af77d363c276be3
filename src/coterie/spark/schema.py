"""The tables of an audit, column by column: what a job writes, and what others may rely on (docs/audit.md).

A column's type is Spark's DDL; the sentence behind it goes into the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One folder of Parquet files."""

    name: str
    what: str
    columns: dict[str, tuple[str, str]]
    """Name to Spark type and meaning."""
    partitions: tuple[str, ...] = ()
    """Columns that are folders."""

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, (kind, _) in self.columns.items())


EVENT_COLUMNS: dict[str, tuple[str, str]] = {
    "run": ("string", "which run: all nodes of one cluster or one simulation share it"),
    "node": ("string", "the node's name"),
    "inc": ("bigint", "the node's incarnation"),
    "n": ("bigint", "number of the event within the incarnation, from 0"),
    "t": ("double", "seconds: virtual in the simulator, monotonic on real nodes"),
    "kind": ("string", "what happened (docs/trace.md)"),
    "wall": ("double", "wall clock seconds, of real nodes only"),
    "view": ("string", "id of the view in which it happened"),
    "pos": ("bigint", "position in the total order"),
    "sender": ("string", "address of whoever sent the bundle"),
    "first": ("bigint", "first sequence number concerned"),
    "last": ("bigint", "last sequence number concerned"),
    "count": ("bigint", "how many messages, bytes or entries"),
    "sum": ("bigint", "CRC-32 of the content"),
    "queue": ("string", "queue identity"),
    "data": ("string", "what else the kind needs, as JSON text; NULL if nothing"),
}
"""An event, as `coterie.trace.Event` has it, in the order of its fields."""

PLACE_COLUMNS: dict[str, tuple[str, str]] = {
    "file": ("string", "the file that the event was read from"),
    "place": ("bigint", "rises along that file"),
}

ORIGIN = ("string", "simulated or live: whether its events have a wall clock")

EVENTS = Table(
    "events",
    "every event that could be read, as it was written",
    {**EVENT_COLUMNS, **PLACE_COLUMNS},
)
CORRUPT = Table(
    "corrupt",
    "every line that is no event",
    {
        "file": ("string", "the file that it is in"),
        "place": ("bigint", "which line of that file, from 1; from a stream, a number that rises along the file"),
        "text": ("string", "the line, cut after 1,000 characters"),
        "reason": ("string", "what is wrong with it"),
    },
)
RUNS = Table(
    "runs",
    "one row for each run",
    {
        "run": ("string", "its name"),
        "events": ("bigint", "events that could be read"),
        "files": ("bigint", "files they were read from"),
        "incarnations": ("bigint", "incarnations of nodes that wrote them"),
        "causal": ("boolean", "simulated and whole: its file's order is the order in which it happened"),
        "ignored": ("bigint", "events behind a hole in their incarnation's trace, or there twice"),
        "seconds": ("double", "from the first to the last event"),
        "violations": ("bigint", "how many there are"),
        "origin": ORIGIN,
    },
    ("origin",),
)
MEMBERS = Table(
    "members",
    "one row for each incarnation of a node",
    {
        "run": ("string", "its run"),
        "node": ("string", "its name"),
        "inc": ("bigint", "which incarnation"),
        "events": ("bigint", "events that it wrote"),
        "first_t": ("double", "time of the first of them"),
        "last_t": ("double", "time of the last of them"),
        "end": ("string", "how its trace ends: stop, crash, truncated, or end for one that lived to the run's end"),
        "origin": ORIGIN,
    },
    ("origin",),
)
VIEWS = Table(
    "views",
    "one row for each view that a member installed",
    {
        "run": ("string", "its run"),
        "node": ("string", "the member"),
        "inc": ("bigint", "its incarnation"),
        "n": ("bigint", "number of the event"),
        "t": ("double", "when"),
        "view": ("string", "the view's id"),
        "before": ("string", "id of the view that the member comes from"),
        "members": ("array<string>", "in the order of the view"),
        "agreed": ("boolean", "the view is the same at all of its members"),
        "merge": ("boolean", "it was made of several views"),
        "origin": ORIGIN,
    },
    ("origin",),
)
DELIVERIES = Table(
    "deliveries",
    "one row for each bundle of the application that a member delivered",
    {
        "run": ("string", "its run"),
        "node": ("string", "the member"),
        "inc": ("bigint", "its incarnation"),
        "n": ("bigint", "number of the event"),
        "t": ("double", "when"),
        "view": ("string", "in which view"),
        "pos": ("bigint", "position in the total order"),
        "sender": ("string", "who sent it"),
        "first": ("bigint", "its number"),
        "count": ("bigint", "messages in it"),
        "multicast": ("boolean", "sent to all"),
        "latency": (
            "double",
            "seconds since it was sent, by the clock that nodes share; NULL if the trace has no send",
        ),
        "origin": ORIGIN,
    },
    ("origin",),
)
VIOLATIONS = Table(
    "violations",
    "one row for each violation",
    {
        "run": ("string", "in which run"),
        "text": ("string", "what does not hold"),
        "proof": ("array<string>", "the events that prove it, as lines of the trace"),
        "property": ("string", "which property: G1, G2, ..."),
    },
    ("property",),
)
LATENCY = Table(
    "latency",
    "percentiles of the time that bundles of the application took, for each hop and run",
    {
        "run": ("string", "which run; NULL for all of this origin"),
        "hop": ("string", "send to receive, receive to deliver, send to deliver, send to ordered, send to held"),
        "count": ("bigint", "how many were measured"),
        "negative": ("bigint", "how many more came out below zero, because clocks disagree: they are left out"),
        "p50": ("double", "seconds: half took no longer"),
        "p90": ("double", "nine of ten"),
        "p99": ("double", "99 of 100"),
        "max": ("double", "the longest"),
        "curve": ("array<double>", "seconds at 0, 1, 2, 5, 10, 15, ... 95, 98, 99, 99.5, 99.9 and 100 percent"),
        "origin": ORIGIN,
    },
    ("origin",),
)
DURATIONS = Table(
    "durations",
    "percentiles of how long views, flushes, gates, state transfers took, for each run",
    {
        "run": ("string", "which run; NULL for all of this origin"),
        "what": (
            "string",
            "view change, flush until it holds, flush held, senders held up, handler suspended, state transfer",
        ),
        "count": ("bigint", "how many were measured"),
        "negative": ("bigint", "how many more came out below zero, because clocks disagree: they are left out"),
        "p50": ("double", "seconds"),
        "p90": ("double", "seconds"),
        "p99": ("double", "seconds"),
        "max": ("double", "seconds"),
        "origin": ORIGIN,
    },
    ("origin",),
)
TRAFFIC = Table(
    "traffic",
    "what the group cost, for each run",
    {
        "run": ("string", "which run; NULL for all of this origin"),
        "sent": ("bigint", "bundles of the application"),
        "messages": ("bigint", "messages in them"),
        "delivered": ("bigint", "bundles of the application delivered, at all members"),
        "retransmitted": ("bigint", "bundles sent again"),
        "acks": ("bigint", "acknowledgements of unicasts"),
        "unicasts": ("bigint", "bundles of the application or of protocols that were sent to one other member"),
        "acks_per_unicast": ("double", "how many acknowledgements one took"),
        "origin": ORIGIN,
    },
    ("origin",),
)
THROUGHPUT = Table(
    "throughput",
    "what each node delivered, second by second",
    {
        "run": ("string", "which run"),
        "node": ("string", "which node"),
        "second": ("bigint", "since the run's first event"),
        "bundles": ("bigint", "delivered in that second"),
        "messages": ("bigint", "in them"),
        "origin": ORIGIN,
    },
    ("origin",),
)

TABLES = (
    EVENTS, CORRUPT, RUNS, MEMBERS, VIEWS, DELIVERIES, VIOLATIONS, LATENCY, DURATIONS, TRAFFIC, THROUGHPUT,
)  # fmt: skip


def reference() -> Iterator[str]:
    """Lines of Markdown: every table with its columns."""
    for table in TABLES:
        folders = f" Partitioned by {', '.join(f'`{name}`' for name in table.partitions)}." if table.partitions else ""
        yield f"### {table.name}\n"
        yield f"{table.what[0].upper()}{table.what[1:]}.{folders}\n"
        yield "| column | type | what it is |"
        yield "|---|---|---|"
        for name, (kind, what) in table.columns.items():
            yield f"| `{name}` | {kind} | {what} |"
        yield ""
