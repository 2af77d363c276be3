"""Appending and syncing: one sync for many, and what becomes of it when the disk refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from log_rig import SMALL, Host, content, event

from coterie.errors import DiskError
from coterie.log.errors import LogHalted
from coterie.log.place import Place


def test_what_is_appended_in_one_turn_is_one_write_and_one_sync() -> None:
    host = Host()
    host.fill(4)
    host.sync()
    assert host.log.writer.syncs == 1
    assert host.log.writer.unsynced == 0


def test_a_record_is_submitted_in_the_turn_in_which_it_was_appended() -> None:
    host = Host()
    host.fill(1)
    host.turn()
    assert host.log.writer.syncs == 1


def test_callbacks_come_in_the_order_of_places_and_only_when_everything_up_to_theirs_is_on_disk() -> None:
    host = Host()
    told: list[Place] = []
    records = host.fill(30)
    for record in reversed(records):
        host.log.writer.when_synced(record.place, lambda place=record.place: told.append(place))  # type: ignore[misc]
    host.until(lambda: len(told) == 30)
    assert told == [record.place for record in records]
    host.log.writer.when_synced(records[3].place, lambda: told.append(Place(0, 0)))
    assert told[-1] == Place(0, 0)


def test_a_callback_that_raises_does_not_cost_the_others_theirs() -> None:
    host = Host()
    told: list[int] = []
    first, second = host.fill(2)

    def fails() -> None:
        raise RuntimeError("of the owner")

    host.log.writer.when_synced(first.place, fails)
    host.log.writer.when_synced(second.place, lambda: told.append(2))
    with pytest.raises(RuntimeError):
        host.run(1)
    host.run(1)
    assert told == [2]


def test_volatile_records_are_not_synced_by_themselves_at_once() -> None:
    host = Host()
    host.add(b"", b"", volatile=True)
    host.run(0.02)
    assert host.log.writer.syncs == 0
    host.run(0.2)
    assert host.log.writer.syncs == 1
    host.add(b"", volatile=True)
    host.sync()  # somebody waits


def test_a_place_that_does_not_follow_is_refused() -> None:
    host = Host()
    host.fill(2)
    with pytest.raises(ValueError, match="does not follow"):
        host.log.append(event(host.log.writer.last, Place(1, 2)))


def test_after_a_failed_sync_what_was_not_synced_is_written_again_to_another_segment() -> None:
    host = Host()
    kept = host.fill(2)
    host.sync()
    host.disk.sync_fails = lambda name: name.endswith("0000000001-0000000001.0.seg")
    told: list[int] = []
    again = host.fill(3)
    host.log.writer.when_synced(again[-1].place, lambda: told.append(1))
    host.run(0.5)
    assert host.log.writer.refused
    assert not told
    host.until(lambda: told)
    assert not host.log.writer.refused
    assert [segment.first for segment in host.log.segments.list] == [1, 3]
    host.crash()
    assert [content(record) for record in host.read()] == [content(record) for record in kept + again]
    assert host.log.found.problems == []


def test_a_sync_that_failed_and_succeeds_the_second_time_is_not_believed() -> None:
    """As Linux does it: the second fsync of the same file says yes, and the data is gone."""
    host = Host()
    host.fill(2)
    host.sync()
    name = "log/0000000001-0000000001.0.seg"
    host.disk.sync_fails = lambda path: path == name
    safe = host.node.platter.files[name].safe
    records = host.fill(3)
    host.run(0.5)
    host.disk.sync_fails = lambda path: False
    host.sync()
    file = host.node.platter.files[name]
    file.data[:], file.safe, file.writes = safe, safe, []  # the old copies were never on disk
    host.crash()
    assert [content(record) for record in host.read()][2:] == [content(record) for record in records]


def test_a_full_disk_is_told_and_ends_by_itself() -> None:
    host = Host()
    told: list[bool] = []
    host.log.writer.on_refused = told.append
    host.fill(3)
    host.sync()
    host.node.platter.capacity = host.node.platter.used() + 100
    records = host.fill(20)
    host.run(30)
    assert told == [True]
    assert host.log.writer.full
    host.node.platter.capacity = None
    host.sync()
    assert told == [True, False]
    host.crash()
    assert [content(record) for record in host.read()][3:] == [content(record) for record in records]
    assert sorted(name for name in host.files if name.endswith(".seg")) == sorted(
        segment.file for segment in host.log.segments.list
    )


def test_the_backlog_is_told() -> None:
    host = Host(settings=SMALL)
    host.node.platter.hangs_until = host.world.time + 5
    host.fill(50, size=400)
    assert host.log.writer.full
    assert host.log.writer.unsynced > SMALL.backlog_bytes
    host.sync()
    assert not host.log.writer.full
    assert host.log.writer.unsynced == 0


def test_what_is_not_on_disk_yet_can_be_read_all_the_same() -> None:
    host = Host()
    host.node.platter.hangs_until = host.world.time + 5
    record = host.fill(1)[0]
    assert host.bodies([record.place]) == {record.place: b"".join(record.bodies)}


def test_after_a_truncation_nothing_of_the_earlier_life_is_told() -> None:
    host = Host()
    records = host.fill(5)
    host.sync()
    told: list[str] = []
    old = host.fill(3)
    host.log.writer.when_synced(old[-1].place, lambda: told.append("old"))
    host.do(host.log.truncate(records[-2].place))
    host.epoch = 2
    new = host.fill(8)
    host.sync()
    host.run(5)
    assert told == []
    host.crash()
    assert [content(record) for record in host.read()] == [content(record) for record in records[:4] + new]


def test_a_truncation_that_fails_halts_the_log_until_it_was_tried_again() -> None:
    host = Host()
    records = host.fill(5)
    host.sync()
    host.disk.sync_fails = lambda name: True
    with pytest.raises(DiskError):
        host.do(host.log.truncate(records[1].place))
    with pytest.raises(LogHalted):
        host.fill(1)
    host.disk.sync_fails = lambda name: False
    host.do(host.log.truncate(records[1].place))
    host.fill(1)
    host.sync()
    host.crash()
    assert len(host.read()) == 3


def test_a_segment_begun_by_a_truncation_is_not_removed_before_the_next_is_durable() -> None:
    """Its header is all that tells that the records behind the cut do not count."""
    host = Host()
    records = host.fill(3)
    host.sync()
    host.do(host.log.truncate(records[0].place))
    host.epoch = 2
    host.disk.sync_fails = lambda name: True
    host.fill(1)
    host.run(1.2)
    for file in host.node.platter.files.values():  # nothing survives that was not synced
        file.data[:], file.writes = file.safe, []
    host.crash()
    places = [record.place for record in host.read()]
    assert places[0] == records[0].place
    assert records[1].place not in places


def test_a_file_that_cannot_be_removed_is_tried_again_and_holds_up_those_behind_it() -> None:
    host = Host()
    records = host.fill(40)
    host.sync()
    host.disk.remove_fails = lambda name: "0000000003-" in name
    host.do(host.log.truncate(records[1].place))
    host.run(2)
    assert any(name.startswith("0000000003-") for name in host.files)
    assert len(host.log.segments.folder.garbage) >= 1
    host.disk.remove_fails = lambda name: False
    host.run(3)
    assert sorted(host.files) == sorted(segment.file for segment in host.log.segments.list)


def test_a_segment_has_so_many_records_at_most() -> None:
    host = Host(settings=replace(SMALL, segment_records=5))
    host.add(*[b""] * 12)
    host.sync()
    assert [segment.last for segment in host.log.segments.list] == [5, 10, 12]


def test_the_footer_keeps_what_the_owner_wants_in_it() -> None:
    host = Host()
    host.log.writer.runs = lambda first, last: f"{first} to {last}".encode()
    host.fill(20)
    host.sync()
    host.crash()
    segment = host.log.segments.list[0]
    assert host.do(host.log.segments.runs(segment)) == b"1/1 to 1/%d" % segment.last


def test_truncations_and_the_end_at_the_same_time_come_one_after_the_other() -> None:
    host = Host()
    records = host.fill(9)
    host.sync()
    host.fill(1)
    host.turn()  # the disk is busy
    for index in (7, 5):
        host.runtime.spawn(host.log.truncate(records[index].place))
    host.do(host.log.close())
    host.run(1)
    host.crash()
    assert host.log.found.last.place == records[5].place
