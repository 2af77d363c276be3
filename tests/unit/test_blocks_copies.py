"""Which copy of a replicated state counts, decided from views and from what members say: blocks/copies.py."""

from __future__ import annotations

from coterie.blocks.copies import NEVER, Copies, Here, Own, There
from coterie.group.members import Address, MergeView, View, ViewId

A, B, C, D, E = (Address(name, 1) for name in "abcde")


class Members:
    """The copies as several members see them; what one says reaches all who are in its view, in one order."""

    def __init__(self, *members: Address, majority_of: int = 0) -> None:
        self.copies = {member: Copies(member, majority_of) for member in members}
        self.counter = 0

    def __getitem__(self, member: Address) -> Copies:
        return self.copies[member]

    def view(self, *members: Address, merges: tuple[tuple[Address, ...], ...] = (), hear: bool = True) -> View:
        """These accept a view, which merges the views of these parts; and then, all say what they have to say."""
        self.counter += 1
        view = View(ViewId(self.counter, members[0]), members)
        if merges:
            parts = []
            for part in merges:
                before = self.copies[part[0]].view
                assert before is not None
                parts.append(View(before.id, part))
            view = MergeView(view.id, members, tuple(parts))
        for member in members:
            self.copies[member].view_changed(view)
        if hear:
            self.hear(*members)
        return view

    def hear(self, *members: Address) -> None:
        for member in members:
            for said in self.copies[member].says():
                self.deliver(member, said)

    def deliver(self, member: Address, said: There | Here) -> None:
        view = self.copies[member].view
        assert view is not None
        for other in view.members:
            if isinstance(said, There):
                self.copies[other].there(member, said)
            else:
                self.copies[other].here(member, said)

    def restore(self, member: Address, provider: Address) -> None:
        """The member gets the provider's state."""
        given, view = self.copies[provider], self.copies[provider].view
        assert view is not None
        if given.own is Own.REFERENCE:
            self.copies[member].restored(given.holders or (), given.era, tuple(given.heard), view.id)
        else:
            self.copies[member].told(given.holders or ())

    def started(self, *members: Address) -> Members:
        """All are in one view and hold the reference."""
        self.view(members[0])
        for n in range(1, len(members)):
            self.restore(members[n], members[0])
            self.view(*members[: n + 1])
        return self

    def owns(self) -> str:
        return " ".join(copies.own.name for copies in self.copies.values())


def test_the_first_member_holds_the_reference() -> None:
    members = Members(A)
    members.view(A)
    assert members[A].settled
    assert members[A].holders == (A,)


def test_who_joins_with_the_state_follows_and_holds_the_reference_once_it_has_said_so() -> None:
    members = Members(A, B)
    members.view(A)
    members.restore(B, A)
    members.view(A, B, hear=False)
    assert members[B].own is Own.FOLLOWS
    assert not members[B].settled
    members.hear(B)
    assert members[B].settled
    assert members[A].holders == (A, B) == members[B].holders


def test_who_joins_without_the_state_asks_anybody_until_it_knows_who_holds_the_reference() -> None:
    members = Members(A, B, C)
    members.view(A)
    members.view(A, B, C)
    assert members.owns() == "REFERENCE NOTHING NOTHING"
    assert members[C].providers() == [A, B]
    members.restore(C, B)  # who knows nothing, either
    assert members[C].own is Own.NOTHING
    members.restore(C, A)
    members.hear(C)
    assert members[C].settled


def test_after_a_merge_the_copy_of_the_largest_part_is_the_reference() -> None:
    members = Members(A, B, C).started(A, B, C)
    members.view(A)
    members.view(B, C)
    members.view(A, B, C, merges=((A,), (B, C)))
    assert members.owns() == "OLD REFERENCE REFERENCE"
    assert members[A].providers() == [B, C]


def test_of_equal_parts_that_of_the_lowest_coordinator_has_the_reference() -> None:
    members = Members(A, B, C, D).started(A, B, C, D)
    members.view(C, A)
    members.view(B, D)
    members.view(C, A, B, D, merges=((C, A), (B, D)))
    assert members.owns() == "OLD REFERENCE OLD REFERENCE"


def test_nothing_counts_before_all_have_said_what_they_have() -> None:
    members = Members(A, B, C).started(A, B, C)
    members.view(A)
    members.view(B, C)
    members.view(A, B, C, merges=((A,), (B, C)), hear=False)
    members.hear(A, B)
    assert members.owns() == "OLD OLD OLD"
    assert not any(copies.open for copies in members.copies.values())
    members.hear(C)
    assert members.owns() == "OLD REFERENCE REFERENCE"


def test_what_was_said_in_an_earlier_view_does_not_count() -> None:
    members = Members(A, B).started(A, B)
    members.view(A)
    members.view(B)
    members.view(A, B, merges=((A,), (B,)), hear=False)
    late = members[A].says()
    members.view(A, B)
    for said in late:
        members.deliver(A, said)
    assert members.owns() == "REFERENCE OLD"


