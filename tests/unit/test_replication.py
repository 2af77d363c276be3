"""A queue that follows one of another broker: messages, removals, disconnects and crashes, in virtual time."""

from __future__ import annotations

import pytest
from queue_view import seen
from replication_rig import Two

from coterie.broker.message import make_message
from coterie.broker.policy import Policy
from coterie.broker.publish import Publish
from coterie.errors import UserError
from coterie.site_replication import feed as feeds
from coterie.site_replication.address import has_password, parse_destinations, with_password
from coterie.site_replication.client import hint_for


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def test_messages_come_to_the_other_side_in_their_order_with_their_positions_and_properties() -> None:
    two = Two()
    two.source.declare("q", {"x-max-length": 1000})
    two.source.publish(*numbers(1, 50), type="number")
    assert two.until_same() == {"q": numbers(1, 50)}
    here, there = two.source.queue(), two.target.queue()
    assert list(seen(there)) == list(seen(here))
    assert there.spec == here.spec
    found, sent = seen(there)[7].message, seen(here)[7].message
    assert found is not None
    assert sent is not None
    assert (found.header, found.key, found.exchange) == (sent.header, "q", "")


def test_what_leaves_the_source_leaves_the_other_side() -> None:
    two = Two()
    two.source.declare()
    two.source.publish(*numbers(1, 20))
    two.until_same()
    two.source.get(5)
    assert two.until_same() == {"q": numbers(6, 20)}
    two.source.host.vhost.purge("q", lambda _: None)
    assert two.until_same() == {"q": []}
    two.source.publish("after")
    assert two.until_same() == {"q": ["after"]}


def test_what_was_published_and_taken_while_the_link_was_cut_is_made_up_for() -> None:
    two = Two(heartbeat=1)
    two.source.declare()
    two.source.publish(*numbers(1, 20))
    two.until_same()
    heal = two.cut()
    two.run(5.0)
    assert two.source.host.links.links[0].state == "waiting"
    two.source.publish(*numbers(21, 40))
    two.source.get(30)
    two.run(1.0)
    link = two.source.host.links.links[0]
    assert link.status().behind == 10
    heal()
    assert two.until_same() == {"q": numbers(31, 40)}
    assert link.messages == 30, "what left before it was sent is never sent"
    assert link.status().behind == 0


@pytest.mark.parametrize("power", [False, True])
def test_a_target_that_crashes_has_everything_once_when_it_is_back(power: bool) -> None:
    two = Two()
    two.source.declare()
    for first in range(0, 100, 10):
        two.source.publish(*numbers(first, first + 9))
        two.run(0.003)
    two.target.kill(0, power)
    two.source.get(10)
    two.source.publish(*numbers(100, 110))
    two.run(0.5)
    two.target.start()
    assert two.until_same() == {"q": numbers(10, 110)}
    two.source.get(50)
    assert two.until_same() == {"q": numbers(60, 110)}


def test_a_source_that_crashes_goes_on_where_it_was() -> None:
    two = Two()
    two.source.declare()
    confirmed = two.source.publish(*numbers(1, 100))
    two.run(0.05)
    two.source.kill(0)
    two.run(0.5)
    two.source.start()
    found = two.until_same()["q"]
    assert found is not None
    assert found[: len(confirmed)] == confirmed
    two.source.publish("more")
    two.until_same()


def test_transient_messages_that_a_crash_of_the_source_has_taken_go_from_the_other_side() -> None:
    two = Two()
    two.source.declare()
    two.source.publish("kept")
    two.source.publish("lost", delivery_mode=1)
    two.until_same()
    two.source.kill(0)
    two.source.start()
    assert two.until_same() == {"q": ["kept"]}


def test_transient_messages_are_kept_by_a_target_that_crashes() -> None:
    two = Two()
    two.source.declare()
    two.source.publish("transient", delivery_mode=1)
    two.until_same()
    two.target.kill(0)
    two.target.start()
    assert two.until_same() == {"q": ["transient"]}


