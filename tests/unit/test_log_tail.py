"""Snapshots, the tail for others, merges, generations."""

from __future__ import annotations

import pytest
from log_rig import LOG_ID, SMALL, Host, content

from coterie.errors import DiskError
from coterie.log.errors import TailGone
from coterie.log.generation import Generations
from coterie.log.place import START, Place
from coterie.log.record import Record, make_record
from coterie.log.snapshot import read_snapshot
from coterie.log.tail import Link


def merged() -> Host:
    """Two of three records are dead, and what could be merged is."""
    host = Host()
    records = host.fill(120)
    host.sync()
    host.snapshot(place=Place(1, 90))
    host.snapshot(place=Place(1, 100))
    host.owner.dead = {record.place for record in records if record.place.index % 3}
    while host.do(host.log.merger.run()):
        host.run(1)
    return host


def test_the_tail_is_read_in_bounded_batches_from_any_place() -> None:
    host = Host()
    records = host.fill(30)
    host.sync()
    for after in (0, 1, 11, 12, 13, 29, 30):
        assert [content(r) for r in host.read(Place(1, after) if after else START)] == [
            content(r) for r in records[after:]
        ]

    async def sizes() -> list[int]:
        return [sum(record.size for record in batch) async for batch in host.log.tail.read(START)]

    assert max(host.do(sizes())) <= SMALL.batch_bytes + 300


def test_a_fork_is_found_by_the_chains() -> None:
    host, other = Host("one"), Host("two")
    for both in (host, other):
        both.fill(20)
        both.sync()
    other.epoch = 2  # another history from here on
    other.fill(9)
    other.sync()
    host.fill(3)
    host.sync()
    theirs = other.do(other.log.tail.chains())
    fork = host.do(host.log.tail.find_fork(theirs))
    assert fork is not None
    assert fork.place == Place(1, 20)
    assert fork.chain == host.owner.records[20].chain
    other.do(other.log.truncate(fork.place))
    for record in host.read(fork.place):
        other.log.append(record)
    other.sync()
    other.crash()
    assert [content(r) for r in other.read()] == [content(r) for r in host.read()]
    assert host.do(host.log.tail.find_fork([Link(Place(1, 5), b"x" * 16)])) is None


def test_a_truncation_never_goes_below_what_can_be_recovered() -> None:
    host = merged()
    with pytest.raises(TailGone):
        host.do(host.log.truncate(Place(1, 60)))
    host.do(host.log.truncate(Place(1, 95)))
    assert host.log.snapshots.kept == [90]
    host.crash()
    assert host.log.found.last.place == Place(1, 95)
    assert "0000000000000000100.snap" not in host.files


def test_a_snapshot_never_passes_what_is_committed_and_synced() -> None:
    host = Host()
    host.fill(5)
    with pytest.raises(ValueError, match="committed"):
        host.do(host.log.snapshot(Place(1, 5), Place(1, 5), []))
    host.sync()
    with pytest.raises(ValueError, match="committed"):
        host.do(host.log.snapshot(Place(1, 5), Place(1, 4), []))


def test_what_is_left_of_a_snapshot_is_not_removed_when_it_is_written_anew() -> None:
    host = Host()
    host.fill(1)
    host.sync()
    name = "0000000000000000001.snap.tmp"
    host.put(name, b"half")
    refusals = iter([True])
    host.disk.remove_fails = lambda name: next(refusals, False)
    host.log.segments.folder.discard([name], retry=0.02)
    host.run(0.01)
    assert name in host.files
    host.snapshot([(1, b"." * 100)] * 200)  # takes longer than the pause before the next try
    host.crash()
    assert host.owner.state == {1: b"." * 20_000}


def test_a_snapshot_is_written_in_slices() -> None:
    host = Host()
    host.fill(1)
    host.sync()
    before = host.runtime.world.steps
    host.snapshot([(1, b"." * 100)] * 50)
    assert host.runtime.world.steps - before > 15
    host.crash()
    assert host.owner.state == {1: b"." * 5000}


def test_no_flipped_bit_of_a_snapshot_goes_unnoticed() -> None:
    host = Host()
    host.fill(1)
    host.sync()
    host.snapshot([(1, b"some"), (2, b"state")])
    (name,) = (name for name in host.files if name.endswith(".snap"))
    size = len(host.files[name])
    folder = host.log.segments.folder
    _, snapshot = host.do(read_snapshot(folder, name, size, LOG_ID))
    assert snapshot.sections == {1: b"some", 2: b"state"}
    for at in range(size):
        host.damage(name, at, at % 8)
        with pytest.raises(DiskError):
            host.do(read_snapshot(folder, name, size, LOG_ID))
        with pytest.raises(DiskError):
            host.do(read_snapshot(folder, name, at, LOG_ID))
        host.damage(name, at, at % 8)


def test_a_snapshot_of_what_was_truncated_meanwhile_is_not_taken_into_use() -> None:
    host = Host()
    host.fill(10)
    host.sync()
    failed: list[Exception] = []

    async def snapshot() -> None:
        try:
            await host.log.snapshot(Place(1, 10), Place(1, 10), [(1, b"." * 100)] * 60)
        except DiskError as error:
            failed.append(error)

    host.runtime.spawn(snapshot())
    host.run(0.003)
    assert host.log.snapshots.writing
    host.do(host.log.truncate(Place(1, 5)))
    host.until(lambda: failed)
    assert isinstance(failed[0], TailGone)
    host.crash()
    assert host.log.found.snapshot is None
    assert host.log.found.last.place == Place(1, 5)


