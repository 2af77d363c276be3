"""The store after bad times: torn tails, flipped bits, lost headers, and any bytes at all. Nobody else has its log:
what cannot be read is told, and what follows it counts all the same."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import SMALL, Host, Line, body, persistent

from coterie.broker.log_store import StoreSettings
from coterie.broker.storage import Damaged, Recovered
from coterie.errors import DiskError
from coterie.log.record import PREFIX_SIZE
from coterie.log.segment import HEADER_SIZE

ONE = replace(SMALL, segment_bytes=1 << 20, snapshot_bytes=1 << 20)
"""Everything is in one segment for each start of the node, and there is no snapshot."""


def write(settings: StoreSettings = ONE, turns: int = 5) -> tuple[Host, Line]:
    """A few turns of four messages each, synced one after the other."""
    host = Host(settings=settings)
    line = Line(host.store)
    host.store.save("user", "guest", {"tags": []})
    for turn in range(turns):
        line.fill(1 + 4 * turn, 4)
        host.sync()
    return host, line


def first(host: Host) -> bytearray:
    return host.node.platter.files[f"log/{host.store.current.log.segments.list[0].file}"].data


def recover(host: Host, *lines: Line) -> Recovered:
    """As after a kill of the process: files are as they are."""
    assert host.node.process is not None
    host.node.exit(host.node.process.incarnation)
    for file in host.node.platter.files.values():
        file.safe, file.writes = bytes(file.data), []
    host.boot()
    for line in lines:
        line.restore(host.store, host.found)
    return host.found


def starts(host: Host) -> list[int]:
    """Where the records of the first segment begin."""
    table = host.store.current.log.segments.list[0].table
    assert table is not None
    return [row.offset for row in table.rows()]


def test_a_log_that_was_cut_off_anywhere_has_everything_before_the_cut() -> None:
    host, _ = write()
    whole, bounds = bytes(first(host)), starts(host)
    bounds.append(len(whole))
    for size in range(HEADER_SIZE, len(whole), 7):
        host, line = write()
        del first(host)[size:]
        recover(host, line)
        complete = sum(end <= size for end in bounds[1:])
        # The first record is the start's, the second the user's and the first turn's.
        assert list(line.entries) == list(range(1, 1 + 4 * max(complete - 1, 0)))


def test_what_was_torn_off_is_gone_for_good_and_new_messages_follow() -> None:
    host, line = write()
    del first(host)[-10:]
    recover(host, line)
    line.put(persistent(b"new"))
    host.sync()
    found = recover(host, line)
    assert found.damage == []
    assert list(host.bodies(line).values()) == [*(body("q", n) for n in range(1, 17)), b"new"]


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"q"])
def test_a_tail_that_was_grown_but_never_written_is_cut_off(fill: bytes) -> None:
    host, line = write()
    first(host).extend(fill * 3000)
    found = recover(host, line)
    assert found.damage == []
    assert len(line.entries) == 20
    assert recover(host, line).damage == []


def test_a_flipped_bit_in_a_body_costs_the_messages_of_that_turn() -> None:
    host, line = write()
    data = first(host)
    data[data.index(b"q:6:") + 20] ^= 4
    found = recover(host, line)
    assert len(found.damage) == 1
    assert "damaged bodies" in found.damage[0]
    entries = list(line.entries.values())
    assert isinstance(host.load(entries), Damaged)
    assert [entry.position for entry in entries if entry.message is None] == [5, 6, 7, 8]


@pytest.mark.parametrize("where", [0, 10, 60, PREFIX_SIZE + 3], ids=["mark", "size", "crc", "head"])
@pytest.mark.parametrize("record", [1, 2, 4])
def test_a_record_that_cannot_be_read_is_reported_once_and_costs_no_other(where: int, record: int) -> None:
    host, line = write()
    first(host)[starts(host)[record] + where] ^= 1
    found = recover(host, line)
    assert found.damage
    lost = range(4 * record - 3, 4 * record + 1)
    if record > 1:
        assert list(line.entries) == [n for n in range(1, 21) if n not in lost]
        assert host.bodies(line) == {n: body("q", n) for n in line.entries}
        assert line.next_position > 20
        line.take([line.entries[1]])
        line.put(persistent(b"new"))
    else:  # that the queue was made stood in it
        assert any("whose name is lost" in text for text in found.damage)
        assert found.records == {}
    host.sync()
    kept = list(line.entries)
    assert recover(host, line).damage == []
    assert list(line.entries) == kept


def test_what_a_damaged_record_says_of_other_messages_is_as_good_as_never_said() -> None:
    host, line = write()
    line.take([line.entries[2]])
    host.sync()
    line.take([line.entries[3]])
    host.sync()
    first(host)[starts(host)[-2] + PREFIX_SIZE + 20] ^= 1
    assert recover(host, line).damage
    assert list(line.entries) == [1, 2, *range(4, 21)]


@pytest.mark.parametrize("settings", [ONE, replace(SMALL, segment_bytes=400)])
def test_a_damaged_header_costs_nothing_if_its_first_record_is_sound(settings: StoreSettings) -> None:
    host, line = write(settings)
    first(host)[40] ^= 1
    assert len(recover(host, line).damage) == 1
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 21)}


def test_a_segment_that_is_missing_is_reported_and_what_follows_it_is_there() -> None:
    host, line = write(replace(ONE, segment_bytes=400))
    name = host.store.current.log.segments.list[2].file
    del host.node.platter.files[f"log/{name}"]
    found = recover(host, line)
    assert any("missing" in text for text in found.damage)
    assert 8 <= len(line.entries) < 20
    assert host.bodies(line) == {n: body("q", n) for n in line.entries}
    assert recover(host, line).damage == []


def test_a_log_of_a_later_version_is_refused_and_left_as_it_is() -> None:
    host, _ = write()
    data = first(host)
    data[8] = 77
    data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    before = bytes(data)
    with pytest.raises(DiskError, match="version 77"):
        recover(host)
    assert bytes(data) == before


def test_a_disk_that_cannot_be_read_now_ends_the_start_and_costs_nothing() -> None:
    host, line = write(replace(ONE, segment_bytes=400))
    name = f"log/{host.store.current.log.segments.list[1].file}"
    host.disk_reads_fail = lambda each: each == name
    with pytest.raises(DiskError):
        recover(host)
    host.disk_reads_fail = lambda each: False
    assert recover(host, line).damage == []
    assert len(line.entries) == 20


def test_recovery_of_a_recovered_store_changes_nothing() -> None:
    host, line = write(SMALL, turns=20)
    line.take([entry for n, entry in line.entries.items() if n % 3])
    host.sync()
    for _ in range(5):
        host.run(1)
        before = host.bodies(line)
        assert recover(host, line).damage == []
        assert host.bodies(line) == before


@pytest.mark.fuzz
@given(st.data())
def test_garbage_of_any_kind_in_the_folder_is_survived(data: st.DataObject) -> None:
    """Bytes flipped, cut out, doubled, overwritten, files exchanged: recovery ends, and what it gives can be used."""
    host, line = write(SMALL, turns=8)
    line.take([entry for n, entry in line.entries.items() if n % 4 == 0])
    host.sync()
    files = host.node.platter.files
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(files)))
        content = files[name].data
        at = data.draw(st.integers(0, len(content)))
        size = data.draw(st.integers(1, 200))
        match data.draw(st.sampled_from(["flip", "cut", "double", "random", "zero", "exchange", "tail"])):
            case "flip" if at < len(content):
                content[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del content[at : at + size]
            case "double":
                content[at:at] = content[at : at + size]
            case "random":
                content[at : at + size] = data.draw(st.binary(max_size=size))
            case "zero":
                content[at : at + size] = bytes(size)
            case "tail":
                del content[at:]
            case "exchange":
                other = data.draw(st.sampled_from(sorted(files)))
                files[name].data, files[other].data = files[other].data, files[name].data
    sent = {body("q", n) for n in range(1, 33)}
    recover(host, line)
    host.load([entry for entry in line.entries.values() if entry.message is None])
    found = [entry.message.body for entry in line.entries.values() if entry.message is not None]
    assert set(found) <= sent
    assert len(set(found)) == len(found)
    line.put(persistent(b"life goes on"))
    host.sync()
    host.run(1)
    recover(host, line)
    host.load(list(line.entries.values()))
    assert b"life goes on" in [entry.message.body for entry in line.entries.values() if entry.message is not None]
