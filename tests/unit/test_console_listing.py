"""Lists of the console: filters, order, pages and columns, without a node."""

from __future__ import annotations

import pytest

from coterie.console.listing import Wanted, arrange, cut, framed, parse, reduced
from coterie.errors import UserError

ROWS: list[dict[str, object]] = [
    {"name": "b", "size": 3, "stats": {"rate": 0.5}},
    {"name": "a", "size": 10, "stats": {"rate": 2}},
    {"name": "c", "size": 3},
]


def names(rows: object) -> list[object]:
    assert isinstance(rows, list)
    return [row["name"] for row in rows]


def test_without_a_wish_rows_come_as_they_are() -> None:
    assert names(arrange(ROWS, parse({}, 500))) == ["b", "a", "c"]
    assert framed(ROWS, 3, 3, parse({}, 500)) == ROWS


def test_rows_are_sorted_by_a_column_and_equal_ones_stay_in_their_order() -> None:
    assert names(arrange(ROWS, parse({"sort": "size"}, 500))) == ["b", "c", "a"]
    assert names(arrange(ROWS, parse({"sort": "name", "sort_reverse": "true"}, 500))) == ["c", "b", "a"]


def test_rows_are_sorted_by_what_is_inside_a_column_and_those_without_it_come_first() -> None:
    assert names(arrange(ROWS, parse({"sort": "stats.rate"}, 500))) == ["c", "b", "a"]
    assert names(arrange(ROWS, parse({"sort": "nothing.at.all"}, 500))) == ["b", "a", "c"]


def test_numbers_and_texts_in_one_column_can_be_sorted() -> None:
    rows: list[dict[str, object]] = [{"name": "x", "v": "text"}, {"name": "y", "v": 5}, {"name": "z", "v": True}]
    assert names(arrange(rows, parse({"sort": "v"}, 500))) == ["z", "y", "x"]


def test_pages_are_counted_from_one_and_say_what_is_around_them() -> None:
    wanted = parse({"page": "2", "page_size": "2"}, 500)
    assert framed(list(cut(ROWS, wanted)), 7, 3, wanted) == {
        "items": [ROWS[2]],
        "item_count": 1,
        "filtered_count": 3,
        "total_count": 7,
        "page": 2,
        "page_count": 2,
        "page_size": 2,
    }
    assert framed([], 0, 0, parse({"page": "1"}, 500)) == {
        "items": [],
        "item_count": 0,
        "filtered_count": 0,
        "total_count": 0,
        "page": 1,
        "page_count": 1,
        "page_size": 100,
    }
    with pytest.raises(UserError, match="out of range"):
        cut(ROWS, parse({"page": "3", "page_size": "2"}, 500))


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0"}, {"page": "-1"}, {"page": "one"}, {"page": "9" * 30}, {"page": "1", "page_size": "0"},
        {"page": "1", "page_size": "501"}, {"page_size": "\N{SUPERSCRIPT TWO}"},
    ],
)  # fmt: skip
def test_a_page_that_makes_no_sense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(UserError):
        parse(query, 500)


def test_a_name_is_looked_for_anywhere_and_in_any_case_a_pattern_as_it_is() -> None:
    wanted = parse({"name": "ORD"}, 500)
    assert [wanted.matches(name) for name in ("orders", "my.Order", "other")] == [True, True, False]
    wanted = parse({"name": "^o.*s$", "use_regex": "true"}, 500)
    assert [wanted.matches(name) for name in ("orders", "Orders", "order")] == [True, False, False]
    assert parse({"name": "", "use_regex": "true"}, 500).matches("anything")


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a" * 257, "(?=a)", r"(a)\1", "a{1001}", "\x00("])
def test_what_is_no_pattern_is_refused_by_its_place(pattern: str) -> None:
    with pytest.raises(UserError, match="name: "):
        parse({"name": pattern, "use_regex": "true"}, 500)


def test_columns_reduce_a_row_to_what_was_asked_for() -> None:
    row: dict[str, object] = {"name": "q", "stats": {"publish": 1, "ack": 2}, "size": 0}
    assert reduced(row, ("name", "stats.ack", "size", "nothing", "name.x")) == {
        "name": "q",
        "stats": {"ack": 2},
        "size": 0,
    }
    assert reduced(row, ()) is row
    assert reduced(row, ("stats", "stats.ack"))["stats"] == {"publish": 1, "ack": 2}
    assert Wanted().columns == ()
