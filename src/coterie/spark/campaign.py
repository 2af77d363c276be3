"""The campaign job: a bounded window of small Spark jobs, each of a range of seeds worth some seconds.

Each job is one task that runs its seeds and checks them where they are made (campaign_task.py); the driver keeps what
comes back in the campaign's folder at once (campaign_folder.py). So no stage waits for its slowest task, an interrupt
loses only what is in flight, executors need no shared file system, and nothing that grows is held here. A job that
fails is tried again; what fails for good is named, and never takes others' results with it.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.sim.mutations import MUTATIONS
from coterie.spark.campaign_rows import CATCH_DDL, OUTCOME_DDL
from coterie.spark.campaign_task import Hunt, Work, hunt, run_seeds
from coterie.spark.interrupt import aside
from coterie.spark.session import parallelism
from coterie.spark.trouble import explain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from coterie.spark.campaign_folder import Asked, Folder

JOB_SECONDS = 8.0
"""What a job should take: many times what it costs to start one, and little to lose."""
FIRST_SEEDS = 4
"""Seeds of the first jobs, when nothing is known of how long they take."""
JOB_SEEDS_MAX = 64
TRIES = 3
"""Times that a job is tried before its seeds are given up."""
HUNT_SEEDS = 200
"""Runs in which a mutation must be caught."""
TICK = 0.25
PARALLELISM_EVERY = 60.0
"""Seconds after which it is asked again how many tasks can run at once: executors come late."""
CANCEL_LIMIT = 20.0
"""Seconds that cancelled jobs are waited for."""


@dataclass(slots=True)
class Piece:
    """What one job does: a range of seeds, or of hunts."""

    first: int
    end: int
    hunts: bool = False
    tries: int = 0


@dataclass(slots=True)
class State:
    """How far the campaign is."""

    total: int
    """Runs to do this time."""
    done: int = 0
    failing: int = 0
    hunts: int = 0
    """Mutations still to be tried."""
    hunts_total: int = 0
    seconds: float = 0.0
    """CPU seconds of what is done."""
    given_up: list[tuple[str, str]] = field(default_factory=list)
    """What was tried in vain, and why."""


def missing(first: int, end: int, done: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges from `first` to before `end` that are not in the ranges of `done`, which are in order."""
    gaps = []
    for begin, stop in done:
        if begin > first:
            gaps.append((first, min(begin, end)))
        first = max(first, stop)
    gaps.append((first, end))
    return [(begin, stop) for begin, stop in gaps if begin < stop]


def hunts_for(profile: str, seeds: int = HUNT_SEEDS) -> list[Hunt]:
    """Every mutation of a profile: from the seed at which it is known to be caught, then from the first."""
    return [
        Hunt(one.name, one.property, tuple(dict.fromkeys([one.seed, *range(seeds)]))[:seeds])
        for one in MUTATIONS
        if one.profile == profile
    ]


def open_hunts(folder: Folder, hunts: Sequence[Hunt]) -> list[Hunt]:
    """Those of which the folder does not say yet how they ended."""
    return [one for one in hunts if not folder.mutation_file(one.mutation).exists()]


