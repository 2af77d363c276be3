"""The steps of a link, as a queue that follows takes them; and the ranges in which positions are told."""

from __future__ import annotations

import random

import pytest
from broker_rig import Rig, message
from queue_view import seen

from coterie.broker.following import steps
from coterie.broker.following.followed_queue import Replica
from coterie.broker.following.ranges import Ranges, ranges_of
from coterie.broker.following.steps import Answer
from coterie.broker.message import Message
from coterie.broker.message_codec import Malformed, Routes
from coterie.broker.vhost import Vhost


class Source:
    """The other end of a link, that says what it is told to."""

    def __init__(self, vhost: Vhost, name: str = "source") -> None:
        self.vhost = vhost
        self.name = name
        self.session = ""

    def begin(self, session: str = "1", incarnation: int = 7, queue: str = "q") -> Answer:
        self.session = session
        said = {"queue": queue, "incarnation": incarnation, "session": session, "auto_delete": False, "arguments": {}}
        return self.say(steps.BEGIN, said)

    def say(self, do: str, said: dict[str, object], positions: tuple[int, ...] = ()) -> Answer:
        messages = [message(str(position)) for position in positions]
        return self.vhost.apply_step(steps.encode(do, self.name, said, positions, messages))

    def enqueue(self, *positions: int) -> Answer:
        return self.say(steps.ENQUEUE, {"queue": "q", "session": self.session}, positions)

    def remove(self, *ranges: tuple[int, int]) -> Answer:
        return self.say(steps.REMOVE, {"queue": "q", "session": self.session, "ranges": ranges})

    def bodies(self) -> list[int]:
        found = []
        for entry in seen(self.vhost.queues["q"]).values():
            assert entry.message is not None
            found.append(int(entry.message.body))
        return found


@pytest.fixture
def source() -> Source:
    return Source(Rig().vhost)


def test_what_is_at_or_below_the_mark_is_taken_once_and_not_refused(source: Source) -> None:
    assert source.begin()["mark"] == 0
    assert source.enqueue(1, 2, 3) == {}
    assert source.enqueue(2, 3, 4) == {}
    assert source.enqueue(1) == {}
    assert source.bodies() == [1, 2, 3, 4]
    assert source.begin("2") == {"mark": 4, "present": [(1, 4)], "upto": 4}


def test_a_session_that_another_one_has_followed_is_not_heard_any_more(source: Source) -> None:
    source.begin("old")
    source.enqueue(1)
    late = Source(source.vhost)
    late.session = "old"
    source.begin("new")
    assert "another link" in late.enqueue(2)["error"]
    assert "another link" in late.remove((1, 1))["error"]
    assert source.bodies() == [1]


def test_gaps_between_positions_stay_and_ranges_are_removed_across_them(source: Source) -> None:
    source.begin()
    source.enqueue(3, 4, 9, 20)
    assert list(seen(source.vhost.queues["q"])) == [3, 4, 9, 20]
    source.remove((1, 3), (5, 10), (15, 19), (21, 99))
    assert source.bodies() == [4, 20]
    assert source.begin("2") == {"mark": 20, "present": [(4, 4), (20, 20)], "upto": 20}


def test_positions_that_are_given_already_are_given_to_nobody_else(source: Source) -> None:
    source.begin()
    source.enqueue(1, 2)
    queue = source.vhost.queues["q"]
    queue.table.leap(100)  # as after a crash: the store has noted positions ahead
    source.enqueue(3, 5)
    assert list(seen(queue)) == [1, 2, 100, 102]
    queue.enqueue([message("77")])  # a dead letter of this side, say
    source.enqueue(6)
    assert [*seen(queue)] == [1, 2, 100, 102, 103, 104]
    assert source.begin("2")["present"] == [(1, 3), (5, 6)]
    source.remove((2, 5))
    assert source.bodies() == [1, 77, 6]
    source.remove((1, 1))
    assert queue.replica is not None
    assert queue.replica.runs == [(3, 97), (6, 98)], "what nobody needs is forgotten"
    source.remove((6, 6))
    assert source.bodies() == [77]


