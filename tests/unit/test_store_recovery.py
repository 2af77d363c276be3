"""The store after bad times: torn tails, flipped bits, lost headers, and any bytes at all."""

from __future__ import annotations

import random
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import SMALL, Host, Line, body, persistent

from coterie.broker.storage import Recovered
from coterie.broker.store import StoreSettings
from coterie.broker.store.format import HEADER_SIZE, PREFIX_SIZE, encode_prefix
from coterie.broker.store.operations import NAME
from coterie.errors import DiskError

ONE = replace(SMALL, segment_bytes=1 << 20)
"""Everything is in one segment for each start of the node."""


def write(settings: StoreSettings = ONE, turns: int = 5) -> tuple[Host, Line]:
    """A few turns of four messages each, synced one after the other."""
    host = Host(settings=settings)
    line = Line(host.store)
    host.store.save("user", "guest", {"tags": []})
    for turn in range(turns):
        line.fill(1 + 4 * turn, 4)
        host.sync()
    return host, line


def content_of(host: Host, name: str) -> bytearray:
    return host.node.platter.files[f"store/{name}"].data


def first(host: Host) -> tuple[str, bytearray]:
    name = host.store.index.segments[0].name
    return name, content_of(host, name)


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
    segment = host.store.index.segments[0]
    data = bytes(content_of(host, segment.name))
    found = [data.find(segment.mark)]
    while found[-1] >= 0:
        found.append(data.find(segment.mark, found[-1] + 1))
    return found[:-1]


def test_a_log_that_was_cut_off_anywhere_has_everything_before_the_cut() -> None:
    host, _ = write()
    whole = bytes(first(host)[1])
    bounds = [*starts(host), len(whole)]
    for size in range(HEADER_SIZE, len(whole), 7):
        host, line = write()
        del first(host)[1][size:]
        found = recover(host, line)
        complete = sum(end <= size for end in bounds[1:])
        assert found.damage == []
        # The first record is the start's, the second the user's and the first turn's.
        assert list(line.entries) == list(range(1, 1 + 4 * max(complete - 1, 0)))


def test_what_was_torn_off_is_gone_for_good_and_new_messages_follow() -> None:
    host, line = write()
    del first(host)[1][-10:]
    recover(host, line)
    line.put(persistent(b"new"))
    host.sync()
    found = recover(host, line)
    assert found.damage == []
    assert list(host.bodies(line).values()) == [*(body("q", n) for n in range(1, 17)), b"new"]


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"q"])
def test_a_tail_that_was_grown_but_never_written_is_cut_off(fill: bytes) -> None:
    host, line = write()
    first(host)[1].extend(fill * 3000)
    found = recover(host, line)
    assert found.damage == []
    assert len(line.entries) == 20
    assert recover(host, line).damage == []


def test_a_flipped_bit_in_a_body_costs_that_message_alone_and_is_reported_once() -> None:
    host, line = write()
    name, data = first(host)
    data[data.index(b"q:6:") + 20] ^= 4
    found = recover(host, line)
    assert len(found.damage) == 1
    assert name in found.damage[0]
    assert list(line.entries) == [n for n in range(1, 21) if n != 6]
    host.run(1)
    found = recover(host, line)
    assert found.damage == []
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 21) if n != 6}


def test_a_flipped_bit_in_a_shared_body_costs_the_message_in_every_queue() -> None:
    host = Host(settings=ONE)
    lines = [Line(host.store, name) for name in "abc"]
    message = persistent(b"shared by all")
    for line in lines:
        line.fill(1, 1)
        line.put(message)
        line.fill(3, 1)
    host.sync()
    lines[0].fill(4, 1)
    host.sync()
    _, data = first(host)
    data[data.index(b"shared by all")] ^= 1
    found = recover(host, *lines)
    assert len(found.damage) == 1
    assert "3 queues" in found.damage[0]
    assert [list(line.entries) for line in lines] == [[1, 3, 4], [1, 3], [1, 3]]
    assert recover(host, *lines).damage == []


@pytest.mark.parametrize("where", [0, 10, 20, PREFIX_SIZE + 3], ids=["mark", "size", "crc", "head"])
def test_a_record_that_cannot_be_read_is_reported_and_costs_no_other(where: int) -> None:
    host, line = write()
    name, data = first(host)
    data[starts(host)[3] + where] ^= 8
    found = recover(host, line)
    assert len(found.damage) == 1
    assert name in found.damage[0]
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 21) if not 9 <= n <= 12}
    assert found.records == {("user", "guest"): {"tags": []}}


def test_damage_in_the_last_record_is_not_silently_taken_for_a_torn_write() -> None:
    host, line = write()
    _, data = first(host)
    data[data.index(b"q:18:") + 10] ^= 1  # the last but two of the last turn
    found = recover(host, line)
    assert len(found.damage) == 1
    assert list(line.entries) == [n for n in range(1, 21) if n != 18]


def test_a_transaction_of_which_a_part_is_damaged_at_the_end_of_the_log_is_lost_as_a_whole() -> None:
    host, line = write()
    host.store.begin()
    line.fill(21, 3)
    host.store.save("user", "new", {})
    host.store.end()
    host.sync()
    _, data = first(host)
    data[data.index(b"q:22:") + 10] ^= 1
    found = recover(host, line)
    assert len(found.damage) == 1
    assert "transaction" in found.damage[0]
    assert len(line.entries) == 20
    assert ("user", "new") not in found.records


