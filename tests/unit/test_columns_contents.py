"""Messages that are read from the log before a consumer gets them, on a simulated disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from columns_rig import Sent, a_block, a_route, build
from log_rig import History, Host, next_chain
from store_rig import TroubledDisk

from coterie.broker.columns import KnownRoutes, PublishEvent, Range
from coterie.broker.columns.contents import Contents, ContentsSettings, Request, Unreadable, Wanted
from coterie.broker.columns.log_source import LogSource
from coterie.broker.columns.remnant import cut
from coterie.errors import DiskError
from coterie.log.merge import Kept
from coterie.log.place import Place
from coterie.log.record import make_record
from coterie.log.settings import LogSettings

ROOMY = LogSettings()
KNOWN = KnownRoutes()
Told = list[tuple[Wanted, list[bytes] | Unreadable]]


class Owner(History):
    """Knows which messages of an event are live."""

    def __init__(self) -> None:
        super().__init__()
        self.live_offsets: dict[Place, list[Range]] = {}

    def merging(self, after: Place, upto: Place) -> None:
        pass

    def live_bytes(self, after: Place, upto: Place) -> int:
        """A record whose messages are not all live counts a fifth."""
        records = [record for record in self.records.values() if after < record.place <= upto]
        return sum(
            record.size // (5 if record.place in self.live_offsets else 1)
            for record in records
            if record.place not in self.dead
        )

    def live(self, place: Place, head: bytes) -> Kept | None:
        event = PublishEvent.of_head(head, KNOWN)
        remnant = cut(event, self.live_offsets.get(place, event.ranges))
        return None if remnant is None or place in self.dead else Kept(*remnant)


MERGING = LogSettings(segment_bytes=3_000, append_bytes=900, retain_bytes=0, snapshots=1, batch_bytes=1)


class EventHost(Host):
    """A log of publish events, by reference from 1. Its disk is slow."""

    owner: Owner

    def __init__(self, settings: LogSettings = ROOMY, cache_bytes: int = 0, **limits: int) -> None:
        self._limits = ContentsSettings(cache_bytes=cache_bytes, **limits)
        self.places: list[Place] = []
        super().__init__(settings=settings)
        self.told: Told = []

    def new_owner(self) -> Owner:
        return Owner()

    def boot(self, log_id: bytes | None = None) -> None:
        super().boot(log_id)
        self.node.platter.latency = 0.02
        source = LogSource(self.log.reader, KNOWN, lambda ref: self.places[ref - 1])
        self.contents = Contents(self.runtime, source, self._limits)

    def publish(self, *bodies: bytes, volatile: bool = False, cached: bool = False) -> int:
        """An event of these messages; gives its reference."""
        event = build([Sent(a_route(), a_block(delivery_mode=2), body) for body in bodies])
        last = self.log.writer.last
        place = Place(1, last.place.index + 1)
        effects = b"effects"
        record = make_record(
            place, b"a", next_chain(last.chain, place, bytes(event.head), effects), event.head, effects,
            [] if volatile else event.content_buffers(), volatile=volatile,
        )  # fmt: skip
        self.log.append(record)
        self.owner.records[record.ordinal] = record
        self.places.append(place)
        if volatile or cached:
            self.contents.put(len(self.places), event, volatile)
        return len(self.places)

    def publish_many(self, count: int, messages: int = 3) -> list[int]:
        refs = [self.publish(*(b"%d of %d" % (n, at) for n in range(messages))) for at in range(count)]
        self.sync()
        return refs

    def ask(self, *wanted: tuple[int, int, int], ahead: Sequence[int] = (), told: Told | None = None) -> Request:
        into = self.told if told is None else told

        def arrived(run: Wanted, found: PublishEvent | Unreadable) -> None:
            if isinstance(found, PublishEvent):
                into.append((run, [bytes(body) for body in found.bodies(run.first, run.stop)]))
            else:
                into.append((run, found))

        return self.contents.request([Wanted(*each) for each in wanted], arrived, ahead)

    def all_told(self, count: int) -> Told:
        self.until(lambda: len(self.told) >= count)
        self.run(0.1)
        assert len(self.told) == count
        told, self.told = self.told, []
        return told

    @property
    def reads(self) -> int:
        return self.log.reader.reads


def test_messages_on_disk_are_read_and_told_by_runs() -> None:
    host = EventHost()
    refs = host.publish_many(4)
    host.restart()
    host.ask((refs[0], 1, 3), (refs[2], 0, 1))
    assert host.told == []
    assert host.all_told(2) == [
        (Wanted(1, 1, 3), [b"1 of 0", b"2 of 0"]),
        (Wanted(3, 0, 1), [b"0 of 2"]),
    ]


def test_neighbours_that_several_ask_for_are_one_read() -> None:
    host = EventHost()
    refs = host.publish_many(20)
    host.restart()
    for ref in reversed(refs):
        host.ask((ref, 0, 3))
    host.ask((refs[5], 0, 1))
    told = host.all_told(21)
    assert [run.ref for run, _ in told] == sorted([*refs, refs[5]])
    assert host.reads == 1


def test_what_is_asked_for_while_a_read_is_under_way_is_read_next() -> None:
    host = EventHost()
    refs = host.publish_many(20)
    host.restart()
    host.ask((refs[10], 0, 1))
    host.until(lambda: host.reads == 1)
    for ref in refs[:5]:
        host.ask((ref, 0, 1))
    host.ask((refs[10], 1, 2))
    assert [run.ref for run, _ in host.all_told(7)] == [refs[10], refs[10], *refs[:5]]
    assert host.reads == 2


def test_what_comes_next_is_read_ahead_with_the_same_read() -> None:
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(20)
    host.restart()
    host.ask((refs[0], 0, 3), ahead=refs[1:10])
    host.all_told(1)
    assert host.reads == 1
    assert all(host.contents.get(ref) is not None for ref in refs[:10])
    assert host.contents.get(refs[10]) is None
    assert (host.contents.hits, host.contents.misses) == (10, 1)
    host.ask(*((ref, 0, 3) for ref in refs[1:10]))
    host.all_told(9)
    assert host.reads == 1


def test_reading_ahead_goes_on_when_everything_is_there_already() -> None:
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(3)
    host.restart()
    host.ask((refs[0], 0, 1))
    host.all_told(1)
    host.ask((refs[0], 0, 1), ahead=refs[1:])
    host.all_told(1)
    assert host.contents.get(refs[2]) is not None


def test_reading_ahead_takes_as_many_reads_as_it_needs() -> None:
    host = EventHost(LogSettings(batch_bytes=1), cache_bytes=1 << 20)
    refs = host.publish_many(10)
    host.restart()
    host.ask((refs[0], 0, 1), (refs[1], 0, 1), ahead=refs[2:])
    host.until(lambda: all(ref in host.contents.cache for ref in refs))
    assert host.reads == 10


def test_read_ahead_gives_way_to_what_somebody_waits_for() -> None:
    host = EventHost(LogSettings(batch_bytes=1), cache_bytes=1 << 20)
    refs = host.publish_many(20)
    host.restart()
    host.ask((refs[0], 0, 1), ahead=refs[1:])
    host.until(lambda: host.reads >= 1)
    host.ask((refs[19], 0, 1))
    host.until(lambda: len(host.told) == 2)
    assert host.reads <= 4
    assert host.contents.get(refs[15]) is None


def test_read_ahead_gives_way_to_what_is_before_it_in_the_log() -> None:
    host = EventHost(LogSettings(batch_bytes=1), cache_bytes=1 << 20)
    refs = host.publish_many(20)
    host.restart()
    host.ask((refs[5], 0, 1), ahead=refs[6:])
    host.until(lambda: host.reads >= 1)
    host.ask((refs[0], 0, 1))
    host.until(lambda: len(host.told) == 2)
    assert host.reads <= 4
    assert host.contents.get(refs[15]) is None


def test_a_request_and_what_it_reads_ahead_are_bounded() -> None:
    host = EventHost(cache_bytes=1 << 20, request_runs=3, ahead_events=2)
    refs = host.publish_many(20)
    host.restart()
    request = host.ask(*((ref, 0, 1) for ref in refs[:10]), ahead=refs[10:])
    assert request.left == 3
    assert [run.ref for run, _ in host.all_told(3)] == refs[:3]
    assert request.over
    assert [ref for ref in refs if host.contents.get(ref) is not None] == refs[:3] + refs[10:12]


def test_what_is_in_memory_is_told_without_a_read() -> None:
    host = EventHost(cache_bytes=1 << 20)
    ref = host.publish(b"here", cached=True)
    host.ask((ref, 0, 1))
    assert host.told == []  # never within the call
    assert host.all_told(1) == [(Wanted(1, 0, 1), [b"here"])]
    assert host.reads == 0


def test_what_is_not_synced_yet_can_be_read() -> None:
    host = EventHost()
    ref = host.publish(b"on its way")
    host.ask((ref, 0, 1))
    host.until(lambda: host.told)
    assert host.told == [(Wanted(1, 0, 1), [b"on its way"])]


def test_a_request_for_nothing_is_over() -> None:
    host = EventHost()
    assert host.ask().over
    host.run()
    assert host.told == []


# Cancelling.


def test_who_has_cancelled_is_not_told_and_others_are() -> None:
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(3)
    host.restart()
    cancelled: Told = []
    request = host.ask(*((ref, 0, 1) for ref in refs), told=cancelled)
    host.ask((refs[1], 0, 1))
    host.until(lambda: host.reads == 1)
    request.cancel()
    host.all_told(1)
    assert cancelled == []
    assert host.contents.get(refs[2]) is not None  # it was under way: the cache has it


def test_what_nobody_waits_for_any_more_is_not_read() -> None:
    host = EventHost()
    refs = host.publish_many(3)
    host.restart()
    host.ask((refs[0], 0, 1)).cancel()
    host.run()
    assert (host.reads, host.told) == (0, [])
    host.ask((refs[1], 0, 1))
    host.all_told(1)


def test_who_cancels_between_arrival_and_being_told_is_not_told() -> None:
    host = EventHost(cache_bytes=1 << 20)
    ref = host.publish(b"here", cached=True)
    request = host.ask((ref, 0, 1))
    request.cancel()
    host.run()
    assert host.told == []


def test_nobody_is_told_of_a_life_that_is_over() -> None:
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(3)
    host.restart()
    host.ask(*((ref, 0, 1) for ref in refs))
    host.until(lambda: host.reads == 1)
    host.contents.clear()
    host.run()
    assert host.told == []
    assert all(host.contents.get(ref) is None for ref in refs)
    host.ask((refs[0], 0, 1))
    host.all_told(1)


def test_what_was_asked_for_in_the_new_life_is_read_again() -> None:
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(3)
    host.restart()
    host.ask((refs[0], 0, 1))
    host.until(lambda: host.reads == 1)
    host.contents.clear()
    host.ask((refs[0], 0, 1))
    assert [run.ref for run, _ in host.all_told(1)] == [refs[0]]
    assert host.reads == 2


def test_what_is_forgotten_during_a_read_is_told_and_not_kept() -> None:
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(3)
    host.restart()
    host.ask(*((ref, 0, 1) for ref in refs))
    host.until(lambda: host.reads == 1)
    host.contents.forget([refs[1]])
    host.all_told(3)
    assert [ref for ref in refs if host.contents.get(ref) is not None] == [refs[0], refs[2]]


def test_what_comes_from_elsewhere_is_told_at_once() -> None:
    """A body that is damaged here is fetched from another broker."""
    host = EventHost(cache_bytes=1 << 20)
    refs = host.publish_many(2)
    host.restart()
    host.ask((refs[0], 0, 1))
    host.contents.put(refs[0], build([Sent(a_route(), a_block(), b"from elsewhere")]))
    assert host.all_told(1) == [(Wanted(1, 0, 1), [b"from elsewhere"])]


# What can be wrong.


def damaged_at(host: EventHost, what: bytes) -> None:
    name = next(name for name, data in host.files.items() if what in data)
    host.damage(name, host.files[name].index(what))


def test_damage_is_told_of_the_messages_that_have_it_and_no_others() -> None:
    host = EventHost()
    refs = host.publish_many(5)
    host.restart()
    damaged_at(host, b"1 of 2")
    host.ask(*((ref, 0, 1) for ref in refs), (refs[2], 2, 3))
    told = host.all_told(6)
    wrong = {run: found for run, found in told if isinstance(found, Unreadable)}
    assert {run.ref for run in wrong} == {refs[2]}
    assert len(wrong) == 2
    assert all(found.lasting and "damaged" in found.problem for found in wrong.values())


def test_a_damaged_head_is_told_as_well() -> None:
    host = EventHost()
    refs = host.publish_many(3)
    host.restart()
    name = next(iter(name for name in host.files if name.endswith(".seg")))
    head = bytes(host.owner.records[2].head)
    at = host.files[name].index(head, host.files[name].index(b"2 of 0"))
    host.damage(name, at)
    host.ask(*((ref, 0, 1) for ref in refs))
    told = host.all_told(3)
    assert [isinstance(found, Unreadable) for _, found in told] == [False, True, False]


def test_a_disk_that_cannot_be_read_now_may_be_read_later() -> None:
    host = EventHost()
    refs = host.publish_many(2)
    host.restart()
    host.ask((refs[1], 0, 1))
    host.all_told(1)

    def refuse() -> None:
        raise DiskError("input/output error")

    disk: TroubledDisk = host.disk
    disk.before = refuse
    host.ask((refs[0], 0, 1))
    ((_, found),) = host.all_told(1)
    assert isinstance(found, Unreadable)
    assert not found.lasting
    disk.before = None
    host.ask((refs[0], 0, 1))
    assert host.all_told(1) == [(Wanted(refs[0], 0, 1), [b"0 of 0"])]


def test_messages_that_are_not_in_the_event_are_told_as_such() -> None:
    host = EventHost()
    (ref,) = host.publish_many(1)
    host.restart()
    host.ask((ref, 0, 4), (ref, 2, 3), (ref, 7, 8))
    told = host.all_told(3)
    assert [isinstance(found, Unreadable) for _, found in told] == [True, False, True]


def test_volatile_messages_are_in_memory_only() -> None:
    host = EventHost()
    ref = host.publish(b"gone with the power", volatile=True)
    host.publish_many(1)
    assert host.contents.get(ref) is not None
    host.ask((ref, 0, 1))
    host.all_told(1)
    host.restart()
    host.ask((ref, 0, 1))
    ((_, found),) = host.all_told(1)
    assert isinstance(found, Unreadable)
    assert found.lasting


# Merges.


def merged() -> tuple[EventHost, list[int]]:
    """Of each event only the last message is live, of the first one none; and what could be merged is."""
    host = EventHost(MERGING)
    refs = host.publish_many(60)
    host.owner.live_offsets = {place: [(2, 3)] for place in host.places}
    host.owner.dead = {host.places[0]}
    host.snapshot()
    while host.do(host.log.merger.run()):
        pass
    assert any(segment.merged for segment in host.log.segments.list)
    return host, refs


def test_what_a_merge_has_left_is_read_by_the_same_offsets() -> None:
    host, refs = merged()
    host.ask(*((ref, 2, 3) for ref in refs[1:40]))
    assert host.all_told(39) == [(Wanted(ref, 2, 3), [b"2 of %d" % (ref - 1)]) for ref in refs[1:40]]
    host.ask((refs[1], 1, 3), (refs[0], 2, 3))
    told = host.all_told(2)
    assert all(isinstance(found, Unreadable) and found.lasting for _, found in told)


def test_what_is_merged_during_a_read_is_found_where_it_is_now() -> None:
    host = EventHost(MERGING)
    refs = host.publish_many(60)
    host.owner.live_offsets = {place: [(1, 3)] for place in host.places}
    host.snapshot()
    host.ask(*((ref, 1, 3) for ref in refs[:40]))
    host.until(lambda: host.reads > 3)
    host.do(host.log.merger.run())
    assert any(segment.merged for segment in host.log.segments.list)
    told = host.all_told(40)
    assert [found for _, found in told] == [[b"1 of %d" % (ref - 1), b"2 of %d" % (ref - 1)] for ref in refs[:40]]


# Bounds.


@pytest.mark.parametrize("limit", [0, 4_000, 40_000])
def test_however_much_is_read_the_cache_stays_within_its_limit(limit: int) -> None:
    host = EventHost(cache_bytes=limit)
    refs = host.publish_many(100, messages=20)
    host.restart()
    for at in range(0, 100, 10):
        host.ask(*((ref, 0, 20) for ref in refs[at : at + 10]), ahead=refs[at + 10 : at + 20])
        host.all_told(10)
        assert host.contents.cache.bytes <= limit
    assert host.contents.cache.fixed_bytes == 0
