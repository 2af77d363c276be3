"""What operators do to a cluster: look at it, forget a lost voter, drain a broker."""

from __future__ import annotations

from cluster_rig import Cluster, Host

from coterie.cluster.drain import Drain, why_not
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.states import State
from coterie.cluster.status import holdings


def states(host: Host) -> dict[str, tuple[str, bool]]:
    """By name: state, and whether it votes."""
    return {member.name: (member.state, member.voter) for member in host.member.status().members}


def forget(host: Host, name: str) -> list[str]:
    """A list that gets the answer."""
    answers: list[str] = []
    host.member.forgetting.ask(name, answers.append)
    return answers


def drain(host: Host) -> Drain:
    """As a node does, once its clients have been told."""
    found = host.member.drain()

    async def go() -> None:
        await found.answers()
        for client in host.clients:
            client.cancel()
            client.release()
        await found.hand_over()

    host.runtime.spawn(go())
    return found


def test_the_status_names_every_member_and_how_far_this_broker_has_come() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish("one")
    cluster.run(2)
    for host in (a, b, c):
        status = host.member.status()
        assert (status.name, status.state, status.why) == (host.name, "serving", "")
        assert status.voters == ("a", "b", "c")
        assert status.majority == 2
        assert (status.epoch, status.index) == (host.member.replica.progress.epoch, host.member.replica.progress.index)
        assert status.cluster == a.member.replica.cluster
        assert status.view == str(a.channel.view.id)
        assert [(member.name, member.state, member.voter) for member in status.members] == [
            ("a", "in step", True), ("b", "in step", True), ("c", "in step", True),
        ]  # fmt: skip
        (this,) = [member for member in status.members if member.this]
        assert (this.name, this.incarnation) == (host.name, host.channel.local.incarnation)
        assert this.disk == status.disk == status.index
        (oldest,) = [member for member in status.members if member.oldest]
        (keeper,) = [each for each in (a, b, c) if each.member.replica.keeps_time()]
        assert oldest.name == keeper.name


def test_a_broker_without_a_disk_has_no_disk_index() -> None:
    cluster = Cluster(2, durable=False)
    a, _ = cluster.started()
    assert {member.disk for member in a.member.status().members} == {None}


def test_a_voter_that_is_dead_is_lost_and_without_a_majority_the_status_says_why() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    assert states(a) == {"a": ("in step", True), "b": ("in step", True), "c": ("lost", True)}
    b.kill()
    cluster.until(lambda: a.member.replica.state is State.STRANDED)
    assert states(a) == {"a": ("stranded", True), "b": ("lost", True), "c": ("lost", True)}
    assert a.member.status().why == "a of the voters a, b, c: that is no majority"


def test_a_broker_that_waits_for_others_does_not_guess_what_they_are() -> None:
    cluster = Cluster(3)
    a, b = cluster.start(0), cluster.start(1)
    cluster.until(lambda: len(a.channel.view.members) == 2 and "2 of 3" in a.member.replica.why)
    assert states(a) == {"a": ("joining", False), "b": ("unknown", False)}
    assert states(b) == {"a": ("unknown", False), "b": ("joining", False)}
    assert a.member.status().why == "2 of 3 brokers are here: a, b"


def test_holdings_are_the_same_on_every_broker() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish("one", "two", "three")
    cluster.settle()
    b.consume(prefetch=2)
    b.consume(prefetch=0, no_ack=True)
    cluster.settle()
    c.publish("four", "five")
    cluster.settle()
    got = c.get()
    cluster.settle()
    for host in (a, b, c):
        found = {
            each.name: (each.consumers, each.held)
            for each in holdings(host.member.replica, host.member.applier, host.queue())
        }
        assert found["b"] == (2, 2)
        assert "a" not in found
    assert got == [None]  # whoever acknowledges nothing has taken the rest


