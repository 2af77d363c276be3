"""The part of the page on groups: members that multicast, views that change, a state that is sent, corosync beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coterie.plot_bars import Bar, bars
from numbers_page.figures import Goal, Row, Spread, figure, number, table, times, verdict

HEADERS = ["", "Coterie", "plain sockets", "ratio", "goal", "met"]

GROUP = {
    "fifo_delivered": ("to all, 4 members, FIFO: delivered at each", Goal(0.65, True)),
    "total_delivered": ("the same, in total order", None),
    "total_to_fifo_delivered": ("total order beside FIFO", Goal(0.85, True)),
}
UNICAST = {
    "delivered": ("to one: delivered", None),
    "round_trip_p50": ("to one and back, p50", Goal(100, False, "us")),
    "round_trip_p99": ("p99", None),
}
VIEWS = {
    "flush2.join": "join, until the joiner has its view",
    "flush2.join_at_last": "until the last old member has it",
    "flush2.kill": "kill -9, until the last survivor has the next view",
    "flush2.kill_coordinator": "the same, of the coordinator",
    "flush2.flush_idle": "flush, idle",
    "flush2.flush_loaded": "flush, everybody sending at full rate",
    "flush2.held_up_loaded_p50": "senders held up by that, p50",
}
STATE = {
    "time": "{size:,.0f} MiB to a joiner",
    "provider_growth": "more memory at the provider",
    "joiner_growth": "more memory at the joiner",
    "held_up_p99": "senders held up, p99",
}


def group(result: Row) -> Iterator[str]:
    rows = [
        _beside(result["cases"][key], label, goal) for key, (label, goal) in GROUP.items() if key in result["cases"]
    ]
    yield from ("### Everybody to everybody", "", *table(HEADERS, rows), "")
    yield from ("In the third row total order has FIFO in the place of plain sockets.", "")


def unicast(result: Row) -> Iterator[str]:
    cases = result["cases"]
    rows = [_beside(cases[key], label, goal) for key, (label, goal) in UNICAST.items() if key in cases]
    yield from ("### One to one", "", *table(HEADERS, rows), "")


def views(result: Row) -> Iterator[str]:
    cases: Mapping[str, Row] = result["cases"]
    rows = []
    for key, label in VIEWS.items():
        if key in cases:
            row = cases[key]
            rows.append(_beside(row, label, Goal(row["goal"], False, "ms") if "goal" in row else None))
    yield from (f"### How fast a group of {result['members']} changes", "", *table(HEADERS, rows), "")


def state(result: Row) -> Iterator[str]:
    cases, size = result["cases"], result["size"] / 2**20
    rows = [_beside(cases[key], label.format(size=size), None) for key, label in STATE.items() if key in cases]
    yield from ("### A state that is sent while others multicast", "")
    yield from (*table(["", "Coterie", "baseline", "ratio"], [row[:4] for row in rows]), "")
    yield from (
        "The baseline of memory is the bound of 64 MiB, and of what senders wait the same without a transfer.", "",
    )  # fmt: skip


def _beside(row: Row, label: str, goal: Goal | None) -> list[str]:
    """Goals that are no ratios are of the figure itself."""
    relative, own = Spread.of_row(row, "ratio"), Spread.of_row(row)
    base = Spread(row["baseline"], row["baseline"], row["baseline"])
    judged = verdict(goal, relative if goal is None or goal.unit == "x" else own)
    return [label, figure(own, row["unit"]), figure(base, row["unit"]), times(relative), *judged]


def plots(results: Mapping[str, Row]) -> dict[str, str]:
    """By the name of the file."""
    found: dict[str, dict[str, Bar]] = {}
    for part, labels in (("group", GROUP), ("unicast", UNICAST)):
        for key, (label, _) in labels.items():
            row = results.get(part, {}).get("cases", {}).get(key)
            if row is not None and key.endswith("delivered") and key != "total_to_fifo_delivered":
                base = row["baseline"]
                found[label] = {
                    "Coterie": Bar(row["median"], row["min"], row["max"]), "plain sockets": Bar(base, base, base)
                }  # fmt: skip
    if not found:
        return {}
    return {"group": bars("Messages delivered", "1 KiB messages/s at each receiver", found, number)}
