"""The statistics of an audit: numbers to check by hand, and a whole run counted again in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tracescript import parse

from coterie.sim.profiles import profile
from coterie.sim.runner import trace_plan
from coterie.spark.hops import parsed
from coterie.spark.schema import TABLES
from coterie.spark.statistics import CURVE, statistics
from coterie.spark.tables import deliveries
from coterie.trace import Event, Json
from spark.frames import frame

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

Rows = dict[str, list["Row"]]

SCRIPTS = {
    "hops": """
        A send n=1 to=all t=1.000 count=5
        A deliver from=A n=1 t=1.000 count=5
        B receive from=A n=1 t=1.010
        B deliver from=A n=1 t=1.015 count=5
        C receive from=A n=1 t=1.020
        C deliver from=A n=1 t=1.050 count=5
        # The same number again, to one and to another: both first of their connections.
        A send n=1 to=B conn=1 t=2.0
        A send n=1 to=C conn=1 t=2.0
        B receive from=A n=1 conn=1 t=2.1
        B deliver from=A n=1 conn=1 t=2.2
        C receive from=A n=1 conn=1 t=2.4
        C deliver from=A n=1 conn=1 t=2.4
        # Of a protocol, lost, and to itself.
        A send n=2 to=B conn=1 app=false t=3.0
        B receive from=A n=2 conn=1 t=3.9
        B deliver from=A n=2 conn=1 app=false t=3.9
        A send n=2 to=all t=4.0
        A send n=1 to=A conn=1 t=4.0
        A deliver from=A n=1 conn=1 t=4.0
    """,
    "order": """
        A view members=A,B agreed view=1@A t=0
        A send n=1 to=all t=1.0
        A send n=2 to=all t=1.1
        A ordered from=A n=1 pos=1 t=1.2
        B ordered from=A n=1 pos=1 view=1@A t=1.3
        A held pos=1 by=majority t=1.5
        A ordered from=A n=2 pos=2 t=1.6
        A held pos=2 by=majority t=1.8
        A held pos=2 by=all t=1.9
    """,
    "views": """
        A view members=A,B,C agreed view=1@A t=0
        B view members=A,B,C agreed view=1@A t=0.1
        C view members=A,B,C agreed view=1@A t=0.1
        # C is suspected, trusted again, suspected for good; the view that leaves it out comes to B last.
        B suspect members=C t=1.0
        B unsuspect members=C t=1.1
        B suspect members=C t=2.0
        A suspend reason=views t=2.1
        A flush_started number=1 mode=view targets=A,B t=2.2
        A flush_joined leader=A number=1 mode=view t=2.2
        B flush_joined leader=A number=1 mode=view t=2.3
        A flush_held number=1 mode=view t=2.6
        A view members=A,B before=1@A view=2@A t=2.7
        A flush_ended number=1 t=2.75
        A resume reason=done t=2.8
        B view members=A,B before=1@A view=2@A t=3.0
        # D joins; a suspicion of one who stays is no sign of it, nor is a flush of the application.
        A suspect members=B t=4.0
        B flush_joined leader=B number=1 mode=shared t=4.5
        A suspend reason=views t=5.0
        A view members=A,B,D before=2@A view=3@A t=5.2
        A resume reason=done t=5.2
        B view members=A,B,D before=2@A view=3@A t=5.3
        D view members=A,B,D agreed view=3@A t=5.5
        # The handler was suspended for something that came to nothing, and is free again.
        A suspend reason=merge t=6.0
        A resume reason=failed t=6.5
        A flush_joined leader=B number=2 mode=view t=7.0
        A view members=A,B before=3@A view=4@B t=7.25
    """,
    "gates": """
        A block limit=10 t=1.0
        A unblock t=1.5
        A block limit=10 t=2.0
        A unblock t=2.25
        B block limit=10 t=2.0
        B crash t=2.1
        A flush_started number=1 mode=shared targets=A,B t=3.0
        A flush_failed number=1 mode=shared t=3.5
        A flush_started number=2 mode=shared targets=A t=4.0
        A flush_held number=2 mode=shared t=4.5
        A flush_ended number=2 t=6.5
        A state_cut id=B#1/1 role=provider t=7.0
        B#2 state_cut id=B#2/1 role=requester t=7.5
        B#2 state_set id=B#2/1 count=3 sum=1 t=9.5
        B#2 state_cut id=B#2/2 role=requester t=9.6
    """,
    "traffic": """
        A send n=1 to=all t=0.0 count=3
        A deliver from=A n=1 t=0.1 count=3
        B deliver from=A n=1 t=0.9 count=3
        A send n=2 to=all t=1.0 count=4
        A deliver from=A n=2 t=1.0 count=4
        B deliver from=A n=2 t=2.5 count=4
        A send n=1 to=B conn=1 app=false t=2.0
        A send n=2 to=B conn=1 app=false t=2.0
        A send n=1 to=A conn=1 app=false t=2.0
        B deliver from=A n=1 conn=1 app=false t=2.6
        B ack to=A conn=1 n=1 t=2.6
        B ack to=A conn=1 n=2 t=2.6
        B ack to=A conn=1 n=2 t=2.7
        A retransmit from=A n=1 to=B reason=asked t=3.0
        A retransmit from=A n=1-3 to=B reason=asked t=3.0
    """,
}


def skewed() -> list[Event]:
    """Real nodes on two hosts; B's monotonic clock started long before A's, and its wall clock is 40 ms behind."""
    text = """
        A send n=1 to=all t=1.0
        B receive from=A n=1 t=1.02
        B deliver from=A n=1 t=1.07
        A send n=2 to=all t=2.0
        B receive from=A n=2 t=2.30
        B deliver from=A n=2 t=2.32
    """
    shift = {"A": (0.0, 1.7e9), "B": (5000.0, 1.7e9 - 0.04)}
    return [
        replace(e, t=e.t + shift[e.node][0], wall=e.t + shift[e.node][1]) for e in parse(text, "skewed").events
    ]  # fmt: skip


def hostile() -> list[Event]:
    """What nobody measured: numbers at the ends of their types, data of other types than it should be."""
    most, view = 2**63 - 1, "1@A#1"
    odd: list[dict[str, Json]] = [
        {"app": "yes", "members": "B#1"},
        {"app": [], "members": [None, 1]},
        {"members": None},
    ]
    kinds = (
        "send",
        "receive",
        "deliver",
        "view",
        "suspect",
        "suspend",
        "flush_started",
        "held",
        "ordered",
        "retransmit",
    )
    numbers = {"pos": -most, "sender": "A#1", "first": most, "last": most, "count": most}
    return [
        Event("hostile", "AB"[n % 2], 1, n // 2, (-1.0) ** n * 1e300, kind, None, view, data=data, **numbers)  # type: ignore[arg-type]
        for n, (kind, data) in enumerate((kind, data) for kind in kinds for data in odd)
    ]


@pytest.fixture(scope="module")
def simulated() -> list[Event]:
    """A run with views, flushes, a total order, unicasts, losses and crashes."""
    _, events = trace_plan(profile("total").make(1))
    return events


@pytest.fixture(scope="module")
def found(spark: SparkSession, simulated: list[Event]) -> Rows:
    """Every table, of all the runs at once."""
    events = [event for name, text in SCRIPTS.items() for event in parse(text, name).events] + skewed()
    events += hostile() + simulated
    table = frame(spark, events).cache()
    bundles = parsed(table).cache()
    tables = statistics(table, deliveries(bundles), bundles)
    rows = {name: rows.collect() for name, rows in tables.items()}
    for contract in TABLES:
        if contract.name in tables:
            assert [(c, k) for c, k in tables[contract.name].dtypes] == [
                (c, k) for c, (k, _) in contract.columns.items()
            ]
    bundles.unpersist()
    table.unpersist()
    return rows


def one(rows: Iterable[Row], run: str | None, **wanted: str) -> Row:
    (row,) = [r for r in rows if r["run"] == run and all(r[name] == value for name, value in wanted.items())]
    return row


def names(rows: Iterable[Row], run: str, column: str) -> set[str]:
    return {row[column] for row in rows if row["run"] == run}


def percentile(values: list[float], share: float) -> float:
    """The least of them that `share` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