def test_a_damaged_header_costs_nothing_if_any_other_segment_is_sound() -> None:
    host, line = write(replace(SMALL, segment_bytes=400))
    assert len(host.store.index.segments) > 2
    data = content_of(host, host.store.index.segments[1].name)
    data[:HEADER_SIZE] = bytes(HEADER_SIZE)
    found = recover(host, line)
    assert [line.split(": ")[1] for line in found.damage] == ["the header is damaged"]
    assert host.bodies(line) == {n: body("q", n) for n in range(1, 21)}


def test_a_damaged_header_of_the_only_segment_costs_nothing_if_its_first_record_is_sound() -> None:
    host, line = write()
    first(host)[1][20] ^= 1
    found = recover(host, line)
    assert len(found.damage) == 1
    assert len(line.entries) == 20


def test_a_segment_that_is_missing_is_reported_by_nobody_but_what_follows_it_is_there() -> None:
    host, line = write(replace(SMALL, segment_bytes=400))
    name = host.store.index.segments[1].name
    del host.node.platter.files[f"store/{name}"]
    recover(host, line)
    assert set(host.bodies(line).values()) < {body("q", n) for n in range(1, 21)}
    assert len(line.entries) >= 8


def test_a_sealed_segment_that_has_become_shorter_is_reported() -> None:
    host, line = write(replace(SMALL, segment_bytes=400))
    name = host.store.index.segments[0].name
    del content_of(host, name)[-30:]
    found = recover(host, line)
    assert any("missing" in text for text in found.damage)
    assert len(line.entries) >= 12


def test_a_log_of_a_later_version_is_refused_and_left_as_it_is() -> None:
    host, _ = write()
    _, data = first(host)
    data[8] = 77
    data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    before = bytes(data)
    with pytest.raises(DiskError, match="version 77"):
        recover(host)
    assert bytes(data) == before


def test_a_new_segment_of_which_nothing_can_be_read_is_put_aside_if_there_is_much_in_it() -> None:
    host, line = write()
    host.node.platter.files["store/0000000009-0000000009.0.log"] = file = type(
        host.node.platter.files[next(iter(host.files))]
    )()
    file.data.extend(random.Random(1).randbytes(100_000))
    found = recover(host, line)
    assert len(found.damage) == 1
    assert "store/0000000009-0000000009.0.log.damaged" in host.files
    assert len(line.entries) == 20
    assert recover(host, line).damage == []


def test_what_a_client_sends_is_never_taken_for_a_record_even_next_to_damage() -> None:
    host = Host(settings=ONE)
    line = Line(host.store)
    evil = encode_prefix(b"guessed!", b"", 0) * 3 + bytes(first(host)[1])
    line.fill(1, 1)
    host.sync()
    line.put(persistent(evil))
    host.sync()
    line.fill(3, 1)
    host.sync()
    # Even one who knows the secret of another store cannot: the mark is that of this segment of this store.
    other = Host(seed=2, settings=ONE)
    assert other.store.index.segments[0].mark != host.store.index.segments[0].mark
    _, data = first(host)
    data[starts(host)[2] + 1] ^= 1
    found = recover(host, line)
    assert len(found.damage) == 1
    assert found.records == {}


def test_messages_whose_queue_has_lost_its_name_are_reported_once() -> None:
    host, line = write()
    start, end = starts(host)[1:3]
    _, data = first(host)
    head_size = int.from_bytes(data[start + 8 : start + 12], "little")
    head = data[start + PREFIX_SIZE : start + PREFIX_SIZE + head_size]
    assert head[0] == NAME
    head[1:5] = (999).to_bytes(4, "little")
    prefix = encode_prefix(host.store.index.segments[0].mark, bytes(head), end - start - PREFIX_SIZE - head_size)
    data[start : start + PREFIX_SIZE + head_size] = prefix + head
    found = recover(host, line)
    assert [text for text in found.damage if "whose name is lost" in text] == found.damage
    assert "20 messages" in found.damage[0]
    assert line.entries == {}
    host.run(1)
    assert recover(host, line).damage == []


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


@pytest.mark.fuzz
@given(st.data())
def test_garbage_under_valid_checksums_is_survived(data: st.DataObject) -> None:
    """As a mistake of ours would leave it: a head of random operations, its checksums correct."""
    host, line = write(ONE)
    segment = host.store.index.segments[0]
    _, content = first(host)
    bounds = [*starts(host), len(content)]
    at = data.draw(st.integers(0, len(bounds) - 2))
    head_size = int.from_bytes(content[bounds[at] + 8 : bounds[at] + 12], "little")
    start = bounds[at] + PREFIX_SIZE
    head = bytearray(content[start : start + head_size]) or bytearray(b"\x01")
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(head) - 1))
        head[place] = data.draw(st.integers(0, 255))
    head += data.draw(st.binary(max_size=60))
    contents = content[start + head_size : bounds[at + 1]]
    content[bounds[at] : bounds[at + 1]] = encode_prefix(segment.mark, bytes(head), len(contents)) + head + contents
    recover(host, line)
    host.load(list(line.entries.values()))
    line.put(persistent(b"life goes on"))
    host.sync()
    host.run(1)