def test_another_incarnation_takes_the_place_of_the_one_before(source: Source) -> None:
    source.begin()
    source.enqueue(1, 2, 3)
    assert source.begin("2", incarnation=8) == {"mark": 0, "present": [], "upto": 0}
    source.enqueue(1)
    assert source.bodies() == [1]
    assert source.say(steps.END, {"queue": "q", "incarnation": 7}) == {}
    assert source.bodies() == [1], "the end of the old one is not the end of the new one"
    source.say(steps.END, {"queue": "q", "incarnation": 8})
    assert "q" not in source.vhost.queues


def test_a_queue_follows_one_source_only(source: Source) -> None:
    source.begin()
    other = Source(source.vhost, "other")
    assert "another source" in other.begin()["error"]
    assert source.say(steps.LIST, {"after": ""}) == {"queues": [("q", 7)], "more": False, "upto": "q"}
    assert other.say(steps.LIST, {"after": ""}) == {"queues": [], "more": False, "upto": ""}


@pytest.mark.parametrize("argument", ["x-replicated", "qpid.replicated"])
def test_a_queue_that_is_not_to_be_replicated_follows_nobody(source: Source, argument: str) -> None:
    said = {"queue": "q", "incarnation": 7, "session": "1", "auto_delete": False, "arguments": {argument: False}}
    assert "not to be replicated" in source.say(steps.BEGIN, said)["error"]
    assert "q" not in source.vhost.queues


def test_a_long_queue_is_told_page_by_page(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.broker.following.followed_queue.PAGE_RANGES", 3)
    monkeypatch.setattr("coterie.broker.following.followed_queue.PAGE_POSITIONS", 7)
    source.begin()
    positions = (1, 2, 3, 5, 7, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 30)
    source.enqueue(*positions)
    answer = source.begin("2")
    found = [*answer["present"]]
    while answer["upto"] < 30:
        answer = source.say(steps.PRESENT, {"queue": "q", "session": "2", "after": answer["upto"]})
        found += answer["present"]
    assert [position for first, last in found for position in range(first, last + 1)] == [*positions]


def test_a_replica_survives_being_written_down() -> None:
    rig = Rig()
    source = Source(rig.vhost)
    source.begin()
    queue = rig.vhost.queues["q"]
    replica = Replica("s", 3, "x", 9, [(1, 0), (5, 7)], True)
    assert Replica.of(replica.record(queue)) == replica


def test_bytes_that_are_no_step_change_nothing() -> None:
    rig = Rig()
    source = Source(rig.vhost)
    source.begin()
    said = {"queue": "q", "session": "1"}
    good = steps.encode(steps.ENQUEUE, "source", said, (1, 2), [message("a"), message("b", priority=3)])
    chance = random.Random(5)
    routes = Routes()
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        try:
            step = steps.decode(bytes(data), routes)
        except Malformed:
            refused += 1
            continue
        assert len(step.positions) == len(step.messages)
        assert all(isinstance(each, Message) for each in step.messages)
    assert refused > 1500
    assert "error" in rig.vhost.apply_step(b"\0\0\0\2{}")
    assert "error" in rig.vhost.apply_step(b"")


def test_ranges_are_a_set() -> None:
    chance = random.Random(1)
    for _ in range(200):
        ranges, model = Ranges(), set[int]()
        for _ in range(chance.randrange(30)):
            first = chance.randrange(60)
            last = first + chance.randrange(8)
            ranges.add(first, last)
            model.update(range(first, last + 1))
        assert list(ranges) == list(ranges_of(sorted(model)))
        assert all((position in ranges) == (position in model) for position in range(70))
        taken = ranges.take(2)
        assert all(position not in ranges for first, last in taken for position in range(first, last + 1))