def test_a_queue_that_is_declared_anew_begins_anew_on_the_other_side() -> None:
    two = Two()
    two.source.declare()
    two.source.publish("old")
    two.until_same()
    two.source.delete()
    two.source.declare()
    two.source.publish("new", "newer")
    assert two.until_same() == {"q": ["new", "newer"]}


@pytest.mark.parametrize("connected", [True, False])
def test_a_queue_that_is_deleted_is_deleted_on_the_other_side(connected: bool) -> None:
    two = Two()
    two.source.declare("q1")
    two.source.declare("q2")
    two.source.publish("one", key="q1")
    two.until_same()
    if not connected:
        two.target.kill(0)
    two.source.delete("q1")
    two.run(0.5)
    two.target.start()
    assert two.until_same() == {"q2": []}


def test_only_queues_that_were_chosen_are_replicated() -> None:
    two = Two(queues="")
    for name in ("one", "two"):
        two.source.declare(name)
        two.source.publish("x", key=name)
    two.run(1.0)
    assert two.contents(two.target) == {}
    two.source.host.vhost.set_policy(Policy("p", "^two$", {"replicate": True}, "queues"), lambda _: None)
    two.run(1.0)
    assert two.contents(two.target) == {"two": ["x"]}


def test_a_queue_that_follows_takes_nothing_from_publishers_until_it_is_promoted() -> None:
    two = Two()
    two.source.declare("q", {"x-max-length": 3})
    two.source.publish("1", "2", "3")
    two.until_same()
    assert two.target.publish("own") == []
    two.run(0.5)
    assert two.contents(two.target) == {"q": ["1", "2", "3"]}
    two.target.promote()
    confirmed = two.target.publish("own")
    two.until(lambda: confirmed == ["own"])
    assert two.contents(two.target) == {"q": ["2", "3", "own"]}, "its own limits are its own again"
    two.source.publish("4")
    two.run(3.0)
    assert two.contents(two.target) == {"q": ["2", "3", "own"]}
    (queue,) = two.source.host.links.links[0].status().queues
    assert "promoted" in queue.state


def test_limits_are_the_sources_business() -> None:
    two = Two()
    arguments = {"x-max-length": 5, "x-message-ttl": 3000}
    two.source.declare("q", dict(arguments))
    two.source.publish(*numbers(1, 10))
    assert two.until_same() == {"q": numbers(6, 10)}
    held = two.source
    held.get(2, no_ack=False)
    two.source.publish("11", "12")  # the held ones do not count, so nobody is dropped
    assert two.until_same() == {"q": [*numbers(6, 10), "11", "12"]}


def test_a_queue_with_messages_of_its_own_is_not_overwritten() -> None:
    two = Two(queues="^none")
    two.target.declare()
    two.target.publish("its own")
    two.source.declare()
    two.source.publish("ours")
    two.run(0.5)
    two.source.host.vhost.set_policy(Policy("p", "^q$", {"replicate": True}, "queues"), lambda _: None)
    two.run(1.0)
    assert two.contents(two.target) == {"q": ["its own"]}
    (queue,) = two.source.host.links.links[0].status().queues
    assert "messages of its own" in queue.state
    two.target.get(1)
    assert two.until_same() == {"q": ["ours"]}


def test_what_a_consumer_of_the_other_side_holds_is_left_to_it() -> None:
    two = Two()
    two.source.declare()
    two.source.publish("a", "b")
    two.until_same()
    two.target.get(1, no_ack=False)
    two.run(0.1)
    two.source.get(2)
    two.until(lambda: two.contents(two.target) == {"q": ["a"]})


def test_more_that_leaves_than_is_remembered_is_found_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RANGES_MAX", 3)
    two = Two()
    two.source.declare()
    two.source.publish(*numbers(1, 40))
    two.until_same()
    queue = two.source.queue()
    for _ in range(40):
        assert queue.get(two) is not None
    queue.accept(two, [(position, position + 1) for position in range(1, 41, 2)])
    assert two.until_same() == {"q": [str(n) for n in range(2, 41, 2)]}