def test_a_lost_voter_that_is_forgotten_counts_no_more() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    answers = forget(a, "c")
    assert answers == []  # not before it is held
    cluster.settle()
    assert answers == [""]
    assert a.member.replica.voters == b.member.replica.voters == ("a", "b")
    assert states(b) == {"a": ("in step", True), "b": ("in step", True)}
    a.publish("one")
    cluster.settle()
    assert a.confirmed == ["one"]
    cluster.check_alike()


def test_what_was_forgotten_is_still_so_after_a_restart_of_all() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 2)
    answers = forget(b, "c")
    cluster.until(lambda: bool(answers))
    assert answers == [""]
    a.kill()
    b.kill()
    a, b = cluster.start(0), cluster.start(1)
    cluster.until(lambda: a.serves and b.serves)
    assert a.member.replica.voters == b.member.replica.voters == ("a", "b")


def test_who_was_forgotten_and_comes_back_is_updated_and_votes_again() -> None:
    cluster = Cluster(3)
    a, _, c = cluster.started()
    a.declare()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    forget(a, "c")
    cluster.settle()
    a.publish("one")
    c = cluster.start(2)
    cluster.until(lambda: c.serves and a.member.replica.voters == c.member.replica.voters == ("a", "b", "c"))
    cluster.check_alike()


def test_one_that_was_forgotten_begins_nothing_alone_with_another_that_was() -> None:
    cluster = Cluster(5)
    a, b, c, d, e = cluster.started()
    for host in (d, e):
        host.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 3)
    first, second = forget(a, "d"), forget(a, "e")
    cluster.settle()
    assert (first, second) == ([""], [""])
    assert c.member.replica.voters == ("a", "b", "c")
    for host in (a, b):
        host.kill()
    cluster.until(lambda: c.member.replica.state is State.STRANDED)
    d, e = cluster.start(3), cluster.start(4)
    cluster.run(10)
    assert not c.serves  # c, d and e were a majority of five, and are none of three
    assert not d.serves
    assert not e.serves


def test_two_operators_who_forget_at_the_same_time_are_both_obeyed_one_after_the_other() -> None:
    cluster = Cluster(5)
    a, b, c, d, e = cluster.started()
    for host in (d, e):
        host.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 3)
    epoch, index = a.member.replica.progress.epoch, a.member.replica.progress.index
    first, second, third = forget(a, "d"), forget(b, "e"), forget(c, "d")
    cluster.settle()
    assert second == [""]
    decided, refused = sorted(first + third)
    assert decided == ""
    assert refused.startswith("'d' is no voter: the voters are ")
    assert {host.member.replica.voters for host in (a, b, c)} == {("a", "b", "c")}
    assert {(host.member.replica.progress.epoch, host.member.replica.progress.index) for host in (a, b, c)} == {
        (epoch, index + 2)
    }


def test_two_names_that_are_forgotten_at_the_same_time_never_make_two_majorities() -> None:
    cluster = Cluster(5)
    a, b, c, d, e = cluster.started()
    for host in (d, e):
        host.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 3)
    cluster.settle()
    heal = cluster.part("a", "b")
    forget(a, "d")
    forget(b, "e")  # c knows of neither; a and b were a majority of a, b and c
    cluster.until(lambda: "d" not in b.member.replica.voters)
    d, e = cluster.start(3), cluster.start(4)
    cluster.until(lambda: c.serves and d.serves and e.serves)
    cluster.run(5)
    assert not a.serves
    assert not b.serves
    heal()
    cluster.until(lambda: all(host.serves for host in (a, b, c, d, e)))
    assert {host.member.replica.voters for host in (a, b, c, d, e)} == {("a", "b", "c", "d", "e")}


def test_forgetting_one_while_another_joins_never_makes_two_majorities() -> None:
    cluster = Cluster(4)
    cluster.settings = ClusterSettings(size=3)
    a, b, c = (cluster.start(number) for number in range(3))
    cluster.until(lambda: a.serves and b.serves and c.serves)
    a.declare()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    d = cluster.start(3)
    cluster.until(lambda: len(a.channel.view.members) == 3)
    assert states(a)["d"] == ("joining", False)
    cluster.part("a", "d")  # b will not know who has joined, nor who was forgotten
    answers = forget(a, "c")
    cluster.run(1)
    c = cluster.start(2)
    cluster.until(lambda: b.serves and c.serves)
    cluster.run(5)
    assert not a.serves
    assert not d.serves
    assert answers != [""]


