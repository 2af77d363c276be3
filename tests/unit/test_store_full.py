"""A disk that refuses: full, too slow, or failing to sync. Publishers are blocked, nothing confirmed is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_rig import SMALL, Host, Line, body, page_out, persistent

from coterie.broker.log_store import StoreSettings

RESERVE = replace(SMALL, reserve_bytes=3000, segment_bytes=1 << 20)


def fill_disk(host: Host, room: int = 0) -> None:
    host.node.platter.capacity = host.node.platter.used() + room


def free_disk(host: Host) -> None:
    host.node.platter.capacity = None


def test_a_full_disk_raises_the_alarm_keeps_what_waits_and_goes_on_when_there_is_room() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    fill_disk(host)
    told: list[bool] = []
    line.fill(4, 3)
    host.store.when_synced(host.store.written(), lambda: told.append(True))
    host.run(5)
    assert host.alarms == [True]
    assert told == []
    free_disk(host)
    host.run(3)
    assert host.alarms == [True, False]
    assert told == [True]
    host.crash(line)
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 7)}


def test_the_disk_is_asked_again_after_a_pause_and_not_all_the_time() -> None:
    host = Host(settings=replace(SMALL, retry_interval=2.0))
    line = Line(host.store)
    fill_disk(host)
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    host.disk.before = count
    line.fill(1, 3)
    host.run(21)
    assert 5 <= asked <= 50


def test_nothing_that_was_confirmed_before_the_disk_was_full_is_lost_by_a_crash_while_it_is() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 20)
    host.sync()
    fill_disk(host, 100)
    line.fill(21, 10)
    host.run(3)
    host.crash(line)
    assert list(line.entries) == list(range(1, 21))
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 21)}
    free_disk(host)
    line.fill(line.next_position, 1)
    host.sync()


def test_the_reserve_lets_acks_through_and_publishers_wait_until_it_is_there_again() -> None:
    host = Host(settings=RESERVE)
    line = Line(host.store)
    entries = line.fill(1, 20)
    host.sync()
    host.run(1)
    assert len(host.files["log.reserve"]) == 3000
    fill_disk(host)
    line.take(entries[:10])
    host.sync()  # it does, although the disk is full
    assert host.alarms == [True]
    host.run(5)
    assert host.alarms == [True], "there is room, but not enough for the reserve"
    assert "log.reserve" not in host.files
    free_disk(host)
    host.run(3)
    assert host.alarms == [True, False]
    assert len(host.files["log.reserve"]) == 3000
    host.crash(line)
    assert list(line.entries) == list(range(11, 21))


def test_consumers_that_empty_a_full_disk_make_room_for_publishers() -> None:
    host = Host(settings=replace(SMALL, reserve_bytes=6000))
    line = Line(host.store)
    for _ in range(30):
        line.fill(line.next_position, 10)
        host.sync()
    host.run(1)
    fill_disk(host)
    line.fill(line.next_position, 5)
    host.run(3)
    assert host.alarms == [True]
    for entry in list(line.entries.values())[:290]:
        line.take([entry])
        host.run(0.01)
    host.run(10)
    assert host.alarms == [True, False]
    host.sync()
    host.crash(line)
    assert list(line.entries) == list(range(291, 306))


def test_a_start_on_a_full_disk_recovers_and_is_blocked() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 5)
    host.sync()
    fill_disk(host)
    host.crash(line)
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 6)}
    assert host.alarms == [True]
    line.take([line.entries[1]])
    free_disk(host)
    host.run(3)
    assert host.alarms == [True, False]
    host.crash(line)
    assert list(line.entries) == [2, 3, 4, 5]


def test_a_disk_that_is_too_slow_blocks_publishers_until_it_has_caught_up() -> None:
    host = Host(settings=StoreSettings(reserve_bytes=0, pending_max=100_000))
    host.node.platter.sync_latency = 2.0
    line = Line(host.store)
    for _ in range(30):
        line.fill(line.next_position, 10, size=1000)
        host.run(0.01)
    assert host.alarms == [True]
    host.run(30)
    assert host.alarms == [True, False]
    assert host.store.synced() == host.store.written()


def test_what_a_failed_sync_may_have_lost_is_written_to_another_segment() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    (broken,) = [segment.file for segment in host.store.current.log.segments.list]
    host.disk.sync_fails = lambda name: name.endswith(broken)
    line.fill(4, 3)
    line.take([line.entries[2]])
    host.store.save("user", "a", {"n": 1})
    told: list[bool] = []
    host.store.when_synced(host.store.written(), lambda: told.append(True))
    host.run(0.5)
    assert told == []
    assert host.alarms == [True]
    host.run(3)
    assert told == [True]
    assert host.alarms == [True, False]
    expected = {n: body("q", n) for n in (1, 3, 4, 5, 6)}
    page_out(host.store, list(line.entries.values()))
    assert host.bodies(line) == expected
    assert host.store.stats()["messages"] == len(expected), "none is counted twice"
    found = host.crash(line)
    assert found.damage == []
    assert found.records == {("user", "a"): {"n": 1}}
    assert host.bodies(line) == expected


def test_a_shared_message_that_had_to_be_written_again_is_forgotten_once_all_its_queues_are_done_with_it() -> None:
    host = Host()
    lines = [Line(host.store, name) for name in "abc"]
    for line in lines:
        host.store.opened(line.queue)
    host.sync()
    failures = iter([True])
    host.disk.sync_fails = lambda name: next(failures, False)
    message = persistent(b"shared")
    for line in lines:
        line.put(message)
    host.run(5)
    host.sync()
    assert host.alarms == [True, False]
    for line in lines:
        line.take(list(line.entries.values()))
    host.sync()
    assert host.store.stats()["messages"] == 0
    assert host.store.index.needed.memory == 0


def test_a_file_that_was_given_up_may_still_hold_what_was_written_again_and_it_counts_once() -> None:
    host = Host(tear=False)
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    (name,) = [segment.file for segment in host.store.current.log.segments.list]
    host.disk.sync_fails = lambda other: other.endswith(name)
    line.fill(4, 3)
    line.take([line.entries[5]])
    host.store.when_synced(host.store.written(), lambda: None)
    host.run(0.5)
    whole = host.files[f"log/{name}"]
    host.sync()
    file = host.node.platter.files[f"log/{name}"]
    file.data[:], file.safe = whole, whole  # the disk did not forget it after all
    found = host.crash(line)
    assert found.damage == []
    assert host.bodies(line) == {n: body("q", n) for n in (1, 2, 3, 4, 6)}


@pytest.mark.parametrize("times", [1, 2, 5])
def test_the_first_segment_of_a_start_may_fail_to_sync_too(times: int) -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 2)
    host.sync()
    failures = times

    def fails(name: str) -> bool:
        nonlocal failures
        failures -= 1
        return failures >= 0

    host.node.crash()
    host.sync_fails = lambda name: not name.endswith((".tmp", "-0000000001.0.seg")) and fails(name)
    host.boot()
    line.restore(host.store, host.found)
    assert host.alarms == [True]
    line.fill(line.next_position, 1)
    host.run(20)
    host.sync()
    assert host.alarms == [True, False]
    before = host.bodies(line)
    assert len(before) == 3
    host.crash(line)
    assert host.bodies(line) == before


def test_closing_on_a_disk_that_refuses_ends_all_the_same() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 2)
    host.sync()
    fill_disk(host)
    ended: list[bool] = []
    host.store.close(lambda: ended.append(True))
    host.run(10)
    assert ended == [True]


def test_closing_on_a_slow_disk_waits_for_it() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 2)
    host.node.platter.sync_latency = 8.0
    assert host.close(line).clean
    assert line.next_position == 3


def test_a_start_that_the_disk_takes_nothing_of_gives_positions_that_the_next_start_does_not_give_again() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    fill_disk(host)
    given = []
    for _ in range(3):
        host.crash(line)
        assert host.alarms == [True]
        given.append((line.next_position, host.found.incarnation))
        assert list(line.entries) == [1, 2, 3]
    positions, starts = zip(*given, strict=True)
    assert len(set(positions)) == len(set(starts)) == 3
    free_disk(host)
    host.run(3)
    line.fill(line.next_position, 2)
    host.sync()
    after = line.next_position
    host.crash(line)
    assert line.next_position >= after
    assert host.found.incarnation > starts[-1]