# By hand.


def test_a_bundle_is_timed_from_hop_to_hop_at_each_member_that_it_comes_to(found: Rows) -> None:
    received = one(found["latency"], "hops", hop="send to receive")
    assert (received["count"], received["origin"], received["negative"]) == (4, "simulated", 0)
    assert (received["p50"], received["p90"], received["max"]) == pytest.approx((0.02, 0.4, 0.4))
    delivered = one(found["latency"], "hops", hop="send to deliver")
    assert delivered["count"] == 4
    assert (delivered["p50"], delivered["max"]) == pytest.approx((0.05, 0.4))
    within = one(found["latency"], "hops", hop="receive to deliver")
    assert sorted(within["curve"])[0] == pytest.approx(0.0)
    assert (within["count"], within["p50"], within["max"]) == (4, pytest.approx(0.005), pytest.approx(0.1))
    assert names(found["latency"], "hops", "hop") == {"send to receive", "send to deliver", "receive to deliver"}


def test_what_is_held_up_to_a_position_is_held_below_it_and_the_first_word_of_it_counts(found: Rows) -> None:
    held = one(found["latency"], "order", hop="send to held")
    assert (held["count"], held["p50"], held["max"]) == (2, pytest.approx(0.5), pytest.approx(0.7))
    ordered = one(found["latency"], "order", hop="send to ordered")
    assert (ordered["count"], ordered["p50"]) == (1, pytest.approx(0.3))


