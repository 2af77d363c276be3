"""Ownership of queues: one owner at a time, in a circle, while others are interested; and what clients see of it."""

from __future__ import annotations

from cluster_rig import Client, Cluster, Host
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.journal import Journal
from coterie.cluster.consumers import Peer
from coterie.cluster.queue_ownership import Ownership
from coterie.group.members import Address

A, B, C = (Peer(Address(name, 1), Journal()) for name in "abc")


def owned(owner: Peer | None, *circle: Peer) -> Ownership:
    found = Ownership(Journal())
    found.consumed_by(circle)
    found.owner = owner
    return found


def test_the_first_that_is_interested_is_the_owner() -> None:
    found = owned(None, A, B)
    assert found.review({B})
    assert found.owner is B


def test_an_owner_that_is_interested_keeps_it_and_one_that_is_not_gives_it_to_the_next_in_the_circle() -> None:
    found = owned(B, A, B, C)
    assert not found.review({A, B, C})
    assert found.owner is B
    assert found.review({A, C})
    assert found.owner is C
    assert found.review({A, B})
    assert found.owner is A


def test_an_owner_that_nobody_else_wants_it_from_keeps_it_although_it_is_not_interested() -> None:
    found = owned(A, A, B)
    assert not found.review({})
    assert not found.give_up({A})
    assert found.owner is A


def test_an_owner_that_shares_is_not_chosen_again_while_others_are_interested() -> None:
    found = owned(A, A, B)
    assert found.give_up({A, B})
    assert found.owner is B


def test_whoever_consumes_no_more_owns_nothing() -> None:
    found = owned(B, A, B, C)
    found.consumed_by((A, C))
    assert found.owner is C
    found.consumed_by(())
    assert found.owner is None


STEPS = st.lists(st.tuples(st.sampled_from("cgr"), st.sets(st.sampled_from((A, B, C)))), max_size=30)


@given(STEPS)
def test_whatever_happens_the_owner_consumes_and_it_has_none_only_if_nobody_is_interested(
    steps: list[tuple[str, set[Peer]]],
) -> None:
    found = Ownership(Journal())
    for what, peers in steps:
        if what == "c":
            found.consumed_by([peer for peer in (A, B, C) if peer in peers])
        interested = peers.intersection(found.circle)
        if what == "g":
            found.give_up(interested)
        found.review(interested)
        assert found.owner is None or found.owner in found.circle
        assert found.owner is not None or not interested
        assert sorted(map(id, found.circle)) == sorted({id(peer) for peer in found.circle})


# In a cluster.


def started(ownership_time: float = 0.05) -> tuple[Cluster, Host, Host, Host]:
    cluster = Cluster(3, dispatch="ownership", ownership_time=ownership_time)
    a, b, c = cluster.started()
    a.declare()
    return cluster, a, b, c


def owner(host: Host) -> str:
    assert host.member.applier.owners is not None
    found = host.member.applier.owners.of(host.queue()).owner
    return "" if found is None else found.address.name


def consume_all(cluster: Cluster, clients: list[Client], rounds: int) -> None:
    for _ in range(rounds):
        cluster.run(0.01)
        for client in clients:
            client.accept()


def test_only_the_owners_consumers_get_messages_and_the_queue_goes_round() -> None:
    cluster, a, b, c = started()
    clients = [host.consume(prefetch=5) for host in (a, b, c)]
    cluster.settle()
    assert {owner(host) for host in (a, b, c)} in ({"a"}, {"b"}, {"c"})
    for number in range(300):
        a.publish(f"m{number}")
    seen: list[str] = []
    for _ in range(120):
        cluster.run(0.01)
        seen.append(owner(b))
        for client in clients:
            client.accept()
    assert {"a", "b", "c"} <= set(seen)
    assert sorted(body for client in clients for body in client.seen) == sorted(f"m{number}" for number in range(300))
    assert all(client.seen for client in clients)
    cluster.check_alike()


def test_a_broker_whose_consumers_have_no_room_gives_the_queue_to_one_that_has() -> None:
    cluster, a, b, c = started(ownership_time=60)
    first = a.consume(prefetch=2)
    cluster.settle()
    second = b.consume(prefetch=10)
    cluster.settle()
    c.publish(*(f"m{number}" for number in range(8)))
    cluster.until(lambda: len(first.seen) + len(second.seen) == 8)
    assert len(second.seen) == 6
    assert owner(c) == "b"
    cluster.check_alike()


def test_a_queue_that_came_back_early_goes_round_all_the_same() -> None:
    cluster, a, b, c = started(ownership_time=1)
    keeper = a.consume()
    cluster.settle()
    guest = b.consume(prefetch=2)
    cluster.settle()
    turns = 0
    for number in range(160):
        c.publish(f"m{number}")
        cluster.run(0.05)
        keeper.accept()
        if len(guest.held) == 2:  # it has no room any more, so the queue goes back long before its time
            guest.accept()
            turns += 1
    assert turns >= 4
    cluster.check_alike()


def test_a_queue_at_rest_does_not_go_round() -> None:
    cluster, a, b, _ = started()
    for host in (a, b):
        host.consume(prefetch=2)
    cluster.settle()
    before = a.member.replica.progress
    cluster.run(5)
    assert a.member.replica.progress == before


def test_a_sole_consumer_keeps_the_queue() -> None:
    cluster, a, b, _ = started()
    client = b.consume(prefetch=1)
    cluster.settle()
    assert a.member.applier.owners is not None
    tenure = a.member.applier.owners.of(a.queue()).tenure
    a.publish(*(f"m{number}" for number in range(20)))
    consume_all(cluster, [client], 60)
    assert len(client.seen) == 20
    assert owner(a) == "b"
    assert a.member.applier.owners.of(a.queue()).tenure == tenure


def test_when_the_owner_is_lost_or_cancels_another_one_goes_on() -> None:
    cluster, a, b, c = started()
    lost, other = c.consume(prefetch=3), b.consume(prefetch=3)
    cluster.settle()
    a.publish(*(f"m{number}" for number in range(12)))
    cluster.settle()
    c.kill()
    consume_all(cluster, [other], 400)
    assert {*other.seen} | {*lost.seen} == {f"m{number}" for number in range(12)}
    assert owner(a) == "b"
    other.cancel()
    cluster.settle()
    assert owner(a) == ""


def test_a_broker_that_joins_knows_who_owns_what() -> None:
    cluster, a, b, c = started()
    clients = [b.consume(prefetch=2), a.consume(prefetch=2)]
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.settle()
    a.publish(*(f"m{number}" for number in range(40)))
    consume_all(cluster, clients, 200)
    assert sum(len(client.seen) for client in clients) == 40
    assert owner(c) == owner(a) == owner(b)
    cluster.check_alike()
