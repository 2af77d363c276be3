"""Merges: what nobody needs goes, what is needed stays, and nothing that is gone comes back by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_rig import SMALL, Host, Kept, Line, PowerCut, body, page_out, persistent

from coterie.broker.log_store import StoreSettings

QUIET = replace(SMALL, positions_ahead=1 << 20)
"""Marks of queues are saved once: nothing but messages and dequeues is in most segments."""


def names(host: Host) -> list[str]:
    return [segment.file for segment in host.store.current.log.segments.list]


def on_disk(host: Host) -> list[str]:
    return sorted(name.removeprefix("log/") for name in host.files if name.endswith((".seg", ".tmp")))


def stored(host: Host) -> int:
    return sum(map(len, host.files.values()))


def fill(host: Host, line: Line, count: int) -> list[Kept]:
    """Ten messages a turn, so that they are spread over segments."""
    entries: list[Kept] = []
    for _ in range(count // 10):
        entries += line.fill(line.next_position, 10)
        host.sync()
    return entries


def settle(host: Host) -> None:
    """Merges follow snapshots, and those follow what is written."""
    host.sync()
    for _ in range(4):
        host.store.save("filler", "", {"text": "x" * 1200})
        host.sync()
        host.run(0.5)
    host.store.save("filler", "", None)
    host.sync()
    host.run(0.5)


def merged(host: Host) -> int:
    return host.store.current.log.merger.merged


def test_segments_whose_messages_are_all_gone_are_removed_without_being_read() -> None:
    host = Host(settings=QUIET)
    line = Line(host.store)
    entries = fill(host, line, 200)
    assert len(names(host)) > 5
    line.take(entries)
    settle(host)
    assert len(names(host)) <= 4
    assert on_disk(host) == names(host)
    assert stored(host) < 6 * SMALL.segment_bytes


def test_the_disk_holds_little_more_than_what_is_needed_however_long_the_node_runs() -> None:
    host = Host(settings=QUIET)
    line = Line(host.store)
    waiting: list[Kept] = []
    for _ in range(100):
        waiting += fill(host, line, 20)
        line.take(waiting[:-10])
        waiting = waiting[-10:]
    settle(host)
    assert stored(host) < 6 * SMALL.segment_bytes
    assert host.bodies(line) == {entry.position: body("q", entry.position) for entry in waiting}


def test_a_segment_of_which_little_is_needed_is_written_anew_with_just_that() -> None:
    host = Host(settings=QUIET)
    line = Line(host.store)
    entries = fill(host, line, 200)
    rest = entries[::20]
    before = stored(host)
    line.take([entry for entry in entries if entry not in rest])
    settle(host)
    assert stored(host) < before
    page_out(host.store, list(line.entries.values()))
    assert host.bodies(line) == {entry.position: body("q", entry.position) for entry in rest}
    host.crash(line)
    assert host.bodies(line) == {entry.position: body("q", entry.position) for entry in rest}


def test_saved_records_survive_any_number_of_compactions_and_old_values_take_no_room() -> None:
    host = Host(settings=QUIET)
    for n in range(300):
        host.store.save("queue", f"temporary{n}", {"n": n})
        host.store.save("queue", "changing", {"n": n})
        host.store.save("queue", f"temporary{n}", None)
        if n % 3 == 0:
            host.sync()
    host.store.save("queue", "lasting", {"n": 1})
    settle(host)
    assert stored(host) < 6 * SMALL.segment_bytes
    expected = {("queue", "changing"): {"n": 299}, ("queue", "lasting"): {"n": 1}}
    assert host.crash().records == expected
    settle(host)
    assert host.crash().records == expected


def test_what_dies_while_its_segment_is_written_anew_stays_dead() -> None:
    """Copied while it lived; what says that it is gone is in a segment that is dropped later."""
    for delay in range(12):
        host = Host(settings=QUIET)
        line = Line(host.store)
        entries = fill(host, line, 60)
        rest = entries[::6]
        line.take([entry for entry in entries if entry not in rest])
        host.sync()
        host.run(0.0005 * delay)
        line.take(rest[2:5])
        host.sync()
        left = [entry.position for entry in rest if entry not in rest[2:5]]
        for _ in range(4):
            line.take(fill(host, line, 60))
            settle(host)
        alive = host.store.stats()["messages"]
        assert alive == len(left)
        host.crash(line)
        assert list(line.entries) == left


def test_a_shared_content_survives_its_own_entry_through_compactions() -> None:
    host = Host(settings=QUIET)
    a, b = Line(host.store, "a"), Line(host.store, "b")
    shared = [persistent(body("shared", n)) for n in range(5)]
    for message in shared:
        a.put(message)
        a.take(a.fill(a.next_position, 8))
        host.sync()
    for message in shared:
        b.put(message)
    host.sync()
    a.take(list(a.entries.values()))  # whose contents they are
    for _ in range(3):
        a.take(fill(host, a, 60))
        settle(host)
        host.crash(a, b)
        assert host.bodies(a) == {}
        assert host.bodies(b) == {n + 1: body("shared", n) for n in range(5)}
    b.take(list(b.entries.values()))
    settle(host)
    a.take(fill(host, a, 60))
    settle(host)
    assert not any(b"shared" in content for content in host.files.values())


def test_an_orphaned_content_does_not_come_back_as_a_message_when_its_dequeue_is_compacted_away() -> None:
    host = Host(settings=QUIET)
    a, b = Line(host.store, "a"), Line(host.store, "b")
    message = persistent(b"shared" * 10)
    (own,) = a.put(message)
    keep = fill(host, a, 10)
    b.put(message)
    host.sync()
    a.take(fill(host, a, 30))
    a.take([own])  # in another segment than the content, which stays for the sake of `keep` and of b
    host.sync()
    for _ in range(4):
        a.take(fill(host, a, 60))
        settle(host)
        host.crash(a, b)
        assert list(a.entries) == [entry.position for entry in keep]
        assert host.bodies(b) == {1: message.body}


def test_many_restarts_do_not_leave_many_small_segments() -> None:
    host = Host(settings=QUIET)
    line = Line(host.store)
    for _ in range(40):
        line.fill(line.next_position, 1)
        host.sync()
        host.crash(line)
    settle(host)
    assert len(names(host)) <= QUIET.compact_merge + 1
    assert len(host.bodies(line)) == 40


def test_compaction_reads_and_writes_in_steps_of_the_given_size() -> None:
    settings = StoreSettings(
        segment_bytes=400_000, reserve_bytes=0, compact_bytes=20_000, record_bytes=5_000, snapshot_bytes=1000
    )
    host = Host(settings=settings)
    line = Line(host.store)
    for _ in range(70):
        line.fill(line.next_position, 10, size=1000)
        host.sync()
    sizes: list[int] = []
    append, read = host.disk.append, host.disk.read

    def measured_append(name: str, buffers: list[bytes], done: object) -> None:
        sizes.append(sum(map(len, buffers)))
        append(name, buffers, done)  # type: ignore[arg-type]

    def measured_read(name: str, offset: int, size: int, done: object) -> None:
        sizes.append(size)
        read(name, offset, size, done)  # type: ignore[arg-type]

    host.disk.append, host.disk.read = measured_append, measured_read  # type: ignore[assignment,method-assign]
    line.take([entry for n, entry in line.entries.items() if n % 3])
    settle(host)
    assert merged(host) > 0
    assert max(sizes) < 2 * 20_000


def test_a_damaged_segment_is_not_written_anew_and_its_sound_part_stays_readable() -> None:
    host = Host(settings=QUIET)
    line = Line(host.store)
    line.take(fill(host, line, 30))
    entries = fill(host, line, 90)
    segment = host.store.current.log.segments.list[-2]
    found = [entry for entry in entries if body("q", entry.position) in host.files[f"log/{segment.file}"]]
    keep = found[:3]
    file = host.node.platter.files[f"log/{segment.file}"]
    file.data[file.data.rindex(body("q", found[-1].position))] ^= 1
    line.take([entry for entry in entries if entry not in keep])
    settle(host)
    assert segment.file in names(host)
    page_out(host.store, keep)
    assert host.bodies(line) == {entry.position: body("q", entry.position) for entry in keep}
    line.take(keep)
    settle(host)
    assert segment.file not in on_disk(host), "nothing in it is needed any more"


def test_a_disk_that_refuses_the_copy_leaves_everything_as_it_was_and_is_asked_again() -> None:
    host = Host(settings=QUIET)
    line = Line(host.store)
    entries = fill(host, line, 100)
    rest = entries[::9]
    host.disk.sync_fails = lambda name: name.endswith(".tmp")
    line.take([entry for entry in entries if entry not in rest])
    settle(host)
    assert merged(host) == 0
    assert not any(name.endswith(".tmp") for name in on_disk(host))
    host.disk.sync_fails = lambda name: False
    line.put(persistent(b"one more"))
    settle(host)
    assert merged(host) > 0
    assert len(host.crash(line).queues["/", "q", 1][1]) == len(rest) + 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_power_lost_at_any_step_of_a_compaction_loses_nothing_and_leaves_no_rubbish(moment: str) -> None:
    step = 0
    while True:
        step += 1
        host = Host(seed=step, settings=QUIET)
        line = Line(host.store)
        entries = fill(host, line, 80)
        rest = [entry.position for entry in entries[::7]]
        line.take([entry for entry in entries if entry.position not in rest])
        host.sync()
        left = step

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise PowerCut

        setattr(host.disk, moment, count)
        try:
            host.run(2)
            break  # nothing was left to be interrupted
        except PowerCut:
            pass
        host.crash(line)
        assert host.found.damage == []
        assert host.bodies(line) == {position: body("q", position) for position in rest}
        settle(host)
        assert on_disk(host) == names(host)
    assert step > 10


def test_contents_that_only_others_need_stay_at_their_place_among_those_in_the_queue() -> None:
    """Numbers rise along a segment: what is in no queue any more must not be moved behind what is."""
    host = Host(settings=QUIET)
    first, second, own = (Line(host.store, name) for name in ("first", "second", "own"))
    shared = [persistent(body("both", n)) for n in range(1, 41)]
    for at in range(0, 40, 10):
        first.put(*shared[at : at + 10])
        second.put(*shared[at : at + 10])
        own.take(own.fill(own.next_position, 30))
        host.sync()
    taken = [entry for position, entry in first.entries.items() if position % 4]
    first.take(taken)  # their contents are needed by the other queue
    second.take([entry for position, entry in second.entries.items() if position % 2])
    fill(host, Line(host.store, "filler"), 60)
    settle(host)
    assert merged(host) > 0
    for line in (first, second):
        page_out(host.store, list(line.entries.values()))
        assert host.bodies(line) == {position: body("both", position) for position in line.entries}
    host.crash(first, second)
    assert host.found.damage == []
    assert host.bodies(first) == {n: body("both", n) for n in range(4, 41, 4)}
    assert host.bodies(second) == {n: body("both", n) for n in range(2, 41, 2)}


def test_what_leaves_while_its_segment_is_merged_is_kept_until_that_is_on_disk() -> None:
    """Power is lost before it is: then it has not left."""
    host = Host(settings=QUIET)
    line = Line(host.store)
    entries = fill(host, line, 60)
    settle(host)
    rest = entries[::6]
    line.take([entry for entry in entries if entry not in rest])
    host.sync()
    host.disk.sync_fails = lambda name: name.endswith(".0.seg")
    line.take(rest)
    host.store.when_synced(host.store.written(), lambda: None)
    host.run(0.1)
    before = merged(host)
    host.store.current.tender.merge()
    host.run(0.5)
    assert merged(host) > before, "the case that is meant"
    host.node.platter.tear = False
    for file in host.node.platter.files.values():  # nothing of what was not synced survives
        file.data[:], file.writes = file.safe, []
    found = host.crash(line)
    assert found.damage == []
    assert host.bodies(line) == {entry.position: body("q", entry.position) for entry in rest}
