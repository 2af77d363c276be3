"""The part of the page on Spark: queues as tables and streams, and audits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from numbers_page.figures import Goal, Row, Spread, figure, table, times, verdict

SPARK = {
    "batch.to_parquet": "a queue as a table, beside Parquet files",
    "batch_all.to_parquet_all": "all columns, beside Parquet files",
    "batch.to_loop": "as a table, beside a loop with pika",
    "stream.to_parquet": "as a stream, beside Parquet files",
    "stream.to_loop": "as a stream, beside a loop with pika",
    "sink.to_publisher": "the sink, beside a publisher with ready-made bytes",
    "publishers_beside_reader.to_publishers": "publishers while Spark reads, beside the same alone",
    "publishers_beside_parquet.to_publishers": "publishers while Spark reads Parquet files, beside the same alone",
}


def spark(result: Row) -> Iterator[str]:
    cases: Mapping[str, Row] = result["cases"]
    rows = []
    for key, label in SPARK.items():
        if key in cases:
            row = cases[key]
            relative = Spread.of_row(row, "ratio")
            goal = Goal(row["goal"], True) if "goal" in row else None
            base = Spread(row["baseline"], row["baseline"], row["baseline"])
            rows.append(
                [
                    label, figure(Spread.of_row(row), row["unit"]), figure(base, row["unit"]), times(relative),
                    *verdict(goal, relative),
                ]
            )  # fmt: skip
    yield from (f"### Queues in Spark, {result['rows']:,} rows", "")
    yield from (*table(["", "Coterie", "beside it", "ratio", "goal", "met"], rows), "")


def audit(result: Row) -> Iterator[str]:
    cases: Mapping[str, Row] = result["cases"]
    rows = []
    for key, row in cases.items():
        size, place, what = key.split(".")
        if row["unit"] == "events/s":
            label = {"check": "checked", "check_with_start": "with Spark's start", "audit": "the whole audit"}[what]
            cores = {"1_cores": "1 core", "2_cores": "2 cores"}.get(place, place)
            base = Spread(row["baseline"], row["baseline"], row["baseline"])
            cells = [figure(Spread.of_row(row), row["unit"]), figure(base, row["unit"])]
            rows.append([f"{int(size):,} events, {cores}: {label}", *cells, times(Spread.of_row(row, "ratio"))])
    yield from ("### Audits on Spark", "", *table(["", "Spark", "plain checkers", "ratio"], rows), "")
