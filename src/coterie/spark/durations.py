"""How long the group took for what it does as a group: one row for each time it did it (docs/report.md).

Everything but a view change begins and ends at one node, and is measured by its monotonic clock. What has no end in the
trace, because it failed or its member died, has no duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from coterie.spark.hops import moment, origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = (
    "view", "suspect", "suspend", "resume", "block", "unblock", "flush_joined", "flush_started", "flush_held",
    "flush_ended", "state_cut", "state_set",
)  # fmt: skip
DATA = "number string, mode string, role string, id string, members array<string>, agreed boolean, before string"
MEMBER = ("origin", "run", "node", "inc")

SPANS = {
    "flush until it holds": ("flush_started", "flush_held", "data.number"),
    "flush held": ("flush_held", "flush_ended", "data.number"),
    "senders held up": ("block", "unblock", None),
    "handler suspended": ("suspend", "resume", None),
    "state transfer": ("state_cut", "state_set", "data.id"),
}
"""What begins with an event of one kind and ends with one of another, at the same member and about the same thing."""


def durations(events: DataFrame) -> DataFrame:
    """Rows of origin, run, what, seconds."""
    found = events.where(F.col("kind").isin(*KINDS)).select(
        "run", "node", "inc", "n", "t", "kind", "view",
        origin().alias("origin"),
        moment().alias("at"),
        F.from_json("data", DATA).alias("data"),
    )  # fmt: skip
    return _spans(found).unionByName(_view_changes(found))


def _spans(found: DataFrame) -> DataFrame:
    """From each begin to the end that is the next of the two."""
    kind, ours = F.col("kind"), F.coalesce("data.role", F.lit("requester")) == "requester"

    def mark(what: str, begin: str, end: str, key: str | None) -> Column:
        about = F.lit("") if key is None else F.col(key)
        is_end = (kind == end).alias("is_end")
        return F.when(kind.isin(begin, end) & ours, F.struct(F.lit(what).alias("what"), is_end, about.alias("about")))

    marks = F.array_compact(F.array(*(mark(what, *span) for what, span in SPANS.items())))
    along = Window.partitionBy(*MEMBER, "what", "about").orderBy("n")
    pairs = (
        found.select(*MEMBER, "n", "t", F.explode(marks).alias("mark"))
        .select(*MEMBER, "n", "t", "mark.*")
        .withColumns({"next_ends": F.lead("is_end").over(along), "end": F.lead("t").over(along)})
        .where("about IS NOT NULL AND NOT is_end AND next_ends")
    )
    return pairs.select("origin", "run", "what", (F.col("end") - F.col("t")).alias("seconds"))


def _view_changes(found: DataFrame) -> DataFrame:
    """From the first sign of an agreed view, at any member that comes to it from another one, to its last installation.

    Signs are what is in force when a member installs it: its last suspicion of somebody whom the view leaves out, its
    handler's suspension, its last part in a flush for a view; each since the member's view before.
    """
    before = Window.partitionBy(*MEMBER).orderBy("n").rowsBetween(Window.unboundedPreceding, -1)
    kind = F.col("kind")
    is_view, handler = kind == "view", kind.isin("suspend", "resume")

    def latest(condition: Column, what: str) -> Column:
        return F.max_by(F.when(condition, F.col(what)), F.when(condition, F.col("n")))

    suspicions = F.collect_list(F.when(kind == "suspect", F.struct("n", "at", "data.members")))
    # The events after a view, up to and including the next one, are a stretch.
    stretches = (
        found.withColumn("stretch", F.count(F.when(is_view, 1)).over(before))
        .groupBy(*MEMBER, "stretch")
        .agg(
            F.max(F.when(is_view & F.col("data.agreed"), F.col("view"))).alias("view"),
            F.max(F.when(is_view, F.col("at"))).alias("installed"),
            F.max(F.when(is_view, F.col("data.members"))).alias("members"),
            F.max(F.when(is_view, F.col("data.before"))).alias("before"),
            latest((kind == "flush_joined") & (F.col("data.mode") == "view"), "at").alias("flushed"),
            latest(kind == "suspend", "at").alias("suspended"),
            latest(handler, "kind").alias("handler"),
            suspicions.alias("suspicions"),
        )
        .where("view IS NOT NULL")
    )
    suspended = F.when(F.col("handler") == "suspend", F.col("suspended"))
    sign = F.least(F.expr(_SUSPECTED), F.col("flushed"), suspended)
    changes = (
        stretches.groupBy("origin", "run", "view")
        .agg(F.min(F.when(F.col("before").isNotNull(), sign)).alias("begin"), F.max("installed").alias("end"))
        .where("begin IS NOT NULL")
    )
    seconds = (F.col("end") - F.col("begin")).alias("seconds")
    return changes.select("origin", "run", F.lit("view change").alias("what"), seconds)


_EACH = "flatten(transform(suspicions, s -> transform(s.members, who -> struct(who, s.n AS n, s.at AS at))))"
_GONE = f"filter({_EACH}, s -> NOT array_contains(members, s.who))"
_LAST = f"filter({_GONE}, s -> NOT exists({_GONE}, later -> later.who = s.who AND later.n > s.n))"
_SUSPECTED = f"array_min(transform({_LAST}, s -> s.at))"
"""When the first of those whom the view leaves out was suspected, each for the last time."""
