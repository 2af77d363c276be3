"""Celery with real workers: late acks, retries, ETA, chords, autoscale, and a broker that goes and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import kombu.pools
import pytest
from celery import Celery, chord
from celery_jobs import make_app
from client_fixtures import Line
from node_process import PATIENCE, eventually


class Works:
    """A queue, a folder, and whoever works on it."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.url = url
        self.folder = folder
        self.name = name
        (folder / "results").mkdir(exist_ok=True)
        self.app: Celery = make_app(url, folder, name)

    @property
    def notes(self) -> list[str]:
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def send(self, task: str, *arguments: object, **options: object) -> object:
        return self.app.send_task(task, arguments, retry=True, **options)

    def result(self, task: str, *arguments: object, **options: object) -> object:
        return self.app.send_task(task, arguments, **options).get(timeout=PATIENCE, interval=0.05)

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Yields when it is ready."""
        log = self.folder / f"worker-{time.monotonic_ns()}.log"
        environment = {**os.environ, "JOBS_BROKER": self.url, "JOBS_FOLDER": str(self.folder), "JOBS_QUEUE": self.name}
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_jobs",
            "worker",
            "--loglevel",
            "INFO",
            "-n",
            f"{self.name}@here",
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=Path(__file__).parent,
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            eventually("the worker is ready", lambda: process.poll() is not None or b"ready." in log.read_bytes())
            assert process.poll() is None, log.read_text()[-3000:]
            yield process
        except AssertionError:
            print(log.read_text()[-8000:])
            raise
        finally:
            kill(process)

    def close(self) -> None:
        with self.app.connection_for_write() as connection:
            channel = connection.default_channel
            channel.queue_delete(self.name)
            channel.exchange_delete(self.name)
        self.app.close()
        kombu.pools.reset()  # they are shared by all applications of a URL


def kill(process: subprocess.Popen[bytes]) -> None:
    """The worker and its children, -9."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(PATIENCE)


@pytest.fixture
def works(url: str, tmp_path: Path, name: str) -> Iterator[Works]:
    works = Works(url, tmp_path, name)
    yield works
    works.close()


def test_results_retries_times_and_chords(works: Works) -> None:
    with works.worker("--concurrency", "2"):
        assert works.result("add", 2, 3) == 5
        assert works.result("stumble", 3) == 3
        assert works.notes == ["stumble 0", "stumble 1", "stumble 2", "stumble 3"]
        # More that wait for their time than the worker may prefetch: it asks for more meanwhile, and for less after.
        at = datetime.now(UTC) + timedelta(seconds=1.5)
        for number in range(6):
            works.send("mark", f"late {number}", eta=at)
        eventually("the first is done", lambda: len(works.notes) > 4)
        assert datetime.now(UTC) >= at
        eventually("all of them are done", lambda: len(works.notes) == 4 + 6)
        signature = works.app.signature
        header = [signature("add", (number, number), app=works.app) for number in range(5)]
        result = chord(header, app=works.app)(signature("total", app=works.app))
        assert result.get(timeout=PATIENCE, interval=0.05) == 20


def test_what_a_killed_worker_was_at_is_done_by_the_next(works: Works) -> None:
    with works.worker("--concurrency", "1", "--pool", "solo") as worker:
        works.send("hold", "job")
        eventually("it is at work", lambda: works.notes == ["job begins"])
        kill(worker)
    with works.worker("--concurrency", "1", "--pool", "solo"):
        eventually("it is at work again", lambda: works.notes == ["job begins"] * 2)
        (works.folder / "go on").touch()
        eventually("it is done", lambda: works.notes == ["job begins", "job begins", "job ends"])


def test_a_worker_that_scales_takes_as_much_as_it_has_hands(works: Works) -> None:
    with works.worker("--autoscale", "4,1"):
        for number in range(6):
            works.send("hold", f"{number}")

        def begun() -> int:
            return sum(note.endswith("begins") for note in works.notes)

        eventually("four are at work", lambda: begun() == 4)
        (stats,) = works.app.control.inspect(timeout=10, limit=1).stats().values()
        assert len(stats["pool"]["processes"]) == 4
        (works.folder / "go on").touch()
        eventually("all are done", lambda: sum(note.endswith("ends") for note in works.notes) == 6)


def test_a_worker_comes_back_and_every_task_is_done(line: Line, tmp_path: Path, name: str) -> None:
    works = Works(line.url, tmp_path, name)
    with works.worker("--concurrency", "2"):
        for number in range(10):
            works.send("mark", f"before {number}")
        works.send("hold", "across")
        eventually("it is at work", lambda: "across begins" in works.notes)
        line.cut_off()
        for number in range(10):
            works.send("mark", f"after {number}")
        (works.folder / "go on").touch()
        expected = {f"{when} {number}" for when in ("before", "after") for number in range(10)} | {"across ends"}
        eventually("every task is done", lambda: expected <= set(works.notes))
    works.close()
