"""What recovery makes of a folder: what a crash leaves is cut, damage is told, and what is not ours is left alone."""

from __future__ import annotations

import pytest
from log_rig import LOG_ID, Host, content
from store_rig import TroubledDisk

from coterie.errors import DiskError
from coterie.log.errors import Foreign, LogHalted, UnknownVersion
from coterie.log.place import ORIGIN, Place
from coterie.log.problems import Kind
from coterie.log.record import PREFIX_SIZE
from coterie.log.segment import HEADER_SIZE, Header

FIRST = "0000000001-0000000001.0.seg"


def kinds(host: Host) -> list[Kind]:
    return [problem.kind for problem in host.log.found.problems]


def grown(count: int = 30) -> Host:
    """Three segments, everything noted as synced."""
    host = Host()
    host.fill(count)
    host.sync()
    host.run(3)
    return host


def offset_of(host: Host, index: int) -> tuple[str, int, int]:
    """File, and where record and bodies begin."""
    segment, row = host.do(host.log.segments.find(Place(1, index)))
    return segment.file, row.offset, row.body_offset


def test_nothing_is_a_new_log() -> None:
    host = Host()
    assert host.log.found.problems == []
    assert host.log.found.last.ordinal == 0
    assert host.log.found.log_id == LOG_ID


@pytest.mark.parametrize("proper", [True, False])
def test_everything_is_replayed_with_its_effects(proper: bool) -> None:
    host = grown()
    told = {ordinal: content(record)[:-1] for ordinal, record in host.owner.records.items()}
    host.restart() if proper else host.crash()
    assert {ordinal: content(record)[:-1] for ordinal, record in host.owner.records.items()} == told
    assert kinds(host) == []


def test_only_what_is_behind_the_snapshot_is_replayed() -> None:
    host = grown()
    host.snapshot([(1, b"abc"), (2, b"x"), (1, b"def")], Place(1, 20))
    host.crash()
    assert host.owner.state == {1: b"abcdef", 2: b"x"}
    assert list(host.owner.records) == list(range(21, 31))


def test_a_torn_tail_is_cut_and_told() -> None:
    host = grown(5)
    name, offset, _ = offset_of(host, 5)
    file = host.node.platter.files[f"log/{name}"]
    del file.data[offset + 30 :]
    file.safe = bytes(file.data)
    # The note that everything is synced went with it: this is what a crash looks like.
    host.crash()
    assert kinds(host) == [Kind.TORN]
    assert host.log.found.last.place == Place(1, 4)
    host.fill(2)
    host.sync()
    host.crash()
    assert len(host.owner.records) == 6


def test_damage_below_the_synced_mark_is_no_torn_tail() -> None:
    host = grown(5)
    name, offset, _ = offset_of(host, 5)
    host.damage(name, offset + PREFIX_SIZE + 3)
    host.crash()
    (problem,) = host.log.found.problems
    assert (problem.kind, problem.places, problem.halts) == (Kind.BAD_RECORD, (Place(1, 5),), True)
    with pytest.raises(LogHalted):
        host.fill(1)
    host.do(host.log.truncate(Place(1, 4)))
    host.epoch = 2
    host.fill(1)
    host.sync()
    host.crash()
    assert kinds(host) == []
    assert [record.place for record in host.owner.records.values()][-2:] == [Place(1, 4), Place(2, 1)]


def test_a_damaged_prefix_in_the_middle_is_damage() -> None:
    host = grown()
    name, offset, _ = offset_of(host, 27)
    host.damage(name, offset + 20)
    host.crash()
    assert kinds(host) == [Kind.MISSING]
    assert host.log.found.halted
    assert host.log.found.last.place == Place(1, 26)


@pytest.mark.parametrize("index", [3, 27])
def test_a_flipped_bit_in_a_body_is_told_for_its_place_and_stops_nothing(index: int) -> None:
    host = grown()
    told = dict(host.owner.records)
    name, _, body = offset_of(host, index)
    host.damage(name, body + 5)
    host.crash()
    assert not host.log.found.halted
    assert len(host.owner.records) == 30
    found = host.bodies(record.place for record in told.values())
    for record in told.values():
        if record.place.index == index:
            assert "damaged" in str(found[record.place])
        else:
            assert found[record.place] == b"".join(record.bodies)


def test_a_flipped_bit_in_a_body_of_a_segment_without_footer_is_told_at_once() -> None:
    host = grown()
    name, _, body = offset_of(host, 27)
    host.damage(name, body + 5)
    host.crash()
    assert host.log.found.bad_bodies == [Place(1, 27)]


def test_a_missing_segment_is_told() -> None:
    host = grown()
    del host.node.platter.files["log/0000000002-0000000002.0.seg"]
    host.crash()
    assert kinds(host) == [Kind.MISSING]
    assert host.log.found.last.place == Place(1, 12)
    assert "records 13 to 24" in host.log.found.halted


def test_a_damaged_header_costs_nothing_if_the_first_record_is_sound() -> None:
    host = grown()
    for number in (1, 2, 3):
        host.damage(f"{number:010d}-{number:010d}.0.seg", 40)
    host.crash()
    assert kinds(host) == [Kind.BAD_HEADER] * 3
    assert len(host.owner.records) == 30


