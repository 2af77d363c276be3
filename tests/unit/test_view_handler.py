"""The view handler: the rules that keep merges apart from view changes, in the order in which the design tells them.

Each heading is one of the design's, each test one of the sentences under it. What the handler decides is all there is
here; that real views and merges follow from it is for test_gms.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import A, B, C

from coterie.group.members import Address, View, ViewId
from coterie.group.protocols.gms.view_handler import REQUESTS_MAX, Gone, Join, Leave, Request, ViewHandler, Work
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimTimer

N = 10.0
"""Seconds after which the Resumer resumes the handler."""
GATHER = 0.01
"""Seconds for which requests are gathered when several were turned away."""
D, E = Address("d", 1), Address("e", 1)
REQUESTS: list[Request] = [Join(D, False), Join(D, True), Leave(B), Gone(C)]
each_request = pytest.mark.parametrize("request_", REQUESTS, ids=["JOIN", "JOIN_WITH_STATE", "LEAVE", "SUSPECT"])
REASONS: list[Work] = list(Work)
each_reason = pytest.mark.parametrize("reason", REASONS)


class Coordinator:
    """Whom the handler works for: it notes what it is told, in virtual time."""

    def __init__(self) -> None:
        self.world = World(1)
        self._runtime = Node(self.world, Fabric(self.world), "a").boot()
        self.rules: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self.timeouts: list[float | None] = []
        self.processed: list[list[Request]] = []
        self.resumptions: list[tuple[Work, str]] = []
        self.turned_away: list[list[Address]] = []
        self.handler = ViewHandler(self, N, GATHER)

    def later(self, delay: float, call: Callable[[], None]) -> SimTimer:
        return self._runtime.call_later(delay, call)

    def soon(self, call: Callable[[], None]) -> None:
        self._runtime.call_soon(call)

    def rule(self, name: str) -> None:
        self.rules.append(name)

    def note(self, kind: str, reason: str, timeout: float | None = None) -> None:
        self.notes.append((kind, str(reason)))
        if kind == "suspend":
            self.timeouts.append(timeout)

    def process(self, requests: list[Request]) -> None:
        assert self.handler.suspended is Work.VIEWS  # never before the handler is suspended
        self.processed.append(requests)

    def resumed(self, work: Work, reason: str, turned_away: list[Address]) -> None:
        assert self.handler.suspended is None
        self.resumptions.append((work, reason))
        self.turned_away.append(turned_away)

    # What happens.

    def turn(self) -> None:
        """The present turn of the loop ends."""
        self.run(0)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)

    def suspend(self, work: Work) -> int:
        """Have the handler work on something. Returns the number of its turn."""
        if work is Work.VIEWS:
            assert self.handler.add(Gone(B))
            self.turn()
        elif work is Work.MERGE:
            assert self.handler.merge()
        else:
            assert self.handler.merge_request(D)
        assert self.handler.suspended is work
        self.rules.clear()
        return self.handler.turn

    @property
    def free(self) -> bool:
        """Not suspended, and no Resumer waits."""
        resumptions = len(self.resumptions)
        self.run(2 * N)
        return self.handler.suspended is None and len(self.resumptions) == resumptions


def coordinator() -> Coordinator:
    return Coordinator()


def view(*members: Address) -> View:
    return View(ViewId(7, members[0]), members)


# Goal: no concurrent merges and view changes.


@each_reason
def test_whatever_it_works_on_it_begins_nothing_else(reason: Work) -> None:
    c = coordinator()
    c.suspend(reason)
    accepted = [c.handler.add(request) for request in REQUESTS] + [c.handler.merge(), c.handler.merge_request(B)]
    c.turn()
    assert accepted == [False] * 6
    assert c.handler.suspended is reason
    assert c.notes == [("suspend", reason)]


def test_what_was_discarded_is_taken_when_it_comes_again_after_the_resumption() -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE)
    assert not c.handler.add(Join(D, False))
    c.handler.done(turn, True)
    assert c.processed == []  # it was not kept
    assert c.handler.add(Join(D, False))
    c.turn()
    assert c.processed == [[Join(D, False)]]


# On reception of a JOIN/JOIN_WITH_STATE/LEAVE/SUSPECT event.


@each_request
@each_reason
def test_join_leave_suspect_if_the_handler_is_suspended_the_event_is_discarded(reason: Work, request_: Request) -> None:
    c = coordinator()
    turn = c.suspend(reason)
    assert not c.handler.add(request_)
    assert c.rules == ["views.discarded"]
    c.handler.done(turn, True)
    c.turn()
    assert not c.handler.queue
    assert c.processed == ([[Gone(B)]] if reason is Work.VIEWS else [])


@each_request
def test_join_leave_suspect_else_the_event_is_added(request_: Request) -> None:
    c = coordinator()
    assert c.handler.add(request_)
    assert list(c.handler.queue) == [request_]
    assert c.rules == ["views.queued"]
    assert c.handler.suspended is None  # only when processing starts


@each_request
def test_join_leave_suspect_when_processing_starts_the_handler_is_suspended(request_: Request) -> None:
    c = coordinator()
    c.handler.add(request_)
    c.turn()
    assert c.handler.suspended is Work.VIEWS
    assert c.processed == [[request_]]
    assert c.rules == ["views.queued", "views.suspends"]
    assert c.notes == [("suspend", "views")]


def test_join_leave_suspect_when_processing_starts_the_resumer_is_started() -> None:
    c = coordinator()
    c.suspend(Work.VIEWS)
    assert c.timeouts == [N]
    c.run(N)
    assert c.resumptions == [(Work.VIEWS, "resumer")]


def test_join_leave_suspect_the_handler_is_resumed_when_processing_is_done() -> None:
    c = coordinator()
    c.handler.done(c.suspend(Work.VIEWS), True)
    assert c.resumptions == [(Work.VIEWS, "done")]
    assert c.free


def test_what_comes_in_one_turn_is_processed_together_once_each_and_in_the_order_of_its_coming() -> None:
    c = coordinator()
    for request in (Gone(C), Join(D, True), Leave(B), Gone(C), Join(D, True)):
        c.handler.add(request)
    c.turn()
    assert c.processed == [[Gone(C), Join(D, True), Leave(B)]]
    assert c.rules.count("views.bundled") == 1
    assert c.notes == [("suspend", "views")]


def test_a_single_request_is_no_bundle() -> None:
    c = coordinator()
    c.handler.add(Gone(C))
    c.turn()
    assert "views.bundled" not in c.rules


@each_reason
def test_those_whose_requests_were_discarded_are_named_once_each_when_they_may_ask_again(reason: Work) -> None:
    c = coordinator()
    turn = c.suspend(reason)
    for request in (Join(D, True), Leave(B), Gone(C), Join(D, True)):  # who is suspected does not ask
        c.handler.add(request)
    c.handler.done(turn, True)
    assert c.turned_away == [[D, B]]
    c.handler.done(c.suspend(Work.MERGE), True)
    assert c.turned_away == [[D, B], []]


def test_when_several_were_turned_away_the_next_requests_are_gathered_for_a_moment() -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE)
    for member in (D, E):
        c.handler.add(Join(member, False))
    c.handler.done(turn, True)
    c.handler.add(Join(D, False))
    c.run(GATHER / 2)
    assert c.processed == []
    c.handler.add(Join(E, False))
    c.run(GATHER / 2)
    assert c.processed == [[Join(D, False), Join(E, False)]]
    c.handler.done(c.handler.turn, True)
    c.handler.add(Leave(B))  # and this one comes alone
    c.turn()
    assert c.processed[1:] == [[Leave(B)]]


def test_a_single_one_that_was_turned_away_is_not_kept_waiting() -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE)
    c.handler.add(Join(D, False))
    c.handler.done(turn, True)
    c.handler.add(Join(D, False))
    c.turn()
    assert c.processed == [[Join(D, False)]]


def test_a_merge_that_is_found_while_requests_are_gathered_is_discarded_and_they_are_processed() -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE)
    for member in (D, E):
        c.handler.add(Join(member, False))
    c.handler.done(turn, True)
    c.handler.add(Join(D, False))
    c.run(GATHER / 2)
    assert not c.handler.merge()
    assert c.processed == [[Join(D, False)]]
    c.run(GATHER)
    assert c.processed == [[Join(D, False)]]
    assert c.handler.suspended is Work.VIEWS


# On reception of a MERGE event.


@each_reason
def test_merge_if_the_handler_is_suspended_the_event_is_discarded(reason: Work) -> None:
    c = coordinator()
    c.suspend(reason)
    assert not c.handler.merge()
    assert c.rules == ["merge.discarded"]
    assert c.handler.suspended is reason


@each_request
def test_merge_if_there_are_events_in_the_queue_it_is_discarded_and_they_are_processed(request_: Request) -> None:
    c = coordinator()
    c.handler.add(request_)
    assert not c.handler.merge()
    assert c.processed == [[request_]]  # at once: before the turn is over
    assert c.handler.suspended is Work.VIEWS
    assert "merge.queue_first" in c.rules
    assert "merge.processed" not in c.rules
    c.turn()
    assert c.processed == [[request_]]  # and once only


def test_merge_else_it_is_processed_and_the_handler_is_suspended() -> None:
    c = coordinator()
    assert c.handler.merge()
    assert c.handler.suspended is Work.MERGE
    assert c.rules == ["merge.processed"]
    assert c.notes == [("suspend", "merge")]


def test_merge_else_the_resumer_is_started() -> None:
    c = coordinator()
    c.suspend(Work.MERGE)
    assert c.timeouts == [N]
    c.run(N)
    assert c.resumptions == [(Work.MERGE, "resumer")]


def test_merge_the_handler_is_resumed_when_the_merge_is_done() -> None:
    c = coordinator()
    c.handler.done(c.suspend(Work.MERGE), True)
    assert c.resumptions == [(Work.MERGE, "done")]
    assert c.free


# On reception of a MERGE-REQ.


@each_reason
def test_merge_req_if_the_handler_is_suspended_it_is_rejected(reason: Work) -> None:
    c = coordinator()
    c.suspend(reason)
    leader = c.handler.merge_leader
    assert not c.handler.merge_request(B)
    assert c.rules == ["merge_req.rejected"]
    assert c.handler.suspended is reason
    assert c.handler.merge_leader == leader  # whoever was rejected is not the one to wait for


def test_merge_req_else_the_handler_is_suspended() -> None:
    c = coordinator()
    assert c.handler.merge_request(D)
    assert c.handler.suspended is Work.MERGE_REQ
    assert c.rules == ["merge_req.accepted"]
    assert c.notes == [("suspend", "merge_req")]


def test_merge_req_else_the_resumer_is_started() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)
    assert c.timeouts == [N]


def test_merge_req_the_handler_is_resumed_when_the_merge_is_done() -> None:
    c = coordinator()
    c.handler.merge_view(c.suspend(Work.MERGE_REQ))
    assert c.resumptions == [(Work.MERGE_REQ, "merge_view")]
    assert c.free


def test_merge_req_on_resumer_timeout_the_handler_is_resumed() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)  # and its leader is never heard of again
    c.run(N - 0.001)
    assert c.handler.suspended is Work.MERGE_REQ
    c.run(0.001)
    assert c.resumptions == [(Work.MERGE_REQ, "resumer")]
    assert c.handler.merge_leader is None
    assert c.free


def test_merge_req_while_requests_are_queued_comes_first_and_they_are_dropped() -> None:
    c = coordinator()
    c.handler.add(Join(D, False))
    assert c.handler.merge_request(B)
    c.turn()
    assert c.processed == []
    assert not c.handler.queue
    c.handler.merge_view(c.handler.turn)
    c.turn()
    assert c.processed == []  # whoever wants something asks again
    assert c.handler.add(Join(D, False))
    c.turn()
    assert c.processed == [[Join(D, False)]]


# Resuming #1: JOIN/LEAVE.


def test_resuming_1_when_the_view_has_been_installed_by_the_coordinator() -> None:
    c = coordinator()
    turn = c.suspend(Work.VIEWS)
    c.handler.view_installed(view(A, C))  # it is there, but others have not acked it yet
    assert c.handler.suspended is Work.VIEWS
    c.handler.done(turn, True)
    assert "resume.views_done" in c.rules
    assert c.notes == [("suspend", "views"), ("resume", "done")]


def test_resuming_1_also_if_the_installation_fails_as_by_a_failed_flush() -> None:
    c = coordinator()
    c.handler.done(c.suspend(Work.VIEWS), False)
    assert "resume.views_failed" in c.rules
    assert c.notes == [("suspend", "views"), ("resume", "failed")]
    assert c.free


# Resuming #2: MERGE.


def test_resuming_2_on_completion_of_a_successful_merge() -> None:
    c = coordinator()
    c.handler.done(c.suspend(Work.MERGE), True)
    assert "resume.merge_done" in c.rules
    assert c.notes == [("suspend", "merge"), ("resume", "done")]


def test_resuming_2_on_completion_of_a_failed_merge() -> None:
    c = coordinator()
    c.handler.done(c.suspend(Work.MERGE), False)
    assert "resume.merge_failed" in c.rules
    assert c.notes == [("suspend", "merge"), ("resume", "failed")]
    assert c.free


# Resuming #3: MERGE-REQ.


def test_resuming_3_when_getting_a_merge_view() -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE_REQ)
    c.handler.view_installed(view(D, A, B))
    c.handler.merge_view(turn)
    assert "resume.merge_view" in c.rules
    assert c.notes == [("suspend", "merge_req"), ("resume", "merge_view")]


def test_resuming_3_a_view_with_the_leader_alone_does_not_do_it() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)
    c.handler.view_installed(view(D, A, B))  # our own members have not acked it yet
    assert c.handler.suspended is Work.MERGE_REQ


@each_reason
def test_resuming_3_a_merge_view_resumes_nothing_else(reason: Work) -> None:
    c = coordinator()
    turn = c.suspend(reason)
    c.handler.merge_view(turn)
    assert (c.handler.suspended is None) == (reason is Work.MERGE_REQ)


def test_resuming_3_on_a_merge_req_the_leaders_address_is_recorded() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)
    assert c.handler.merge_leader == D


@pytest.mark.parametrize("reason", [Work.VIEWS, Work.MERGE])
def test_resuming_3_nothing_else_records_a_leader(reason: Work) -> None:
    c = coordinator()
    c.suspend(reason)
    assert c.handler.merge_leader is None


def test_resuming_3_when_the_merge_completes_the_leaders_address_is_forgotten() -> None:
    c = coordinator()
    c.handler.merge_view(c.suspend(Work.MERGE_REQ))
    assert c.handler.merge_leader is None
    c.handler.view_installed(view(A, B))  # the leader crashed long after: nobody waits for it
    c.handler.leader_gone(D)
    assert c.resumptions == [(Work.MERGE_REQ, "merge_view")]


def test_resuming_3_a_view_without_the_leader_resumes_the_handler_and_its_address_is_forgotten() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)
    c.handler.view_installed(view(A, B))
    assert c.resumptions == [(Work.MERGE_REQ, "leader_gone")]
    assert c.handler.merge_leader is None
    assert "resume.leader_gone" in c.rules
    assert c.free


def test_resuming_3_a_leader_that_is_known_to_be_gone_is_not_waited_for_until_the_next_view() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)
    c.handler.leader_gone(B)  # somebody else
    assert c.handler.suspended is Work.MERGE_REQ
    c.handler.leader_gone(D)
    assert c.resumptions == [(Work.MERGE_REQ, "leader_gone")]
    assert c.free


@pytest.mark.parametrize("reason", [Work.VIEWS, Work.MERGE])
def test_resuming_3_whoever_is_gone_resumes_nothing_when_no_leader_is_recorded(reason: Work) -> None:
    c = coordinator()
    c.suspend(reason)
    c.handler.view_installed(view(A))
    for member in (A, B, C, D):
        c.handler.leader_gone(member)
    assert c.handler.suspended is reason


def test_resuming_3_a_leader_that_has_decided_is_not_waited_for_any_more() -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE_REQ)
    c.handler.decided()
    assert c.handler.merge_leader is None
    c.handler.leader_gone(D)  # what is left to do is ours
    c.handler.view_installed(view(A, B))
    assert c.handler.suspended is Work.MERGE_REQ
    c.handler.merge_view(turn)
    assert c.resumptions == [(Work.MERGE_REQ, "merge_view")]
    assert c.free


def test_resuming_3_a_merge_that_its_leader_calls_off_is_over() -> None:
    c = coordinator()
    c.handler.cancelled(c.suspend(Work.MERGE_REQ))
    assert c.resumptions == [(Work.MERGE_REQ, "cancelled")]
    assert "resume.cancelled" in c.rules
    assert c.handler.merge_leader is None
    assert c.free


# Resuming #4: the Resumer kicks in.


@each_reason
def test_resuming_4_the_resumer_is_started_whenever_the_handler_is_suspended_and_resumes_it(reason: Work) -> None:
    c = coordinator()
    c.suspend(reason)
    c.run(N - 0.001)
    assert c.handler.suspended is reason
    c.run(0.001)
    assert c.resumptions == [(reason, "resumer")]
    assert c.rules == ["resume.resumer"]
    assert c.notes[-1] == ("resume", "resumer")


@each_reason
def test_resuming_4_when_the_handler_is_resumed_regularly_the_resumer_is_stopped(reason: Work) -> None:
    c = coordinator()
    c.handler.done(c.suspend(reason), True)
    assert "resumer.stopped" in c.rules
    c.run(2 * N)
    assert len(c.resumptions) == 1
    assert "resume.resumer" not in c.rules


@each_reason
def test_resuming_4_each_suspension_has_a_resumer_of_its_own(reason: Work) -> None:
    c = coordinator()
    turn = c.suspend(Work.MERGE)
    c.run(N - 1)
    c.handler.done(turn, True)
    c.suspend(reason)
    c.run(N - 0.001)  # long after the first one would have run
    assert c.handler.suspended is reason
    c.run(0.001)
    assert c.resumptions[-1] == (reason, "resumer")


@each_reason
def test_work_that_was_overtaken_does_not_resume_what_came_after_it(reason: Work) -> None:
    c = coordinator()
    late = c.suspend(Work.VIEWS)
    c.run(N)
    c.suspend(reason)
    for ended in (
        c.handler.done,
        lambda turn, _: c.handler.merge_view(turn),
        lambda turn, _: c.handler.cancelled(turn),
    ):
        ended(late, True)
    assert c.handler.suspended is reason


def test_a_handler_that_is_stopped_leaves_no_timer() -> None:
    c = coordinator()
    c.suspend(Work.MERGE_REQ)
    c.handler.stop()
    c.run(2 * N)
    c.handler.done(c.handler.turn, True)  # nor does what was under way resume anything
    assert c.resumptions == []


# Issues: JOIN_WITH_STATE, and the queue is suspended between the JOIN and the GET_STATE.


def test_a_join_with_state_is_one_request_so_there_is_no_gap_to_suspend_in() -> None:
    c = coordinator()
    c.handler.add(Join(D, True))
    c.turn()
    assert c.processed == [[Join(D, True)]]  # nothing of it is left in the queue
    assert not c.handler.queue
    assert not c.handler.add(Leave(B))  # from here on the queue is suspended
    c.handler.done(c.handler.turn, True)
    c.turn()
    assert c.processed == [[Join(D, True)]]


def test_requests_are_bounded_however_many_come_in_one_turn() -> None:
    desk = Coordinator()
    for number in range(REQUESTS_MAX + 10):
        assert desk.handler.add(Join(Address("j", number), False)) is (number < REQUESTS_MAX)
    assert desk.handler.add(Join(Address("j", 0), False))
    assert len(desk.handler.queue) == REQUESTS_MAX
    desk.turn()
    for number in range(REQUESTS_MAX + 10):  # while it works on those
        assert not desk.handler.add(Join(Address("k", number), False))
    assert len(desk.handler._turned_away) == REQUESTS_MAX
