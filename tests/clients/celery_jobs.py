"""A Celery application as people write them; its workers are real processes. It is told by the environment where
its broker is (JOBS_BROKER) and which folder it works in (JOBS_FOLDER)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery, Task

FOLDER = Path(os.environ.get("JOBS_FOLDER", "."))


def make_app(broker: str, folder: Path, queue: str) -> Celery:
    app = Celery("jobs", broker=broker)
    app.conf.update(
        result_backend=f"file://{folder / 'results'}",
        task_default_queue=queue,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={"confirm_publish": True},
        broker_connection_timeout=2,
        worker_hijack_root_logger=False,
    )
    return app


app = make_app(os.environ.get("JOBS_BROKER", ""), FOLDER, os.environ.get("JOBS_QUEUE", "celery"))


def note(folder: Path, text: str) -> None:
    """One line in a file that everybody may read."""
    with (folder / "notes").open("a") as file:
        file.write(f"{text}\n")


@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="mark")
def mark(text: str) -> None:
    note(FOLDER, text)


@app.task(name="hold")
def hold(text: str) -> None:
    """At work until there is a file `go on`."""
    note(FOLDER, f"{text} begins")
    while not (FOLDER / "go on").exists():
        time.sleep(0.02)
    note(FOLDER, f"{text} ends")


@app.task(name="stumble", bind=True, max_retries=5)
def stumble(self: Task, falls: int) -> int:
    """Fails so often, then succeeds."""
    note(FOLDER, f"stumble {self.request.retries}")
    if self.request.retries < falls:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)
