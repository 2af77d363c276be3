"""A store that is replaced: whenever the power is lost, the old one is there or the new one, never a bit of each."""

from __future__ import annotations

import pytest
from store_rig import SMALL, Host, Line, PowerCut, body

from coterie.broker.storage import Recovered

OLD, NEW = 30, 20


def nothing() -> None:
    """There is nothing in memory."""


def with_old(host: Host) -> Line:
    line = Line(host.store, "old")
    line.fill(1, OLD)
    host.store.save("thing", "k", {"is": "old"})
    host.sync()
    return line


def renewed(host: Host) -> Line:
    host.store.renew(nothing)
    line = Line(host.store, "new")
    line.fill(1, NEW)
    host.store.save("thing", "k", {"is": "new"})
    return line


def completed(host: Host) -> None:
    host.sync()
    done: list[bool] = []
    host.store.whole(lambda: done.append(True))
    host.until(lambda: bool(done))


def what(found: Recovered) -> str:
    """Which of the two it is; all of it is there."""
    queues = {name: len(entries) for (_, name, _), (_, entries) in found.queues.items() if len(entries)}
    which = str(found.records["thing", "k"]["is"])
    assert queues == {which: OLD if which == "old" else NEW}
    assert found.damage == []
    return which


def folders(host: Host) -> set[str]:
    return {name.rpartition("/")[0] for name in host.files if not name.endswith("/reserve")}


def test_until_the_new_one_is_whole_the_next_start_finds_the_old_one() -> None:
    host = Host()
    with_old(host)
    renewed(host)
    host.sync()
    assert host.store.keeps_old
    assert folders(host) == {"log", "log.1"}
    assert what(host.crash()) == "old"
    assert folders(host) == {"log"}


def test_once_it_is_whole_the_old_one_goes() -> None:
    host = Host()
    with_old(host)
    line = renewed(host)
    completed(host)
    host.run(1)
    assert not host.store.keeps_old
    assert folders(host) == {"log.1"}
    assert what(host.crash(line)) == "new"
    assert host.bodies(line) == {n: body("new", n) for n in range(1, NEW + 1)}
    line.fill(line.next_position, 3)
    host.sync()
    assert len(next(entries for _, entries in host.crash().queues.values())) == NEW + 3


def test_it_can_be_gone_back_to_without_a_restart() -> None:
    host = Host()
    line = with_old(host)
    line.fill(OLD + 1, 1)  # not even written yet
    renewed(host)
    results: list[Recovered | Exception] = []
    host.store.go_back(nothing, results.append)
    host.until(lambda: bool(results))
    (found,) = results
    assert isinstance(found, Recovered)
    assert not host.store.keeps_old
    line.restore(host.store, found)
    assert host.bodies(line) == {n: body("old", n) for n in range(1, OLD + 2)}
    line.fill(line.next_position, 1)
    host.sync()
    assert folders(host) == {"log"}
    assert len(next(entries for _, entries in host.crash().queues.values())) == OLD + 2


def test_a_disk_that_was_full_when_it_was_gone_back_to_is_not_full_for_ever() -> None:
    host = Host()
    with_old(host)
    platter = host.node.platter
    line = renewed(host)
    platter.capacity = platter.used()
    line.fill(line.next_position, 3)
    host.until(lambda: host.alarms[-1:] == [True])
    platter.capacity = None
    results: list[Recovered | Exception] = []
    host.store.go_back(nothing, results.append)
    host.until(lambda: bool(results))
    assert host.alarms[-1] is False


def test_what_is_heard_of_the_end_of_the_old_one_concerns_nobody() -> None:
    host = Host()
    line = with_old(host)

    def clear() -> None:
        host.store.save("thing", "k", None)
        host.store.deleted(line.queue)

    host.store.renew(clear)
    host.sync()
    assert what(host.crash()) == "old"


@pytest.mark.parametrize("again", [False, True])
def test_there_are_never_more_than_two_however_often_it_is_renewed(again: bool) -> None:
    host = Host()
    with_old(host)
    for _ in range(4):
        renewed(host)
        if again:
            host.sync()
        host.run(0.5)
        assert len(folders(host)) <= 2
    completed(host)
    host.run(1)
    assert len(folders(host)) == 1
    assert what(host.crash()) == "new"


