"""The view handler: keeps merges apart from joins, leaves and crashes.

Promises: at any time a coordinator works on requests (JOIN, JOIN_WITH_STATE, LEAVE, SUSPECT), or on a merge that it
leads, or on one that another leads (MERGE-REQ), never on two of them; meanwhile it is *suspended*, and whatever else
comes is discarded or rejected. Nothing is lost by that, because nothing is told only once. It is resumed when the work
is done or has failed, when a merge view comes, when the leader of a merge is gone, and by the Resumer at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol as Interface

from coterie.group.members import Address, View
from coterie.runtime.base import Timer


class Work(StrEnum):
    """What the handler is suspended for."""

    VIEWS = "views"
    MERGE = "merge"
    MERGE_REQ = "merge_req"


@dataclass(frozen=True, slots=True)
class Join:
    member: Address
    state: bool


@dataclass(frozen=True, slots=True)
class Leave:
    member: Address


@dataclass(frozen=True, slots=True)
class Gone:
    """Suspected, or known to be in another view."""

    member: Address


Request = Join | Leave | Gone

REQUESTS_MAX = 4096
"""Requests that one view can answer; whoever comes beyond them asks again, as whoever is discarded does."""

RULES = {
    "views.discarded": "JOIN, LEAVE or SUSPECT while the handler is suspended: the event is discarded.",
    "views.queued": "JOIN, LEAVE or SUSPECT while it is not: the event is added.",
    "views.suspends": "When processing starts the handler is suspended, and the Resumer started.",
    "views.bundled": "Several requests are processed together, in one view.",
    "merge.discarded": "MERGE while the handler is suspended: the event is discarded.",
    "merge.queue_first": "MERGE while requests are queued: the event is discarded, and the requests are processed.",
    "merge.processed": "MERGE otherwise: it is processed, the handler suspended, the Resumer started.",
    "merge_req.rejected": "MERGE-REQ while the handler is suspended: rejected.",
    "merge_req.accepted": "MERGE-REQ otherwise: the handler is suspended, the leader recorded, the Resumer started.",
    "resume.views_done": "The handler is resumed when the view has been installed.",
    "resume.views_failed": "The handler is resumed when the installation failed, as by a failed flush.",
    "resume.merge_done": "The handler is resumed when its merge is complete.",
    "resume.merge_failed": "The handler is resumed when its merge failed.",
    "resume.merge_view": "After a MERGE-REQ the handler is resumed when the MergeView comes.",
    "resume.leader_gone": "After a MERGE-REQ it is resumed when the leader is gone, whose address is then forgotten.",
    "resume.cancelled": "After a MERGE-REQ it is resumed when the leader says that the merge failed.",
    "resume.resumer": "The Resumer resumes it when nothing else has.",
    "resumer.stopped": "A handler that is resumed regularly stops the Resumer.",
}


class Host(Interface):
    """What the handler needs of the layer that it belongs to."""

    def later(self, delay: float, call: Callable[[], None]) -> Timer: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def rule(self, name: str) -> None: ...
    def note(self, kind: str, reason: str, timeout: float | None = None) -> None: ...
    def process(self, requests: list[Request]) -> None: ...
    def resumed(self, work: Work, reason: str, turned_away: list[Address]) -> None: ...


class ViewHandler:
    def __init__(self, host: Host, resume_after: float, gather: float = 0.0) -> None:
        self._host = host
        self._resume_after = resume_after
        self._gather = gather
        self.suspended: Work | None = None
        self.turn = 0
        """Counts suspensions: work that finds another number has been overtaken."""
        self.merge_leader: Address | None = None
        self.queue: dict[Request, None] = {}
        self._start_comes = False
        self._turned_away: dict[Address, None] = {}
        """Whose request was discarded: they may be told when it is worth to ask again."""
        self._crowd = False
        """Several were told so: wait a moment for all of them."""
        self._resumer: Timer | None = None

    # The three kinds of events.

    def add(self, request: Request) -> bool:
        """JOIN, JOIN_WITH_STATE, LEAVE or SUSPECT. False if it is discarded."""
        if self.suspended is not None:
            self._host.rule("views.discarded")
            if not isinstance(request, Gone) and len(self._turned_away) < REQUESTS_MAX:
                self._turned_away[request.member] = None
            return False
        if len(self.queue) >= REQUESTS_MAX and request not in self.queue:
            self._host.rule("views.discarded")
            return False
        self._host.rule("views.queued")
        self.queue[request] = None
        if not self._start_comes:  # what comes together makes one view
            self._start_comes = True
            if self._crowd:
                self._host.later(self._gather, self._start)
            else:
                self._host.soon(self._start)
        return True

    def merge(self) -> bool:
        """MERGE. True if it may be processed: then the handler is suspended for it."""
        if self.suspended is not None:
            self._host.rule("merge.discarded")
            return False
        if self.queue:
            self._host.rule("merge.queue_first")
            self._start()
            return False
        self._host.rule("merge.processed")
        self._suspend(Work.MERGE)
        return True

    def merge_request(self, leader: Address) -> bool:
        """MERGE-REQ. False if it is to be rejected."""
        if self.suspended is not None:
            self._host.rule("merge_req.rejected")
            return False
        self._host.rule("merge_req.accepted")
        self._suspend(Work.MERGE_REQ)
        self.merge_leader = leader
        return True

    def _start(self) -> None:
        self._start_comes = self._crowd = False
        if self.suspended is not None or not self.queue:
            self.queue.clear()  # a merge came first; whoever wants something asks again
            return
        requests = list(self.queue)
        self.queue.clear()
        self._host.rule("views.suspends")
        if len(requests) > 1:
            self._host.rule("views.bundled")
        self._suspend(Work.VIEWS)
        self._host.process(requests)

    # Suspending and resuming.

    def _suspend(self, work: Work) -> None:
        self.suspended = work
        self.turn += 1
        self._host.note("suspend", work, self._resume_after)
        self._resumer = self._host.later(self._resume_after, self._run_resumer)

    def done(self, turn: int, ok: bool) -> None:
        """#1 and #2: the view has been installed, the merge is complete; or it failed."""
        if self.suspended is not None and turn == self.turn:
            work = "merge" if self.suspended is Work.MERGE else "views"
            if self.suspended is not Work.MERGE_REQ:
                self._host.rule(f"resume.{work}_{'done' if ok else 'failed'}")
            self._resume("done" if ok else "failed")

    def merge_view(self, turn: int) -> None:
        """#3: the merge that was asked for is complete here."""
        if self.suspended is Work.MERGE_REQ and turn == self.turn:
            self._host.rule("resume.merge_view")
            self._resume("merge_view")

    def view_installed(self, view: View) -> None:
        """#3, special case: the view excludes the leader that we wait for."""
        if self.merge_leader is not None and self.merge_leader not in view:
            self.leader_gone(self.merge_leader)

    def leader_gone(self, member: Address) -> None:
        if member == self.merge_leader:
            self._host.rule("resume.leader_gone")
            self._resume("leader_gone")

    def decided(self) -> None:
        """The leader has done its part: what is left is ours, and goes on without it."""
        self.merge_leader = None

    def cancelled(self, turn: int) -> None:
        """The leader says that its merge failed."""
        if self.suspended is Work.MERGE_REQ and turn == self.turn:
            self._host.rule("resume.cancelled")
            self._resume("cancelled")

    def _run_resumer(self) -> None:
        """#4: whoever should have resumed it has not."""
        self._resumer = None
        self._host.rule("resume.resumer")
        self._resume("resumer")

    def _resume(self, reason: str) -> None:
        work = self.suspended
        assert work is not None
        if self._resumer is not None:
            self._host.rule("resumer.stopped")
            self._resumer.cancel()
            self._resumer = None
        self.suspended = self.merge_leader = None
        self.turn += 1
        self._host.note("resume", reason)
        turned_away, self._turned_away = list(self._turned_away), {}
        self._crowd = len(turned_away) > 1
        self._host.resumed(work, reason, turned_away)

    def stop(self) -> None:
        """Whatever is under way is over, and resumes nothing."""
        self.suspended = self.merge_leader = None
        self.turn += 1
        if self._resumer is not None:
            self._resumer.cancel()
