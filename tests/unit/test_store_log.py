"""The store in good times: group commit, what survives a restart, transactions, paging."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_rig import SMALL, Host, Line, body, load, page_out, persistent, transient

from coterie.broker.log_store import StoreSettings
from coterie.broker.observer import Reason
from coterie.broker.storage import Damaged

LARGE = StoreSettings(reserve_bytes=0)


def kept(line: Line) -> list[int]:
    return list(line.entries)


# Group commit.


def test_everything_of_a_turn_is_one_append_and_one_sync() -> None:
    host = Host(settings=LARGE)
    a, b = Line(host.store, "a"), Line(host.store, "b")
    appends, syncs = host.store.writer.appends, host.store.writer.syncs
    told: list[int] = []
    for n in range(10):
        a.fill(1 + n, 1)
        b.fill(1 + n, 1)
        host.store.when_synced(host.store.written(), lambda n=n: told.append(n))  # type: ignore[misc]
    host.store.save("queue", "a", {})
    host.run(1)
    assert (host.store.writer.appends - appends, host.store.writer.syncs - syncs) == (1, 1)
    assert told == list(range(10))


def test_what_comes_while_the_disk_is_busy_waits_for_the_next_append_and_sync_together() -> None:
    host = Host(settings=LARGE)
    line = Line(host.store)
    syncs = host.store.writer.syncs
    told: list[int] = []
    for turn in range(50):
        line.fill(1 + turn, 1)
        host.store.when_synced(host.store.written(), lambda turn=turn: told.append(turn))  # type: ignore[misc]
        host.run(0.0001)
    host.run(1)
    assert told == list(range(50))
    assert host.store.writer.syncs - syncs < 10


def test_nothing_is_reported_synced_before_the_sync_has_ended() -> None:
    host = Host(settings=LARGE)
    host.node.platter.sync_latency = 0.5
    told: list[bool] = []
    Line(host.store).fill(1, 1)
    host.store.when_synced(host.store.written(), lambda: told.append(True))
    host.run(0.2)
    assert told == []
    assert host.store.synced() < host.store.written()
    host.run(2)
    assert told == [True]
    assert host.store.synced() == host.store.written()


def test_what_is_synced_already_is_reported_at_once() -> None:
    host = Host()
    Line(host.store).fill(1, 1)
    host.sync()
    told: list[bool] = []
    host.store.when_synced(host.store.written(), lambda: told.append(True))
    assert told == [True]


def test_what_nobody_waits_for_is_synced_a_little_later() -> None:
    host = Host(settings=replace(LARGE, sync_interval=0.2))
    line = Line(host.store)
    entries = line.fill(1, 5)
    host.sync()
    line.take(entries)
    host.run(0.1)
    assert host.store.synced() < host.store.written()
    host.run(0.5)
    assert host.store.synced() == host.store.written()


def test_a_callback_that_raises_does_not_keep_the_others_from_being_told() -> None:
    host = Host()
    told: list[bool] = []

    def fail() -> None:
        raise RuntimeError("of the one who waits")

    Line(host.store).fill(1, 1)
    host.store.when_synced(host.store.written(), fail)
    host.store.when_synced(host.store.written(), lambda: told.append(True))
    with pytest.raises(RuntimeError, match="who waits"):
        host.run(1)
    host.run(1)
    assert told == [True]


# What survives.


def test_persistent_messages_survive_at_their_positions_and_transient_ones_do_not() -> None:
    host = Host()
    line = Line(host.store)
    line.put(persistent(b"one"), transient(b"two"), persistent(b"three"))
    host.sync()
    host.crash(line)
    assert host.bodies(line) == {1: b"one", 3: b"three"}


def test_everything_about_a_message_survives() -> None:
    host = Host()
    line = Line(host.store)
    message = persistent(b"x" * 500, key="a.b", priority=3, message_id="me", headers={"n": 1})
    message.id = (4, 5, 6)
    line.put(message, mark="a key")
    line.put(persistent(b""), mark=9)
    host.sync()
    host.crash(line)
    first, second = line.entries.values()
    assert host.load([first, second]) is None
    assert first.message is not None
    assert second.message is not None
    assert (first.message.key, first.message.priority, first.message.id) == ("a.b", 3, (4, 5, 6))
    assert first.message.properties().headers == {"n": 1}
    assert (first.message.body, second.message.body) == (b"x" * 500, b"")
    assert (first.size, second.size, first.mark, second.mark) == (500, 0, "a key", 9)


def test_a_message_that_may_expire_has_the_rest_of_its_time_after_a_restart() -> None:
    host = Host()
    line = Line(host.store)
    line.put(persistent(b"mortal"), expires=host.runtime.now() + 10)
    line.put(persistent(b"immortal"))
    host.sync()
    host.run(4)
    found = host.crash(line)
    _, (mortal, immortal) = found.queues["/", "q", 1]
    assert mortal.expires == pytest.approx(host.runtime.wall() + 6, abs=0.2)
    assert immortal.expires is None


def test_saved_records_survive_the_latest_value_of_each_and_deleted_ones_do_not() -> None:
    host = Host()
    host.store.save("user", "a", {"tags": ["x"], "name": "ü\udcff"})
    host.store.save("user", "b", {"n": 1})
    host.store.save("policy", "a", {"n": 2})
    host.store.save("user", "a", {"tags": []})
    host.store.save("user", "b", None)
    host.sync()
    assert host.crash().records == {("user", "a"): {"tags": []}, ("policy", "a"): {"n": 2}}


def test_queues_of_the_same_name_are_told_apart_by_vhost_and_incarnation() -> None:
    host = Host()
    lines = [Line(host.store, "q", 1), Line(host.store, "q", 2), Line(host.store, "q", 1)]
    lines[2].vhost.name = "other"
    for n, line in enumerate(lines):
        line.put(persistent(b"%d" % n))
    host.sync()
    host.crash(*lines)
    assert [host.bodies(line) for line in lines] == [{1: b"0"}, {1: b"1"}, {1: b"2"}]


def test_a_message_in_many_queues_is_written_once_and_lives_as_long_as_any_of_them_holds_it() -> None:
    host = Host(settings=LARGE)
    lines = [Line(host.store, f"q{n}") for n in range(5)]
    message = persistent(b"shared" * 1000)
    for line in lines:
        line.put(message)
    host.sync()
    assert sum(content.count(message.body) for content in host.files.values()) == 1
    lines[0].take(list(lines[0].entries.values()))  # the first one is whose content it is
    lines[3].take(list(lines[3].entries.values()))
    host.sync()
    host.crash(*lines)
    assert [host.bodies(line) for line in lines] == [{}, {1: message.body}, {1: message.body}, {}, {1: message.body}]
    for line in lines:
        line.take(list(line.entries.values()))
    host.sync()
    host.run(1)
    assert host.store.stats()["messages"] == 0
    assert host.store.index.needed.memory == 0


def test_a_message_that_moves_to_another_queue_is_not_written_again() -> None:
    host = Host(settings=LARGE)
    a, b = Line(host.store, "a"), Line(host.store, "b")
    message = persistent(b"moved" * 100)
    (entry,) = a.put(message)
    host.sync()
    host.store.begin()
    a.take([entry], Reason.MOVED)
    b.put(message)
    host.store.end()
    host.sync()
    assert sum(content.count(message.body) for content in host.files.values()) == 1
    host.crash(a, b)
    assert (host.bodies(a), host.bodies(b)) == ({}, {1: message.body})


def test_a_message_whose_content_may_be_gone_is_written_again() -> None:
    host = Host()
    line, other = Line(host.store), Line(host.store, "other")
    message = persistent(b"again")
    line.take(line.put(message))
    for _ in range(10):
        other.take(other.fill(other.next_position, 30))
        host.sync()
        host.run(1)
    assert not any(b"again" in content for content in host.files.values()), "the case that is meant"
    line.put(message)
    host.sync()
    host.crash(line)
    assert host.bodies(line) == {2: b"again"}


def test_a_message_that_its_first_queue_does_not_keep_is_in_the_others_after_a_crash() -> None:
    """A queue that is full evicts at once what was just published to it and to others: a record of its own says so,
    and stands before the others' entries. The content is there all the same, until a merge of the log drops it."""
    host = Host(settings=LARGE)
    a, b, c = (Line(host.store, name) for name in "abc")
    message = persistent(b"in three queues")
    (entry,) = a.put(message)
    host.store.begin()
    a.take([entry], Reason.EVICTED)
    host.store.end()
    b.put(message)
    c.put(message)
    host.sync()
    assert sum(content.count(message.body) for content in host.files.values()) == 1
    assert host.crash(a, b, c).damage == []
    assert [host.bodies(line) for line in (a, b, c)] == [{}, {1: message.body}, {1: message.body}]