def test_what_is_not_ours_is_left_alone() -> None:
    host = grown()
    host.put("0000000009-0000000009.0.seg", b"#!/bin/sh\n" * 100)
    host.put("notes.txt", b"hello")
    host.put("0000000003-0000000003.0.seg/inside", b"a folder of that name")
    host.crash()
    assert sorted(kinds(host), key=str) == [Kind.FOREIGN, Kind.STRANGER, Kind.STRANGER]
    assert {"0000000009-0000000009.0.seg", "notes.txt"} <= set(host.files)
    host.fill(1)
    host.sync()


def test_a_segment_of_another_log_is_left_alone() -> None:
    host = grown()
    header = Header(b"x" * 16, 9, 9, 1, 0, ORIGIN, b"mark" * 2)
    host.put("0000000009-0000000009.0.seg", header.encode())
    host.crash()
    assert kinds(host) == [Kind.FOREIGN]
    assert len(host.owner.records) == 30


def test_a_folder_of_another_log_is_not_taken() -> None:
    host = grown()
    with pytest.raises(Foreign, match="another log"):
        host.crash(log_id=b"x" * 16)
    host.crash(log_id=None)
    assert len(host.owner.records) == 30


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("0000000004-0000000004.0.seg", b"", Kind.EMPTY),
        ("0000000004-0000000004.0.seg", b"cotlo", Kind.TORN),
        ("0000000004-0000000004.0.seg", bytes(300), Kind.TORN),
        ("0000000004-0000000004.0.seg.tmp", b"half", Kind.LEFTOVER),
        ("0000000000000000007.snap", b"", Kind.BAD_SNAPSHOT),
        ("0000000000000000007.snap", b"x" * 500, Kind.BAD_SNAPSHOT),
    ],
)
def test_leftovers_cost_nothing(name: str, data: bytes, kind: Kind) -> None:
    host = grown()
    host.put(name, data)
    host.crash()
    assert kinds(host) == [kind]
    assert len(host.owner.records) == 30
    host.fill(1)
    host.sync()
    host.crash()
    assert len(host.owner.records) == 31


def test_a_file_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.sim.disk import SimDisk

    host = grown()
    plain = SimDisk.read

    def read(self, name, offset, size, done):  # type: ignore[no-untyped-def]
        if name.endswith("0000000003-0000000003.0.seg"):
            done(DiskError(f"{name}: input/output error"))
        else:
            plain(self, name, offset, size, done)

    monkeypatch.setattr(SimDisk, "read", read)
    host.crash()
    assert kinds(host) == [Kind.UNREADABLE]
    assert host.log.found.halted
    assert len(host.owner.records) == 24


def test_a_later_version_ends_it_and_nothing_is_touched() -> None:
    from zlib import crc32

    host = grown()
    file = host.node.platter.files[f"log/{FIRST}"]
    file.data[8] = 2
    file.data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(file.data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    file.safe = bytes(file.data)
    before = host.files
    with pytest.raises(UnknownVersion):
        host.crash()
    assert host.files == before


def test_a_damaged_snapshot_costs_a_longer_replay() -> None:
    host = grown()
    host.snapshot([(1, b"old")], Place(1, 10))
    host.snapshot([(1, b"new")], Place(1, 20))
    host.damage("0000000000000000020.snap", 100)
    host.crash()
    assert kinds(host) == [Kind.BAD_SNAPSHOT]
    assert host.owner.state == {1: b"old"}
    assert len(host.owner.records) == 20


def test_a_record_that_does_not_follow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from log_rig import History

    host = grown()
    plain = History.apply
    monkeypatch.setattr(History, "apply", lambda self, before, r: plain(self, before, r) and r.place.index != 7)
    host.crash()
    assert kinds(host) == [Kind.BROKEN_CHAIN]
    assert host.log.found.last.place == Place(1, 6)


def test_a_full_disk_does_not_keep_the_log_from_opening() -> None:
    """What is not known to be synced cannot be written again: the file it is in is synced."""
    host = Host()
    host.fill(4)
    host.sync()
    host.node.crash()
    host.node.platter.capacity = host.node.platter.used()
    host.boot()
    assert len(host.owner.records) == 4
    assert host.log.writer.synced.place == Place(1, 4)
    told = host.fill(1)
    host.run(3)
    assert host.log.writer.refused
    host.node.platter.capacity = None
    host.sync()
    host.crash()
    assert [record.place for record in host.owner.records.values()][-1] == told[0].place


def test_what_an_interrupted_start_has_written_again_is_no_part_of_what_the_next_one_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    told = host.fill(4)
    host.sync()
    host.put("0000000002-0000000002.0.seg.tmp", b"of an earlier start")
    refusals = iter([True])
    monkeypatch.setattr(TroubledDisk, "remove_fails", staticmethod(lambda name: next(refusals, False)))
    host.crash()
    assert next(refusals, None) is None
    bodies = {record.place: b"".join(record.bodies) for record in told}
    assert host.bodies(bodies) == bodies
    host.crash()
    assert host.bodies(bodies) == bodies


def test_what_is_not_known_to_be_synced_is_written_again() -> None:
    """It may be in the cache of the system only, and its sync have failed in an earlier life."""
    host = Host()
    host.fill(4)
    host.sync()
    host.node.crash()
    old = host.node.platter.files.copy()
    host.boot()
    for file in old.values():
        file.data[:], file.safe, file.writes = b"", b"", []
    host.crash()
    assert len(host.owner.records) == 4
