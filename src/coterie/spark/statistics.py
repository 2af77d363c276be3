"""The statistics of an audit, by Spark SQL over the events: latency, durations, traffic, throughput (docs/report.md).

Promises: each table has the columns of schema.py, a row for each run and, where percentiles or sums make sense, one for
all runs of an origin (run NULL); simulated and live runs are never mixed; a time below zero, which clocks that disagree
can produce, is counted and left out. Everything that was read counts, also what stands behind a hole in a trace. A sum
that no machine can hold, of numbers that somebody made up, is NULL or 0; it stops nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from coterie.spark.durations import durations
from coterie.spark.hops import bundles, hops, me, moment
from coterie.spark.schema import DURATIONS, LATENCY, THROUGHPUT, TRAFFIC, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CURVE = (
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9,
    0.95, 0.98, 0.99, 0.995, 0.999, 1.0,
)  # fmt: skip
"""The percentiles that the column `curve` holds."""
SECONDS_MAX = 1e12
"""A run lasts no longer: what says otherwise is in its last second."""
ACCURACY = 10_000
"""Of percentiles: at most one in so many is on the wrong side."""


def statistics(events: DataFrame, deliveries: DataFrame, found: DataFrame) -> dict[str, DataFrame]:
    """The tables by name. `events` and `deliveries` are as schema.py has them, `found` is what hops.parsed makes of the
    events; nothing is computed yet."""
    return {
        LATENCY.name: _shape(LATENCY, _percentiles(hops(found, deliveries), "hop")),
        DURATIONS.name: _shape(DURATIONS, _percentiles(durations(events), "what")),
        TRAFFIC.name: _shape(TRAFFIC, _traffic(found)),
        THROUGHPUT.name: _shape(THROUGHPUT, _throughput(events, found)),
    }


def _shape(table: Table, found: DataFrame) -> DataFrame:
    return found.select(*(F.col(name).cast(kind).alias(name) for name, (kind, _) in table.columns.items()))


def _percentiles(measured: DataFrame, name: str) -> DataFrame:
    """For each run and each origin as a whole: how `seconds` spread."""
    seconds = F.when(F.col("seconds") >= 0, F.col("seconds"))
    found = measured.groupingSets([["origin", "run", name], ["origin", name]], "origin", "run", name).agg(
        F.count(seconds).alias("count"),
        F.count_if(F.col("seconds") < 0).alias("negative"),
        F.percentile_approx(seconds, list(CURVE), ACCURACY).alias("curve"),
        F.max(seconds).alias("max"),
    )
    at = {label: F.col("curve")[CURVE.index(share)] for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    return found.withColumns(at)


def _traffic(found: DataFrame) -> DataFrame:
    kind = F.col("kind")
    counted = found.where(kind.isin("send", "deliver", "retransmit", "ack")).select(
        "run", "origin", kind, "count", "app",
        (F.coalesce("last", "first") - F.col("first") + 1).alias("numbers"),
        (F.col("conn").isNotNull() & (F.col("to") != me())).alias("to_other"),
    )  # fmt: skip

    def many(condition: Column, what: Column | None = None) -> Column:
        return F.coalesce(F.try_sum(F.when(condition, F.lit(1) if what is None else what)), F.lit(0))

    each = counted.groupBy("origin", "run").agg(
        many((kind == "send") & F.col("app")).alias("sent"),
        many((kind == "send") & F.col("app"), F.col("count")).alias("messages"),
        many((kind == "deliver") & F.col("app")).alias("delivered"),
        many(kind == "retransmit", F.col("numbers")).alias("retransmitted"),
        many(kind == "ack").alias("acks"),
        many((kind == "send") & F.col("to_other")).alias("unicasts"),
    )
    sums = [F.try_sum(name).alias(name) for name in each.columns if name not in ("origin", "run")]
    both = each.groupingSets([["origin", "run"], ["origin"]], "origin", "run").agg(*sums)
    return both.withColumn("acks_per_unicast", F.try_divide("acks", "unicasts"))


def _throughput(events: DataFrame, found: DataFrame) -> DataFrame:
    begins = events.groupBy("run").agg(F.min(moment()).alias("begin"))
    since = F.least(F.col("at") - F.col("begin"), F.lit(SECONDS_MAX))
    return (
        bundles(found, "deliver")
        .where("app")
        .join(begins, "run")
        .groupBy("origin", "run", "node", F.floor(since).alias("second"))
        .agg(F.count("*").alias("bundles"), F.coalesce(F.try_sum("count"), F.lit(0)).alias("messages"))
    )
