"""A feed walks a queue whose positions may have gaps of any size, also when the other side says so."""

from __future__ import annotations

from broker_rig import Rig

from coterie.site_replication.feed import Feed

FAR = 1 << 60


def test_a_gap_in_the_positions_is_passed_in_two_steps() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    queue.table.leap(FAR)
    rig.publish("b", "c")
    feed = Feed(queue, "life", lambda: None)
    steps = [feed.walk(1000) for _ in range(3)]
    assert steps == [[(1, 2)], [], [(FAR, FAR + 2)]]
    assert not feed.has_more


def test_what_the_other_side_has_and_this_one_has_not_is_to_go_there() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a", "b", "c", "d")
    client = rig.consume(queue, prefetch=2)
    client.accept()
    feed = Feed(queue, "life", lambda: None)
    feed.compare([(1, 3), (5, FAR)])
    assert list(feed.gone) == [(1, 2), (5, FAR)]
