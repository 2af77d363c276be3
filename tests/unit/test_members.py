"""Addresses, view ids and views: how they are written, compared and tagged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.group.members import Address, View, ViewId

A, B = Address("a", 1), Address("b", 1)


@given(st.text(), st.integers(0, 2**64 - 1))
def test_an_address_is_read_back_from_its_text(name: str, incarnation: int) -> None:
    address = Address(name, incarnation)
    assert Address.parse(str(address)) == address


def test_a_text_without_an_incarnation_is_no_address() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Address.parse("alpha")


def test_a_restarted_member_is_another_member() -> None:
    assert Address("a", 1) != Address("a", 2)


def test_view_ids_are_ordered_by_counter_and_then_by_creator() -> None:
    assert ViewId(1, B) < ViewId(2, A)
    assert ViewId(2, A) < ViewId(2, B)


def test_the_tag_of_a_view_tells_counters_and_creators_apart() -> None:
    tags = {ViewId(counter, Address(name, inc)).tag for counter in (0, 1, 2**31) for name in "ab" for inc in (1, 2)}
    assert len(tags) == 12
    assert all(0 <= tag < 2**64 for tag in tags)


def test_the_tag_of_a_view_is_the_same_in_every_process() -> None:
    assert ViewId(5, Address("a", 1)).tag == 5 << 32 | 0x59230F5E


def test_the_first_member_is_the_coordinator() -> None:
    view = View(ViewId(3, A), (B, A))
    assert view.coordinator == B
    assert A in view
    assert Address("a", 2) not in view


def test_views_with_the_same_id_and_members_are_equal_and_carry_the_tag_of_their_id() -> None:
    view = View(ViewId(3, A), (A, B))
    assert view == View(ViewId(3, A), (A, B))
    assert view.tag == view.id.tag


def test_a_view_is_written_with_its_members_oldest_first() -> None:
    assert str(View(ViewId(3, A), (B, A))) == "3@a#1 [b#1, a#1]"
