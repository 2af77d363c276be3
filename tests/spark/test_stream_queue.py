"""The audit of brokers that run: what they publish of themselves, through a queue, on real Spark."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pyarrow as pa
import pytest
from tracescript import events

from coterie.cli import main
from coterie.spark.stream_queue import LINES_MAX, TraceQueue, lines_of
from coterie.streams.client import Client
from spark.brokers import Broker, broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXCHANGE, QUEUE = "coterie.trace", "coterie.trace.audit"
PATIENCE = 120.0
BROKEN = """real
A start
A view members=A,B
  B start
  B view members=A,B start=A:1
A send n=1 to=all
  B deliver from=A n=1
  B deliver from=A n=1
"""


def work(node: Broker) -> None:
    """Something of everything."""
    node.declare("work")
    node.channel.confirm_delivery()
    for number in range(60):
        node.channel.basic_publish("", "work", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    for number in range(40):
        method, _, _ = node.channel.basic_get("work")
        assert method is not None
        assert method.delivery_tag is not None
        if number % 3:
            node.channel.basic_ack(method.delivery_tag)
        else:
            node.channel.basic_nack(method.delivery_tag, requeue=True)


def until(is_so: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < limit, f"this did not happen: {what}"
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_brokers_are_judged_while_they_run_by_what_they_publish_of_themselves(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "data", "--trace-publish", "later") as node:
        url, out = f"http://guest:guest@{node.console}", tmp_path / "out"
        words = ["audit", "--from-broker", url, "--out", str(out), "--master", "local[2]", "--json"]

        def tracing() -> dict[str, Any]:
            assert main(["tracing", "--url", url, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert isinstance(found, dict)
            return found

        assert main(words) == 2
        assert "start it with --trace-publish later, and say `coterie tracing on`" in capsys.readouterr().err
        assert main(["tracing", "on", "--url", url]) == 0
        assert main([*words, "--queue", "trace"]) == 2
        assert "its name must begin with coterie.trace" in capsys.readouterr().err
        until(lambda: main(["exchanges", "--url", url]) == 0 and EXCHANGE in capsys.readouterr().out, "it publishes")

        over = threading.Event()
        failed: list[BaseException] = []

        def operate() -> None:
            """While the audit runs: when all of it is judged, that is stopped."""
            try:
                with Client([f"http://{node.console}"], "guest", "guest") as client:
                    until(lambda: bool(client.tails([QUEUE])), "the queue is declared")
                    work(node)
                    until(lambda: client.tails([QUEUE])[0].next > 1, "something is published")
                    until(lambda: client.tails([QUEUE])[0].messages == 0, "it is judged, and retired")
            except BaseException as error:
                failed.append(error)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        operator = threading.Thread(target=operate)
        operator.start()
        try:
            code = main([*words, "--trigger", "1"])
        finally:
            over.set()
            operator.join()
        assert not failed, failed
        first = json.loads(capsys.readouterr().out)
        assert (code, first["violations"], first["interrupted"]) == (0, 0, True)
        assert first["events"] > 0

        work(node)
        lines = "".join(f"{event.to_json()}\n" for event in events(BROKEN))
        node.channel.basic_publish(EXCHANGE, "elsewhere.1", f"{lines}no event\n".encode())
        before = tracing()["published"]
        assert main([*words, "--available-now"]) == 1
        answer = json.loads(capsys.readouterr().out)
        assert {name: count for name, count in answer["properties"].items() if count} == {"G3": 1, "G8": 1}
        assert (answer["runs"], answer["late_events"], answer["ignored_events"]) == (2, 0, 0)
        assert answer["corrupt_lines"] == 1
        assert before <= answer["events"] - len(events(BROKEN)) <= tracing()["published"]
        assert QUEUE in (out / "report.html").read_text()
        assert "guest:guest" not in (out / "report.html").read_text()


def test_lines_of_messages_have_places_of_their_own() -> None:
    messages = {"value": [b"a\nb\n", b"c"], "queue": ["q", "q"], "position": [7, 9]}
    found = lines_of(pa.RecordBatch.from_pydict(messages)).to_pydict()
    assert found["value"] == [b"a", b"b", b"", b"c"]
    assert found["block"] == [7 * LINES_MAX] * 3 + [9 * LINES_MAX]
    assert "geheim" not in repr(TraceQueue("http://here", "guest", "geheim", "q"))
