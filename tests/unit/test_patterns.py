"""Patterns from outside: linear to search for, bounded to compile, refused in words where RE2 does not know them."""

from __future__ import annotations

import time

import pytest

from coterie import patterns
from coterie.broker.policy import Policy
from coterie.broker.topic_permissions import TopicPermissions
from coterie.errors import UserError

EXPONENTIAL = ["(a+)+$", "(a|a)*b", "(a*)*b", "(a|aa)+$", "(.*a){12}b", "([a-z]+)*@", "a*a*a*a*a*a*b"]
"""Of 30 to 60 letters each of them takes a backtracking engine seconds to hours."""


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_what_backtracking_engines_choke_on_is_searched_for_in_no_time(pattern: str) -> None:
    patterns.check(pattern)
    began = time.process_time()
    for _ in range(20):
        patterns.fits(pattern, "a" * 254 + "!")
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("^(?!secret)", "look-ahead, which RE2 does not know"),
        ("(?=a)", "look-ahead"),
        ("(?<!a)b", "look-behind|not know"),
        ("(?>a)", "atomic"),
        (r"(a)\1", "refers back to a group"),
        ("a++", "possessive"),
        ("(a{1000}){1000}", "no regular expression"),
        (r"\pL{500}", "too large"),
        ("(.{0,100}){10}", "too large"),
        ("x" * 1025, "may have 1024 bytes, and this has 1025"),
        ("é" * 600, "this has 1200"),
        ("(", "missing"),
    ],
)
def test_what_cannot_be_used_says_why(pattern: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        patterns.check(pattern)


def test_no_pattern_of_any_kind_takes_long_to_compile() -> None:
    worst = ["(" * 500 + ")" * 500, "[" * 1024, "(a|" * 340 + ")" * 340, r"\pL" * 300, "a{1,1000}" * 100, "\\" * 1023]
    for pattern in worst:
        began = time.process_time()
        patterns.problem(pattern)
        assert time.process_time() - began < 1


def test_the_end_of_a_text_may_be_written_as_python_has_it() -> None:
    assert patterns.fits(r"\Aab\Z", "ab")
    assert not patterns.fits(r"\Aab\Z", "ab\n")
    assert patterns.fits(r"a\\Z", "a\\Z")
    assert not patterns.fits("^ab$", "ab\n")


def test_names_that_are_no_utf_8_are_matched_letter_by_letter() -> None:
    name = b"a\xff\xfeb".decode("utf-8", "surrogateescape")
    assert patterns.fits("^a..b$", name)
    assert not patterns.fits("^ab$", name)
    patterns.check("\ud800")
    assert patterns.fits(patterns.escape("a.b*\0"), "xa.b*\0x")


def test_a_whole_text_is_not_a_part_of_it() -> None:
    assert patterns.fits_whole("a|b", "b")
    assert not patterns.fits_whole("a|b", "ab")
    assert not patterns.fits_whole("a", "a\n")


def test_what_is_no_pattern_fits_nothing() -> None:
    assert patterns.problem("(?=a)")
    assert not patterns.fits("(?=a)", "a")
    assert not patterns.fits("(?=a)", "")
    assert not Policy("p", "(?=a)", {"max-length": 1}).matches("a", "classic_queues")
    assert not TopicPermissions("(?=a)", "(?=a)").allows("write", "a", "u", "/")


def test_a_kept_policy_with_such_a_pattern_stays_and_says_so() -> None:
    policy, problems = Policy("p", "(?=a)", {"max-length": 1}).sound()
    assert policy == Policy("p", "(?=a)", {"max-length": 1})
    assert len(problems) == 1
    assert "fits nothing" in problems[0]


def test_a_user_called_like_a_pattern_is_only_itself_in_topic_permissions() -> None:
    topics = TopicPermissions("^{username}$", "")
    topics.check()
    assert topics.allows("write", "a.*(b", "a.*(b", "/")
    assert not topics.allows("write", "axx(b", "a.*(b", "/")
    assert not TopicPermissions("{username}" * 100, "").allows("write", "k", "." * 255, "/")
