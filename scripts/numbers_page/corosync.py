"""The part of the page on corosync: its groups (CPG) and ours in total order, three members each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coterie.plot_bars import Bar, bars
from numbers_page.figures import Goal, Row, Spread, figure, number, ratio, table, times, verdict

LABELS = {
    "delivered": ("total order, 3 members, all send: delivered at each", None),
    "own_p50": ("from a multicast to its delivery at its own sender, p50", Goal(200, False, "us")),
    "own_p99": ("p99", None),
}


def section(result: Row) -> Iterator[str]:
    cases: Mapping[str, Row] = result["cases"]
    rows = []
    for key, (label, goal) in LABELS.items():
        ours, theirs = cases[f"coterie.{key}"], cases.get(f"corosync.{key}")
        beside = ["", ""]
        if theirs is not None:
            beside = [figure(Spread.of_row(theirs), theirs["unit"]), times(ratio(ours, theirs))]
        own = Spread.of_row(ours)
        rows.append([label, figure(own, ours["unit"]), *beside, *verdict(goal, own)])
    yield from ("### Total order beside corosync", "")
    yield from (*table(["", "Coterie", "corosync CPG", "ratio", "goal", "met"], rows), "")


def plots(result: Row) -> dict[str, str]:
    """By the name of the file."""
    cases: Mapping[str, Row] = result["cases"]
    found = {
        who: Bar(row["median"], row["min"], row["max"])
        for who in ("coterie", "corosync")
        if (row := cases.get(f"{who}.delivered")) is not None
    }
    title = "Total order, three members that all send"
    return {"corosync": bars(title, "1 KiB messages/s at each member", {"delivered": found}, number)}
