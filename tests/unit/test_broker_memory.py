"""The memory alarm: what is counted, what the process has, and how it ends."""

from __future__ import annotations

from coterie.broker.memory import PROCESS_MIN, PROCESS_STEP, MemoryWatch

MIB = 1 << 20
HIGH, LOW, FIRST = 200 * MIB, 0.8, 60 * MIB


def look(watch: MemoryWatch, counted: int, process: int) -> bool:
    return watch.look(counted * MIB, process * MIB, HIGH, LOW)


def test_what_is_counted_is_enough_and_ends_below_the_low_mark() -> None:
    watch = MemoryWatch(0)
    assert [look(watch, each, 0) for each in (200, 201, 161, 160, 199)] == [False, True, True, False, False]


def test_a_process_that_grows_is_enough_whatever_is_counted() -> None:
    """Headers, bindings, channels: nothing of it is counted."""
    watch = MemoryWatch(FIRST)
    assert watch.limit(HIGH) == 300 * MIB
    assert [look(watch, 1, each) for each in (300, 301, 301, 301, 250, 240)] == [False, True, True, True, True, False]
    assert not watch.process


def test_a_process_that_grows_on_while_publishers_wait_is_exhausted() -> None:
    watch = MemoryWatch(FIRST)
    found = [look(watch, 1, process) and watch.exhausted for process in (300, 450, 451, 900, 449)]
    assert found == [False, False, True, True, False]


def test_messages_that_went_and_left_fragments_let_publishers_go_on_until_it_grows() -> None:
    watch = MemoryWatch(FIRST)
    assert look(watch, 100, 310)
    assert look(watch, 51, 310), "not half of them have gone"
    assert not look(watch, 49, 310)
    assert not look(watch, 49, 310 + PROCESS_STEP // MIB)
    assert look(watch, 60, 311 + PROCESS_STEP // MIB)
    assert look(watch, 10, 399)
    assert not look(watch, 10, 399)
    assert look(watch, 90, 420)
    assert look(watch, 0, 420), "so much is not taken for fragments"
    assert not look(watch, 0, 240)


def test_a_small_limit_leaves_a_process_room_to_run() -> None:
    watch = MemoryWatch(FIRST)
    assert watch.limit(1000) == FIRST + PROCESS_MIN
    assert not watch.look(0, FIRST + PROCESS_MIN, 1000, LOW)
