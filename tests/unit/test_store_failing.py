"""A disk that fails to sync, to remove or to rename, and a crash after that: what was written again counts once, what
is gone stays gone, and nothing that the disk did half is taken for damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_rig import SMALL, Host, Kept, Line, body, place_of
from test_store_merging import QUIET, fill, settle

from coterie.broker.log_store import StoreSettings
from coterie.broker.log_store.index import EPOCH
from coterie.log.place import Place

ONE = replace(SMALL, segment_bytes=1 << 20)
"""Everything is in one segment for each start of the node."""


def give_up(host: Host, line: Line, count: int) -> tuple[str, bytes]:
    """The active segment fails to sync what is written to it now, and is given up; gives its name, and what it had."""
    path = f"log/{host.store.current.log.segments.list[-1].file}"
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


def test_a_disk_that_neither_syncs_nor_removes_is_not_filled_with_what_it_was_given_in_vain() -> None:
    host = Host(settings=ONE)
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    host.disk.sync_fails = lambda name: True
    host.disk.remove_fails = lambda name: True
    line.fill(4, 3)
    host.store.when_synced(host.store.written(), lambda: None)
    host.run(100)
    assert len(host.files) <= 12
    assert host.alarms == [True]
    host.disk.sync_fails = host.disk.remove_fails = lambda name: False
    host.sync()
    settle(host)
    assert host.alarms == [True, False]
    assert len(host.files) <= 5
    assert host.crash(line).damage == []
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 7)}


def prepared(settings: StoreSettings = QUIET) -> tuple[Host, Line, list[Kept], list[Kept], str]:
    """Some segments full of messages that stay, and some of others; and one of the latter."""
    host = Host(settings=settings)
    line = Line(host.store)
    stay, go = fill(host, line, 60), fill(host, line, 60)
    found = place_of(host.store, go[40])
    assert found is not None
    segment = host.store.current.log.segments.holder(Place(EPOCH, found[0]))
    assert segment is not None
    return host, line, stay, go, f"log/{segment.file}"


def emptied(host: Host, line: Line, go: list[Kept]) -> None:
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