def test_a_message_that_leaves_its_queue_while_it_comes_to_another_can_be_read_from_disk() -> None:
    host = Host(settings=LARGE)
    a, b = Line(host.store, "a"), Line(host.store, "b")
    message = persistent(b"on its way")
    (entry,) = a.put(message)
    host.sync()
    a.take([entry])
    gone: list[bool] = []
    host.store.when_synced(host.store.written(), lambda: gone.append(True))
    host.until(lambda: host.store.writer.syncs and host.store.writer.unsynced)
    assert not gone, "it is known to have left, and not yet on disk"
    b.put(message)
    host.sync()
    assert page_out(host.store, list(b.entries.values())) == 1
    assert host.bodies(b) == {1: b"on its way"}
    assert host.crash(a, b).damage == []
    assert host.bodies(b) == {1: b"on its way"}


def test_a_content_that_only_a_leaving_entry_needs_is_written_again_for_the_next() -> None:
    host = Host(settings=LARGE)
    a, b, c = (Line(host.store, name) for name in "abc")
    message = persistent(b"from hand to hand")
    a.put(message)
    b.put(message)
    host.sync()
    a.take(list(a.entries.values()))
    host.sync()
    b.take(list(b.entries.values()))
    host.turn()
    c.put(message)
    host.sync()
    assert host.crash(a, b, c).damage == []
    assert [host.bodies(line) for line in (a, b, c)] == [{}, {}, {1: message.body}]


