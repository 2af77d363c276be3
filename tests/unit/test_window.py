"""The numbered slots behind NAKACK and UNICAST3: order, holes, bounds, and forgetting."""

from __future__ import annotations

from harness import B, multicast
from hypothesis import given
from hypothesis import strategies as st

from coterie.group.packet import Packet
from coterie.group.window import Ranges, Window


def packet(seqno: int) -> Packet:
    return multicast(B, seqno)


def filled(window: Window, *numbers: int) -> Window:
    for number in numbers:
        window.add(packet(number))
    return window


def taken(window: Window) -> list[int]:
    out: list[Packet] = []
    window.take(out)
    return [p.seqno for p in out]


def test_what_is_in_order_is_taken_up_to_the_first_hole() -> None:
    window = filled(Window(0, 100), 1, 2, 4)
    assert taken(window) == [1, 2]
    assert (window.delivered, window.received) == (2, 4)
    assert taken(window) == []
    filled(window, 3)
    assert taken(window) == [3, 4]
    assert window.complete


def test_a_stream_may_start_at_any_number() -> None:
    window = filled(Window(6, 100), 6, 7)
    assert taken(window) == [7]


def test_a_number_is_kept_once_and_never_after_it_was_delivered() -> None:
    window = Window(0, 100)
    assert window.add(packet(2))
    assert not window.add(packet(2))
    assert window.add(packet(1))
    taken(window)
    assert not window.add(packet(1))
    window.forget(2)
    assert not window.add(packet(2))


def test_what_is_too_far_ahead_is_not_kept_but_known_to_exist() -> None:
    window = Window(10, 5)
    assert window.add(packet(15))
    assert not window.add(packet(16))
    assert list(window.slots) == [15]
    assert window.received == 16
    assert window.missing(100) == ((11, 14),)


def test_what_is_delivered_stays_until_it_is_forgotten() -> None:
    window = filled(Window(0, 100), 1, 2, 3)
    taken(window)
    assert list(window.slots) == [1, 2, 3]
    assert window.forget(2)
    assert list(window.slots) == [3]
    assert window.forgotten == 2
    assert not window.forget(2)
    assert not window.forget(1)
    assert window.forgotten == 2


def test_what_is_not_delivered_is_never_forgotten() -> None:
    window = filled(Window(0, 100), 1, 2, 4, 5)
    taken(window)
    assert window.forget(99)
    assert window.forgotten == 2
    assert list(window.slots) == [4, 5]


def test_what_someone_tells_of_is_missing() -> None:
    window = filled(Window(0, 100), 1)
    taken(window)
    assert window.complete
    window.told(3)
    assert not window.complete
    assert window.missing(100) == ((2, 3),)
    window.told(2)
    assert window.received == 3


def test_missing_gives_exactly_the_holes_as_ranges() -> None:
    window = filled(Window(0, 100), 1, 4, 5, 8, 10)
    taken(window)
    assert window.missing(100) == ((2, 3), (6, 7), (9, 9))


def test_missing_gives_no_more_numbers_than_asked_for_and_the_first_ones() -> None:
    window = filled(Window(0, 100), 1, 4, 20)
    assert window.missing(1) == ((2, 2),)
    assert window.missing(3) == ((2, 3), (5, 5))


def test_missing_gives_nothing_that_could_not_be_kept() -> None:
    window = Window(10, 5)
    window.told(2**60)
    assert window.missing(1000) == ((11, 15),)


def numbers_in(ranges: Ranges) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


@given(st.lists(st.one_of(st.integers(1, 30), st.integers(-30, -1)), max_size=80), st.integers(1, 12))
def test_in_whatever_order_numbers_come_they_are_taken_once_in_order_and_the_rest_is_missing(
    steps: list[int], limit: int
) -> None:
    """Positive: that number comes. Negative: forget up to there."""
    window, out = Window(0, limit), list[int]()
    for step in steps:
        if step > 0:
            window.add(packet(step))
            out += taken(window)
        else:
            window.forget(-step)
        assert out == list(range(1, len(out) + 1))
        assert window.forgotten <= window.delivered == len(out) <= window.received
        kept = sorted(window.slots)
        reach = min(window.received, window.delivered + limit)
        assert numbers_in(window.missing(1000)) == [n for n in range(window.delivered + 1, reach + 1) if n not in kept]
        assert [n for n in kept if n <= window.delivered] == list(range(window.forgotten + 1, window.delivered + 1))
        assert all(n <= window.delivered + limit for n in kept)


def test_no_more_is_taken_than_up_to_a_number() -> None:
    window = filled(Window(0, 100), 1, 2, 3, 5)
    out: list[Packet] = []
    window.take_upto(out, 2)
    window.take_upto(out, 1)
    assert [p.seqno for p in out] == [1, 2]
    window.take_upto(out, 9)
    assert [p.seqno for p in out] == [1, 2, 3]
    assert (window.delivered, window.received) == (3, 5)


def test_a_window_that_is_cut_off_keeps_what_was_delivered_and_misses_nothing() -> None:
    window = filled(Window(0, 100), 1, 2, 4)
    taken(window)
    window.told(9)
    window.cut_off()
    assert sorted(window.slots) == [1, 2]
    assert window.complete
    assert window.missing(10) == ()
    filled(window, 3)
    assert taken(window) == [3]