def test_two_targets_in_one_setting_are_two_links() -> None:
    one, other = parse_destinations("amqp://u:p%40ss@a,b:5673/v amqp://[::1]:99")
    assert (one.name, one.user, one.password, one.vhost) == ("a:5672,b:5673/v", "u", "p@ss", "v")
    assert (other.name, other.user, other.vhost) == ("[::1]:99", None, "/")
    for wrong in ("http://a", "amqps://u@a", "amqp://a:x", "amqp://a amqp://a"):
        with pytest.raises(UserError, match=r"replication\.to"):
            parse_destinations(wrong)


def test_a_password_from_a_file_goes_to_the_users_that_have_none() -> None:
    given = with_password("amqps://u@a,b/v amqp://w:own@c amqp://d", "p@s s:/")
    one, two, three = parse_destinations(given)
    assert (one.user, one.password, one.secure, one.name) == ("u", "p@s s:/", True, "a:5671,b:5671/v")
    assert (two.user, two.password, two.secure) == ("w", "own", False)
    assert (three.user, three.password) == (None, "")
    assert not has_password("amqps://u@a amqp://b")
    assert has_password("amqp://b amqps://u:@a")
    for none in ("", "amqp://a", "amqp://u:p@a"):
        with pytest.raises(UserError, match=r"password_file: no address"):
            with_password(none, "secret")


def test_long_queues_whose_messages_are_on_disk_only_are_replicated_and_removed() -> None:
    two = Two(resident=2000, batch_bytes=1000)
    heal = two.cut()
    two.source.declare()
    for first in range(0, 300, 10):
        two.source.publish(*(f"{number:0100}" for number in range(first, first + 10)))
        two.run(0.02)
    assert two.source.queue().pager.paged > 200
    two.run(3.0)
    heal()
    two.until(lambda: "q" in two.target.host.vhost.queues and len(seen(two.target.queue())) == 300)
    two.until(lambda: two.target.queue().pager.paged > 200)
    two.source.get(1)
    two.source.host.vhost.purge("q", lambda _: None)
    two.source.publish("after")
    assert two.until_same() == {"q": ["after"]}


def test_a_message_that_is_larger_than_a_frame_and_a_batch_is_replicated() -> None:
    two = Two(batch_bytes=1000)
    two.source.declare()
    large = "x" * 400_000
    two.source.publish("small", large, "", "small too")
    assert two.until_same() == {"q": ["small", large, "", "small too"]}


def test_a_target_that_takes_nothing_is_waited_for() -> None:
    two = Two(heartbeat=1)
    two.source.declare()
    two.source.publish("1")
    two.until_same()
    two.target.host.broker.set_alarm("disk", True)
    two.source.publish("2")  # it notices by the first step that comes: that one is taken, and nothing after it
    two.run(0.5)
    two.source.publish("3")
    two.run(10.0)
    status = two.source.host.links.links[0].status()
    assert (status.state, status.behind) == ("running", 1)
    assert "takes nothing now: low on disk" in status.why
    two.target.host.broker.set_alarm("disk", False)
    assert two.until_same() == {"q": ["1", "2", "3"]}


def test_what_a_cut_off_broker_has_ordered_alone_is_never_sent() -> None:
    two = Two(source=3, heartbeat=1)
    two.source.declare()
    two.source.publish("1", "2")
    two.until_same()
    number = two.source.linking
    alone = two.source.hosts[number]
    heal = two.part(two.source, number)
    alone.vhost.publish([Publish(make_message("", "q", b"never held"))], lambda: None)
    alone.vhost.get("q", two, True, lambda _: None)
    two.run(0.5)
    assert alone.bodies("q") == ["2", "never held"], "it has ordered that, alone"
    assert two.contents(two.target) == {"q": ["1", "2"]}
    two.until(lambda: not alone.serves)
    two.source.publish("3")
    two.until(lambda: two.contents(two.target) == {"q": ["1", "2", "3"]})
    heal()
    two.until(lambda: len(two.source.serving) == 3)
    assert two.until_same() == {"q": ["1", "2", "3"]}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_breaks_in_the_end_both_sides_are_the_same(seed: int) -> None:
    storm(Two(seed, heartbeat=1, batch_bytes=400, window=3), steps=60)


