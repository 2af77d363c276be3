"""Queues in Spark: how fast rows come out of a cluster's queue and go into one, and what that costs its publishers.

One cluster and one Spark session for all rounds; in each round everything takes its turn, so that all meet the same
machine: the same rows from Parquet files, a loop with pika, the source as a table and as a stream, the sink, publishers
alone and beside a reader.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from coterie.bench.broker_nodes import Nodes, scratch, working
from coterie.bench.broker_stage import PATIENCE, Step
from coterie.bench.spark_figures import SIZE, START, Measured
from coterie.errors import CoterieError
from coterie.workers import Message, Worker

LOAD, SPARK = "coterie.bench.broker_load", "coterie.bench.spark_worker"
ROWS_MAX = 800_000
"""More would not fit into the memory that brokers have for bodies."""
VALUE, ALL = "value", ""
"""Columns of the source: the bodies alone, or everything."""
LOOP_PART = 10
"""The pika loop is given so much less than the others: it is slow, and its rate does not grow with the number."""
WARM_UP = 2000
"""Rows with which everything is done once before it is measured, as Java is slow at first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played, and how much of it."""

    rows: int = 400_000
    rounds: int = 3
    nodes: int = 3
    master: str = "local[*]"
    warmup: float = 1.0
    seconds: float = 4.0
    """Of publishing, each time."""
    data: Path | None = None
    """Where folders are made."""


@dataclass(slots=True)
class Stage:
    """Where it is played, and what comes of it."""

    plan: Plan
    nodes: Nodes
    load: Worker
    spark: Worker
    measured: Measured = field(default_factory=Measured)
    wrong: Counter[str] = field(default_factory=Counter)
    """By case: messages that were lost, or came twice."""

    def do(self, what: str, **given: object) -> Message:
        """In Spark."""
        return ask(self.spark, {"do": what, **given})

    def play(self, queue: str, messages: int | None, consumers: int) -> Message:
        """One publisher: so many messages, or for a while."""
        plan, port = self.plan, self.nodes.ports[0]
        answer = ask(
            self.load,
            {
                "do": "play", "queue": queue, "kind": "", "size": SIZE, "persistent": True, "rate": 0.0,
                "publishers": 1, "consumers": consumers, "messages": messages, "ports": [port], "apart": False,
                "protocol": "amqp",
                "warmup": plan.warmup, "seconds": plan.seconds, "patience": max(PATIENCE, (messages or 0) / 1000),
            },
        )  # fmt: skip
        self.blame("publishers", abs(int(answer["lost"])) + int(answer.get("wrong", 0)))
        return answer

    def blame(self, case: str, faults: int) -> None:
        if faults:
            self.wrong[case] += faults

    def check(self, case: str, queue: str, rows: int) -> None:
        """The queue has so many messages: those with numbers from 1 on, each once."""
        found = self.do("check", queue=queue)
        self.blame(case, abs(rows - found["rows"]) or int(found["sum"] != rows * (rows + 1) // 2))

    def delete(self, *queues: str) -> None:
        for queue in queues:
            order: Message = {"do": "delete", "queue": queue, "protocol": "amqp", "kind": ""}
            ask(self.load, {**order, "port": self.nodes.ports[0]})


def ask(worker: Worker, order: Message) -> Message:
    worker.tell(order)
    return _heard(worker)


def _heard(worker: Worker) -> Message:
    answer = worker.hear()
    if "error" in answer:
        raise CoterieError(f"bench spark: {answer['error']}")
    return answer


@contextmanager
def staged(plan: Plan) -> Iterator[tuple[Stage, list[Step]]]:
    """All that is to be played, in its order, and where its figures come to be."""
    folder = scratch(plan.data)
    try:
        with (
            Nodes("cluster", plan.nodes, "credit" if plan.nodes > 1 else "", plan.data, consoles=True) as nodes,
            working(LOAD) as (load, _),
        ):
            nodes.start()
            ask(load, {"do": "serve", "ports": nodes.ports, "patience": PATIENCE})
            with _spark(plan, nodes, folder) as (spark, told):
                stage = Stage(plan, nodes, load, spark)
                stage.measured.add(START, told["start_seconds"])
                steps = [Step("everything once, with few rows", partial(_warm_up, stage))]
                for number in range(plan.rounds):
                    steps += Round(stage, number + 1, plan.rows).steps()
                yield stage, steps if plan.rows > WARM_UP else steps[1:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _spark(plan: Plan, nodes: Nodes, folder: Path) -> Iterator[tuple[Worker, Message]]:
    servers = ",".join(f"http://{node.console}" for node in nodes.each)
    sinks = ",".join(f"amqp://127.0.0.1:{port}" for port in nodes.ports)
    worker = Worker(SPARK, {"folder": str(folder), "master": plan.master, "servers": servers, "sinks": sinks})
    try:
        yield worker, _heard(worker)
    finally:
        worker.end()


def _warm_up(stage: Stage) -> None:
    for step in Round(stage, 0, WARM_UP, Measured()).steps():
        step.run()
    stage.do("forget")


class Round:
    """Everything in its turn. Round 0 is the one whose figures nobody wants."""

    def __init__(self, stage: Stage, number: int, rows: int, measured: Measured | None = None) -> None:
        self._stage = stage
        self._number = number
        self._rows = rows
        self._measured = stage.measured if measured is None else measured
        names = ("rows", "loop", "sink", "publishers")
        self._twice: dict[str, list[float]] = {}
        self._queues = {name: f"bench-{name}-{number}-{os.getpid()}" for name in names}

    def steps(self) -> Iterator[Step]:
        timed = self._timed
        for what, run in (
            ("publisher", self._fill),
            ("parquet", partial(timed, "parquet", "parquet", VALUE)),
            ("batch", partial(timed, "batch", "batch", VALUE)),
            ("parquet_all", partial(timed, "parquet_all", "parquet", ALL)),
            ("batch_all", partial(timed, "batch_all", "batch", ALL)),
            ("loop", self._loop),
            *(() if self._number == 0 else self._publishers()),
            ("stream", self._stream),
            ("sink", self._sink),
        ):
            yield Step(f"round {self._number}: {what}", run)

    def _rate(self, case: str, rows: float, seconds: float) -> None:
        self._measured.add(case, rows / seconds)

    def _fill(self) -> None:
        began = time.monotonic()
        self._stage.play(self._queues["rows"], self._rows, 0)
        self._rate("publisher", self._rows, time.monotonic() - began)
        self._stage.check("batch", self._queues["rows"], self._rows)

    def _timed(self, case: str, do: str, columns: str) -> None:
        answer = self._stage.do(do, queue=self._queues["rows"], columns=columns)
        self._rate(case, self._rows, answer["seconds"])

    def _loop(self) -> None:
        stage, queue, rows = self._stage, self._queues["loop"], max(1, self._rows // LOOP_PART)
        stage.play(queue, rows, 0)
        answer = stage.do("loop", queue=queue, rows=rows, port=stage.nodes.ports[0])
        self._rate("loop", rows, answer["seconds"])
        stage.check("loop", queue, 0)
        stage.delete(queue)

    def _publishers(self) -> Iterator[tuple[str, partial[None]]]:
        """Each twice, in one order and in the other, as a machine's mood changes within a round too."""
        cases = ("publishers", "publishers_beside_reader", "publishers_beside_parquet")
        order = cases if self._number % 2 else cases[::-1]
        for case in (*order, *order[::-1]):
            yield case, partial(self._publish, case)

    def _publish(self, case: str) -> None:
        stage = self._stage
        reader = {"publishers_beside_reader": "batch", "publishers_beside_parquet": "parquet"}.get(case)
        if reader is not None:
            stage.do("begin", reads=reader, queue=self._queues["rows"], rows=self._rows, rows_of_part=self._part)
        answer = stage.play(self._queues["publishers"], None, 1)
        self._add_of_two(case, answer["confirmed_per_second"])
        if reader is not None:
            read = stage.do("end")
            if reader == "batch":
                self._add_of_two("reader_beside_publishers", read["rows"] / read["seconds"])

    def _add_of_two(self, case: str, value: float) -> None:
        """The mean of two is the value of the round."""
        values = self._twice.setdefault(case, [])
        values.append(value)
        if len(values) == 2:
            self._measured.add(case, sum(values) / 2)

    @property
    def _part(self) -> int:
        """Rows of a partition while it is watched how far reading has come: that is known by partitions."""
        return max(1, self._rows // 40)

    def _stream(self) -> None:
        stage, queue, rows = self._stage, self._queues["rows"], self._rows
        answer = stage.do("stream", queue=queue, rows_of_batch=max(1, rows // 2))
        self._rate("stream", rows, answer["seconds"])
        self._rate("stream_whole", rows, answer["whole_seconds"])
        stage.blame("stream", abs(rows - answer["rows"]))
        stage.check("stream", queue, 0)
        stage.delete(queue)

    def _sink(self) -> None:
        stage, queue = self._stage, self._queues["sink"]
        stage.play(queue, 0, 0)
        answer = stage.do("sink", queue=queue)
        self._rate("sink", self._rows, answer["seconds"])
        stage.check("sink", queue, self._rows)
        stage.delete(queue)
