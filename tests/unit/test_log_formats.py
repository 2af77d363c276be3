"""The bytes of the log: what is written is read, and no other bytes are."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_rig import LOG_ID, content

from coterie.errors import DiskError
from coterie.log.errors import Damaged, Foreign, UnknownVersion
from coterie.log.folder import SegmentName, parse_segment_name, parse_snapshot_name, snapshot_name
from coterie.log.place import MOST, Place, Position
from coterie.log.record import (
    PREFIX_SIZE,
    Record,
    decode_head,
    decode_prefix,
    encode_head,
    encode_note,
    make_record,
)
from coterie.log.segment import HEADER_SIZE, Header, decode_header
from coterie.log.table import TRAILER_SIZE, Table, decode_footer, encode_footer, footer_size

MARK = b"\x01mark\xff\x00."
NAME = SegmentName(7, 9, 2)
HEADER = Header(LOG_ID, 7, 9, 5, 8, Position(4, Place(1, 4), b"c" * 32), MARK)


def a_record(ordinal: int = 3, body: bytes = b"body") -> Record:
    record = make_record(Place(2, ordinal), b"sender", b"c" * 20, b"head", b"effects", [body, memoryview(b"more")])
    record.ordinal = ordinal
    return record


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=255), st.binary(min_size=16, max_size=32), st.binary(), st.binary(), st.lists(st.binary()),
    st.integers(0, MOST - 1), st.integers(0, MOST - 1),
)  # fmt: skip
def test_a_record_is_read_as_it_was_written(
    sender: bytes, chain: bytes, head: bytes, effects: bytes, bodies: list[bytes], epoch: int, index: int
) -> None:
    record = make_record(Place(epoch, index), sender, chain, head, effects, bodies)
    record.ordinal = 9
    data = encode_head(record, MARK, 8) + b"".join(bodies)
    prefix = decode_prefix(data, 0, MARK)
    assert prefix is not None
    assert (prefix.synced, prefix.size, record.size) == (8, len(data), len(data))
    assert content(decode_head(prefix, data[PREFIX_SIZE:]))[:-1] == content(record)[:-1]


def test_no_flipped_bit_of_a_record_goes_unnoticed() -> None:
    record = a_record()
    data = bytearray(encode_head(record, MARK, 1))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        prefix = decode_prefix(data, 0, MARK)
        if bit < 8 * PREFIX_SIZE:
            assert prefix is None
        else:
            assert prefix is not None
            with pytest.raises(Damaged):
                decode_head(prefix, memoryview(data)[PREFIX_SIZE:])
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    ("sender", "chain", "place", "bodies"),
    [
        (b"s" * 256, b"c" * 16, Place(1, 1), []),
        (b"", b"c" * 15, Place(1, 1), []),
        (b"", b"c" * 33, Place(1, 1), []),
        (b"", b"c" * 16, Place(MOST, 1), []),
        (b"", b"c" * 16, Place(1, -1), []),
        (b"", b"c" * 16, Place(1, 1), [b"a body"]),
    ],
)
def test_what_cannot_be_written_is_refused(sender: bytes, chain: bytes, place: Place, bodies: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"sender|place|volatile"):
        make_record(place, sender, chain, b"", b"", bodies, volatile=True)


def test_a_note_is_no_record() -> None:
    prefix = decode_prefix(encode_note(12, MARK), 0, MARK)
    assert prefix is not None
    assert (prefix.ordinal, prefix.synced, prefix.size) == (12, 12, PREFIX_SIZE)


def test_a_header_is_read_as_it_was_written_and_no_flipped_bit_goes_unnoticed() -> None:
    data = bytearray(HEADER.encode())
    assert decode_header(data, NAME, LOG_ID) == HEADER
    for bit in range(8 * HEADER_SIZE):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            decode_header(data, NAME, LOG_ID)
        data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Foreign, match="another log"):
        decode_header(data, NAME, b"x" * 16)
    with pytest.raises(Damaged, match="under this name"):
        decode_header(data, SegmentName(7, 8, 2), LOG_ID)
    with pytest.raises(Damaged, match="empty"):
        decode_header(b"", NAME, LOG_ID)


def test_a_later_version_is_not_touched() -> None:
    from zlib import crc32

    data = bytearray(HEADER.encode())
    data[8] = 99
    data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match="version 99"):
        decode_header(data, NAME, LOG_ID)


def a_footer(count: int = 5, heads: bool = True) -> tuple[Table, bytes, int]:
    table, at, copies = Table(), HEADER_SIZE, []
    for ordinal in range(1, count + 1):
        record = a_record(ordinal)
        table.add(record, at)
        copies.append(encode_head(record, MARK, 0))
        at += record.size
    return table, b"".join(encode_footer(table, b"runs", copies if heads else [], at)), at


@pytest.mark.parametrize("heads", [True, False])
def test_a_footer_is_read_as_it_was_written(heads: bool) -> None:
    table, data, end = a_footer(heads=heads)
    assert footer_size(data[-TRAILER_SIZE:], end + len(data)) == len(data) - TRAILER_SIZE
    assert footer_size(data[-TRAILER_SIZE:], end + len(data) + 1) == -1
    footer = decode_footer(data)
    assert (footer.runs, footer.records_end, footer.table) == (b"runs", end, table)
    found = [record for _, record in footer.records(MARK, 2)] if heads else []
    assert [record.ordinal for record in found if isinstance(record, Record)] == ([3, 4, 5] if heads else [])
    assert table.find(Place(2, 4)) == table.row(3)
    assert table.find(Place(2, 6)) is None


def test_no_flipped_bit_of_a_footer_goes_unnoticed() -> None:
    _, whole, end = a_footer(2)
    data = bytearray(whole)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        if footer_size(data[-TRAILER_SIZE:], end + len(data)) >= 0:
            with pytest.raises(Damaged):
                decode_footer(data)
        data[bit // 8] ^= 1 << bit % 8


def test_a_footer_that_makes_no_sense_is_refused_whatever_its_checksum_says() -> None:
    for column, value in (("ordinals", 0), ("offsets", 1 << 40), ("indexes", 0), ("body_sizes", 1 << 30)):
        table, _, end = a_footer()
        numbers: array[int] = getattr(table, column)
        numbers[3] = value
        with pytest.raises(Damaged, match="no sense"):
            decode_footer(b"".join(encode_footer(table, b"", [], end)))


def test_any_bytes_are_survived_by_every_decoder() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        data = rng.randbytes(rng.choice([0, 1, PREFIX_SIZE, HEADER_SIZE, 300]))
        assert decode_prefix(data, 0, data[:8]) is None
        with pytest.raises(DiskError):
            decode_header(data, NAME, None)
        assert footer_size(data[-TRAILER_SIZE:], len(data)) == -1


@pytest.mark.parametrize("name", ["", "x", "7-9.2.seg", "0000000009-0000000007.0.seg", "00000000007-0000000009.2.seg",
                                  "0000000007-0000000009.02.seg", "0000000007-0000000009.2.seg.tmp"])  # fmt: skip
def test_only_the_names_that_are_given_are_known(name: str) -> None:
    assert parse_segment_name(name) is None
    assert parse_snapshot_name(name) is None


def test_names_are_read_as_they_are_written() -> None:
    assert parse_segment_name(str(NAME)) == NAME
    assert parse_snapshot_name(snapshot_name(42)) == 42
