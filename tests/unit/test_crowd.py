"""Who makes room at a full door: the oldest of the address with most, and never one of an address with few."""

from __future__ import annotations

import pytest

from coterie.crowd import Crowd, address_of


def test_whoever_comes_last_from_the_largest_address_replaces_its_oldest() -> None:
    crowd: Crowd[int] = Crowd(4, 4)
    for who, host in ((1, "10.0.0.9"), (2, "10.0.0.1"), (3, "10.0.0.1"), (4, "10.0.0.1")):
        assert not crowd.crowded(host)
        crowd.add(who, host)
    assert crowd.crowded("10.0.0.7")
    assert crowd.who_goes("10.0.0.7") == 2
    assert crowd.who_goes("10.0.0.7", lambda who: who > 3) == 4
    assert crowd.who_goes("10.0.0.7", lambda who: who == 1) is None
    crowd.remove(2)
    crowd.remove(2)
    assert (len(crowd), crowd.of("10.0.0.1"), crowd.largest) == (3, 2, 2)


def test_an_address_that_has_its_share_makes_room_for_itself() -> None:
    crowd: Crowd[int] = Crowd(100, 2)
    for who, host in ((1, "10.0.0.1"), (2, "10.0.0.1"), (3, "10.0.0.2")):
        crowd.add(who, host)
    assert crowd.crowded("10.0.0.1")
    assert not crowd.crowded("10.0.0.2")
    assert crowd.who_goes("10.0.0.1") == 1


def test_nothing_is_left_of_those_who_went() -> None:
    crowd: Crowd[int] = Crowd(10, 10)
    for who in range(1000):
        crowd.add(who, f"10.0.{who // 250}.{who % 250}")
        crowd.remove(who)
    assert not crowd._by_address
    assert not crowd._address_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("n1", "n2", False),
    ],
)
def test_an_address_is_what_one_customer_has(one: str, other: str, same: bool) -> None:
    assert (address_of(one) == address_of(other)) is same