def test_nobody_is_forgotten_and_nobody_drained_while_another_one_joins() -> None:
    cluster = Cluster(4)
    cluster.settings = ClusterSettings(size=3)
    a, b, c = (cluster.start(number) for number in range(3))
    cluster.until(lambda: a.serves and b.serves and c.serves)
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    d = cluster.start(3)
    cluster.until(lambda: len(a.member.replica.members) == 3)
    why = "d is about to join, and to vote: wait until it is in step, or stop it"
    assert a.member.replica.why_not_forget(a.member.replica.us, "c") == why
    assert why in why_not(a.member.replica)
    cluster.until(lambda: d.serves)
    answers = forget(a, "c")
    cluster.until(lambda: bool(answers))
    assert answers == [""]
    assert a.member.replica.voters == d.member.replica.voters == ("a", "b", "d")


def test_a_voter_that_comes_back_keeps_nobody_from_forgetting_another_one() -> None:
    cluster = Cluster(5)
    a, _, _, d, e = cluster.started()
    for host in (d, e):
        host.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 3)
    d = cluster.start(3)
    cluster.until(lambda: len(a.member.replica.members) == 4)
    assert states(a)["d"] == ("joining", True)
    assert a.member.replica.why_not_forget(a.member.replica.us, "e") == ""
    assert a.member.replica.why_not_forget(a.member.replica.us, "d").startswith("d is about to join")
    answers = forget(a, "e")
    cluster.until(lambda: d.serves and bool(answers))
    assert answers == [""]
    assert a.member.replica.voters == d.member.replica.voters == ("a", "b", "c", "d")
    cluster.settle()
    assert len({host.member.replica.progress for host in cluster.live()}) == 1


def test_forgetting_is_refused_with_the_reason() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    in_step, stranger = forget(a, "b"), forget(a, "z")
    cluster.settle()
    assert in_step == ["'b' is in step: drain it, or stop it, before it is forgotten"]
    assert stranger == ["'z' is no voter: the voters are a, b, c"]
    assert b.member.replica.voters == ("a", "b", "c")
    progress = {host.member.replica.progress for host in (a, b, c)}
    assert len(progress) == 1


def test_forgetting_without_a_majority_is_not_decided_and_whoever_asked_is_told() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    heal = cluster.part("a")
    answers = forget(a, "c")
    cluster.until(lambda: a.member.replica.state is State.STRANDED)
    (why,) = answers
    assert why.startswith("this broker ceased to serve before 'c' was forgotten, or while it was: ")
    heal()
    cluster.until(lambda: a.serves and b.serves)
    cluster.settle()
    assert a.member.replica.voters == b.member.replica.voters  # whatever became of it, they agree


def test_a_drained_broker_hands_over_everything_and_the_others_need_no_time_to_notice() -> None:
    cluster = Cluster(3, heartbeat_timeout=20.0)
    a, b, c = cluster.started()
    a.declare()
    held = c.consume(prefetch=2)
    cluster.settle()
    c.publish("one", "two", "three")
    cluster.settle()
    assert held.seen == ["one", "two"]
    c.publish("four")  # under way when it begins
    drain(c)
    before = cluster.world.time
    cluster.until(lambda: c.member.replica.state is State.DRAINED)
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    assert cluster.world.time - before < 5
    assert c.confirmed == ["one", "two", "three", "four"]
    assert a.serves
    assert b.serves
    assert a.member.replica.voters == b.member.replica.voters == ("a", "b")
    taker = b.consume(prefetch=10)
    cluster.settle()
    assert taker.flags == {"one": True, "two": True, "three": False, "four": False}
    assert states(c)["c"] == ("drained", False)
    assert "c" not in states(a)
    cluster.check_alike()


