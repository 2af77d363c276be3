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
KINDS = ("send", "receive", "deliver", "ordered", "held", "retransmit", "ack")
BUNDLE = ("run", "sender", "first", "conn", "dest")
MEETING = ("run", "sender")
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


def parsed(events: DataFrame) -> DataFrame:
    """The events that are about bundles, with what their data says of them: what everything here is made from.

    Parsing is most of the work, so whoever makes several tables keeps this. If it is also dealt out by MEETING, bundles
    meet their sends without being moved again.
    """
    known = events.where(F.col("kind").isin(*KINDS)).withColumn("said", F.from_json("data", DATA))
    return known.select(
        "run", "node", "inc", "n", "kind", "t", "view", "pos", "sender", "first", "last", "count",
        origin().alias("origin"),
        moment().alias("at"),
        F.col("said.conn").alias("conn"),
        F.col("said.to").alias("to"),
        F.coalesce("said.app", F.lit(True)).alias("app"),
    )  # fmt: skip


def bundles(found: DataFrame, *kinds: str) -> DataFrame:
    """Of what is `parsed`, the events of those kinds; `dest` is 'all' or the receiver."""
    to_one = F.col("conn").isNotNull()
    dest = F.when(F.col("kind") == "send", F.coalesce("to", F.lit("all"))).when(to_one, me()).otherwise("all")
    return found.where(F.col("kind").isin(*kinds) & F.col("sender").isNotNull() & F.col("first").isNotNull()).select(
        "run", "node", "inc", "n", "kind", "t", "at", "view", "pos", "sender", "first", "count", "origin", "app",
        me().alias("me"),
        F.coalesce("conn", F.lit(NO_CONN)).alias("conn"),
        dest.alias("dest"),
    )  # fmt: skip


def hops(found: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Rows of origin, run, hop, seconds, of what is `parsed`."""
    columns = ("origin", "run", "hop", "seconds")
    delivered = deliveries.where(F.col("latency").isNotNull() & (F.col("sender") != me())).select(
        "origin", "run", F.lit("send to deliver").alias("hop"), F.col("latency").alias("seconds")
    )
    return _arrivals(found).select(*columns).unionByName(delivered).unionByName(_held(found).select(*columns))


def sent(found: DataFrame) -> DataFrame:
    """Each bundle of the application once, even if its event was read twice."""
    sends = bundles(found, "send").where("app")
    return sends.groupBy(*BUNDLE).agg(F.min("at").alias("sent_at"))


def _arrivals(found: DataFrame) -> DataFrame:
    """What happened to each bundle at each member that it came to."""
    others = bundles(found, "receive", "deliver", "ordered").where("sender != me")

    def when(kind: str, what: str) -> Column:
        return F.min(F.when(F.col("kind") == kind, F.col(what)))

    arrived = others.groupBy("origin", "node", "inc", *BUNDLE).agg(
        when("receive", "at").alias("received_at"),
        when("receive", "t").alias("received_t"),
        when("ordered", "at").alias("ordered_at"),
        F.min(F.when((F.col("kind") == "deliver") & F.col("app"), F.col("t"))).alias("delivered_t"),
    )
    spans = F.array(
        _hop("send to receive", F.col("received_at") - F.col("sent_at")),
        _hop("receive to deliver", F.col("delivered_t") - F.col("received_t")),
        _hop("send to ordered", F.col("ordered_at") - F.col("sent_at")),
    )
    joined = arrived.join(sent(found), list(BUNDLE), "left")
    return joined.select("origin", "run", F.explode(spans).alias("span")).select(
        "origin", "run", "span.hop", "span.seconds"
    ).where("seconds IS NOT NULL")  # fmt: skip


def _hop(name: str, seconds: Column) -> Column:
    return F.struct(F.lit(name).alias("hop"), seconds.alias("seconds"))


def _held(found: DataFrame) -> DataFrame:
    """From a send until its sender was told that the bundle's place in the order is held."""
    kind = F.col("kind")
    own = (F.col("sender") == me()) & F.col("conn").isNull() & F.col("app")
    rows = found.where((kind.isin("send", "ordered") & own) | (kind == "held")).select(
        "run", "node", "inc", "view", "pos", "first", "kind", "t", "origin"
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
