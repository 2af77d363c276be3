"""A checkpoint is of one archive, one target, and one process at a time.

What is here catches mistakes on this machine. Wherever the checkpoint is, the lease is of one checkpoint and one run:
the source refuses the others.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import UserError
from coterie.spark import places
from coterie.spark.archive.job import CHECKPOINT, PARQUET, Job
from coterie.spark.archive.place import Place


@contextmanager
def claimed(job: Job) -> Iterator[None]:
    """Raises UserError if the checkpoint, or the target, is somebody else's."""
    if job.format == PARQUET:
        _check_target(job)
    if places.is_remote(job.checkpoint):
        yield
        return
    folder = Path(job.checkpoint.removeprefix("file://")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "coterie.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: another archive is at work with this checkpoint") from None
        _same(folder / "coterie.json", job)
        yield
    finally:
        os.close(lock)


def _same(file: Path, job: Job) -> None:
    now = {"queues": job.what, "target": str(Place(job.target)), "format": job.format, "schema": job.schema}
    if not file.exists():
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(now))
        fresh.replace(file)
    before = json.loads(file.read_text())
    for what, value in before.items():
        if now.get(what) != value:
            told = f"'{places.shown(value)}'" if value else "none"
            raise UserError(
                f"{file.parent}: this checkpoint has the {what} {told}: choose another target or checkpoint"
            )


def _check_target(job: Job) -> None:
    """Parquet's log goes by the numbers of batches alone: those of another checkpoint would seem to be there."""
    from coterie.spark.archive.parquet import LOG

    there, checkpoint = Place(job.target).names(), Place(job.checkpoint)
    target = places.shown(job.target)
    if LOG not in there:
        if there - {CHECKPOINT}:
            raise UserError(f"{target}: holds other things than an archive: choose another target")
        if checkpoint.files("commits"):
            raise UserError(
                f"{checkpoint}: this checkpoint has written to {target}, where nothing is now: choose another one"
            )
    elif not checkpoint.files("offsets"):
        raise UserError(
            f"{target}: is an archive, and {checkpoint} is not its checkpoint: choose another target, or name its "
            "checkpoint"
        )
