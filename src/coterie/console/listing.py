"""Lists as RabbitMQ's API gives them: filtered by name, sorted, cut into pages, reduced to some columns.

A pattern that somebody sends is searched for in time linear in each name (`coterie.patterns`), and other things have
their turns in between (`Ask.listed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from coterie import patterns
from coterie.errors import UserError

T = TypeVar("T")
Shape = dict[str, object]
"""An object as JSON shows it."""
PAGE_SIZE: Final = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of a list."""

    page: int = 0
    """From 1; 0: no pages, all of it."""
    page_size: int = PAGE_SIZE
    name: str = ""
    matches: Callable[[str], bool] = lambda name: True
    sort: str = ""
    """A column, with dots into it; nothing: in the order of names."""
    reverse: bool = False
    columns: tuple[str, ...] = ()


def parse(query: Mapping[str, str], page_max: int) -> Wanted:
    """Raises UserError that says what is wrong."""
    page = _number(query, "page", 0)
    if "page" in query and page < 1:
        raise UserError("page: pages are counted from 1")
    size = _number(query, "page_size", PAGE_SIZE)
    if not 1 <= size <= page_max:
        raise UserError(f"page_size must be between 1 and {page_max}")
    name = query.get("name", "")
    if query.get("use_regex") == "true" and name:
        check_pattern(name)
        matches = lambda text: patterns.fits(name, text)  # noqa: E731
    else:
        folded = name.casefold()
        matches = lambda text: folded in text.casefold()  # noqa: E731
    columns = tuple(part for part in query.get("columns", "").split(",") if part)
    return Wanted(page, size, name, matches, query.get("sort", ""), query.get("sort_reverse") == "true", columns)


def check_pattern(text: str, what: str = "name") -> None:
    """Raises UserError for what is no pattern."""
    try:
        patterns.check(text, patterns.ASKED_MAX)
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


def arrange(shapes: Iterable[Shape], wanted: Wanted) -> list[Shape]:
    """Sorted as was asked; without a wish as they come. Numbers come before texts, what is missing before both."""
    rows = list(shapes)
    if wanted.sort:
        path = wanted.sort.split(".")
        rows.sort(key=lambda shape: _rank(pick(shape, path)), reverse=wanted.reverse)
    elif wanted.reverse:
        rows.reverse()
    return rows


def cut(rows: Sequence[T], wanted: Wanted) -> Sequence[T]:
    """The page that was asked for. Raises UserError if it is none of them."""
    if not wanted.page:
        return rows
    if wanted.page > max(1, pages(len(rows), wanted)):
        raise UserError(f"page {wanted.page} is out of range: there are {pages(len(rows), wanted)}")
    first = (wanted.page - 1) * wanted.page_size
    return rows[first : first + wanted.page_size]


def pages(count: int, wanted: Wanted) -> int:
    return -(-count // wanted.page_size)


def framed(items: Sequence[Shape], total: int, filtered: int, wanted: Wanted) -> list[Shape] | Shape:
    """The answer: the list itself, or a page with what there is around it."""
    shown = [reduced(item, wanted.columns) for item in items]
    if not wanted.page:
        return shown
    return {
        "filtered_count": filtered, "item_count": len(shown), "items": shown, "page": wanted.page,
        "page_count": max(1, pages(filtered, wanted)), "page_size": wanted.page_size, "total_count": total,
    }  # fmt: skip


def reduced(shape: Shape, columns: Sequence[str]) -> Shape:
    """Only those columns, as `a` or `a.b`; none: all of it."""
    if not columns:
        return shape
    found: Shape = {}
    for column in columns:
        path = column.split(".")
        value = pick(shape, path)
        if value is None:
            continue
        into = found
        for part in path[:-1]:
            inner = into.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            into = inner
        else:
            into[path[-1]] = value
    return found


def pick(shape: object, path: Sequence[str]) -> object:
    for part in path:
        if not isinstance(shape, dict):
            return None
        shape = shape.get(part)
    return shape


def _rank(value: object) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, int | float):
        return 1, value, ""
    return 2, 0.0, str(value)


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)
