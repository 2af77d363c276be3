"""How a batch becomes part of a table, of each format: once, at once, and whatever was left by a crash goes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from coterie.spark.archive import compaction, files
from coterie.spark.archive.job import FORMATS, Compaction
from spark.archive_tables import QUERY, SCHEMA, positions, table_in, written
from spark.object_store import object_store

SETTINGS = Compaction(least=3, bytes=1 << 20, keep=0.0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_that_comes_again_is_committed_once(format: str, tmp_path: Path) -> None:
    table = table_in(tmp_path, format)
    assert table.latest(QUERY) == -1
    assert table.commit(QUERY, 0, [], SCHEMA), "the first batch is empty"
    assert table.commit(QUERY, 1, written(tmp_path, 1, [1, 2]), SCHEMA)
    again = table_in(tmp_path, format)
    assert again.latest(QUERY) == 1
    assert not again.commit(QUERY, 1, written(tmp_path, 1, [1, 2]), SCHEMA)
    assert again.commit(QUERY, 2, written(tmp_path, 2, [3]), SCHEMA)
    assert positions(again, tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("format", FORMATS)
def test_a_crash_before_the_commit_leaves_no_rows_and_its_files_are_deleted(format: str, tmp_path: Path) -> None:
    table = table_in(tmp_path, format)
    table.commit(QUERY, 0, written(tmp_path, 0, [1, 2]), SCHEMA)
    (orphan,) = written(tmp_path, 1, [3])
    beside = tmp_path / "_checkpoint" / "offsets" / "0"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert positions(table_in(tmp_path, format), tmp_path) == [1, 2]
    assert table.clean(0.0) == 1
    assert not (tmp_path / orphan.path).exists()
    assert beside.exists()
    assert table.commit(QUERY, 1, written(tmp_path, 1, [3]), SCHEMA)
    assert positions(table, tmp_path) == [1, 2, 3]
    assert table.clean(0.0) == 0


@pytest.mark.parametrize("format", FORMATS)
def test_small_files_of_a_day_become_one_and_their_rows_are_there_once(format: str, tmp_path: Path) -> None:
    table = table_in(tmp_path, format)
    for batch in range(12):
        table.commit(QUERY, batch, written(tmp_path, batch, [batch], day=17 if batch < 2 else 18), SCHEMA)
    work = compaction.bins(table.files(), SETTINGS)
    assert [{each.date for each in one} for one in work] == [{"2026-11-18"}], "two files of a day are too few"
    (old,) = work
    new = _rewritten(tmp_path, old)
    assert positions(table, tmp_path) == [*range(12)], "before they are exchanged"
    table.replace(old, new)
    assert positions(table_in(tmp_path, format), tmp_path) == [*range(12)]
    table.clean(0.0)
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("date=*/*.parquet")}
    assert there == {each.path for each in table.readable()}
    assert len(there) == 12 - len(old) + 1
    assert table.latest(QUERY) == 11
    assert table.commit(QUERY, 12, written(tmp_path, 12, [12]), SCHEMA)
    assert positions(table, tmp_path) == [*range(13)]


def test_files_in_a_folder_without_a_log_are_not_deleted(tmp_path: Path) -> None:
    (theirs,) = written(tmp_path, 0, [1])
    assert table_in(tmp_path, "parquet").clean(0.0) == 0
    assert (tmp_path / theirs.path).exists()


def test_a_compaction_that_is_killed_before_the_exchange_leaves_what_was_there(tmp_path: Path) -> None:
    for format in FORMATS:
        folder = tmp_path / format
        table = table_in(folder, format)
        for batch in range(10):
            table.commit(QUERY, batch, written(folder, batch, [batch]), SCHEMA)
        _rewritten(folder, table.files())
        assert positions(table, folder) == [*range(10)]
        assert table.clean(0.0) == 1


def _rewritten(folder: Path | str, old: list[files.DataFile]) -> list[files.DataFile]:
    row = {"paths": [json.dumps([each.path for each in old])], "date": [old[0].date]}
    found = files._rewrite(str(folder), compaction.LABEL, iter([pa.RecordBatch.from_pydict(row)]))
    return [files._of(row) for told in found for row in told.to_pylist()]


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_in_an_object_store_takes_batches_once_too(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store() as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        url = "s3://lake/orders"
        where = {"s3.endpoint": store.environment()["AWS_ENDPOINT_URL"], "s3.region": "here"}
        catalog = {"uri": f"sqlite:///{tmp_path}/catalog.db", **where}
        given = {"catalog": catalog} if format == "iceberg" else {}
        for batch in range(10 if format == "parquet" else 3):  # of Parquet's log every tenth is a summary
            table = table_in(url, format, **given)
            files = written(url, batch, [batch])
            assert table.commit(QUERY, batch, files, SCHEMA)
        assert not table_in(url, format, **given).commit(QUERY, batch, files, SCHEMA)
        written(url, batch + 1, [batch + 1])
        (work,) = compaction.bins(table.files(), SETTINGS)
        table.replace(work, _rewritten(url, work))
        table.clean(0.0)
        there = {name.removeprefix("orders/") for name in store.names("orders/date=")}
        assert there == {each.path for each in table_in(url, format, **given).readable()}
        assert len(there) == 1
