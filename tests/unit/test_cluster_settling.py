"""What is settled is told by holders and ranges; older events tell positions, and are read for ever."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_rig import Client, Cluster, Host
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.delivery import HeldRanges, merged, positions_in, ranges_of
from coterie.broker.queue import Queue
from coterie.broker.ranges import END, Range
from coterie.cluster import settling, wire
from coterie.cluster.settling import Share
from coterie.cluster.wire import HEAD, RANGES, Kind
from coterie.errors import PeerError

QUEUE = cast(Queue, SimpleNamespace(incarnation=7))
OLD = RANGES - 1
ranges = st.lists(st.integers(0, 40), unique=True, min_size=1).map(ranges_of)
shares = st.lists(st.builds(Share, st.integers(0, 2**64 - 1), ranges), max_size=4)


def event(data: bytes, version: int) -> memoryview:
    return memoryview(wire.head(Kind.ACCEPT, 0.0, 1, version=version) + data)


@given(shares, st.booleans())
def test_what_is_settled_is_read_as_it_was_told(told: list[Share], redelivered: bool) -> None:
    assert settling.read_settle(event(settling.settle(QUEUE, told, RANGES), RANGES), HEAD) == (7, told)
    data = settling.release(QUEUE, told, redelivered, RANGES)
    assert settling.read_release(event(data, RANGES), HEAD) == (7, redelivered, told)


@given(shares, st.booleans())
def test_older_events_have_positions_and_do_not_say_whose_they_were(told: list[Share], redelivered: bool) -> None:
    positions = [position for share in told for position in positions_in(share.ranges)]
    (share,) = settling.read_settle(event(settling.settle(QUEUE, told, OLD), OLD), HEAD)[1]
    assert share.holder is None
    assert [*positions_in(share.ranges)] == positions
    number, again, (share,) = settling.read_release(event(settling.release(QUEUE, told, redelivered, OLD), OLD), HEAD)
    assert (number, again, [*positions_in(share.ranges)]) == (7, redelivered, positions)


def test_the_bytes_of_older_events_are_those_of_older_brokers() -> None:
    data = settling.settle(QUEUE, [Share(3, [(1, 3), (9, 10)])], OLD)
    assert data == struct.pack(">QQQQ", 7, 1, 2, 9)
    held = [HeldRanges(QUEUE, "somebody", [(1, 3), (9, 10)])]
    assert settling.encode_answers([held, [], held], OLD) == {"answers": [[(7, [1, 2, 9])], [], [(7, [1, 2, 9])]]}


@given(st.lists(ranges, min_size=3, max_size=3))
def test_a_transaction_is_read_as_it_was_told_in_either_version(told: list[list[Range]]) -> None:
    parts = [[HeldRanges(QUEUE, "somebody", each)] for each in told]
    for version, holder in ((OLD, None), (RANGES, 0)):
        said = wire.decode_json(wire.encode_json(settling.encode_answers(parts, version)))
        assert settling.read_answers(said) == [[(7, Share(holder, each))] for each in told]


@pytest.mark.parametrize("pair", [(3, 3), (4, 3), (0, END + 1), (END, END + 1)])
def test_what_is_no_range_is_refused(pair: Range) -> None:
    data = struct.pack(">QQIQQ", 7, 1, 1, *pair)
    with pytest.raises(PeerError, match="no range of positions"):
        settling.read_settle(event(data, RANGES), HEAD)
    with pytest.raises(PeerError, match="no range of positions"):
        settling.read_answers({"settled": [[[7, 1, [[*pair]]]], [], []]})


def test_ranges_that_end_too_early_are_refused() -> None:
    data = settling.settle(QUEUE, [Share(1, [(1, 2), (5, 6)])], RANGES)
    for cut in range(9, len(data)):
        with pytest.raises((PeerError, struct.error)):
            settling.read_settle(event(data[:cut], RANGES), HEAD)


@pytest.mark.parametrize(
    "said",
    [{}, {"settled": [[], []]}, {"settled": [[[7, 1, [[1.0, 2]]]], [], []]}, {"answers": [[[7, ["1"]]], [], []]}],
)
def test_a_transaction_that_settles_no_positions_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="transaction"):
        settling.read_answers(said)


def test_what_somebody_else_holds_is_not_settled() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish(*"1234")
    one, other = b.consume(prefetch=2), b.consume(prefetch=2)
    cluster.settle()
    numbers = [settling.share_of(client.holder, ()).holder for client in (one, other)]
    (mine, *_), (theirs, *_) = sorted(one.held.values()), sorted(other.held.values())
    crossed = [Share(numbers[0], [(theirs, theirs + 1)]), Share(numbers[1], [(mine, mine + 1)]), Share(99, [(0, END)])]
    b.member.proposer._send(Kind.ACCEPT, (settling.settle(b.queue(), crossed, RANGES),))
    cluster.settle()
    assert len(a.content()) == 4
    assert {host.member.applier.peer(b.member.replica.us).holds(a.queue().incarnation) for host in (a, b, c)} == {4}
    one.accept()
    other.accept()
    cluster.settle()
    assert a.content() == []
    cluster.check_alike()


def held(host: Host, of: Host) -> list[Range]:
    by_holder = host.member.applier.peer(of.member.replica.us).held.get(host.queue().incarnation, {})
    return merged(pair for each in by_holder.values() for pair in each.positions.ranges())


def test_what_was_given_while_an_old_voter_kept_the_old_events_is_settled_after_the_last_upgrade() -> None:
    cluster = Cluster(3)
    a, b, c = (cluster.start(number) for number in range(3))
    c.member.replica.versions.newest = OLD
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    assert a.member.replica.versions.spoken == OLD
    a.declare()
    a.publish(*"123456")
    client = b.consume(prefetch=4)
    cluster.settle()
    got = b.get()
    cluster.settle()
    assert got
    client.accept("2")
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.settle()
    assert {host.member.replica.versions.spoken for host in (a, b, c)} == {wire.VERSION}
    assert held(a, b) == held(b, b) == held(c, b)
    settle_everything(cluster, client, b)
    assert a.content() == b.content() == c.content() == []
    cluster.check_alike()


def settle_everything(cluster: Cluster, client: Client, host: Host) -> None:
    for _ in range(3):
        client.accept()
        cluster.settle()
    getter = host.member.applier.peer(host.member.replica.us).getter
    host.queue().accept(getter, [(0, END)])
    cluster.settle()


def test_an_event_that_is_sent_again_is_written_anew_for_the_version_that_is_spoken_then() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    a.publish("one")
    client = b.consume(prefetch=1)
    cluster.settle()
    queue, holder, ranges = client.take("one")
    versions: list[int] = []

    def encode(version: int) -> bytes:
        versions.append(version)
        if len(versions) == 1:
            return b"void"
        return settling.release(queue, [settling.share_of(holder, ranges)], True, version)

    b.member.proposer.insist(Kind.RELEASE, encode)
    cluster.run(1.0)
    assert versions == [wire.VERSION] * 2
    assert client.seen == ["one", "one"]