def test_one_that_is_given_up_while_it_becomes_whole_does_not_count() -> None:
    host = Host()
    with_old(host)
    renewed(host)
    host.sync()
    told: list[bool] = []
    host.store.whole(lambda: told.append(True))
    host.run(0.001)
    renewed(host)
    host.run(2)
    assert not told
    assert host.store.keeps_old
    assert what(host.crash()) == "old"


def test_generations_after_the_first_can_be_replaced_too() -> None:
    host = Host()
    with_old(host)
    for _ in range(3):
        renewed(host)
        completed(host)
        host.run(1)
        assert what(host.crash()) == "new"
        assert len(folders(host)) == 1


def test_files_of_others_stay_and_folders_with_other_names_are_none_of_ours() -> None:
    host = Host()
    with_old(host)
    strange = ("store.1/notes", "store.01/0000000001-0000000001.0.log", "store.x/whole", "stores/whole", "store.5.log")
    for name in strange:
        host.disk.append(name, [b"mine"], lambda result: None)
        host.disk.sync(name, lambda error: None)
    host.run(0.1)
    assert what(host.crash()) == "old"
    renewed(host)
    completed(host)
    host.run(1)
    assert what(host.crash()) == "new"
    assert all(host.files[name] == b"mine" for name in strange)


@pytest.mark.parametrize("when", ["before", "after"])
def test_power_may_fail_at_any_operation_of_a_switch(when: str) -> None:
    """Once it was told whole it is the new one; before the first of it, the old one."""
    outcomes: list[str] = []
    for number in range(1, 200):
        host = Host(f"{when}/{number}", SMALL)
        with_old(host)
        renewed(host)
        left = number
        told: list[bool] = []

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise PowerCut

        setattr(host.disk, when, count)
        try:
            host.sync()
            host.store.whole(lambda told=told: told.append(True))  # type: ignore[misc]
            host.run(2)
        except PowerCut:
            pass
        found = what(host.crash())
        outcomes.append(found)
        assert found == "new" or not told
        assert len(folders(host)) == 1
        if left > 0:
            break
    assert left > 0
    assert outcomes == sorted(outcomes, reverse=True)
    assert {*outcomes} == {"old", "new"}


@pytest.mark.parametrize("steps", range(8))
def test_one_that_is_gone_back_from_while_its_last_sync_is_under_way_does_not_become_whole(steps: int) -> None:
    """Going back waits for the old one's disk, and meanwhile that sync ends."""
    host = Host()
    line = with_old(host)
    line.fill(OLD + 1, 1)
    renewed(host)
    done: list[bool] = []
    host.store.whole(lambda: done.append(True))
    host.run(steps * 0.0002)
    assert host.store.unsynced()
    results: list[Recovered | Exception] = []
    host.store.go_back(nothing, results.append)
    host.until(lambda: bool(results))
    (found,) = results
    assert isinstance(found, Recovered)
    assert found.records["thing", "k"] == {"is": "old"}
    host.run(1)
    assert not done
    assert folders(host) == {"log"}


@pytest.mark.parametrize("steps", range(12))
def test_one_that_becomes_whole_while_it_is_gone_back_from_has_all_that_was_in_it(steps: int) -> None:
    """Whichever of the two is found, the end of what was in memory is no part of it."""
    host = Host()
    with_old(host)
    line = renewed(host)
    host.sync()
    host.store.whole(nothing)
    host.run(steps * 0.0005)

    def clear() -> None:
        host.store.save("thing", "k", None)
        host.store.deleted(line.queue)

    results: list[Recovered | Exception] = []
    before = host.store.written()
    host.store.go_back(clear, results.append)
    host.until(lambda: bool(results))
    (found,) = results
    assert isinstance(found, Recovered)
    which = what(found)
    assert not host.store.keeps_old
    assert host.store.written() >= before
    host.run(1)
    assert len(folders(host)) == 1
    assert what(host.crash()) == which
