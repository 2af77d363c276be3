"""A broker that makes another state of the log than the others: it is noticed before a confirm rests on it (B16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster_rig import NAMES, Cluster, Host

from coterie.broker.log_store import LogStore
from coterie.broker.queue import Queue
from coterie.cluster import chain
from coterie.cluster.chain import History, Link
from coterie.cluster.divergence import EARLY_MAX, Divergence, Found, Report
from coterie.cluster.events import Events
from coterie.cluster.membership import Progress
from coterie.cluster.states import State
from coterie.group.members import Address

A, B, C = (Address(name, 1) for name in "abc")
VOTERS = ("a", "b", "c")


def at(index: int, sign: bytes = b"x") -> Link:
    return Link(Progress(1, index), b"\1" + sign.ljust(chain.SIZE))


# Effects.


def makes_more(host: Host, more: Callable[[Queue], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on that broker, and no other, does this with each event besides."""
    right = Events._do

    def do(events: Events, *event: Any) -> object:
        answer = right(events, *event)
        if events is host.member._events and "q" in host.vhost.queues:
            more(host.queue())
        return answer

    monkeypatch.setattr(Events, "_do", do)


def leaps(queue: Queue) -> None:
    queue.leap(queue.next_position + 7)


def chains(cluster: Cluster) -> set[bytes]:
    return {host.member.replica.chain for host in cluster.live()}


def started(cluster: Cluster) -> list[Host]:
    """In the order of their age."""
    hosts = cluster.started()
    hosts[0].declare()
    hosts[0].publish("first")
    cluster.settle()
    order = hosts[0].member.replica.in_step
    return sorted(hosts, key=lambda host: order.index(host.member.replica.us))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_one_that_differs_confirms_nothing_serves_no_more_and_comes_back_as_the_others_are(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(3)
    hosts = started(cluster)
    wrong = hosts[which]
    right = [host for host in hosts if host is not wrong]
    states: set[State] = set()
    told: list[str] = []
    wrong.member.changed.append(lambda: states.add(wrong.member.replica.state))
    wrong.member.cut_off.append(told.append)
    life = wrong.member.replica.life()
    makes_more(wrong, leaps, monkeypatch)
    wrong.publish("by the wrong one")
    right[0].publish("by a right one")
    cluster.until(lambda: wrong.was_cut_off)
    monkeypatch.undo()
    assert wrong.confirmed == (["first"] if wrong is hosts[0] else [])
    assert "another state of event" in told[0]
    cluster.until(lambda: all(host.serves for host in hosts))
    cluster.settle()
    assert State.ASTRAY in states
    assert right[0].confirmed[-1:] == ["by a right one"]
    assert wrong.member.replica.life() != life
    assert len(chains(cluster)) == 1
    cluster.check_alike()
    wrong.publish("afterwards")
    cluster.settle()
    assert wrong.confirmed[-1:] == ["afterwards"]
    assert {host.member.status().divergences for host in hosts} == {1}


def test_the_store_of_the_wrong_one_is_kept_for_a_look_and_not_more_than_two(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3)
    *right, wrong = hosts = started(cluster)
    for number in range(3):
        makes_more(wrong, leaps, monkeypatch)
        right[0].publish(f"message {number}")
        cluster.until(lambda: not wrong.serves)
        monkeypatch.undo()
        cluster.until(lambda: all(host.serves for host in hosts))
        cluster.settle()
        kept = wrong.member.status().kept_stores
        assert len(kept) == min(number + 1, 2)
        for folder in kept:
            assert any(name.startswith(f"{folder}/") for name in wrong.node.platter.files)
    wrong.kill()
    wrong = cluster.start(NAMES.index(wrong.name))
    cluster.until(lambda: wrong.serves)
    assert wrong.member.status().kept_stores == kept
    folders = {name.rpartition("/")[0] for name in wrong.node.platter.files}
    assert len({folder for folder in folders if ".aside." in folder}) == 2


def test_a_wrong_one_that_dies_before_it_is_updated_still_keeps_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3)
    *right, wrong = started(cluster)
    makes_more(wrong, leaps, monkeypatch)
    right[0].publish("second")
    while wrong.member.replica.state is not State.ASTRAY:
        cluster.run(0.0002)
    monkeypatch.undo()
    cluster.run(0.002)
    wrong.kill(power=False)
    cluster.settle()
    wrong = cluster.start(NAMES.index(wrong.name))
    cluster.until(lambda: wrong.serves)
    cluster.settle()
    assert len(wrong.member.status().kept_stores) == 1
    cluster.check_alike()


def test_of_two_the_oldest_is_right_and_nothing_is_confirmed_until_they_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(2)
    oldest, younger = hosts = started(cluster)
    makes_more(oldest, leaps, monkeypatch)
    younger.publish("second")
    cluster.until(lambda: younger.was_cut_off)
    monkeypatch.undo()
    assert "second" not in younger.confirmed
    assert not oldest.was_cut_off
    cluster.until(lambda: all(host.serves for host in hosts))
    cluster.check_alike()
    assert [body for _, body, _, _ in younger.content()] == ["first", "second"]


