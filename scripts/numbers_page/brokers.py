"""The part of the page on brokers: one beside a classic queue, clusters beside a quorum queue and JetStream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coterie.plot_bars import Bar, bars
from numbers_page.figures import Goal, Row, Spread, figure, number, ratio, table, times, verdict

Cases = Mapping[str, Row]

ALONE, CREDIT, OWNERSHIP, CLASSIC, QUORUM, JETSTREAM = (
    "standalone", "credit", "ownership", "classic", "quorum", "jetstream",
)  # fmt: skip
TITLES = {
    ALONE: "Coterie, one broker", CREDIT: "Coterie, `credit`", OWNERSHIP: "Coterie, `ownership`",
    CLASSIC: "RabbitMQ, classic queue", QUORUM: "RabbitMQ, quorum queue", JETSTREAM: "NATS JetStream, R3",
}  # fmt: skip
SHORT = {
    ALONE: "Coterie, one", CREDIT: "Coterie, credit", OWNERSHIP: "Coterie, ownership",
    CLASSIC: "RabbitMQ, classic", QUORUM: "RabbitMQ, quorum", JETSTREAM: "JetStream, R3",
}  # fmt: skip
"""In plots."""
RATES = {
    "persistent.confirmed": "1 publisher, 1 consumer",
    "persistent_apart.confirmed": "1 and 1, on different nodes",
    "persistent_4+4.confirmed": "4 publishers, 4 consumers, one queue",
    "persistent_4+4_apart.confirmed": "4 and 4, on different nodes",
    "transient.confirmed": "transient, 1 and 1",
}
DELAYS = {
    "latency.consume_p50": "publish to consume at 500/s, p50",
    "latency.consume_p99": "publish to consume, p99",
    "latency_apart.consume_p50": "publish to consume, on different nodes, p50",
    "latency_apart.consume_p99": "publish to consume, on different nodes, p99",
    "latency.confirm_p50": "publish to confirm at 500/s, p50",
    "latency.confirm_p99": "publish to confirm, p99",
    "latency_apart.confirm_p50": "publish to confirm, consumer on another node, p50",
    "latency_apart.confirm_p99": "publish to confirm, consumer on another node, p99",
}
MEMORY = {"memory.idle": "memory of the largest node, idle", "memory.queued": "with {queued:,} messages queued"}

BESIDE_CLASSIC = {
    "persistent.confirmed": Goal(6, True), "transient.confirmed": Goal(6, True),
    "latency.consume_p50": Goal(0.6, False),
}  # fmt: skip
BESIDE_QUORUM = {
    "persistent.confirmed": Goal(4, True), "persistent_apart.confirmed": Goal(4, True),
    "persistent_4+4.confirmed": Goal(6, True), "persistent_4+4_apart.confirmed": Goal(6, True),
    "latency.consume_p50": Goal(0.35, False), "latency_apart.consume_p50": Goal(0.35, False),
    "latency.confirm_p50": Goal(0.5, False), "latency_apart.confirm_p50": Goal(0.5, False),
}  # fmt: skip
DISK = "disk.copies.written"
DELAY = Goal(1.5, False)
NEXT = "The next goal for the first two rates is 10x, or 0.6 of what the disk allows for three copies, if that is less."
OWN_GOALS = {"memory.idle": Goal(60, False, "MiB"), "memory.queued": Goal(200, False, "MiB")}
EVENTS = {
    "kill_oldest.delivery": ("kill -9 of the oldest node, to the next delivery elsewhere", Goal(50, False, "ms")),
    "kill.delivery": ("of another node", Goal(50, False, "ms")),
    "kill_oldest.held": ("of the oldest, until all that it held has come again elsewhere", None),
    "kill.held": ("of another node", None),
    "kill_oldest.confirm": ("of the oldest, to the first confirm of one that reconnects", Goal(100, False, "ms")),
    "kill.confirm": ("of another node", Goal(100, False, "ms")),
    "join.in_step": ("a new node, from its start until it has {joined:,} messages", Goal(2000, False, "ms")),
    "join.gap": ("longest time between two confirms meanwhile", Goal(20, False, "ms")),
}  # fmt: skip


def section(result: Row) -> Iterator[str]:
    cases: Cases = result["cases"]
    present = [name for name in TITLES if any(key.startswith(f"{name}.") for key in cases)]
    yield from ("## Brokers", "", *_intro(result), "")
    yield from ("### One broker", "")
    yield from _figures(result, [name for name in (ALONE, CLASSIC) if name in present])
    yield from _ratios(cases, [ALONE], CLASSIC, BESIDE_CLASSIC, present)
    clusters = [name for name in (CREDIT, OWNERSHIP) if name in present]
    if clusters:
        yield from ("### Three brokers that are one", "")
        yield from _figures(result, [name for name in (*clusters, QUORUM, JETSTREAM) if name in present])
        yield from _ratios(cases, clusters, QUORUM, BESIDE_QUORUM, present)
        if QUORUM in present:
            yield from (NEXT, "")
        yield from _ratios(cases, clusters, JETSTREAM, {}, present)
        yield from _own(cases, clusters)
        yield from _events(result, clusters)


def _intro(result: Row) -> Iterator[str]:
    wrong = ", ".join(f"{count} by {TITLES.get(name, name)}" for name, count in result["wrong"].items())
    yield (
        f"Messages of {result['size']:,} bytes, a durable queue, confirms with 1000 under way, a prefetch of 500, an "
        f"acknowledgement for every 100; rounds: {result['rounds']}. "
        f"Lost or given twice: {wrong or 'none, by anybody'}."
    )


def _labels(result: Row) -> dict[str, str]:
    return {**RATES, **DELAYS, **{key: text.format(queued=result["queued"]) for key, text in MEMORY.items()}}


def _figures(result: Row, names: Sequence[str]) -> Iterator[str]:
    cases: Cases = result["cases"]
    rows = []
    for key, label in _labels(result).items():
        found = [cases.get(f"{name}.{key}") for name in names]
        if any(found):
            rows.append([label, *("" if row is None else figure(Spread.of_row(row), row["unit"]) for row in found)])
    if rows:
        yield from (*table(["", *(TITLES[name] for name in names)], rows), "")


def _ratios(
    cases: Cases, ours: Sequence[str], other: str, goals: Mapping[str, Goal], present: Sequence[str]
) -> Iterator[str]:
    """Ours to another one's, round by round."""
    if other not in present:
        yield from (f"{TITLES[other]}: not measured in this run.", "")
        return
    rows = []
    for key, label in {**RATES, **DELAYS}.items():
        theirs = cases.get(f"{other}.{key}")
        found = [cases.get(f"{name}.{key}") for name in ours]
        if theirs is None or not all(found):
            continue
        spreads = [ratio(row, theirs) for row in found if row is not None]
        verdicts = [verdict(goals.get(key), spread) for spread in spreads]
        rows.append([label, *map(times, spreads), verdicts[0][0], *(met for _, met in verdicts)])
    names = [TITLES[name].removeprefix("Coterie, ") for name in ours]
    met = [f"met by {name}" for name in names] if len(ours) > 1 else ["met"]
    yield from (*table([f"ratio to {TITLES[other]}", *names, "goal", *met], rows), "")