def test_a_deleted_queue_leaves_nothing() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 5)
    host.sync()
    host.store.deleted(line.queue)
    host.sync()
    found = host.crash()
    assert found.queues == {}
    assert host.store.stats()["messages"] == 0


# Positions and deliveries.


def test_a_position_is_never_given_twice_even_when_all_messages_and_segments_are_gone() -> None:
    host = Host()
    line = Line(host.store)
    for _ in range(5):
        line.take(line.fill(line.next_position, 30))
        host.sync()
        host.run(1)
    given = line.next_position
    assert all(f"q:{n}:".encode() not in content for content in host.files.values() for n in range(1, 100))
    host.crash(line)
    assert line.entries == {}
    assert line.next_position >= given


def test_positions_of_transient_messages_are_not_given_twice_either() -> None:
    host = Host()
    line = Line(host.store)
    host.store.opened(line.queue)
    host.sync()
    line.put(*(transient(b"x") for _ in range(SMALL.positions_ahead)))  # as many as were noted when it was declared
    given = line.next_position
    host.crash(line)
    assert line.next_position >= given


def test_positions_given_right_after_a_restart_are_not_given_again_after_the_next_crash() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 3)
    host.sync()
    for _ in range(5):
        host.crash(line)
        given = line.next_position
        line.put(transient(b"seen by somebody"))
        host.crash(line)
        assert line.next_position > given


def test_positions_that_other_brokers_gave_are_not_given_again_though_no_message_of_theirs_came() -> None:
    host = Host()
    line = Line(host.store)
    host.store.opened(line.queue)
    line.next_position = 10 * SMALL.positions_ahead
    host.store.leapt(line.queue)
    host.sync()
    host.crash(line)
    assert line.next_position >= 10 * SMALL.positions_ahead


def test_after_a_proper_end_the_next_position_is_exactly_the_next() -> None:
    host = Host()
    line = Line(host.store)
    line.fill(1, 3)
    assert host.close(line).clean
    assert line.next_position == 4
    assert not host.crash(line).clean


def test_everything_is_flagged_after_a_crash_even_if_the_disk_never_heard_of_a_delivery() -> None:
    host = Host()
    line = Line(host.store)
    entries = line.fill(1, 20)
    host.sync()
    line.deliver(entries[:5])  # and in the same moment
    host.crash(line)
    assert len(line.entries) == 20
    assert all(entry.redelivered for entry in line.entries.values())
    fresh = line.fill(line.next_position, 3)
    host.close(line)
    flagged = {position for position, entry in line.entries.items() if entry.redelivered}
    assert flagged == line.entries.keys() - {entry.position for entry in fresh}


def test_after_a_proper_end_exactly_what_was_delivered_is_flagged() -> None:
    host = Host()
    line = Line(host.store)
    line.deliver(line.fill(1, 20)[:5])
    host.close(line)
    assert [position for position, entry in line.entries.items() if entry.redelivered] == [1, 2, 3, 4, 5]


def test_each_start_has_a_number_that_no_earlier_one_had() -> None:
    host = Host()
    numbers = [host.found.incarnation]
    for _ in range(3):
        numbers.append(host.crash().incarnation)
        numbers.append(host.close().incarnation)
    assert numbers == sorted(set(numbers))


# Paging.


def test_only_what_is_synced_is_paged_out_and_it_comes_back_as_it_was() -> None:
    host = Host(settings=LARGE)
    line = Line(host.store)
    synced = line.fill(1, 50)
    host.sync()
    fresh = line.fill(51, 5)
    (lost,) = line.put(transient(b"only in memory"))
    assert page_out(host.store, [*synced, *fresh, lost]) == 50
    assert all(entry.message is None for entry in synced)
    assert all(entry.message is not None for entry in [*fresh, lost])
    assert host.load(synced[10:20]) is None
    assert [bytes(entry.message.body) for entry in synced[10:20] if entry.message] == [
        body("q", n) for n in range(11, 21)
    ]
    assert all(entry.message is None for entry in synced[20:])


