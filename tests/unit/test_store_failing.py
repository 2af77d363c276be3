"""A disk that fails to sync, to remove or to rename, and a crash after that: what was written again counts once, what
is gone stays gone, and nothing that the disk did half is taken for damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_rig import SMALL, Host, Line, body
from test_store_compaction import QUIET, fill, names, on_disk, settle

from coterie.broker.entry import Entry
from coterie.broker.store import StoreSettings
from coterie.broker.store.format import HEADER_SIZE

ONE = replace(SMALL, segment_bytes=1 << 20)
"""Everything is in one segment for each start of the node."""


def give_up(host: Host, line: Line, count: int) -> tuple[str, bytes]:
    """The active segment fails to sync what is written to it now, and is given up; gives its name, and what it had."""
    (active,) = [segment for segment in host.store.index.segments if not segment.sealed]
    path = f"store/{active.name}"
    host.disk.sync_fails = lambda name: name == path
    line.fill(line.next_position, count)
    host.store.when_synced(host.store.written(), lambda: None)
    host.run(0.1)
    whole = host.files[path]
    host.sync()
    return path, whole


def come_back(host: Host, path: str, whole: bytes) -> None:
    """The disk did not cut it off after all."""
    file = host.node.platter.files[path]
    file.data[:], file.safe, file.writes = whole, whole, []


@pytest.mark.parametrize("restart", [False, True])
def test_what_was_given_up_does_not_come_back_when_the_segment_behind_it_is_gone(restart: bool) -> None:
    """Its successor's header tells where it ends; it must not go before the end is certain."""
    host = Host(settings=QUIET)
    line = Line(host.store)
    keep = line.fill(1, 3)
    host.sync()
    path, whole = give_up(host, line, 4)
    if restart:
        come_back(host, path, whole)
        host.crash(line)
        keep = list(line.entries.values())[:3]
    line.take([entry for entry in line.entries.values() if entry not in keep])
    for _ in range(3):
        line.take(fill(host, line, 60))
        settle(host)
    if path in host.node.platter.files and not restart:
        come_back(host, path, whole)
    found = host.crash(line)
    assert found.damage == []
    assert host.bodies(line) == {n: body("q", n) for n in (1, 2, 3)}


def test_a_segment_stays_as_long_as_its_header_tells_where_another_one_ends() -> None:
    """The one that was given up cannot be written anew just now; those behind it are of no other use any more."""
    host = Host(settings=QUIET)
    line = Line(host.store)
    keep = line.fill(1, 3)
    host.sync()
    path, whole = give_up(host, line, 4)
    host.disk.sync_fails = lambda name: name == path or name.endswith(".tmp")
    line.take([entry for entry in line.entries.values() if entry not in keep])
    for _ in range(3):
        line.take(fill(host, line, 60))
        settle(host)
    come_back(host, path, whole)
    found = host.crash(line)
    assert found.damage == []
    assert host.bodies(line) == {n: body("q", n) for n in (1, 2, 3)}


@pytest.mark.parametrize("begun", [0, HEADER_SIZE // 2])
def test_a_segment_that_was_hardly_begun_leaves_the_one_before_as_the_last(begun: int) -> None:
    """It was given up with an unfinished record at its end, and power was lost before the next one had its header."""
    host = Host(settings=ONE)
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    (name,) = names(host)
    file = host.node.platter.files[f"store/{name}"]
    file.data += file.data[HEADER_SIZE:-7]
    end = len(file.data) - 20
    del file.data[end:]
    file.safe = bytes(file.data)
    follower = bytes(file.data[:begun])
    host.node.platter.files[f"store/{name.replace('1', '2')}"] = type(file)(bytearray(follower), follower)
    for _ in range(2):
        assert host.crash(line).damage == []
        assert host.bodies(line) == {n: body("q", n) for n in (1, 2, 3)}


def test_a_segment_of_which_nothing_is_synced_is_gone_before_the_next_one_is_begun() -> None:
    host = Host(settings=ONE)
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    host.disk.sync_fails = lambda name: True
    host.disk.remove_fails = lambda name: True
    line.fill(4, 3)
    host.store.when_synced(host.store.written(), lambda: None)
    host.run(5)
    assert len(on_disk(host)) == 2, "the first one, and one that can neither be synced nor removed"
    host.disk.sync_fails = lambda name: False
    host.run(5)
    assert len(on_disk(host)) == 2
    assert host.alarms == [True]
    host.disk.remove_fails = lambda name: False
    host.sync()
    settle(host)
    assert host.alarms == [True, False]
    assert len(on_disk(host)) <= 2
    assert host.crash(line).damage == []
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 7)}


def prepared(settings: StoreSettings = QUIET) -> tuple[Host, Line, list[Entry], list[Entry], str]:
    """Some segments full of messages that stay, and some of others; and one of the latter."""
    host = Host(settings=settings)
    line = Line(host.store)
    stay, go = fill(host, line, 60), fill(host, line, 60)
    place = host.store.index.find(go[40].stored)
    assert place is not None
    return host, line, stay, go, f"store/{place.segment.name}"


def emptied(host: Host, line: Line, go: list[Entry]) -> None:
    """They leave, and everything that says so is dropped as soon as they are gone from the disk."""
    line.take(go)
    for _ in range(4):
        line.take(fill(host, line, 60))
        settle(host)


def test_a_segment_that_cannot_be_removed_does_not_bring_its_messages_back() -> None:
    host, line, stay, go, stuck = prepared()
    host.disk.remove_fails = lambda name: name == stuck
    emptied(host, line, go)
    assert stuck in host.files, "the case that is meant"
    host.crash(line)
    assert list(line.entries) == [entry.position for entry in stay]
    settle(host)
    assert stuck not in host.files


def test_an_old_segment_that_cannot_be_removed_goes_before_what_was_written_in_its_stead() -> None:
    host, line, stay, go, stuck = prepared()
    host.disk.remove_fails = lambda name: name == stuck
    rest = go[::7]
    line.take([entry for entry in go if entry not in rest])
    settle(host)
    assert stuck in host.files, "the case that is meant"
    emptied(host, line, rest)
    host.crash(line)
    assert list(line.entries) == [entry.position for entry in stay]


def test_a_renaming_that_was_reported_as_failed_and_happened_brings_nothing_back() -> None:
    host, line, stay, go, _ = prepared()
    failures = [True]
    host.disk.replace_fails = lambda name: bool(failures and failures.pop())
    rest = go[::7]
    line.take([entry for entry in go if entry not in rest])
    settle(host)
    assert failures == [], "the case that is meant"
    emptied(host, line, rest)
    host.crash(line)
    assert list(line.entries) == [entry.position for entry in stay]


@pytest.mark.parametrize("reserve", [0, 1000])
def test_a_segment_that_cannot_be_closed_blocks_nobody_once_the_disk_is_well(reserve: int) -> None:
    """All of it was synced before: there is nothing left that would show that the disk takes data again."""
    host = Host(settings=replace(SMALL, reserve_bytes=reserve))
    line, writer = Line(host.store), host.store.writer
    while not writer.blocked:
        line.fill(line.next_position, 1)
        host.disk.sync_fails = lambda name: writer.synced == writer.written  # all is safe: it is to be closed
        host.store.when_synced(host.store.written(), lambda: None)
        host.run(0.05)
    host.disk.sync_fails = lambda name: False
    host.run(10)
    assert not writer.blocked