class Job:
    """A campaign at work."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        asked: Asked,
        hunts: Sequence[Hunt] = (),
        run_limit: float = 300.0,
        stop_after: int | None = None,
    ) -> None:
        self._spark, self._folder = spark, folder
        self._work = Work(asked.profile, asked.fingerprint, asked.mutation, run_limit)
        self._stop_after = stop_after
        self._hunts = list(hunts)
        self._gaps = deque(missing(asked.first_seed, asked.end, folder.done()))
        left = sum(end - first for first, end in self._gaps)
        self.state = State(left, hunts=len(self._hunts), hunts_total=len(self._hunts))
        self._left = left
        self._again: deque[Piece] = deque(Piece(n, n + 1, True) for n in range(len(self._hunts)))
        self._tag = f"coterie-campaign-{uuid.uuid4().hex}"
        self._orders: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Piece, pa.Table | Exception]] = queue.SimpleQueue()
        self._threads = 0
        self._running = 0
        self._in_a_row = 0
        """Jobs that failed since the last that did not."""
        self._slots = 1
        self._ask_at = 0.0

    def run(self, stopped: threading.Event, progress: Callable[[State], None] = lambda _: None) -> State:
        """Until all is done, or `stopped` is set. Raises CoterieError if there is no sense in going on."""
        try:
            while not stopped.is_set() and not self._enough():
                self._fill()
                if not self._running:
                    break
                self._take(TICK)
                progress(self.state)
        finally:
            self._cancel()
        return self.state

    def _enough(self) -> bool:
        return self._stop_after is not None and self.state.failing >= self._stop_after

    # The window.

    def _fill(self) -> None:
        """As many jobs as can run at once, and one that waits."""
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + PARALLELISM_EVERY
            threading.Thread(target=self._ask, daemon=True, name="campaign-slots").start()
        while self._running < self._slots + 1 and (piece := self._next()) is not None:
            if self._threads <= self._running:
                threading.Thread(target=self._serve, daemon=True, name=f"campaign-{self._threads}").start()
                self._threads += 1
            self._running += 1
            self._orders.put(piece)

    def _next(self) -> Piece | None:
        if self._again:
            return self._again.popleft()
        if not self._gaps:
            return None
        size = FIRST_SEEDS
        if self.state.done:
            size = round(JOB_SECONDS * self.state.done / max(self.state.seconds, 1e-3))
        # Smaller ones towards the end, so that all are over at about the same time.
        size = max(1, min(size, JOB_SEEDS_MAX, self._left // (2 * self._slots)))
        first, end = self._gaps.popleft()
        if end - first > size:
            self._gaps.appendleft((first + size, end))
            end = first + size
        self._left -= end - first
        return Piece(first, end)

    def _ask(self) -> None:
        try:
            self._spark.addTag(self._tag)  # through Spark Connect it takes a job
            self._slots = parallelism(self._spark)
        except Exception:
            pass  # the jobs will say what is wrong

    # The jobs, each in one of these threads.

    def _serve(self) -> None:
        while (piece := self._orders.get()) is not None:
            try:
                self._answers.put((piece, self._job(piece)))
            except Exception as error:
                self._answers.put((piece, error))

    def _job(self, piece: Piece) -> pa.Table:
        self._spark.addTag(self._tag)  # of this thread; again and again is once
        what, ddl = (hunt(self._work, self._hunts), CATCH_DDL) if piece.hunts else (run_seeds(self._work), OUTCOME_DDL)
        return self._spark.range(piece.first, piece.end, 1, 1).mapInArrow(what, ddl).toArrow()

    # What comes of them.

    def _take(self, wait: float) -> None:
        try:
            piece, answer = self._answers.get(timeout=wait)
        except queue.Empty:
            return
        self._running -= 1
        if isinstance(answer, Exception):
            self._failed(piece, answer)
            return
        if len(answer) != piece.end - piece.first:
            self._failed(piece, CoterieError(f"{len(answer)} rows came back for {piece.end - piece.first} seeds"))
            return
        self._in_a_row = 0
        self._keep(piece, answer)

    def _keep(self, piece: Piece, answer: pa.Table) -> None:
        if piece.hunts:
            self._folder.add_mutation(self._hunts[piece.first].mutation, answer)
            self.state.hunts -= 1
            return
        self._folder.add_runs(answer)
        self.state.done += len(answer)
        self.state.seconds += sum(answer.column("cpu_seconds").to_pylist())
        self.state.failing += sum(1 for count in answer.column("violation_count").to_pylist() if count)

    def _failed(self, piece: Piece, error: Exception) -> None:
        reason = explain(error)
        self._in_a_row += 1
        if "OtherCodeError" in str(error):
            raise CoterieError(f"{reason}; what is done is kept")
        if self._in_a_row > TRIES * (self._slots + 1):
            raise CoterieError(f"{self._in_a_row} jobs in a row failed; what is done is kept; the last one: {reason}")
        piece.tries += 1
        if piece.tries < TRIES:
            self._again.append(piece)
        else:
            self.state.given_up.append((self._name(piece), reason))

    def _name(self, piece: Piece) -> str:
        if piece.hunts:
            return f"mutation {self._hunts[piece.first].mutation}"
        return f"seed {piece.first}" if piece.end == piece.first + 1 else f"seeds {piece.first} to {piece.end - 1}"

    def _cancel(self) -> None:
        """Cancel what runs, and keep what was over just before."""
        for _ in range(self._threads):
            self._orders.put(None)
        end = time.monotonic() + CANCEL_LIMIT
        while self._running and time.monotonic() < end:
            aside(lambda: self._spark.interruptTag(self._tag), CANCEL_LIMIT)  # more than once: one may just begin
            try:
                piece, answer = self._answers.get(timeout=TICK)
            except queue.Empty:
                continue
            self._running -= 1
            if not isinstance(answer, Exception) and len(answer) == piece.end - piece.first:
                self._keep(piece, answer)