def test_if_all_who_hold_the_reference_are_lost_before_they_gave_it_the_next_best_copy_counts() -> None:
    members = Members(A, B, C, D).started(A, B, C, D)
    members.view(A, B)
    members.view(C)
    members.view(D)
    members.view(A, B, C, D, merges=((A, B), (C,), (D,)))
    assert members.owns() == "REFERENCE REFERENCE OLD OLD"
    members.view(C, D)
    assert members[C].settled
    assert members[D].own is Own.OLD
    assert members[D].providers() == [C]


def test_who_had_restored_the_reference_but_not_said_so_still_has_it_when_the_others_are_lost() -> None:
    members = Members(A, B, C).started(A)
    members.view(A, B, C)
    members.restore(B, A)
    members.view(B, C)  # what B had to say waits: the view has changed
    assert members[B].settled
    assert members[C].own is Own.NOTHING
    assert members[C].providers() == [B]


def test_if_nobody_has_anything_the_coordinators_copy_counts_whatever_it_is() -> None:
    members = Members(A, B, C).started(A)
    members.view(A, B, C)
    members.view(B, C)
    assert members[B].settled
    assert members[C].providers() == [B]


def test_all_who_know_agree_on_who_holds_the_reference_after_a_merge_of_merges() -> None:
    members = Members(A, B, C, D).started(A, B, C, D)
    members.view(A, B)
    members.view(C)
    members.view(D)
    members.view(C, D, merges=((C,), (D,)))
    assert members[D].own is Own.OLD
    members.view(A, B, C, D, merges=((A, B), (C, D)))
    assert members.owns() == "REFERENCE REFERENCE OLD OLD"
    assert [members[m].holders for m in (A, B, C, D)] == [(A, B)] * 4


def test_an_old_copy_is_not_taken_for_that_of_the_part_that_its_holder_came_with() -> None:
    members = Members(A, B, C, D, E).started(A, B, C, D, E)
    members.view(C, D, E)
    members.view(A)
    members.view(B)
    members.view(A, B, merges=((A,), (B,)))  # B keeps its own, and restores nothing
    members.view(C, D)
    members.view(E)
    members.view(A, B, E, merges=((A, B), (E,)))
    assert members[A].settled  # one of three different copies, by the lowest coordinator
    assert members[B].own is Own.OLD
    assert members[E].own is Own.OLD


def test_who_has_missed_what_was_said_asks_in_the_end_as_if_it_had_just_come() -> None:
    members = Members(A, B, C).started(A, B, C)
    for member in (A, B, C):
        members.view(member)
    members.view(A, B, C, merges=((A,), (B,), (C,)))
    members.restore(B, A)
    (here,) = members[B].says()
    assert isinstance(here, Here)
    for member in (A, B):  # but not C
        members[member].here(B, here)
    members.view(B, C)
    assert members[B].settled
    assert members[C].own is Own.OLD
    assert members[C].providers() == []
    members[C].forget()
    assert members[C].providers() == [B]
    members.restore(C, B)
    members.hear(C)
    assert members[C].settled


# With a majority.


def test_a_view_is_open_once_everybody_is_there_and_a_majority_holds_the_reference() -> None:
    members = Members(A, B, C, majority_of=3)
    members.view(A)
    assert members[A].own is Own.REFERENCE
    assert not members[A].open
    members.restore(B, A)
    members.view(A, B, hear=False)
    members.hear(A)
    assert not members[A].open
    members.hear(B)
    assert members[A].settled
    assert members[B].settled
    members.view(A, B, C, hear=False)
    assert not members[A].open
    members.hear(A, B)
    assert not members[A].open
    members.hear(C)
    assert members[A].settled


def test_a_view_with_a_majority_of_members_is_not_open_while_too_few_of_them_hold_the_reference() -> None:
    members = Members(A, B, C, majority_of=3)
    members.view(A)
    members.view(A, B, C)
    assert not members[A].open
    members.restore(B, A)
    members.hear(B)
    assert members[A].settled
    assert members[B].settled


def test_a_minority_is_never_open() -> None:
    members = Members(A, B, C, majority_of=3).started(A, B, C)
    members.view(A)
    members.view(B, C)
    assert not members[A].open
    assert members[B].settled


def test_with_a_majority_the_copy_of_the_latest_open_view_wins_over_a_larger_part() -> None:
    members = Members(A, B, C, D, E, majority_of=5).started(A, B, C, D, E)
    members.view(A, B)
    members.view(C, D, E)  # open: what is answered here is in the copies of these three
    assert members[C].settled
    members.view(C)
    members.view(A, B, C, merges=((A, B), (C,)))
    assert members[C].own is Own.REFERENCE
    assert members[A].own is Own.OLD
    assert members[A].providers() == [C]
    assert not members[C].open
    for member in (A, B):
        members.restore(member, C)
        members.hear(member)
    assert members[A].settled
    assert members[A].era == members[B].era == members[C].era != NEVER


def test_a_view_that_was_never_open_gives_no_precedence() -> None:
    members = Members(A, B, C, D, E, majority_of=5).started(A, B, C, D, E)
    members.view(A, B)
    members.view(C, D, E, hear=False)  # installed, but not all have heard that all are there
    members.view(C)
    members.view(A, B, C, merges=((A, B), (C,)))
    assert members[A].own is Own.REFERENCE
    assert members[C].own is Own.OLD
