"""The messages of a queue that are in memory, by their positions; against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.contents import SIZE, Contents
from coterie.broker.message import Message, make_message

MESSAGES = [make_message("", str(at), b"") for at in range(3 * SIZE)]
positions = st.integers(0, 5 * SIZE)
spans = st.tuples(positions, st.one_of(st.integers(1, 3), st.integers(1, 3 * SIZE)))


def check(contents: Contents, model: dict[int, Message]) -> None:
    assert dict(contents) == model
    ranges = [(0, 7), (SIZE - 1, SIZE), (SIZE, 9 * SIZE)]
    assert contents.messages(ranges) == [model.get(at) for first, stop in ranges for at in range(first, stop)]
    assert all(contents.message(at) is model.get(at) for at in (0, 1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE))


@given(st.lists(st.tuples(st.booleans(), spans), max_size=12))
def test_what_was_put_is_there_until_it_is_dropped(script: list[tuple[bool, tuple[int, int]]]) -> None:
    contents, model = Contents(), dict[int, Message]()
    for puts, (first, count) in script:
        if puts:
            contents.put(first, MESSAGES[:count])
            model.update(enumerate(MESSAGES[:count], first))
        else:
            contents.drop([(first, first + count)])
            for at in range(first, first + count):
                model.pop(at, None)
        check(contents, model)


@given(st.permutations(range(0, 2 * SIZE, 7)))
def test_nothing_is_kept_when_all_have_left_in_whatever_order(order: list[int]) -> None:
    contents = Contents()
    for at in sorted(order):
        contents.put(at, [MESSAGES[at]])
    for at in order:
        contents.drop([(at, at + 1)])
    assert not [*contents]
    assert not contents._chunks


def test_a_copy_stays_as_it_was() -> None:
    contents = Contents()
    contents.put(5, MESSAGES[:3])
    copy = contents.copy()
    contents.drop([(5, 6)])
    contents.put(8, MESSAGES[3:4])
    assert [*copy] == [(5, MESSAGES[0]), (6, MESSAGES[1]), (7, MESSAGES[2])]