def test_times_between_hosts_are_of_the_wall_clock_and_impossible_ones_are_counted_apart(found: Rows) -> None:
    received = one(found["latency"], "skewed", hop="send to receive")
    assert (received["origin"], received["count"], received["negative"]) == ("live", 1, 1)
    assert (received["p50"], received["max"]) == pytest.approx((0.26, 0.26), abs=1e-5)
    within = one(found["latency"], "skewed", hop="receive to deliver")
    assert (within["count"], within["negative"]) == (2, 0)
    assert (within["p50"], within["max"]) == pytest.approx((0.02, 0.05))


def test_a_view_change_lasts_from_its_first_sign_to_its_last_installation(found: Rows) -> None:
    change = one(found["durations"], "views", what="view change")
    assert change["count"] == 3  # the first views follow from nothing
    # 2@A: suspected 2.0, installed 3.0; 3@A: suspended 5.0, installed by D 5.5; 4@B: flushed 7.0, installed 7.25
    assert (change["p50"], change["p90"], change["max"]) == pytest.approx((0.5, 1.0, 1.0))
    suspended = one(found["durations"], "views", what="handler suspended")
    assert (suspended["count"], suspended["p50"], suspended["max"]) == (3, pytest.approx(0.5), pytest.approx(0.7))
    assert one(found["durations"], "views", what="flush until it holds")["max"] == pytest.approx(0.4)
    assert one(found["durations"], "views", what="flush held")["max"] == pytest.approx(0.15)


def test_what_has_no_end_has_no_duration(found: Rows) -> None:
    gate = one(found["durations"], "gates", what="senders held up")
    assert (gate["count"], gate["p50"], gate["max"]) == (2, pytest.approx(0.25), pytest.approx(0.5))
    until = one(found["durations"], "gates", what="flush until it holds")
    assert (until["count"], until["max"]) == (1, pytest.approx(0.5))
    held = one(found["durations"], "gates", what="flush held")
    assert (held["count"], held["max"]) == (1, pytest.approx(2.0))
    state = one(found["durations"], "gates", what="state transfer")
    assert (state["count"], state["max"]) == (1, pytest.approx(2.0))
    assert "view change" not in names(found["durations"], "gates", "what")


def test_traffic_counts_the_applications_bundles_and_what_they_cost(found: Rows) -> None:
    traffic = one(found["traffic"], "traffic").asDict()
    assert traffic == {
        "run": "traffic", "origin": "simulated", "sent": 2, "messages": 7, "delivered": 4, "retransmitted": 4,
        "acks": 3, "unicasts": 2, "acks_per_unicast": 1.5,
    }  # fmt: skip
    assert one(found["traffic"], "skewed")["acks_per_unicast"] is None


