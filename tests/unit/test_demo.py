"""What the demonstration's members do with what they deliver, and what its story makes of their traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from coterie.demo.book import NUMBER, Book
from coterie.demo.story import longest_block
from coterie.group.channel import Delivery
from coterie.group.members import Address, MergeView, View, ViewId
from coterie.runtime.base import Buffer
from coterie.trace import Event

A, B, C = Address("a", 1), Address("b", 1), Address("c", 1)


def view(number: int, *members: Address) -> View:
    return View(ViewId(number, members[0]), members)


def deliver(book: Book, sender: Address, *numbers: int) -> None:
    book.receive([Delivery(sender, [memoryview(NUMBER.pack(number)) for number in numbers], True)])


def a_book(local: Address = A, taken: list[Address | None] | None = None) -> Book:
    book = Book(lambda _, take: None if taken is None else taken.append(take))
    book.local = local
    return book


def test_books_are_equal_if_and_only_if_the_same_messages_came_in_the_same_order() -> None:
    one, two, three = a_book(), a_book(), a_book()
    for book in (one, two):
        deliver(book, A, 1, 2)
        deliver(book, B, 7)
    deliver(three, A, 1)
    deliver(three, B, 7)
    deliver(three, A, 2)
    assert (one.sum, one.pages) == (two.sum, two.pages)
    assert len(three.pages) == len(one.pages)
    assert three.sum != one.sum


def test_a_hole_and_a_message_that_comes_twice_are_wrong() -> None:
    book = a_book()
    book.view_accepted(view(1, A, B))
    deliver(book, A, 5, 6, 8)
    assert book.wrong == 1
    deliver(book, B, 1)
    deliver(book, B, 1)
    assert book.wrong == 2


def test_a_view_change_is_no_excuse_for_a_hole_but_a_partition_is() -> None:
    book = a_book()
    book.view_accepted(view(1, A, B, C))
    deliver(book, B, 1)
    deliver(book, C, 1)
    book.view_accepted(view(2, A, B))
    deliver(book, B, 2)
    book.view_accepted(view(3, A, B, C))
    deliver(book, C, 9)
    assert book.wrong == 0
    deliver(book, B, 4)
    assert book.wrong == 1


def test_after_a_merge_the_smaller_part_takes_over_the_larger_ones_book() -> None:
    merged = MergeView(ViewId(5, A), (A, B, C), (view(3, C), view(4, A, B)))
    for local, expected in ((A, None), (B, None), (C, A)):
        taken: list[Address | None] = []
        a_book(local, taken).view_accepted(merged)
        assert taken == [expected]


def test_of_two_equal_parts_everybody_chooses_the_same() -> None:
    merged = MergeView(ViewId(5, A), (A, B), (view(3, A), view(4, B)))
    choices: list[Address | None] = []
    for local in (A, B):
        a_book(local, choices).view_accepted(merged)
    assert sorted(choice for choice in choices if choice is not None) in ([A], [B])


async def _stream(chunks: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for chunk in chunks:
        yield chunk


def test_a_state_is_the_book_as_it_was_when_it_was_asked_for_and_replaces_what_was_there() -> None:
    giver, taker = a_book(A), a_book(B)
    for number in range(20_000):
        deliver(giver, A, number)
    deliver(taker, B, 1)
    pages, total = bytes(giver.pages), giver.sum
    state = giver.get_state()
    deliver(giver, A, 20_000)
    chunks = [bytes(chunk) for chunk in state]
    asyncio.run(taker.set_state(_stream(chunks)))
    assert len(chunks) > 1
    assert (bytes(taker.pages), taker.sum) == (pages, total)


def event(node: str, t: float, kind: str) -> Event:
    return Event("demo", node, 1, 0, t, kind)


def test_the_longest_block_is_that_of_one_member_from_its_first_block_to_its_unblock() -> None:
    events = [
        event("a", 1.0, "block"), event("a", 1.1, "block"), event("a", 1.3, "unblock"),
        event("b", 1.0, "block"), event("b", 1.2, "unblock"), event("b", 9.0, "unblock"), event("c", 2.0, "block"),
    ]  # fmt: skip
    assert round(longest_block(events), 6) == 0.3
