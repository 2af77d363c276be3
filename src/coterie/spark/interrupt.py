"""Ctrl-C and SIGTERM while Spark works.

Both end an `interruptible` block with KeyboardInterrupt, once the jobs that were started in it have been cancelled,
wherever they run; the session can be used again. While the main thread waits for the JVM, the exception comes out of
the cancelled job rather than into the middle of the call: there it would break the connection, and leave the job
running. (So does PySpark's own handler. And a Spark Connect server works on for a client that has left.)
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CANCEL_SECONDS = 10.0
"""How long a cancellation may take before the block is left without it."""
AGAIN_SECONDS = 0.2
"""A block has many jobs: whichever starts after the others were cancelled is cancelled too."""


class _Jobs:
    """The jobs of one block: they carry its tag."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql import SparkSession

        self.tag = f"coterie-{uuid.uuid4()}"
        self.cancelling = False
        self._number: int = signal.SIGINT
        self._left = threading.Event()
        if isinstance(spark, SparkSession):
            # Tags of the context and not of the session: these find a job even if nobody waits for it any more.
            context = spark.sparkContext
            self._add, self._remove = context.addJobTag, context.removeJobTag
            self._cancel: Callable[[str], object] = context.cancelJobsWithTag
        else:
            self._add, self._remove, self._cancel = spark.addTag, spark.removeTag, spark.interruptTag

    def begin(self) -> None:
        self._add(self.tag)

    def end(self) -> None:
        self._left.set()
        with suppress(Exception):  # a JVM that is gone has no tags, and says what is wrong by itself
            self._remove(self.tag)

    def cancel(self) -> None:
        aside(lambda: self._cancel(self.tag), CANCEL_SECONDS)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.cancelling or not _calls_jvm(frame):
            raise KeyboardInterrupt
        self.cancelling, self._number = True, number
        threading.Thread(target=self._keep_cancelling, name="coterie-spark-cancel", daemon=True).start()

    def _keep_cancelling(self) -> None:
        until = time.monotonic() + CANCEL_SECONDS
        while time.monotonic() < until:
            with suppress(Exception):  # the JVM may be on its way out
                self._cancel(self.tag)
            if self._left.wait(AGAIN_SECONDS):
                return
        if not self._left.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, self._number)


@contextmanager
def interruptible(spark: SparkSession) -> Iterator[None]:
    """A block whose Spark jobs end with it if it is interrupted. Threads in it should be pyspark.InheritableThreads."""
    jobs = _Jobs(spark)
    with handled_by(jobs.on_signal):
        jobs.begin()
        try:
            yield
        except KeyboardInterrupt:
            jobs.cancel()
            raise
        except Exception as error:
            if jobs.cancelling:
                raise KeyboardInterrupt from error
            raise
        finally:
            jobs.end()
        if jobs.cancelling:
            raise KeyboardInterrupt


def _calls_jvm(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """In this block that function handles SIGINT and SIGTERM, unless they are ignored, as in a background job.

    Other threads than the main one cannot have that: there the block is as any other.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def stop_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """The handler where no job is to be cancelled."""
    raise KeyboardInterrupt


@contextmanager
def same_handler(number: signal.Signals) -> Iterator[None]:
    """Whatever the block does with the handler of that signal is undone."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


def aside(work: Callable[[], object], seconds: float) -> bool:
    """Do that in a thread of its own, which has its own connection to the JVM. False if it failed or took too long."""
    done = threading.Event()

    def run() -> None:
        with suppress(Exception):  # the JVM or the server is gone, and with it whatever was to be ended
            work()
            done.set()

    thread = threading.Thread(target=run, name="coterie-spark-aside", daemon=True)
    thread.start()
    thread.join(seconds)
    return done.is_set()
