"""Exactly once, whoever is killed: queues of three brokers through a real Spark cluster, to files and to a queue.

The driver is a program of its own. It is killed in the middle of a batch, then an executor, then a broker; what is to
be killed waits for it, because a task, or the sink between its last confirm and the end of the epoch, takes a file that
the test has put there, and goes on when that is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from three_brokers import PERSISTENT, ThreeBrokers, take

from coterie.streams.client import Client, Tail
from spark.cluster import standalone, wait_gone
from spark.script import Script, script

PATIENCE = 240.0
SMALL, LARGE = 60, 300
"""Messages that are there for the first kills, and that come before the last."""
LARGE_BYTES = 300_000
"""A part of them is more than all sockets between a broker and a task hold, which may be 30 MB."""
BLOCKED = 256 << 10
"""Bytes on their way to one who does not take them: more than any answer has but that to a bulk read."""

PROGRAM = """
import json, os, sys, time
from pathlib import Path

from pyspark.errors import StreamingQueryException

from coterie.spark import register
from coterie.spark.queues import Coterie
from coterie.spark.session import session
from coterie.spark.sink import StreamSink
from spark.cluster import FAST

master, consoles, brokers = sys.argv[1:4]
folder = Path(sys.argv[4])


def hold(name):
    mine = folder / f"{name}.{os.getpid()}.held"
    try:
        (folder / name).rename(mine)
    except FileNotFoundError:
        return
    while mine.exists():
        time.sleep(0.01)


def held(batches):
    for batch in batches:
        hold("task")
        yield batch


class HeldSink(StreamSink):
    def commit(self, messages, batchId):
        if batchId:  # the first one is empty
            hold("commit")
        super().commit(messages, batchId)


class Held(Coterie):
    @classmethod
    def name(cls):
        return "held"

    def streamWriter(self, schema, overwrite):
        return HeldSink(self.options, schema, overwrite)


def stream(queue):
    given = {"queue": queue, "columns": "value", "maxRowsPerTrigger": LARGE, "minPartitions": 2}
    return spark.readStream.format("coterie").option("servers", consoles).options(**given).load()