def test_one_of_two_can_be_drained_and_the_other_serves_alone_until_it_is_back() -> None:
    cluster = Cluster(2)
    a, b = cluster.started()
    a.declare()
    a.publish("one")
    cluster.settle()
    drain(b)
    cluster.until(lambda: b.member.replica.state is State.DRAINED)
    a.publish("two")
    cluster.settle()
    assert a.confirmed == ["one", "two"]
    b.kill()
    b = cluster.start(1)
    cluster.until(lambda: b.serves)
    assert a.member.replica.voters == b.member.replica.voters == ("a", "b")
    cluster.check_alike()


def test_two_that_are_drained_at_the_same_time_leave_one_after_the_other() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    held = [a.consume(prefetch=1), b.consume(prefetch=1)]
    cluster.settle()
    c.publish("one", "two", "three")
    cluster.settle()
    assert sorted(body for client in held for body in client.seen) == ["one", "two"]
    drain(a)
    drain(b)
    cluster.until(lambda: a.member.replica.state is b.member.replica.state is State.DRAINED)
    assert c.member.replica.voters == ("c",)
    taker = c.consume(prefetch=10)
    cluster.settle()
    assert taker.flags == {"one": True, "two": True, "three": False}


def test_a_drained_broker_that_is_restarted_alone_begins_nothing() -> None:
    cluster = Cluster(2)
    a, b = cluster.started()
    drain(b)
    cluster.until(lambda: b.member.replica.state is State.DRAINED)
    a.kill()
    b.kill()
    b = cluster.start(1)
    cluster.run(10)
    assert not b.serves
    assert b.member.replica.why == "nobody of the voters a: that is no majority"


def test_whoever_is_needed_for_a_majority_cannot_be_drained() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == len(b.member.replica.in_step) == 2)
    assert "c is lost: bring it back, or forget it first" in why_not(a.member.replica)
    forget(b, "c")
    cluster.settle()
    assert why_not(a.member.replica) == ""
    drain(a)
    cluster.until(lambda: a.member.replica.state is State.DRAINED)
    assert "'b' is the only voter" in why_not(b.member.replica)
    assert "does not serve" in why_not(a.member.replica)


def test_a_drain_waits_while_a_majority_needs_this_broker() -> None:
    cluster = Cluster(3)
    a, _, c = cluster.started()
    a.declare()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    draining = drain(a)  # c was there when the operator looked
    cluster.until(lambda: "c is lost" in draining.waits_for)
    cluster.run(5)
    assert a.serves
    assert a.member.status().state == "draining"
    assert "being drained" in a.member.status().why
    c = cluster.start(2)
    cluster.until(lambda: c.serves and a.member.replica.state is State.DRAINED)
    assert c.member.replica.voters == ("b", "c")


def test_a_death_during_a_drain_stops_the_rest_until_it_is_back_and_loses_nothing() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish("one")
    cluster.settle()
    c.kill()
    drain(a)  # nobody knows yet
    cluster.until(lambda: a.member.replica.state is State.DRAINED and b.member.replica.state is State.STRANDED)
    assert b.member.replica.voters == ("b", "c")
    c = cluster.start(2)
    cluster.until(lambda: b.serves and c.serves)
    assert [body for _, body, _, _ in c.content()] == ["one"]
    cluster.check_alike()


def test_a_broker_that_is_cut_off_while_it_is_drained_leaves_all_the_same_but_keeps_its_vote() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    a.publish("one")
    cluster.settle()
    heal = cluster.part("a")
    a.publish("two")  # it will never come back
    drain(a)
    b.consume(prefetch=1)
    cluster.until(lambda: a.member.replica.state is State.STRANDED and len(b.member.replica.in_step) == 2)
    heal()
    cluster.until(lambda: a.member.replica.state is State.DRAINED)
    cluster.until(lambda: states(b) == {"a": ("lost", True), "b": ("in step", True), "c": ("in step", True)})
    assert a.confirmed == ["one"]
    b.publish("three")
    cluster.settle()
    assert b.confirmed == ["three"]
    cluster.check_alike()