def test_neighbours_on_disk_are_brought_in_one_read() -> None:
    host = Host(settings=LARGE)
    line = Line(host.store)
    entries = line.fill(1, 500)
    host.sync()
    page_out(host.store, entries)
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    host.disk.before = count
    assert host.load(entries[::2]) is None
    assert reads == 1


def test_loads_end_in_the_order_in_which_they_were_asked_for() -> None:
    host = Host()
    line = Line(host.store)
    entries = line.fill(1, 60)
    host.sync()
    page_out(host.store, entries)
    ended: list[int] = []
    for n in range(6):
        load(host.store, entries[n::6], lambda error, n=n: ended.append(n))  # type: ignore[misc]
    host.run(1)
    assert ended == list(range(6))
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 61)}


def test_messages_can_be_loaded_while_and_after_their_segment_is_written_anew() -> None:
    host = Host()
    line = Line(host.store)
    entries = line.fill(1, 90)
    host.sync()
    rest = entries[::9]
    page_out(host.store, rest)
    line.take([entry for entry in entries if entry not in rest])
    host.store.when_synced(host.store.written(), lambda: None)
    errors: list[Exception | None] = []
    other = Line(host.store, "other")
    for _ in range(400):
        load(host.store, rest, errors.append)
        other.take(other.fill(other.next_position, 1))
        host.run(0.0005)
        page_out(host.store, rest)
    assert host.store.current.log.merger.merged > 0
    assert set(errors) == {None}
    assert host.bodies(line) == {entry.position: body("q", entry.position) for entry in rest}


def test_a_message_that_is_damaged_on_disk_is_an_error_and_those_of_other_turns_are_there() -> None:
    host = Host(settings=LARGE)
    line = Line(host.store)
    entries = []
    for turn in range(5):
        entries += line.fill(1 + 2 * turn, 2)
        host.turn()
    host.sync()
    page_out(host.store, entries)
    (file,) = [file for name, file in host.node.platter.files.items() if b"q:4:" in file.data]
    file.data[file.data.index(b"q:4:")] ^= 1
    error = host.load(entries)
    assert isinstance(error, Damaged)
    assert [entry.position for entry in entries if entry.message is None] == [3, 4]


def test_a_paged_out_message_costs_the_store_few_bytes() -> None:
    host = Host(settings=LARGE)
    line = Line(host.store)
    line.fill(1, 5000, size=100)
    host.sync()
    assert host.store.stats()["index_bytes"] / 5000 <= 1
    host.crash(line)
    assert host.store.stats()["index_bytes"] / 5000 <= 1


# Units.


def test_a_transaction_is_there_as_a_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(60):
        host = Host(seed)
        a, b = Line(host.store, "a"), Line(host.store, "b")
        a.fill(1, 3)
        host.sync()
        host.store.begin()
        b.fill(1, 8, size=120)  # larger than a record usually is
        a.take(list(a.entries.values()))
        host.store.save("kind", "key", {"done": True})
        host.store.end()
        host.run(0.0008)
        found = host.crash(a, b)
        assert found.damage == []
        outcomes.add((len(a.entries), len(b.entries), len(found.records)))
    assert outcomes == {(3, 0, 0), (0, 8, 1)}


def test_one_record_holds_what_is_told_in_between_however_often_it_is_nested() -> None:
    host = Host(settings=replace(SMALL, segment_bytes=1 << 20))
    line = Line(host.store)
    host.store.opened(line.queue)
    host.sync()
    before = records(host)
    host.store.begin()
    line.fill(1, 2)
    host.store.begin()
    line.fill(3, 2)
    host.store.end()
    line.fill(5, 20)
    host.store.end()
    host.sync()
    assert records(host) == before + 1
    line.fill(25, 20)
    line.fill(45, 20)
    host.sync()
    assert records(host) == before + 3, "otherwise large ones are cut"


def records(host: Host) -> int:
    return host.store.writer.last.ordinal


def test_figures_tell_what_the_store_holds() -> None:
    host = Host(settings=LARGE)
    line = Line(host.store)
    entries = line.fill(1, 10)
    host.turn()
    waiting = host.store.stats()
    assert waiting["unsynced_bytes"] > 10 * 40
    host.sync()
    line.take(entries[:4])
    host.sync()
    figures = host.store.stats()
    assert (figures["segments"], figures["messages"], figures["unsynced_bytes"]) == (1, 6, 0)
    assert figures["bytes"] == sum(map(len, host.files.values()))
    assert 6 * 40 < figures["message_bytes"] < 6 * 110