def test_throughput_is_told_for_each_node_and_second_since_the_run_began(found: Rows) -> None:
    rows = {
        (r["node"], r["second"]): (r["bundles"], r["messages"]) for r in found["throughput"] if r["run"] == "traffic"
    }
    assert rows == {("A", 0): (1, 3), ("A", 1): (1, 4), ("B", 0): (1, 3), ("B", 2): (1, 4)}
    live = [(r["second"], r["bundles"]) for r in found["throughput"] if r["run"] == "skewed"]
    assert sorted(live) == [(0, 1), (1, 1)]


def test_each_origin_has_rows_of_its_own_for_all_of_its_runs(found: Rows) -> None:
    for table, column in (("latency", "hop"), ("durations", "what"), ("traffic", "origin")):
        rows = found[table]
        count = "sent" if table == "traffic" else "count"
        for row in (row for row in rows if row["run"] is None):
            same = [r for r in rows if r["run"] and (r["origin"], r[column]) == (row["origin"], row[column])]
            assert row[count] == sum(r[count] for r in same)
            if table != "traffic":
                assert row["max"] == max(r["max"] for r in same)
    assert {r["origin"] for r in found["latency"] if r["run"] is None} == {"simulated", "live"}


def test_numbers_that_somebody_made_up_stop_nothing(found: Rows) -> None:
    traffic = one(found["traffic"], "hostile")
    assert (traffic["sent"], traffic["retransmitted"]) == (3, 3)
    assert traffic["messages"] == 0  # more than a number can hold


# The same again, in plain Python.


def of(event: Event, name: str) -> Json:
    return event.data.get(name)


def plain_hops(events: list[Event]) -> dict[str, list[float]]:
    sends: dict[tuple[object, ...], Event] = {}
    received: dict[tuple[object, ...], float] = {}
    ordered: dict[tuple[object, ...], tuple[object, ...]] = {}
    hops: dict[str, list[float]] = defaultdict(list)
    waiting: dict[tuple[str, int, str | None], list[tuple[int, float]]] = defaultdict(list)
    for e in events:
        me = f"{e.node}#{e.inc}"
        if e.kind == "send" and of(e, "app") is not False:
            sends[e.sender, e.first, of(e, "conn"), of(e, "to")] = e
        elif e.kind in ("receive", "deliver", "ordered") and e.sender is not None:
            bundle = (e.sender, e.first, of(e, "conn"), "all" if of(e, "conn") is None else me)
            sent = sends.get(bundle)
            if e.kind == "ordered" and e.sender == me and sent is not None and e.pos is not None:
                waiting[e.node, e.inc, e.view].append((e.pos, sent.t))
            if e.sender == me:
                continue
            if e.kind == "receive" and (me, *bundle) not in received:
                received[me, *bundle] = e.t
                if sent is not None:
                    hops["send to receive"].append(e.t - sent.t)
            elif e.kind == "deliver" and of(e, "app") is not False:
                if sent is not None:
                    hops["send to deliver"].append(e.t - sent.t)
                if (me, *bundle) in received:
                    hops["receive to deliver"].append(e.t - received[me, *bundle])
            elif e.kind == "ordered" and (me, *bundle) not in ordered:
                ordered[me, *bundle] = bundle
                if sent is not None:
                    hops["send to ordered"].append(e.t - sent.t)
        elif e.kind == "held":
            key = (e.node, e.inc, e.view)
            assert e.pos is not None
            hops["send to held"] += [e.t - t for pos, t in waiting[key] if pos <= e.pos]
            waiting[key] = [(pos, t) for pos, t in waiting[key] if pos > e.pos]
    return hops