# A task sees the first rows of a part while the others are still being read.
settings = {**FAST, "spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
with session("exactly once", master, settings) as spark:
    register(spark)
    spark.dataSource.register(Held)
    rows = stream("files").mapInArrow(held, "value binary")
    rows = rows.selectExpr("cast(substring_index(cast(value as string), ' ', 1) as int) as number")
    files = rows.writeStream.format("parquet").option("path", str(folder / "table"))
    relay = stream("relay").writeStream.format("held").option("servers", brokers).option("queue", "out")
    writers = {"files": files, "relay": relay}
    for name, writer in writers.items():
        writer.option("checkpointLocation", str(folder / name))
    queries = {name: writer.start() for name, writer in writers.items()}
    while not (folder / "stop").exists():
        for name, query in queries.items():
            try:
                query.awaitTermination(0.05)
            except StreamingQueryException as error:
                # Spark gives its own Python processes ten seconds to start, on the busiest of machines too.
                if "failed to connect back" not in str(error):
                    raise
                queries[name] = writers[name].start()
    for query in queries.values():
        query.stop()
    print(json.dumps([row.number for row in spark.read.parquet(str(folder / "table")).collect()]), flush=True)
""".replace("LARGE", str(LARGE))


def until(is_so: Callable[[], bool], what: str, driver: Script | None = None) -> None:
    limit = time.monotonic() + PATIENCE
    while not is_so():
        if driver is not None and driver.process.poll() is not None:
            raise AssertionError(f"the driver ended before this: {what}\n{driver.errors()}")
        assert time.monotonic() < limit, f"this did not happen: {what}"
        time.sleep(0.05)


def batches(checkpoint: Path, log: str) -> set[int]:
    return {int(file.name) for file in (checkpoint / log).glob("[0-9]*") if file.name.isdigit()}


def under_way(checkpoint: Path) -> set[int]:
    """Batches that were begun and are not done."""
    return batches(checkpoint, "offsets") - batches(checkpoint, "commits")


def taken(folder: Path, name: str, driver: Script) -> int:
    """Whoever takes this hold: its process."""
    until(lambda: bool([*folder.glob(f"{name}.*.held")]), f"{name} is held", driver)
    (found,) = folder.glob(f"{name}.*.held")
    return int(found.name.split(".")[1])


def go_on(folder: Path, name: str, again: bool = False) -> None:
    """Whoever has taken this hold. `again`: and whoever comes next is held."""
    held = [*folder.glob(f"{name}.*.held")]
    if again:
        (folder / name).touch()
    for found in held:
        found.unlink()


def kill_driver(driver: Script) -> None:
    """With its JVM, and whatever runs in it."""
    family = [psutil.Process(driver.process.pid), *psutil.Process(driver.process.pid).children(recursive=True)]
    assert any("java" in process.name() for process in family)
    for process in family:
        process.kill()
    driver.process.wait()


def executor_of(task: int) -> psutil.Process:
    (found,) = filter(is_executor, psutil.Process(task).parents())
    return found


def with_all_they_started(*processes: psutil.Process) -> list[int]:
    return [found.pid for process in processes for found in (process, *process.children(recursive=True))]


def executors() -> list[psutil.Process]:
    """Of our workers."""
    return [process for process in psutil.Process().children(recursive=True) if is_executor(process)]


def is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def read_by(executor: psutil.Process, cluster: ThreeBrokers) -> dict[str, int]:
    """Brokers that are in the middle of an answer to a process of this executor: bytes that it has not taken."""
    ours = {
        connection.laddr.port
        for process in executor.children(recursive=True)
        for connection in process.net_connections("tcp4")
        if connection.raddr
    }
    consoles = {int(url.rpartition(":")[2]): name for name, url in cluster.console.items()}
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        here, there = (int(words[at].partition(":")[2], 16) for at in (1, 2))
        waiting = int(words[4].partition(":")[0], 16)
        if here in consoles and there in ours and waiting > BLOCKED:
            found[consoles[here]] = waiting
    return found


def stuck(executor: psutil.Process, cluster: ThreeBrokers, driver: Script) -> str:
    """The broker from which nobody takes the rest of an answer: the part's task is held, the other one has done."""
    before: dict[str, int] = {}

    def stands() -> bool:
        nonlocal before
        before, was = read_by(executor, cluster), before
        return len(before) == 1 and before == was

    until(stands, "a broker waits in the middle of a read", driver)
    (found,) = before
    return found


def client_of(cluster: ThreeBrokers) -> Client:
    return Client([*cluster.console.values()], "guest", "guest")


def tail(cluster: ThreeBrokers, queue: str) -> Tail:
    with client_of(cluster) as client:
        (found,) = client.tails([queue])
    return found


def publish(cluster: ThreeBrokers, node: str, queue: str, first: int, stop: int, size: int = 0) -> None:
    """On a connection of its own: between two times it would be silent for too long."""
    channel = cluster.channel(node)
    channel.confirm_delivery()
    for number in range(first, stop):
        channel.basic_publish("", queue, b"%d %s" % (number, b"x" * size), PERSISTENT)


@contextmanager
def clusters(folder: Path) -> Iterator[tuple[ThreeBrokers, str]]:
    """Three brokers, and a Spark cluster with its URL. Both start at the same time."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(ThreeBrokers, folder / "data", consoles=True)
        stack.callback(lambda: starting.result().stop())
        master = stack.enter_context(standalone(folder / "spark", workers=2))
        yield starting.result(), master


@pytest.mark.timeout(900)
def test_each_message_is_written_once_though_driver_executor_and_broker_are_killed_in_a_batch(tmp_path: Path) -> None:
    files, relay = tmp_path / "files", tmp_path / "relay"
    with clusters(tmp_path) as (cluster, master):
        channel = cluster.channel("node1")
        for queue in ("files", "relay"):
            channel.queue_declare(queue, durable=True)
        channel.queue_declare("out", durable=True, arguments={"x-deduplicate-length": 10_000})
        addresses = ",".join(f"amqp://127.0.0.1:{port}" for port in cluster.amqp.values())
        words = [master, ",".join(cluster.console.values()), addresses, str(tmp_path)]

        for queue in ("files", "relay"):
            publish(cluster, "node1", queue, 0, SMALL)
        for name in ("task", "commit"):
            (tmp_path / name).touch()
        with script(PROGRAM, words, tmp_path / "first") as driver:
            taken(tmp_path, "task", driver)
            taken(tmp_path, "commit", driver)
            left = with_all_they_started(*executors())
            begun = {checkpoint: under_way(checkpoint) for checkpoint in (files, relay)}
            kill_driver(driver)
        assert all(begun.values())
        assert begun == {checkpoint: under_way(checkpoint) for checkpoint in (files, relay)}
        published = tail(cluster, "out").messages
        assert published, "they are in the queue, and their epoch is not in the checkpoint"
        for name in ("task", "commit"):
            go_on(tmp_path, name)
        assert not wait_gone(left), "nobody is left of the first driver's who could take the next hold"

        (tmp_path / "task").touch()
        with script(PROGRAM, words, tmp_path / "second") as driver:
            executor = executor_of(taken(tmp_path, "task", driver))
            assert under_way(files) == begun[files], "it is the same batch again"
            left = with_all_they_started(executor)
            executor.kill()
            assert under_way(files) == begun[files]
            go_on(tmp_path, "task")
            assert not wait_gone(left)
            until(lambda: begun[files] <= batches(files, "commits"), "another executor wrote it", driver)
            until(lambda: not tail(cluster, "files").messages, "what was there is retired", driver)

            (tmp_path / "task").touch()
            publish(cluster, "node1", "files", SMALL, SMALL + 1)
            taken(tmp_path, "task", driver)
            publish(cluster, "node1", "files", SMALL + 1, SMALL + LARGE, LARGE_BYTES)
            go_on(tmp_path, "task", again=True)
            executor = executor_of(taken(tmp_path, "task", driver))
            victim, batch = stuck(executor, cluster, driver), under_way(files)
            assert batch
            cluster.kill(victim)
            survivor = next(name for name in cluster.amqp if name != victim)
            publish(cluster, survivor, "relay", SMALL, 2 * SMALL)
            assert under_way(files) == batch
            go_on(tmp_path, "task")

            until(
                lambda: not any(tail(cluster, queue).messages for queue in ("files", "relay")), "all is retired", driver
            )
            (tmp_path / "stop").touch()
            written = json.loads(driver.line())
        assert sorted(written) == [*range(SMALL + LARGE)]
        assert sorted(int(body) for body, _, _ in take(cluster.channel(survivor), "out", 2 * SMALL)) == [
            *range(2 * SMALL)
        ]
        assert tail(cluster, "out").ready == 0
        with client_of(cluster) as client:
            leases = client.leases()
        assert sorted(lease.queue for lease in leases) == ["files", "relay"]
        assert all(lease.count == 0 and lease.first == lease.next for lease in leases)
