"""The books of the broker's demonstration, and of chaos for the cluster: what they notice."""

from __future__ import annotations

from coterie.demo.orders import Fault, Ledger


def ledger(*bodies: bytes) -> Ledger:
    """With these published and confirmed."""
    made = Ledger()
    for body in bodies:
        made.publish(body, 0.0)
        made.confirm(body)
    return made


def test_every_order_is_accounted_for() -> None:
    books = ledger(b"once", b"again")
    books.publish(b"arrived", 0.0)
    books.publish(b"gone", 0.0)
    books.deliver(b"once", False, 0, 1.0)
    books.deliver(b"again", False, 1, 1.0)
    books.deliver(b"again", True, 0, 2.0)
    books.deliver(b"arrived", False, 0, 2.0)
    books.settle([b"once", b"again", b"arrived"])
    accounts = books.close()
    assert books.violations == []
    assert (accounts.published, accounts.confirmed, accounts.unconfirmed, accounts.unconfirmed_consumed) == (4, 2, 2, 1)
    assert (accounts.consumed_once, accounts.consumed_again, accounts.lost) == (2, 1, 0)


def test_what_was_confirmed_and_never_came_is_lost() -> None:
    books = ledger(b"a", b"b")
    books.deliver(b"b", False, 0, 1.0)
    assert books.missing() == [b"a"]
    assert books.close().lost == 1
    assert books.violations == ["b'a': was confirmed and is lost"]


def test_what_comes_again_must_be_flagged() -> None:
    books = ledger(b"a")
    books.deliver(b"a", False, 0, 1.0)
    books.deliver(b"a", False, 1, 2.0)
    assert books.violations == ["b'a': came again without the flag"]


def test_what_was_flagged_must_not_come_again_without_the_flag() -> None:
    books = ledger(b"a")
    books.deliver(b"a", True, 0, 1.0)
    books.deliver(b"a", False, 1, 2.0)
    assert books.violations == ["b'a': came again without the flag"]


def test_what_was_settled_must_not_come_back_flagged_or_not() -> None:
    books = ledger(b"a")
    books.deliver(b"a", False, 0, 1.0)
    books.settle([b"a"])
    books.deliver(b"a", True, 1, 2.0)
    assert books.violations == ["b'a': came back after its ack was committed"]


def test_what_nobody_sent_is_noticed() -> None:
    books = ledger()
    books.deliver(b"a", False, 0, 1.0)
    assert books.violations == ["b'a': nobody sent it"]


def test_what_a_broker_sent_before_it_was_stopped_may_arrive_when_another_consumer_has_had_it() -> None:
    books = ledger(b"a")
    books.deliver(b"a", True, 1, 1.0)
    books.settle([b"a"])
    books.deliver(b"a", False, 0, 2.0, doubtful=True)
    assert books.violations == []
    assert books.close().late == 1
    books.deliver(b"a", False, 0, 3.0, doubtful=True)
    assert books.violations == ["b'a': came again without the flag"]


def test_a_fault_is_over_elsewhere_when_something_newer_is_delivered_there() -> None:
    books = ledger(b"old")
    books.fault = fault = Fault(1.0, frozenset({0}))
    books.publish(b"new", 1.5)
    books.deliver(b"new", False, 0, 2.0)
    books.deliver(b"old", True, 1, 3.0)
    assert (fault.elsewhere, fault.handed_over) == ({}, 2.0)
    books.deliver(b"new", True, 1, 4.0)
    books.publish(b"newer", 5.0)
    books.deliver(b"newer", False, 1, 6.0)
    assert fault.elsewhere == {1: 3.0}