def test_a_log_that_is_only_a_snapshot_and_remnants_has_no_tail_for_others() -> None:
    """As another broker sends it to one that was away for long."""
    host = Host()
    for index in (3, 8):
        host.log.append(make_record(Place(1, index), b"s", bytes(16), b"head", b"", [b"live"], remnant=True))
    host.sync()
    host.snapshot()
    host.crash()
    assert host.owner.records == {}
    assert host.bodies([Place(1, 3), Place(1, 8)]) == {Place(1, 3): b"live", Place(1, 8): b"live"}
    with pytest.raises(TailGone):
        host.read(Place(0, 0))


def test_older_snapshots_stay_until_a_newer_one_is_in_place() -> None:
    host = Host()
    host.fill(10)
    host.sync()
    for index in (2, 4):
        host.snapshot(place=Place(1, index))
    host.disk.sync_fails = lambda name: ".snap" in name
    with pytest.raises(DiskError):
        host.snapshot(place=Place(1, 6))
    assert host.log.snapshots.kept == [2, 4]
    host.disk.sync_fails = lambda name: False
    host.snapshot(place=Place(1, 6))
    assert sorted(name for name in host.files if name.endswith(".snap")) == [
        f"{n:019d}.snap" for n in (4, 6)
    ]  # fmt: skip


def test_a_merge_keeps_what_is_live_and_the_tail_verbatim() -> None:
    host = merged()
    live = {r.place: b"".join(r.bodies) for r in host.owner.records.values() if r.place not in host.owner.dead}
    assert any(segment.merged for segment in host.log.segments.list)
    assert host.node.platter.used() < 0.75 * sum(record.size for record in host.owner.records.values())
    assert host.bodies(live) == live
    start = host.log.tail.verbatim_from.place
    assert start < Place(1, 90)
    assert [content(r) for r in host.read(start)] == [
        content(r) for r in host.owner.records.values() if r.place > start
    ]
    with pytest.raises(TailGone):
        host.read(Place(1, 5))
    host.crash()
    assert host.log.found.problems == []
    assert host.bodies(live) == live


def test_the_tail_is_given_up_when_there_is_little_room() -> None:
    host = Host()
    host.fill(65)
    host.sync()
    host.snapshot(place=Place(1, 62))
    host.snapshot(place=Place(1, 63))
    host.owner.dead = {record.place for record in host.owner.records.values()}
    host.do(host.log.merger.run())
    host.run(1)
    before = host.node.platter.used()
    host.log.tail.give_up()
    host.do(host.log.merger.run())
    host.run(1)
    assert host.node.platter.used() < before
    host.fill(1)
    host.sync()
    host.crash()
    assert host.log.found.problems == []


def test_a_record_is_found_while_merges_take_its_file_away() -> None:
    host = Host()
    records = host.fill(120)
    host.sync()
    host.snapshot(place=Place(1, 90))
    host.snapshot(place=Place(1, 100))
    host.owner.dead = {record.place for record in records if record.place.index % 3}
    live = [record for record in records if record.place not in host.owner.dead]
    segments = host.log.segments
    for segment in segments.list[:-1]:
        segment.file_size = 0  # it has no footer, as after a crash: whoever looks for a record reads the whole file
    found: list[int] = []

    async def look(record: Record) -> None:
        _, row = await segments.find(record.place)
        assert row.body_size == record.body_size
        found.append(row.ordinal)

    looking = 0
    host.runtime.spawn(_merge(host))
    while not any(segment.merged for segment in segments.list):
        for segment in segments.list[:-1]:
            segments._forget(segment)
        for record in live:
            host.runtime.spawn(look(record))
        looking += len(live)
        host.run(0.0005)
    host.until(lambda: len(found) == looking)


async def _merge(host: Host) -> None:
    while await host.log.merger.run():
        pass


def test_what_is_damaged_is_not_merged() -> None:
    host = Host()
    host.fill(80)
    host.sync()
    host.snapshot(place=Place(1, 70))
    host.snapshot(place=Place(1, 75))
    segment, row = host.do(host.log.segments.find(Place(1, 3)))
    host.damage(segment.file, row.body_offset)
    host.owner.dead = {Place(1, n) for n in range(4, 60)}
    with pytest.raises(DiskError, match="stays as it is"):
        host.do(host.log.merger.run())
    while host.do(host.log.merger.run()):
        host.run(1)
    assert segment.file in host.files
    assert not any(name.endswith(".tmp") for name in host.files)


def test_bodies_of_neighbours_are_read_in_one_go() -> None:
    host = Host()
    records = host.fill(6, size=60)
    host.sync()
    before = host.log.reader.reads
    host.bodies(record.place for record in records[:3])
    assert host.log.reader.reads == before + 1
    assert host.bodies([Place(7, 7)]) == {Place(7, 7): "there is no record 7/7"}


def test_a_generation_counts_when_it_is_whole() -> None:
    host = Host()
    host.fill(1)
    host.sync()
    generations = Generations(host.runtime, "log")
    assert host.do(generations.find()) == 0
    number = generations.new()
    host.do(_make(host, generations.path(number)))
    assert host.do(Generations(host.runtime, "log").find()) == 0
    assert not any(name.startswith("log.1/") for name in host.node.platter.files)
    host.do(_make(host, generations.path(number)))
    host.do(generations.complete(number))
    assert host.do(Generations(host.runtime, "log").find()) == number
    assert not any(name.startswith("log/") and name.endswith(".seg") for name in host.node.platter.files)


async def _make(host: Host, path: str) -> None:
    from coterie.log.folder import Folder

    folder = Folder(host.runtime, path)
    await folder.append("0000000001-0000000001.0.seg", [b"x"])
    await folder.sync("0000000001-0000000001.0.seg")
