"""From which store a cluster without a majority goes on, what that may cost, and when it must not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.broker.storage import Recovered
from coterie.cluster.membership import Beginning, Era, Progress, Status, Waiting, decide, unlike
from coterie.cluster.recovering.beginning import EPOCHS_AHEAD, new_cluster
from coterie.cluster.recovering.candidate import STATE, Candidate, candidate_of
from coterie.cluster.recovering.choosing import Asked, choose, who_was_not_asked, why_not
from coterie.cluster.recovering.losses import what_may_be_missing
from coterie.cluster.recovering.mark import RECOVERED, RESTORED, given_up
from coterie.errors import UserError
from coterie.group.members import Address
from coterie.node.aside import KEPT, set_aside

VOTERS = ("a", "b", "c")
ERA = Era("1@a", VOTERS)


def store(
    name: str, epoch: int = 3, index: int = 100, voters: tuple[str, ...] = VOTERS, updating: bool = False,
    damage: tuple[str, ...] = (), era: Era = ERA, chain: str = "aa",
) -> Candidate:  # fmt: skip
    queues = {("/", "orders", 7): 12}
    return Candidate(
        f"/data/{name}", name, "old-1", voters, Progress(epoch, index), era, chain, 0.0, updating, damage, queues, {}
    )


def silent(*where: str) -> list[Asked]:
    return [Asked(each, "group port", "connection refused", False) for each in where]


def test_the_store_that_has_come_furthest_is_chosen_and_of_equals_one_that_is_whole() -> None:
    assert choose([store("a"), store("b", index=101)]).best.name == "b"
    assert choose([store("a", epoch=4, index=1), store("b", index=101)]).best.name == "a"
    assert choose([store("a", damage=("something",)), store("b")]).best.name == "b"


def test_one_whose_update_was_cut_off_is_never_chosen_however_far_it_was_to_come() -> None:
    assert choose([store("a"), store("b", index=999, updating=True)]).best.name == "a"
    with pytest.raises(UserError, match="another store is needed, or a backup"):
        choose([store("b", updating=True)])


def test_stores_of_different_clusters_or_two_of_one_node_are_not_compared() -> None:
    with pytest.raises(UserError, match="different clusters"):
        choose([store("a"), replace(store("b"), cluster="other-2")])
    with pytest.raises(UserError, match="of one node"):
        choose([store("a"), store("a")])


def test_a_store_that_was_never_part_of_a_cluster_is_no_candidate() -> None:
    with pytest.raises(UserError, match="never part of a cluster"):
        candidate_of("/data/a", "a", Recovered(), {})


@pytest.mark.parametrize(
    ("candidates", "certain"),
    [
        pytest.param([store("a")], False, id="one of three: the other two may have confirmed more"),
        pytest.param([store("a", voters=("a", "b"))], True, id="one of two: each confirm was on both"),
        pytest.param(
            [store("a", voters=("a", "b", "c", "d")), store("b", voters=("a", "b", "c", "d"))], True,
            id="two of four: three of four include one of them",
        ),
        pytest.param([store("a", voters=("a", "b"), damage=("gone",))], False, id="not if it is damaged"),
        pytest.param(
            [store("a", voters=("a", "b", "c", "d"), index=5), store("b", voters=("a", "b", "c", "d"), era=Era("2@b"))],
            False, id="not if they may have gone on apart",
        ),
        pytest.param(
            [store("a"), store("b", updating=True)], True, id="one that was being updated had no more than that update"
        ),
        pytest.param(
            [store("a"), store("b", index=500, updating=True)], False, id="unless that had more than what is here"
        ),
    ],
)  # fmt: skip
def test_it_is_certain_that_nothing_confirmed_is_missing_only_if_every_majority_is_represented(
    candidates: list[Candidate], certain: bool
) -> None:
    choice = choose(candidates)
    assert choice.certain is certain
    text = " ".join(what_may_be_missing(choice))
    assert ("Nothing that was confirmed is missing" in text) is certain
    assert ("'orders' (12 messages) in vhost '/'" in text) is not certain
    assert all(each in text for candidate in [choice.best] for each in candidate.damage)


def test_it_is_refused_while_the_stores_of_a_majority_are_here() -> None:
    why = why_not(choose([store("a"), store("b")]), silent("c:1"))
    assert "nothing is lost: start these nodes" in why


def test_stores_that_are_damaged_or_were_being_updated_to_more_are_no_part_of_a_majority() -> None:
    assert not why_not(choose([store("a"), store("b", damage=("gone",))]), silent("c:1"))
    assert not why_not(choose([store("a"), store("b", index=500, updating=True)]), silent("c:1"))


def test_it_is_refused_while_so_many_answer_that_they_may_be_a_majority_with_this_one() -> None:
    choice = choose([store("a")])
    answers = Asked("b:1", "group port", "a process listens there", True)
    assert "as these answer: b:1" in why_not(choice, [answers, *silent("c:1")])
    assert not why_not(choice, silent("b:1", "c:1"))
    empty = Asked("http://b", "http", "b, of no cluster yet, joining", False, "b")
    assert not why_not(choice, [empty, *silent("http://c")])


def test_one_that_answers_by_name_counts_once_beside_its_store() -> None:
    voters = ("a", "b", "c", "d", "e")
    choice = choose([store("a", voters=voters), store("b", voters=voters)])
    named = [Asked("http://b", "http", "b", True, "b")]
    assert not why_not(choice, named)
    assert why_not(choice, [*named, Asked("http://c", "http", "c", True, "c")])


def test_it_is_refused_while_it_is_not_said_where_the_others_were() -> None:
    assert "the voters b, c are elsewhere, and 1 of 2" in who_was_not_asked(choose([store("a")]), silent("b:1"))
    assert not who_was_not_asked(choose([store("a")]), silent("b:1", "c:1"))
    assert not who_was_not_asked(choose([store("a"), store("b")]), silent("c:1"))


def test_the_new_cluster_has_one_voter_a_place_that_nobody_came_to_and_no_trace_of_the_old_ones_vote() -> None:
    old = replace(store("a"), state={"chain": "aa", "version": 4, "time": 5.0, "damaged": True})
    cluster, records = new_cluster(old, "a", b"\1" * 8, 9.0, RECOVERED)
    state, mark = records[STATE], records[RECOVERED, cluster]
    assert state is not None
    assert mark is not None
    assert cluster == "a-0101010101010101"
    assert (state["cluster"], state["voters"], state["epoch"]) == (cluster, ["a"], 3 + EPOCHS_AHEAD)
    assert (state["damaged"], state["updating"], state["crashed"]) == (False, False, True)
    assert (state["chain"], state["version"], state["time"]) == ("aa", 4, 5.0)
    assert mark["from"] == "old-1"
    assert given_up({(RECOVERED, cluster): mark}) == ("old-1",)
    assert given_up({(RESTORED, cluster): mark}) == ()


# Old voters that come back.

A, B, C = (Address(name, 1) for name in VOTERS)


def old_one() -> Status:
    return Status(Progress(3, 200), "old-1", VOTERS, 3, False)


def new_one(serving: bool) -> Status:
    return Status(Progress(10_003, 100), "a-new", ("a",), 3, serving, empty=False, serving=serving, replaces=("old-1",))


@pytest.mark.parametrize("serving", [False, True])
def test_a_majority_of_a_cluster_that_was_given_up_does_not_begin_again_beside_the_new_one(serving: bool) -> None:
    found = decide((A, B, C), {A: new_one(serving), B: old_one(), C: old_one()})
    if serving:
        assert isinstance(found, Waiting)
        assert "given up by an operator and goes on as a-new" in found.why
    else:
        assert isinstance(found, Beginning)
        assert (found.cluster, found.voters, found.in_step) == ("a-new", ("a",), (A,))
        assert all("set-aside" in found.refused[member] for member in (B, C))


def test_without_a_sign_of_the_new_one_the_old_majority_begins() -> None:
    assert isinstance(decide((B, C), {B: old_one(), C: old_one()}), Beginning)


def test_who_is_refused_is_told_what_became_of_its_cluster_and_what_to_do() -> None:
    assert "coterie cluster set-aside" in unlike(old_one(), "a-new", {}, 1, ("old-1",))


def test_what_a_broker_says_of_clusters_that_were_given_up_survives_the_wire_and_older_ones_say_nothing() -> None:
    said = new_one(True).to_json()
    assert Status.from_json(said).replaces == ("old-1",)
    del said["replaces"]
    assert Status.from_json(said).replaces == ()


# Data that is kept aside.


def node_folder(folder: Path) -> None:
    for name in ("log", "log.1", "log.2", "store", "audit"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
    (folder / "log.1" / "whole").touch()
    (folder / "log.reserve").write_text("reserve")
    (folder / "node.name").write_text("a\n")


def test_data_that_is_kept_aside_is_all_there_and_the_node_keeps_its_name_and_audit_log(tmp_path: Path) -> None:
    node_folder(tmp_path)
    kept = set_aside(tmp_path)
    assert sorted(each.name for each in kept.iterdir()) == ["log", "log.1", "log.2", "log.reserve", "store"]
    assert (kept / "log.1" / "file").read_text() == "log.1"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit", KEPT, "node.lock", "node.name"]
    with pytest.raises(UserError, match="no store"):
        set_aside(tmp_path)


def test_a_crash_while_data_is_kept_aside_leaves_what_counts_until_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    rename = os.rename
    for steps in range(5):
        folder = tmp_path / str(steps)
        node_folder(folder)
        left = steps

        def counted(old: Path, new: Path) -> Path:
            nonlocal left
            if not left:
                raise Crash
            left -= 1
            rename(old, new)
            return new

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", counted)
            with pytest.raises(Crash):
                set_aside(folder)
        assert (folder / "log.1" / "whole").exists()
        set_aside(folder)
        assert not (folder / "log.1").exists()