def plain_durations(events: list[Event]) -> dict[str, list[float]]:
    open_: dict[tuple[object, ...], float] = {}
    found: dict[str, list[float]] = defaultdict(list)
    pairs = {
        "unblock": ("senders held up", "block"), "resume": ("handler suspended", "suspend"),
        "flush_held": ("flush until it holds", "flush_started"), "flush_ended": ("flush held", "flush_held"),
        "state_set": ("state transfer", "state_cut"),
    }  # fmt: skip
    for e in events:
        key = (e.node, e.inc, of(e, "number") or of(e, "id"))
        if e.kind in pairs:
            what, begin = pairs[e.kind]
            if (begin, *key) in open_:
                found[what].append(e.t - open_.pop((begin, *key)))
        if e.kind in ("block", "suspend", "flush_started", "flush_held") or of(e, "role") == "requester":
            open_[e.kind, *key] = e.t
    return found


def plain_view_changes(events: list[Event]) -> list[float]:
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    since: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for e in events:
        signs = since[e.node, e.inc]
        if e.kind != "view":
            signs.append(e)
        elif of(e, "agreed"):
            assert e.view is not None
            ends[e.view] = max(e.t, ends.get(e.view, 0.0))
            if of(e, "before") is not None:
                begins[e.view] = min([begins.get(e.view, math.inf), *in_force(signs, e)])
            signs.clear()
    return [ends[view] - begin for view, begin in begins.items() if begin < math.inf]


def in_force(signs: list[Event], view: Event) -> list[float]:
    members = view.data["members"]
    assert isinstance(members, list)
    suspected: dict[Json, float] = {}
    others: dict[str, float | None] = {}
    for e in signs:
        if e.kind == "suspect":
            who = e.data["members"]
            assert isinstance(who, list)
            suspected.update(dict.fromkeys(map(str, who), e.t))
        elif e.kind in ("suspend", "resume"):
            others["handler"] = e.t if e.kind == "suspend" else None
        elif e.kind == "flush_joined" and of(e, "mode") == "view":
            others["flush"] = e.t
    return [t for who, t in suspected.items() if who not in members] + [t for t in others.values() if t is not None]


def assert_same(rows: list[Row], run: str, column: str, values: dict[str, list[float]]) -> None:
    assert names(rows, run, column) == {name for name, found in values.items() if found}
    for name in names(rows, run, column):
        row, expected = one(rows, run, **{column: name}), values[name]
        assert (row["count"], row["negative"]) == (len(expected), 0), name
        assert row["max"] == pytest.approx(max(expected)), name
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            assert row[label] == pytest.approx(percentile(expected, share)), (name, label)
        if "curve" in row:
            assert row["curve"] == pytest.approx([percentile(expected, share) for share in CURVE])


def test_the_latencies_of_a_simulated_run_are_those_that_plain_python_finds(
    found: Rows, simulated: list[Event]
) -> None:
    hops = plain_hops(simulated)
    assert len(hops) == 5
    assert_same(found["latency"], simulated[0].run, "hop", hops)


def test_the_durations_of_a_simulated_run_are_those_that_plain_python_finds(
    found: Rows, simulated: list[Event]
) -> None:
    durations = {**plain_durations(simulated), "view change": plain_view_changes(simulated)}
    assert len(durations) == 6
    assert_same(found["durations"], simulated[0].run, "what", durations)


def test_the_traffic_of_a_simulated_run_is_what_plain_python_counts(found: Rows, simulated: list[Event]) -> None:
    count: Counter[str] = Counter()
    seconds: Counter[tuple[str, int]] = Counter()
    begin = min(e.t for e in simulated)
    for e in simulated:
        app = of(e, "app") is not False
        if e.kind == "send":
            count["sent"] += app
            count["messages"] += (e.count or 0) * app
            count["unicasts"] += of(e, "conn") is not None and of(e, "to") != f"{e.node}#{e.inc}"
        elif e.kind == "deliver" and app:
            count["delivered"] += 1
            seconds[e.node, math.floor(e.t - begin)] += e.count or 0
        elif e.kind == "retransmit":
            count["retransmitted"] += 1
        elif e.kind == "ack":
            count["acks"] += 1
    row = one(found["traffic"], simulated[0].run).asDict()
    assert {name: row[name] for name in count} == dict(count)
    assert row["acks_per_unicast"] == pytest.approx(count["acks"] / count["unicasts"])
    rows = {(r["node"], r["second"]): r["messages"] for r in found["throughput"] if r["run"] == simulated[0].run}
    assert rows == dict(seconds)