@pytest.mark.parametrize(("seed", "source", "target"), [(1, 3, 1), (2, 1, 3), (3, 3, 3), (4, 3, 3)])
def test_clusters_on_either_side_are_the_same_in_the_end(seed: int, source: int, target: int) -> None:
    storm(Two(seed, source, target, heartbeat=1, batch_bytes=400, window=3), steps=40)


def test_when_the_broker_that_runs_the_link_is_lost_another_one_goes_on() -> None:
    two = Two(source=3, target=3, heartbeat=1)
    two.source.declare()
    two.source.publish(*numbers(1, 30))
    two.until_same()
    first = two.source.linking
    two.source.kill(first)
    two.until(lambda: len(two.source.serving) == 2)
    two.source.publish(*numbers(31, 40))
    two.source.get(5)
    assert two.until_same() == {"q": numbers(6, 40)}
    assert two.source.linking != first
    two.target.kill(0)
    two.source.publish("after")
    assert two.until_same() == {"q": [*numbers(6, 40), "after"]}
    two.target.start()
    two.until(lambda: len(two.target.serving) == 3)
    two.source.get(1)
    two.until_same()


def storm(two: Two, steps: int) -> None:
    """Publishes, gets, purges, deletions, crashes and cuts, as chance has it."""
    chance = two.world.rng("storm")
    heal = None
    for name in ("q1", "q2"):
        two.source.declare(name)
    count = 0
    for _ in range(steps):
        two.run(chance.choice((0.001, 0.01, 0.05, 0.3)))
        what = chance.random()
        name = chance.choice(("q1", "q2"))
        side = chance.choice((two.source, two.target))
        if what < 0.14:
            # Of a cluster, one at a time: without a majority nobody could go on.
            if all(node.alive for node in side.nodes) and len(side.serving) == len(side.nodes) and heal is None:
                side.kill(chance.randrange(len(side.nodes)), power=chance.random() < 0.5)
        elif what < 0.3:
            side.start()
        elif what < 0.4:
            if heal is None:
                whole = len(side.nodes) > 1 and len(side.serving) == len(side.nodes)
                heal = two.part(side, chance.randrange(3)) if whole and chance.random() < 0.7 else two.cut()
            else:
                heal()
                heal = None
        elif not two.source.serving:
            two.source.start()
        elif name not in two.source.host.vhost.queues:
            two.source.declare(name)
        elif what < 0.65:
            bodies = [f"{count + n}" for n in range(chance.randrange(1, 12))]
            count += len(bodies)
            two.source.publish(*bodies, key=name, delivery_mode=chance.choice((1, 2, 2)))
        elif what < 0.93:
            two.source.get(chance.randrange(1, 10), name)
        elif what < 0.96:
            two.source.host.vhost.purge(name, lambda _: None)
        else:
            two.source.delete(name)
    if heal is not None:
        heal()
    two.source.start()
    two.target.start()
    two.until(lambda: len(two.source.serving) == len(two.source.nodes))
    two.until(lambda: len(two.target.serving) == len(two.target.nodes))
    for name in ("q1", "q2"):
        if name not in two.source.host.vhost.queues:
            two.source.declare(name)
        two.source.publish(f"the last of {name}", key=name)
    two.until_same()


@pytest.mark.parametrize("code", [503, 406])
def test_a_broker_that_cannot_be_followed_is_told_from_one_that_refuses(code: int) -> None:
    assert "x-replication only" in hint_for(code, "unknown exchange type 'x-replication'")
    assert "x-replication only" not in hint_for(code, "inequivalent arg 'durable'")
