"""Audits through a real Spark Connect server, whose Python does not have Coterie until somebody installs it there."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import coterie
from coterie.spark.schema import TABLES
from coterie.spark.trouble import NOT_INSTALLED
from spark.brokers import Broker, broker
from spark.cluster import bare_python, connect_server
from spark.script import TESTS, path_of, script
from spark.traces import FAULTS, damaged, plain, read, simulate, write

SECONDS = 300.0


def audit(master: str, *words: str) -> tuple[int, dict[str, Any], str]:
    """`coterie audit` in a process of its own: exit code, answer, last line of standard error."""
    command = [sys.executable, "-m", "coterie", "audit", *words, "--master", master, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), (done.stderr.splitlines() or [""])[-1]


@pytest.mark.timeout(900)
def test_audits_run_through_spark_connect(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    simulate(traces)
    changed, _ = damaged(read(traces / "vs-0.jsonl"), "damaged", FAULTS["altered"][0])
    write(traces / "damaged.jsonl", changed)
    said, reading = plain(traces)
    python = bare_python(tmp_path / "python")
    with connect_server(tmp_path / "server", python) as master, broker(tmp_path / "data") as node:
        node.declare("in")
        node.declare("out")
        node.channel.basic_publish("", "in", b"one")
        see_that_queues_are_tables_and_no_streams(master, node, tmp_path / "tables")
        see_that_a_stream_says_what_it_needs(master, traces, tmp_path / "refused")
        out = tmp_path / "batch"
        code, answer, _ = audit(master, str(traces), "--out", str(out))
        assert code == 1
        assert (answer["violations"], answer["runs"], answer["events"]) == (1, len(said), reading.events)
        assert answer["details"][0]["text"] == said["damaged"][0][1]
        see_that_tables_and_report_are_there(out)
        (tmp_path / "python" / "packages" / "coterie").symlink_to(Path(coterie.__file__).parent)
        see_that_queues_are_streams(master, node, tmp_path / "streams")
        words = ("--stream", str(traces), "--out", str(tmp_path / "stream"), "--available-now")
        code, answer, _ = audit(master, *words)
        assert code == 1
        assert (answer["violations"], answer["runs"], answer["events"]) == (1, len(said), reading.events)
        assert said["damaged"][0][1] in html.unescape((tmp_path / "stream" / "report.html").read_text())


QUEUES = """
import sys
from coterie.errors import UserError
from coterie.spark import register
from coterie.spark.session import session

master, console, amqp, checkpoint = sys.argv[1:]
source, sink = {"servers": console, "queue": "in", "columns": "value"}, {"servers": amqp, "queue": "out"}
try:
    with session("queues", master) as spark:
        register(spark)
        rows = spark.read.format("coterie").options(**source).load()
        rows.write.format("coterie").options(**sink).mode("append").save()
        print("written", flush=True)
        rows = spark.readStream.format("coterie").options(**source).load()
        writer = rows.writeStream.format("coterie").options(**sink).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        print("streamed", flush=True)
except UserError as error:
    print(error, flush=True)
"""


def queues(master: str, node: Broker, folder: Path) -> list[str]:
    """What a program says that writes the queue `in` to the queue `out`, first as a table, then as a stream."""
    words = [master, node.console, node.amqp, str(folder / "checkpoint")]
    env = {"PYTHONPATH": path_of(TESTS, Path(coterie.__file__).parents[1])}
    with script(QUEUES, words, folder, env) as program:
        code, lines = program.end()
        assert (code, program.errors()) == (0, "")
    return lines


def see_that_queues_are_tables_and_no_streams(master: str, node: Broker, folder: Path) -> None:
    assert queues(master, node, folder) == ["written", f"Spark at {master}: {NOT_INSTALLED}"]
    assert [body for _, body in node.take("out")] == [b"one"]


def see_that_queues_are_streams(master: str, node: Broker, folder: Path) -> None:
    assert queues(master, node, folder) == ["written", "streamed"]
    assert [body for _, body in node.take("out")] == [b"one", b"one"]
    assert node.count("in") == 0


def see_that_a_stream_says_what_it_needs(master: str, traces: Path, out: Path) -> None:
    code, _, error = audit(master, "--stream", str(traces), "--out", str(out), "--available-now")
    assert code == 2
    assert error == f"coterie: {NOT_INSTALLED}"


def see_that_tables_and_report_are_there(out: Path) -> None:
    rows = {table.name: pq.read_table(out / table.name).num_rows for table in TABLES}
    assert {name for name, count in rows.items() if not count} == {"corrupt"}
    assert "G3 (1)" in (out / "report.html").read_text()
    assert any((out / "diagrams").iterdir())
