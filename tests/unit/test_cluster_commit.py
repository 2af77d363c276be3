"""Reports of how far a broker has come: each is of one life, and of no other."""

from __future__ import annotations

import pytest
from cluster_rig import Cluster

from coterie.cluster.chain import UNKNOWN, Link
from coterie.cluster.commit import Reports, name_of
from coterie.cluster.membership import Progress
from coterie.group.members import Address

A = Address("a", 1)
THEN, NOW = name_of(Progress(3, 100)), name_of(Progress(5, 70))


def at(index: int) -> Link:
    return Link(Progress(5, index), UNKNOWN)


def test_a_report_of_the_present_life_is_news_once() -> None:
    reports = Reports()
    assert reports.heard(A, at(80), NOW, NOW)
    assert not reports.heard(A, at(80), NOW, NOW)
    assert reports.upto == {A: 80}


def test_a_report_of_a_former_life_is_void_however_late_it_comes() -> None:
    reports = Reports()
    assert not reports.heard(A, at(130), THEN, NOW)
    assert reports.upto == {}


def test_what_was_said_before_a_life_began_does_not_count_in_it() -> None:
    reports = Reports()
    reports.heard(A, at(130), THEN, THEN)
    reports.begins(A)
    assert reports.upto == {}


def test_a_broker_of_an_older_version_names_its_epoch() -> None:
    reports = Reports()
    reports.lost(A, 4)
    assert not reports.heard(A, at(130), 3, NOW)
    assert reports.heard(A, at(71), 4, NOW)


def test_lives_have_different_names() -> None:
    places = [Progress(epoch, index) for epoch in (1, 2, 300) for index in (0, 1, 1 << 33)]
    assert len({name_of(place) for place in places}) == len(places)


def test_a_broker_reports_nothing_until_it_knows_which_life_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Cluster(3).started()[0].member
    sent: list[Address] = []
    monkeypatch.setattr(member.channel, "send_nowait", lambda data, member: sent.append(member))
    member.messages.disk(at(1), member.replica.servants)
    assert len(sent) == 2
    del member.replica.lives[member.replica.us]
    member.messages.disk(at(2), member.replica.servants)
    member.messages.applied(at(2), member.replica.servants)
    assert len(sent) == 2