def _own(cases: Cases, clusters: Sequence[str]) -> Iterator[str]:
    """Clusters beside the broker alone, beside the disk, and what they may take."""
    rows = []
    for label, key, other, goal in (
        ("rate, of what the disk allows for three copies", "persistent.confirmed", DISK, Goal(0.6, True)),
        ("the same, on different nodes", "persistent_apart.confirmed", DISK, Goal(0.6, True)),
        ("rate, of one broker's", "persistent.confirmed", f"{ALONE}.persistent.confirmed", None),
        ("publish to consume, p50, of one broker's", "latency.consume_p50", f"{ALONE}.latency.consume_p50", DELAY),
        ("publish to confirm, p50, of one broker's", "latency.confirm_p50", f"{ALONE}.latency.confirm_p50", None),
    ):
        found = [cases.get(f"{name}.{key}") for name in clusters]
        if other in cases and all(found):
            spreads = [ratio(row, cases[other]) for row in found if row is not None]
            verdicts = [verdict(goal, spread) for spread in spreads]
            rows.append([label, *map(times, spreads), verdicts[0][0], *(met for _, met in verdicts)])
    for key, bound in OWN_GOALS.items():
        found = [cases.get(f"{name}.{key}") for name in clusters]
        if all(found):
            spreads = [Spread.of_row(row) for row in found if row is not None]
            verdicts = [verdict(bound, spread) for spread in spreads]
            label = {"memory.idle": "memory, idle", "memory.queued": "memory, with messages"}[key]
            cells = [f"{number(spread.median)} MiB" for spread in spreads]
            rows.append([label, *cells, verdicts[0][0], *(met for _, met in verdicts)])
    names = [TITLES[name].removeprefix("Coterie, ") for name in clusters]
    if rows:
        yield from (*table(["by itself", *names, "goal", *(f"met by {name}" for name in names)], rows), "")


def _events(result: Row, clusters: Sequence[str]) -> Iterator[str]:
    cases: Cases = result["cases"]
    rows = []
    for key, (label, goal) in EVENTS.items():
        found = [cases.get(f"{name}.{key}") for name in clusters]
        if not any(found):
            continue
        spreads = [None if row is None else Spread.of_row(row) for row in found]
        verdicts = [verdict(goal, spread) for spread in spreads]
        rows.append(
            [
                label.format(joined=result["joined"]),
                *("" if each is None else figure(each, "ms") for each in spreads),
                "" if goal is None else str(goal), *(met for _, met in verdicts),
            ]
        )  # fmt: skip
    names = [TITLES[name].removeprefix("Coterie, ") for name in clusters]
    if rows:
        yield from (*table(["nodes come and go", *names, "goal", *(f"met by {name}" for name in names)], rows), "")
        yield from (
            "Each kill and each join is one value; other brokers are neither killed nor joined in this run.",
            "",
        )


def plots(result: Row) -> dict[str, str]:
    """By the name of the file."""
    cases: Cases = result["cases"]
    made = {}
    for name, title, unit, labels in (
        ("throughput", "Confirmed messages per second", "messages/s; median, least and most", RATES),
        ("latency", "At 500 messages a second", "microseconds; median, least and most", DELAYS),
    ):
        chosen: dict[str, dict[str, Bar]] = {}
        for key, label in labels.items():
            if key.endswith("p99"):
                continue
            found = {
                SHORT[target]: Bar(row["median"], row["min"], row["max"])
                for target in TITLES
                if (row := cases.get(f"{target}.{key}")) is not None
            }
            if found:
                chosen[label] = found
        if chosen:
            made[name] = bars(title, unit, chosen, number)
    return made