def test_where_all_three_differ_the_oldest_brings_the_others_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3)
    oldest, second, third = hosts = started(cluster)
    makes_more(second, leaps, monkeypatch)
    makes_more(third, lambda queue: queue.leap(queue.next_position + 50), monkeypatch)
    oldest.publish("second")
    cluster.until(lambda: second.was_cut_off and third.was_cut_off)
    monkeypatch.undo()
    cluster.until(lambda: all(host.serves for host in hosts))
    cluster.check_alike()
    oldest.publish("third")
    cluster.settle()
    assert oldest.confirmed[-1] == "third"


def test_without_traffic_that_waits_for_disks_it_is_noticed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3, durable=False)
    *right, wrong = hosts = started(cluster)
    makes_more(wrong, leaps, monkeypatch)
    right[0].publish("transient", delivery_mode=1)
    cluster.until(lambda: wrong.was_cut_off)
    monkeypatch.undo()
    cluster.until(lambda: all(host.serves for host in hosts))
    cluster.check_alike()


def test_a_majority_shares_what_all_have_applied() -> None:
    cluster = Cluster(3)
    hosts = started(cluster)
    cluster.run(3.0)
    assert {host.member.status().shared for host in hosts} == {hosts[0].member.replica.progress.index}
    assert hosts[0].member.status().divergences == 0
    assert isinstance(hosts[0].store, LogStore)
    assert hosts[0].member.status().kept_stores == ()


# The chain.


def test_the_same_event_with_other_effects_makes_another_chain() -> None:
    place = Progress(1, 1)
    known = chain.link(bytes(17), place, b"a", b"event", b"this")
    assert chain.covers_effects(known)
    assert known != chain.link(bytes(17), place, b"a", b"event", b"that")
    assert known != chain.link(bytes(17), place, b"a", b"event")


def test_a_chain_of_an_older_version_begins_anew_with_the_first_event_that_has_effects() -> None:
    old = chain.link(bytes(16), Progress(1, 1), b"a", b"event")
    assert len(old) == 16
    assert not chain.covers_effects(chain.link(old, Progress(1, 2), b"a", b"event"))
    new = chain.link(old, Progress(1, 2), b"a", b"event", b"")
    assert new == chain.link(chain.UNKNOWN, Progress(1, 2), b"a", b"event", b"")
    assert chain.covers_effects(chain.link(new, Progress(1, 3), b"a", b"an event of the older version"))


def test_a_history_knows_the_last_places_of_every_epoch() -> None:
    history = History()
    history.begin(at(10))
    history.add(at(11, b"y").chain)
    history.add(at(0, b"z").chain)
    assert history.at(Progress(1, 10)) == at(10).chain
    assert history.at(Progress(1, 11)) == at(0, b"y").chain
    assert history.at(Progress(2, 11)) == at(0, b"z").chain
    assert history.at(Progress(1, 9)) == chain.UNKNOWN
    assert history.is_ahead(Progress(2, 12))
    for index in range(12, 13 + History.LENGTH):
        history.add(at(index).chain)
    assert history.at(Progress(2, 11)) == chain.UNKNOWN


# Who is wrong.


def compared(**claims: bytes) -> list[str]:
    found = Divergence()
    place = Progress(1, 5)
    wrong: list[Address] = []
    for name, said in claims.items():
        found.claim(place, Address(name, 1), b"\1" + said.ljust(16) if said else chain.UNKNOWN)
        wrong = found.judge(place, VOTERS, (A, B, C), (A, B, C))
    return [member.name for member in wrong]


def test_a_chain_of_a_majority_is_right_whoever_is_the_oldest() -> None:
    assert compared(b=b"x", c=b"x") == []
    assert compared(a=b"y", b=b"x", c=b"x") == ["a"]


def test_without_a_majority_the_oldest_is_right_once_all_have_spoken() -> None:
    assert compared(b=b"x", c=b"y") == []
    assert compared(c=b"z", b=b"x", a=b"y") == ["b", "c"]


def test_who_does_not_know_its_chain_is_not_judged() -> None:
    assert compared(a=b"", b=b"x", c=b"y") == ["c"]


def test_what_is_said_of_a_place_too_late_is_of_no_use() -> None:
    found = Divergence()
    found.settled(Progress(1, 6))
    assert not found.claim(Progress(1, 5), A, at(5).chain)
    assert not found.ask(Progress(1, 5))
    assert not found.in_doubt
    assert found.ask(Progress(1, 6))


def test_a_report_of_a_place_that_is_not_reached_is_compared_there() -> None:
    found = Divergence()
    found.begin(at(1))
    early = Report(B, True, at(3), 1)
    assert found.compare(*early) is Found.EARLY
    found.history.add(at(2).chain)
    assert found.due() == []
    found.history.add(at(3, b"other").chain)
    assert found.due() == [early]
    assert found.compare(*early) is Found.OTHER
    for index in range(10, 2 * EARLY_MAX):
        found.compare(B, True, at(index), 1)
    assert len(found._early[B]) == EARLY_MAX
