"""The audit log of two nodes in Spark: as a part of any audit of traces, and as a table that answers who did what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.audit.files import parse
from coterie.auditlog.files import AuditFiles
from coterie.auditlog.log import AuditLog
from coterie.auditlog.settings import AuditSettings
from coterie.spark import ingest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "audit-log.md"


def written(folder: Path) -> None:
    """By two nodes, in several files each, with what clients may have said in them."""
    for number, node in enumerate(("node1", "node2")):
        log = AuditLog("shop", node, 7, lambda: 1.5, lambda: 1_800_000_000.5, AuditSettings(lines_per_host=3))
        files = AuditFiles(folder, node, 7, 2000, 100)
        log.sinks.append(files)
        for each in range(20):
            log.record("queue.deleted", f"ops{number}", f"10.0.0.{number}", "http", of_vhost="/", of_name=f"q{each}")
            log.record("login.refused", 'x"\n\udcff\u202e', "10.0.0.9", "amqp", "refused", "no\x00")
        log.close()
        files.close()


def test_spark_reads_its_files_as_it_reads_any_trace(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    written(folder)
    found = ingest.read(spark, ingest.find([str(folder)]), tmp_path / "events")
    assert ingest.corrupt(found).count() == 0
    table = spark.read.parquet(str(tmp_path / "events"))
    read = {(row.node, row.n): row.kind for row in table.collect()}
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert len(list(folder.iterdir())) > 4
    assert read == {(event.node, event.n): "audit" for event in map(parse, lines)}


def test_the_question_in_the_documentation_is_answered(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "audit")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    answers: dict[str, object] = {"spark": spark}
    exec(code.replace('"audit/*.jsonl"', repr(f"{tmp_path}/audit/*.jsonl")), answers)
    deleted = spark.sql("select * from deleted").collect()
    told = {(row.node, row.user, row["from"], row.of_name) for row in deleted}
    assert told == {
        (f"node{number}", f"ops{number - 1}", f"10.0.0.{number - 1}", f"q{each}")
        for number in (1, 2)
        for each in range(20)
    }
