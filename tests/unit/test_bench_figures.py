"""How `bench broker` makes rows of what it measured: what each figure is compared with."""

from __future__ import annotations

from coterie.bench.broker_figures import Measured, ratio


def measured(*entries: tuple[str, str, str, list[float]]) -> Measured:
    found = Measured()
    for target, case, figure, values in entries:
        for value in values:
            found.add(target, case, figure, value)
    return found


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    assert ratio([10.0, 40.0, 30.0], [10.0, 20.0, 10.0]) == 2.0


def test_what_happened_more_often_than_its_baseline_is_compared_by_the_medians() -> None:
    assert ratio([1.0, 2.0, 9.0], [4.0]) == 0.5


def test_the_broker_alone_is_compared_with_the_relay_and_a_cluster_with_the_broker_alone() -> None:
    rows = measured(
        ("raw", "persistent", "confirmed", [100.0]),
        ("standalone", "persistent", "confirmed", [80.0]),
        ("credit", "persistent", "confirmed", [40.0]),
        ("ownership", "persistent_apart", "confirmed", [20.0]),
    ).rows()
    assert list(rows) == [
        "standalone.persistent.confirmed", "credit.persistent.confirmed", "ownership.persistent_apart.confirmed"
    ]  # fmt: skip
    found = {name: (row["against"], row["baseline"], row["ratio"]) for name, row in rows.items()}
    assert found["standalone.persistent.confirmed"] == ("raw", 100.0, 0.8)
    assert found["credit.persistent.confirmed"] == ("standalone", 80.0, 0.5)
    assert found["ownership.persistent_apart.confirmed"] == ("standalone", 80.0, 0.25)


def test_the_oldest_nodes_death_is_compared_with_that_of_a_broker_alone() -> None:
    rows = measured(
        ("standalone", "kill", "delivery", [1000.0, 1000.0]), ("credit", "kill_oldest", "delivery", [20.0, 40.0, 60.0])
    ).rows(goals=True)
    assert rows["credit.kill_oldest.delivery"]["ratio"] == 0.04
    assert (rows["credit.kill_oldest.delivery"]["goal"], rows["credit.kill_oldest.delivery"]["met"]) == (50.0, True)
    assert "goal" not in rows["standalone.kill.delivery"]


def test_persistent_messages_are_compared_with_what_the_disk_allows_for_as_many_copies() -> None:
    rows = measured(
        ("disk", "copy", "written", [200.0]),
        ("disk", "copies", "written", [100.0]),
        ("standalone", "persistent", "confirmed", [50.0]),
        ("credit", "persistent", "confirmed", [50.0]),
        ("credit", "transient", "confirmed", [90.0]),
    ).rows(copies=3, goals=True)
    assert rows["standalone.persistent.confirmed"]["of_disk"] == 0.25
    assert rows["credit.persistent.confirmed"]["of_disk"] == 0.5
    assert rows["credit.persistent.confirmed"]["met"] is False
    assert "of_disk" not in rows["credit.transient.confirmed"]
    assert (rows["disk.copies.written"]["against"], rows["disk.copies.written"]["ratio"]) == ("one copy", 0.5)
    assert "disk.copy.written" not in rows


def test_ours_stand_beside_each_peer_and_a_peer_of_one_node_has_no_other_place() -> None:
    rows = measured(
        ("standalone", "latency", "consume_p50", [100.0]),
        ("credit", "latency_apart", "consume_p50", [300.0]),
        ("rabbitmq", "latency", "consume_p50", [600.0]),
    ).rows(["rabbitmq"])
    assert rows["credit.latency_apart.consume_p50"]["peers"] == {"rabbitmq": 0.5}
    assert rows["rabbitmq.latency.consume_p50"]["ratio"] == 6.0
    assert "peers" not in rows["rabbitmq.latency.consume_p50"]
