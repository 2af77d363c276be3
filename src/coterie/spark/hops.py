"""How long bundles of the application took from hop to hop, one row for each hop of each of them.

A bundle is known by its run, its sender, its number and, for a unicast, its connection and receiver. Hops are measured
at the members that it came *to*: what a member delivers of its own is not on any wire. Times at one node are of its
monotonic clock; between nodes only `moment` can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DATA = "conn bigint, `to` string, app boolean"
"""What an event's data may say about a bundle."""
BUNDLE = ("run", "sender", "first", "conn", "dest")
NO_CONN = -1
"""Of multicasts: nulls never join."""


def moment() -> Column:
    """When an event happened, on a clock that the nodes of its run share.

    That is virtual time for simulated nodes. Real nodes on several hosts have no clock in common but the wall clock,
    and one that is off by more than a message takes makes a latency negative: those are counted, never averaged in.
    """
    return F.coalesce("wall", "t")


def origin() -> Column:
    return F.when(F.col("wall").isNull(), "simulated").otherwise("live")


def me() -> Column:
    """The address of the incarnation that wrote the event."""
    return F.concat("node", F.lit("#"), "inc")


def bundles(events: DataFrame, *kinds: str) -> DataFrame:
    """Events of those kinds with what they say of a bundle; `dest` is 'all' or the receiver."""
    parsed = F.from_json("data", DATA)
    conn, to = parsed["conn"], parsed["to"]
    receiver = F.when(F.col("kind") == "send", F.coalesce(to, F.lit("all"))).when(conn.isNull(), "all").otherwise(me())
    return events.where(F.col("kind").isin(*kinds) & F.col("sender").isNotNull() & F.col("first").isNotNull()).select(
        "run", "node", "inc", "kind", "t", "sender", "first", "count",
        origin().alias("origin"),
        moment().alias("at"),
        me().alias("me"),
        F.coalesce(conn, F.lit(NO_CONN)).alias("conn"),
        receiver.alias("dest"),
        F.coalesce(parsed["app"], F.lit(True)).alias("app"),
    )  # fmt: skip


def hops(events: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Rows of origin, run, hop, seconds."""
    columns = ("origin", "run", "hop", "seconds")
    delivered = deliveries.where(F.col("latency").isNotNull() & (F.col("sender") != me())).select(
        "origin", "run", F.lit("send to deliver").alias("hop"), F.col("latency").alias("seconds")
    )
    return _arrivals(events).select(*columns).unionByName(delivered).unionByName(_held(events).select(*columns))


def _sent(events: DataFrame) -> DataFrame:
    """Each bundle of the application once, even if its event was read twice."""
    sends = bundles(events, "send").where("app")
    return sends.groupBy(*BUNDLE).agg(F.min("at").alias("sent_at"))


def _arrivals(events: DataFrame) -> DataFrame:
    """What happened to each bundle at each member that it came to."""
    others = bundles(events, "receive", "deliver", "ordered").where("sender != me")

    def when(kind: str, what: str) -> Column:
        return F.min(F.when(F.col("kind") == kind, F.col(what)))

    arrived = others.groupBy("origin", "node", "inc", *BUNDLE).agg(
        when("receive", "at").alias("received_at"),
        when("receive", "t").alias("received_t"),
        when("ordered", "at").alias("ordered_at"),
        F.min(F.when((F.col("kind") == "deliver") & F.col("app"), F.col("t"))).alias("delivered_t"),
    )
    found = F.array(
        _hop("send to receive", F.col("received_at") - F.col("sent_at")),
        _hop("receive to deliver", F.col("delivered_t") - F.col("received_t")),
        _hop("send to ordered", F.col("ordered_at") - F.col("sent_at")),
    )
    joined = arrived.join(_sent(events), list(BUNDLE), "left")
    return joined.select("origin", "run", F.explode(found).alias("found")).select(
        "origin", "run", "found.hop", "found.seconds"
    ).where("seconds IS NOT NULL")  # fmt: skip


def _hop(name: str, seconds: Column) -> Column:
    return F.struct(F.lit(name).alias("hop"), seconds.alias("seconds"))


def _held(events: DataFrame) -> DataFrame:
    """From a send until its sender was told that the bundle's place in the order is held."""
    said, kind = F.from_json("data", DATA), F.col("kind")
    own = (F.col("sender") == me()) & said["conn"].isNull() & F.coalesce(said["app"], F.lit(True))
    rows = events.where((kind.isin("send", "ordered") & own) | (kind == "held")).select(
        "run", "node", "inc", "view", "pos", "first", "kind", "t", origin().alias("origin")
    )
    same = Window.partitionBy("run", "node", "inc", "first")
    # What is held up to a position is held below it: the first word of any position from ours on counts.
    beyond = (
        Window.partitionBy("run", "node", "inc", "view")
        .orderBy(F.desc("pos"))
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    known = (
        rows.withColumn("sent_t", F.min(F.when(kind == "send", F.col("t"))).over(same))
        .where("kind != 'send'")
        .withColumn("held_t", F.min(F.when(kind == "held", F.col("t"))).over(beyond))
        .where("kind = 'ordered' AND sent_t IS NOT NULL AND held_t IS NOT NULL")
    )
    return known.select(
        "origin", "run", F.lit("send to held").alias("hop"), (F.col("held_t") - F.col("sent_t")).alias("seconds")
    )
