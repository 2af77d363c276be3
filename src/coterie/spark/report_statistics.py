"""The parts of the report that say how fast and at what cost: latency, durations, traffic, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

from coterie.plot import Axis
from coterie.spark import page
from coterie.spark.page import Html, seconds
from coterie.spark.report_data import NODES_SHOWN, Busy, Tables
from coterie.spark.schema import DURATIONS, LATENCY, TRAFFIC
from coterie.spark.statistics import CURVE

Rows = Sequence[dict[str, Any]]

INSTANT = 1e-6
"""Seconds below which a logarithmic axis does not go."""
CLOCKS = {
    "simulated": "simulated runs, in virtual time",
    "live": "live runs, in real time",
}
HOPS = {
    "send to receive": "from the sender's stamp until it arrived",
    "receive to deliver": "from its arrival until the application had it",
    "send to deliver": "the two together",
    "send to ordered": "until its place in the total order was known",
    "send to held": "until its sender knew that enough members hold it",
}
WHATS = {
    "view change": "from the first sign of an agreed view until the last of its members had installed it",
    "flush until it holds": "from its leader's start until everybody was flushed and blocked",
    "flush held": "from then on until its leader released it",
    "senders held up": "a member's gate was shut: its application could not multicast",
    "handler suspended": "a coordinator worked on one change and took up no other",
    "state transfer": "from the requester's cut until its application had the state",
}


def latency(tables: Tables) -> Html:
    parts: list[object] = [
        page.paragraph(
            "How long bundles of the application took to each member that they came to; what a member delivers of its "
            "own is not counted."
        )
    ]
    totals = tables.totals(LATENCY, "hop")
    for origin, rows in _by_origin(totals, HOPS, "hop"):
        label = CLOCKS.get(origin, origin)
        parts.append(_curves(f"Latency of {label}", rows))
        parts.append(_spread(f"Latency of {label}", "hop", HOPS, rows))
    parts.append(_clocks(totals))
    slowest = tables.slowest("send to deliver")
    parts.append(_runs("The runs with the slowest deliveries: 99 of 100 took no longer", slowest, "p99"))
    return page.join(*parts) if totals else page.paragraph("No bundle of the application was seen to arrive.")


def durations(tables: Tables) -> Html:
    totals = tables.totals(DURATIONS, "what")
    if not totals:
        return page.paragraph("No view change, flush or state transfer is in these traces.")
    parts = [
        _spread(f"Durations of {CLOCKS.get(origin, origin)}", "what", WHATS, rows)
        for origin, rows in _by_origin(totals, WHATS, "what")
    ]
    held_up = _runs("The runs in which a sender was held up the longest", tables.longest("senders held up"), "max")
    changes = _runs("The runs with the longest view changes", tables.longest("view change"), "max")
    return page.join(*parts, _clocks(totals), held_up, changes)


def traffic(tables: Tables) -> Html:
    rows = [_cost(f"{row['origin']} runs", row) for row in tables.totals(TRAFFIC)]
    if not rows:
        return page.paragraph("Nothing was sent.")
    headers = (
        "", "bundles sent", "messages in them", "delivered", "sent again", "for 100 bundles", "unicasts",
        "acks", "acks per unicast",
    )  # fmt: skip
    most = [_cost(row["run"], row) for row in tables.most_retransmitted()]
    return page.join(
        page.table(headers, rows, "What the group cost"),
        page.table(("run", *headers[1:]), most, "The runs that sent the most again") if most else Html(""),
    )


def _cost(name: str, row: dict[str, Any]) -> tuple[object, ...]:
    again = row["retransmitted"] / row["sent"] * 100 if row["sent"] else None
    return (
        name, row["sent"], row["messages"], row["delivered"], row["retransmitted"],
        page.Number("–") if again is None else page.Number(f"{again:,.1f}"), row["unicasts"], row["acks"],
        page.Number("–") if row["acks_per_unicast"] is None else page.Number(f"{row['acks_per_unicast']:.2f}"),
    )  # fmt: skip


def throughput(tables: Tables) -> Html:
    busiest = tables.busiest()
    if not busiest:
        return page.paragraph("Nothing was delivered.")
    return page.join(
        page.paragraph("Messages that each node handed to its application, in the runs that delivered the most."),
        *(_over_time(run) for run in busiest),
    )


def _over_time(run: Busy) -> Html:
    most = max((value, node) for node, line in run.lines.items() for _, value in line)
    says = f"The most in one second: {most[0]:,.0f} messages, at {most[1]}."
    if run.seconds_per_point > 1:
        says = f"Points are averages of {run.seconds_per_point} seconds. The highest: {most[0]:,.0f}, at {most[1]}."
    if run.nodes > NODES_SHOWN:
        says += f" Drawn are the {NODES_SHOWN} nodes of {run.nodes:,} that delivered the most."
    return page.lines(
        f"Run {run.run} ({run.origin})",
        says,
        Axis("seconds since the run began", log=False, text=lambda value: f"{value:,g}"),
        Axis("messages per second", log=False, text=lambda value: f"{value:,.0f}", least=0.0),
        run.lines,
    )


# What several of them need.


def _by_origin(rows: Rows, known: dict[str, str], column: str) -> list[tuple[str, Rows]]:
    """Rows of each origin, in the order in which things are explained."""
    order = {name: place for place, name in enumerate(known)}
    counted = sorted((row for row in rows if row["count"]), key=lambda row: order.get(row[column], len(order)))
    origins = sorted({row["origin"] for row in rows})
    return [(origin, [row for row in counted if row["origin"] == origin]) for origin in origins]


def _spread(caption: str, column: str, meanings: dict[str, str], rows: Rows) -> Html:
    """Percentiles as numbers, and as strips on one logarithmic scale."""
    values = [value for row in rows for value in (row["p50"], row["max"])]
    if not values:
        return Html("")
    low, high = _decades(values)
    cells = [
        (
            row[column], row["count"], *(seconds(row[name]) for name in ("p50", "p90", "p99", "max")),
            page.strip([_share(row[name], low, high) for name in ("p50", "p90", "p99", "max")]),
            meanings.get(row[column], ""),
        )
        for row in rows
    ]  # fmt: skip
    scale = f"{seconds(low)} … {seconds(high)}, log"
    caption += ". Each strip has a dot at the half, a thick line to 9 of 10, marks at 99 of 100 and at the longest."
    return page.table((column, "count", "half", "9 of 10", "99 of 100", "longest", scale, "what it is"), cells, caption)


def _curves(caption: str, rows: Rows) -> Html:
    curves = {row["hop"]: row["curve"] for row in rows if row["curve"]}
    values = [value for curve in curves.values() for value in curve]
    if not values:
        return Html("")
    low, high = _decades(values)
    below = any(value < low for value in values)

    def tick(value: float) -> str:
        return f"≤ {seconds(value)}" if below and value <= low * 1.001 else seconds(value)

    whole = next((row for row in rows if row["hop"] == "send to deliver"), rows[0])
    return page.lines(
        caption,
        f"{whole['hop']}: half within {seconds(whole['p50'])}, 99 of 100 within {seconds(whole['p99'])}, "
        f"all within {seconds(whole['max'])}.",
        Axis("took no longer than", text=tick, least=low, most=high),
        Axis("percent of bundles", log=False, text=lambda value: f"{value:g} %", least=0.0, most=100.0),
        {hop: [(max(v, low), p * 100) for p, v in zip(CURVE, curve, strict=True)] for hop, curve in curves.items()},
    )


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around them; what is no time at all does not count."""
    real = [value for value in values if value > INSTANT] or [INSTANT * 1.01]
    low, high = 10.0 ** floor(log10(min(real))), 10.0 ** ceil(log10(max(real)))
    return low, max(high, low * 10)


def _share(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (log10(max(value, low)) - log10(low)) / (log10(high) - log10(low))))


def _clocks(rows: Rows) -> Html:
    apart = [row for row in rows if row["negative"]]
    if not apart:
        return Html("")
    negative = sum(row["negative"] for row in apart)
    return page.note(
        f"Left out because they are below zero: {negative:,} of {sum(row['count'] for row in apart) + negative:,}. The "
        "clocks of those nodes disagree by more than a message takes. Times between nodes of live runs are only as "
        "good as their wall clocks; those at one node are not concerned."
    )


def _runs(caption: str, rows: Rows, column: str) -> Html:
    """Runs that stand out; nothing if there is but one."""
    if len(rows) < 2:
        return Html("")
    cells = [(row["run"], row["origin"], seconds(row[column]), row["count"]) for row in rows]
    return page.table(("run", "origin", "took", "of"), cells, caption)
