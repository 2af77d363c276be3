"""Traces and audits that are not on this machine: an object store, by URLs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from coterie.errors import UserError
from coterie.spark import ingest, places
from spark.object_store import SECRET, ObjectStore, object_store
from spark.test_audit import coterie
from spark.traces import read, simulate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


def test_files_elsewhere_are_found_and_read_from_any_place(store: ObjectStore) -> None:
    store.objects |= {"logs/a.jsonl": b"0123456789", "logs/deep/b.jsonl": b"x", "logs/c.txt": b"y", "one.jsonl": b"z"}
    found = places.find(store.url("logs"), (".jsonl",))
    assert found == {store.url("logs/a.jsonl"): 10, store.url("logs/deep/b.jsonl"): 1}
    assert places.find(store.url("one.jsonl"), (".jsonl",)) == {store.url("one.jsonl"): 1}
    with places.opened(store.url("logs/a.jsonl")) as file:
        assert file.seek(7) == 7
        assert file.read(2) == b"78"
        assert file.readline() == b"9"
    assert places.size_of(store.url("logs/a.jsonl")) == 10
    with pytest.raises(UserError, match=r"s3://lake/none: no \*\.jsonl file there") as caught:
        places.find(store.url("none"), (".jsonl",))
    assert SECRET not in str(caught.value)


def test_what_no_file_system_knows_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"nowhere://here/x: .*pip install fsspec"):
        places.find("nowhere://here/x", (".jsonl",))
    asked: list[str] = []

    def url_to_fs(url: str) -> object:
        asked.append(url)
        raise ValueError("Protocol not known: nowhere")

    fake, core = ModuleType("fsspec"), ModuleType("fsspec.core")
    core.url_to_fs = url_to_fs  # type: ignore[attr-defined]
    fake.core = core  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsspec", fake)
    with pytest.raises(UserError, match="nowhere://here/x: Protocol not known: nowhere"):
        places.find("nowhere://here/x", (".jsonl",))
    assert asked == ["nowhere://here/x"]


def test_an_audit_reads_and_writes_an_object_store(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    simulate(tmp_path / "traces")
    traces = sorted((tmp_path / "traces").rglob("*.jsonl"))
    store.objects |= {f"traces/{path.name}": path.read_bytes() for path in traces}
    code, text, _ = coterie("audit", store.url("traces"), "--out", store.url("out"), "--json")
    answer, events = json.loads(text), sum(len(read(path)) for path in traces)
    assert (code, answer["events"], answer["runs"], answer["corrupt_lines"]) == (0, events, len(traces), 0)
    assert not [name for name in store.names("out/") if SECRET.encode() in store.objects[name]]
    assert SECRET not in text
    assert answer["report"] == "s3://lake/out/report.html"
    assert {"out/report.html", "out/audit.json"} <= {*store.names("out/")}
    inputs = ingest.find([store.url("out")])
    assert (inputs.lines, ingest.about(inputs)) == ([], events), "an audit's events are traces too"
    with places.opened(inputs.tables[0]) as file:
        named = {*pq.read_table(file, columns=["file"])["file"].to_pylist()}
    assert named <= {f"s3://lake/traces/{path.name}" for path in traces}
    code, _, refused = coterie("audit", store.url("traces"), "--out", store.url("out"))
    assert (code, "holds an audit already" in refused, SECRET in refused) == (2, True, False)
    code, _, refused = coterie("audit", store.url("traces"), "--out", store.url("traces"))
    assert (code, "holds other things than an audit" in refused) == (2, True)
