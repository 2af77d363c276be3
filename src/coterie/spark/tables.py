"""The tables that say what happened, by Spark SQL over the events: runs, members, views, deliveries (docs/audit.md).

Promises: each has the columns of schema.py. How a trace was read (in causal order or not, where it was cut) is what the
check says of it (check.CHECKED), so that no second opinion about that exists. Everything that was read counts, also
what stands behind a hole in a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from coterie.spark.hops import BUNDLE, NO_CONN, bundles, me, origin, sent
from coterie.spark.intake import ENDS
from coterie.spark.schema import DELIVERIES, MEMBERS, RUNS, VIEWS, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WORLD = "world"
"""Whoever watches a simulation from outside: no member."""
VIEW_DATA = "members array<string>, before string, agreed boolean, subgroups string"


def normalise(events: DataFrame, outline: DataFrame, checked: DataFrame, found: DataFrame) -> dict[str, DataFrame]:
    """The tables by name. `outline`, `checked` and `found` (hops.parsed) are of the same events."""
    return {
        RUNS.name: runs(outline, checked),
        MEMBERS.name: members(outline, checked),
        VIEWS.name: views(events),
        DELIVERIES.name: deliveries(found),
    }


def runs(outline: DataFrame, checked: DataFrame) -> DataFrame:
    incarnation = F.when(F.col("node") != WORLD, F.struct("node", "inc"))
    found = outline.groupBy("run").agg(
        F.sum("events").alias("events"),
        F.count_distinct("file").alias("files"),
        F.count_distinct(incarnation).alias("incarnations"),
        (F.max("last") - F.min("first")).alias("seconds"),
        _origin(F.bool_or("real")).alias("origin"),
    )
    judged = checked.groupBy("run").agg(
        F.bool_or("causal").alias("causal"), F.max("ignored").alias("ignored"), F.count("property").alias("violations")
    )
    return _shape(RUNS, found.join(judged, "run"))


def members(outline: DataFrame, checked: DataFrame) -> DataFrame:
    found = outline.where(F.col("node") != WORLD).groupBy("run", "node", "inc").agg(
        F.sum("events").alias("events"),
        F.min("first_t").alias("first_t"),
        F.max("last_t").alias("last_t"),
        F.max("end").alias("last"),
        F.bool_or("real").alias("real"),
    )  # fmt: skip
    cut = checked.where("property IS NULL").select("run", F.explode("cut").alias("who")).withColumn("cut", F.lit(True))
    known = found.withColumn("who", me()).join(cut, ["run", "who"], "left")
    kind = F.element_at(F.array(*map(F.lit, ("end", *ENDS[1:]))), (F.col("last").bitwiseAND(3) + 1).cast("int"))
    end = F.when(F.col("cut"), "truncated").otherwise(kind)
    return _shape(MEMBERS, known.withColumns({"end": end, "origin": _origin(F.col("real"))}))


def views(events: DataFrame) -> DataFrame:
    installed = events.where("kind = 'view'").withColumn("said", F.from_json("data", VIEW_DATA))
    return _shape(VIEWS, installed.withColumns({
        "before": F.col("said.before"),
        "members": F.col("said.members"),
        "agreed": F.coalesce("said.agreed", F.lit(False)),
        "merge": F.col("said.subgroups").isNotNull(),
        "origin": origin(),
    }))  # fmt: skip


def deliveries(found: DataFrame) -> DataFrame:
    """`found` is what hops.parsed gives."""
    delivered = bundles(found, "deliver").where("app")
    joined = delivered.join(sent(found), list(BUNDLE), "left")
    latency = F.col("at") - F.col("sent_at")
    return _shape(DELIVERIES, joined.withColumns({"multicast": F.col("conn") == NO_CONN, "latency": latency}))


def _origin(real: Column) -> Column:
    return F.when(real, "live").otherwise("simulated")


def _shape(table: Table, found: DataFrame) -> DataFrame:
    return found.select(*(F.col(name).cast(kind).alias(name) for name, (kind, _) in table.columns.items()))
