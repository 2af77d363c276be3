"""A checkpoint and a target are of one archive, and of one process at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.spark.archive.claim import claimed
from coterie.spark.archive.job import Job
from spark.archive_tables import QUERY, SCHEMA, table_in, written


def job_in(folder: Path, format: str = "parquet") -> Job:
    return Job({}, "queue orders", str(folder), format, str(folder / "_checkpoint"))


def refused(job: Job, why: str) -> None:
    with pytest.raises(UserError, match=why), claimed(job):
        pass


def test_a_checkpoint_is_of_one_archive_and_one_process(tmp_path: Path) -> None:
    job = job_in(tmp_path, "delta")
    with claimed(job):
        refused(job, "another archive is at work with this checkpoint")
    with claimed(job):
        pass
    refused(replace(job, what="queue returns"), "this checkpoint has the queues 'queue orders'")
    refused(replace(job, schema="id bigint"), "this checkpoint has the schema none")
    refused(replace(job, target=str(tmp_path / "x")), "this checkpoint has the target")


def test_parquet_that_is_not_of_this_checkpoint_is_refused(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    written(theirs, 0, [1])
    refused(job_in(theirs), "holds other things than an archive")
    table = table_in(ours, "parquet")
    table.commit(QUERY, 0, written(ours, 0, [1]), SCHEMA)
    refused(job_in(ours), "is an archive, and .* is not its checkpoint")
    for log in ("offsets", "commits"):
        (ours / "_checkpoint" / log).mkdir(parents=True)
        (ours / "_checkpoint" / log / "0").touch()
    with claimed(job_in(ours)):
        pass
    moved = replace(job_in(tmp_path / "nowhere"), checkpoint=str(ours / "_checkpoint"))
    refused(moved, "this checkpoint has written to .*, where nothing is now")
