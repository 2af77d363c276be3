"""Frames: however the bytes are cut, the same is handed on; what is no frame is 501."""

from __future__ import annotations

from itertools import pairwise

import pytest
from amqp_rig import frame, publish_frames
from hypothesis import given
from hypothesis import strategies as st

from coterie.amqp.wire.framing import TURN, FrameHandler, FrameReader, Repeat
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties
from coterie.errors import ProtocolError

FRAME_MAX = 4096
Seen = tuple[str, int, bytes]


class Recorder(FrameHandler):
    """Writes down what it is given; whole publishes as the frames that they are."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.whole = 0
        self.repeated = 0

    def method(self, channel: int, payload: bytes) -> None:
        self.seen.append(("method", channel, payload))

    def header(self, channel: int, payload: bytes) -> None:
        self.seen.append(("header", channel, payload))

    def body(self, channel: int, payload: bytes) -> None:
        self.seen.append(("body", channel, payload))

    def publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        self.whole += 1
        self._write(channel, method, header, body)

        def repeat(more: bytes) -> None:
            self.repeated += 1
            self._write(channel, method, header, more)

        return repeat

    def _write(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        self.seen += [("method", channel, method), ("header", channel, header)]
        if body:
            self.seen.append(("body", channel, body))


def feed(*pieces: bytes, frame_max: int = FRAME_MAX) -> tuple[Recorder, ProtocolError | None]:
    recorder = Recorder()
    reader = FrameReader(recorder, frame_max)
    try:
        for piece in pieces:
            reader.feed(piece)
    except ProtocolError as error:
        assert reader.stopped
        return recorder, error
    return recorder, None


SESSION = b"".join(
    (
        METHODS["channel.open"].frame(1),
        frame(8, 0, b""),
        publish_frames(1, "x", "key", b"hello", Properties(delivery_mode=2)) * 3,
        publish_frames(1, "x", "key", b"world!", Properties(delivery_mode=2)),
        publish_frames(2, "", "empty", b""),
        publish_frames(1, "x", "big", bytes(10_000), frame_max=FRAME_MAX),
        METHODS["basic.ack"].frame(1, delivery_tag=7),
        # Contents of two channels, interleaved.
        METHODS["basic.publish"].frame(1, routing_key="a"),
        METHODS["basic.publish"].frame(2, routing_key="b"),
        frame(2, 1, bytes.fromhex("003c0000") + (2).to_bytes(8, "big") + b"\0\0"),
        frame(2, 2, bytes.fromhex("003c0000") + (2).to_bytes(8, "big") + b"\0\0"),
        frame(3, 1, b"1"),
        frame(3, 2, b"2"),
        frame(3, 2, b"2"),
        frame(3, 1, b"1"),
    )
)


def test_a_session_split_at_every_byte_is_the_same_session() -> None:
    whole, error = feed(SESSION)
    assert error is None
    assert len(whole.seen) == 1 + 4 * 3 + 2 + 5 + 1 + 8
    for cut in range(len(SESSION) + 1):
        parts, error = feed(SESSION[:cut], SESSION[cut:])
        assert error is None
        assert parts.seen == whole.seen, cut


def test_a_session_byte_by_byte_is_the_same_session() -> None:
    parts, _ = feed(*(SESSION[at : at + 1] for at in range(len(SESSION))))
    assert parts.seen == feed(SESSION)[0].seen


@given(st.lists(st.integers(0, len(SESSION)), max_size=20))
def test_a_session_in_any_pieces_is_the_same_session(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(SESSION)]
    parts, _ = feed(*(SESSION[a:b] for a, b in pairwise(places)))
    assert parts.seen == feed(SESSION)[0].seen


def test_publishes_that_differ_only_in_their_bodies_are_a_row() -> None:
    row = b"".join(publish_frames(1, "x", "k", b"%04d" % number) for number in range(50))
    recorder, _ = feed(row)
    assert (recorder.whole, recorder.repeated) == (1, 49)
    assert [payload for kind, _, payload in recorder.seen if kind == "body"] == [b"%04d" % n for n in range(50)]


@pytest.mark.parametrize("other", [publish_frames(2, "x", "k", b"0000"), publish_frames(1, "x", "k", b"00000")])
def test_a_publish_of_another_channel_or_size_is_no_repetition(other: bytes) -> None:
    recorder, _ = feed(publish_frames(1, "x", "k", b"0000") + other)
    assert (recorder.whole, recorder.repeated) == (2, 0)


def test_a_frame_may_be_as_large_as_agreed_and_not_larger() -> None:
    fits = frame(3, 1, bytes(FRAME_MAX - 8))
    assert feed(fits)[1] is None
    for size in (FRAME_MAX + 1, (1 << 32) - 1):
        # It is refused as soon as its size is known, long before it could have come.
        _, error = feed(b"\x03\x00\x01" + size.to_bytes(4, "big") + b"x")
        assert error is not None
        assert error.reply_code == 501


def test_a_frame_that_does_not_end_where_it_says_is_refused_and_nothing_after_it_is_read() -> None:
    good = METHODS["channel.open"].frame(1)
    recorder, error = feed(good + good[:-1] + b"\xcd" + good)
    assert error is not None
    assert error.reply_code == 501
    assert len(recorder.seen) == 1


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 255])
def test_a_frame_of_no_type_is_refused(kind: int) -> None:
    _, error = feed(frame(kind, 0, b""))
    assert error is not None
    assert error.reply_code == 501


def test_a_heartbeat_belongs_on_channel_0_and_is_empty() -> None:
    assert feed(frame(8, 0, b""))[1] is None
    assert [feed(frame(8, *rest))[1].reply_code for rest in ((1, b""), (0, b"x"))] == [505, 501]  # type: ignore[union-attr]


def test_a_reader_that_is_held_keeps_what_comes_until_it_is_released() -> None:
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    reader.feed(SESSION[:10])
    reader.held = True
    reader.feed(SESSION[10:700])
    reader.feed(SESSION[700:])
    assert recorder.seen == []
    reader.release()
    reader.feed(b"")
    assert recorder.seen == feed(SESSION)[0].seen


def test_a_long_read_is_worked_through_in_turns() -> None:
    one = publish_frames(1, "x", "k", bytes(1000))
    recorder = Recorder()
    reader = FrameReader(recorder, FRAME_MAX)
    count = 3 * TURN // len(one)
    reader.feed(one * count)
    turns = 1
    while reader.tired:
        reader.feed(b"")
        turns += 1
    assert turns == 3
    assert len(recorder.seen) == 3 * count


def test_a_content_header_that_is_too_short_is_no_whole_publish() -> None:
    # Whatever follows it must not be taken for the rest of it.
    short = METHODS["basic.publish"].frame(1) + frame(2, 1, b"\x00\x3c\x00\x00\x00")
    recorder, error = feed(short + bytes(2) + b"\xce" * 40)
    assert recorder.whole == 0
    assert recorder.seen[1] == ("header", 1, b"\x00\x3c\x00\x00\x00")
    assert error is not None


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_framing_garbage_is_a_protocol_error_or_frames(pieces: list[bytes]) -> None:
    _, error = feed(*pieces)
    assert error is None or error.reply_code in (501, 505)


@given(st.integers(0, len(SESSION) - 1), st.integers(0, 255), st.integers(0, len(SESSION)))
def test_an_altered_session_fuzz_is_read_alike_in_one_piece_and_in_two(place: int, byte: int, cut: int) -> None:
    altered = bytearray(SESSION)
    altered[place] = byte
    one, error = feed(bytes(altered))
    two, again = feed(bytes(altered[:cut]), bytes(altered[cut:]))
    assert one.seen == two.seen
    assert (error and error.reply_code) == (again and again.reply_code)
