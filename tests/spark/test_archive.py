"""`coterie archive` and `coterie replay` on a real Spark and a real broker: into each kind of table, and back."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from spark.archive_tables import table_in
from spark.brokers import Broker, broker
from spark.cluster import FAST
from spark.script import script
from spark.test_audit import coterie
from spark.test_exactly_once import kill_driver, taken, under_way, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coterie.spark.archive.table import Table

MASTER = ("--master", "local[2]")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker") / "data") as found:
        yield found


def publish(node: Broker, queue: str, first: int, stop: int) -> None:
    for number in range(first, stop):
        properties = pika.BasicProperties(
            delivery_mode=2, content_type="application/json", headers={"n": number, "who": "tests"}, user_id="guest"
        )
        node.channel.basic_publish("", queue, b'{"id": %d, "total": %d.5}' % (number, number), properties)


def archive(node: Broker, *words: str) -> dict[str, Any]:
    code, text, errors = coterie("archive", *words, "--url", node.console, "--json", *MASTER)
    assert code == 0, errors
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def replay(node: Broker, *words: str) -> dict[str, Any]:
    code, text, errors = coterie("replay", *words, "--url", node.console, "--json", *MASTER)
    assert code == 0, errors
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def bodies(spark: SparkSession, table: Table, folder: Path) -> list[bytes]:
    files = [str(folder / each.path) for each in table.readable()]
    return sorted(bytes(row.value) for row in spark.read.parquet(*files).select("value").collect())


def numbers(first: int, stop: int) -> list[bytes]:
    return sorted(b'{"id": %d, "total": %d.5}' % (number, number) for number in range(first, stop))


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_messages_go_into_a_table_once_and_come_back_as_they_were(
    format: str, spark: SparkSession, node: Broker, tmp_path: Path
) -> None:
    queue, lake = f"to-{format}", tmp_path / "lake"
    node.declare(queue)
    node.declare(f"{queue}-back", deduplicate_length=1000)
    publish(node, queue, 0, 30)
    words = [queue, str(lake), "--once", "--format", format, "--schema", "id bigint, total double"]
    first = archive(node, *words)
    assert (first["messages"], first["lag"], first["bad_bodies"]) == (30, 0, 0)
    assert node.count(queue) == 0, "what is in the table is retired"
    publish(node, queue, 30, 32)
    node.channel.basic_publish("", queue, b"no JSON", pika.BasicProperties(delivery_mode=2))
    again = archive(node, *words)
    assert (again["messages"], again["bad_bodies"], again["format"]) == (3, 1, format)
    table = table_in(lake, format)
    assert bodies(spark, table, lake) == sorted([*numbers(0, 32), b"no JSON"])

    wanted = [str(lake), f"{queue}-back", "--where", "body.id >= 5", "--format", format]
    counted = replay(node, *wanted, "--dry-run")
    assert (counted["found"], counted["sent"], node.count(f"{queue}-back")) == (27, 0, 0)
    for _ in range(2):
        assert replay(node, *wanted, "--rate", "1000")["sent"] == 27
    back = node.take(f"{queue}-back")
    assert [body for _, body in back] == sorted(numbers(5, 32), key=lambda body: int(json.loads(body)["id"]))
    assert {properties.headers["n"] for properties, _ in back if properties.headers} == {*range(5, 32)}
    assert {(properties.content_type, properties.user_id) for properties, _ in back} == {("application/json", "guest")}
    mended = ["--where", "body is null", "--set", "value = '{}'"]
    assert replay(node, str(lake), f"queue:{queue}-back", "--format", format, *mended)["sent"] == 1
    assert [body for _, body in node.take(f"{queue}-back")] == [b"{}"]


def test_an_archive_of_parquet_is_compacted_goes_on_and_stops_when_it_is_told_to(
    spark: SparkSession, node: Broker, tmp_path: Path
) -> None:
    node.declare("to-parquet-1")
    node.declare("to-parquet-2")
    lake, config = tmp_path / "lake", tmp_path / "archive.toml"
    config.write_text(f'queue = "to-parquet-*"\ntarget = "{lake}"\nmax_rows = 4\n[compact]\nfiles = 3\n')
    for queue in ("to-parquet-1", "to-parquet-2"):
        publish(node, queue, 0, 20)
    told = archive(node, "--config", str(config), "--once")
    assert (told["messages"], told["format"]) == (40, "parquet")
    assert told["compacted"]["files_before"] >= 3
    assert told["compacted"]["files_after"] == 1
    assert _once(spark, lake, 40)
    orphan = next(lake.glob("date=*")) / "part-00000-left.parquet"
    orphan.write_bytes(b"by a task that was killed")
    assert _once(spark, lake, 40)

    publish(node, "to-parquet-1", 20, 22)
    done = threading.Event()
    failed: list[BaseException] = []

    def operate() -> None:
        """While the archive runs: when it has got all, it is stopped."""
        try:
            url = node.console
            until(lambda: done.is_set() or '"messages": 0' in coterie_quietly(url, "to-parquet-1"), "it is retired")
        except BaseException as error:
            failed.append(error)
        if not done.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        told = archive(node, "--config", str(config), "--trigger", "200ms")
    finally:
        done.set()
        operator.join()
    assert not failed, failed
    assert (told["messages"], told["interrupted"], told["compacted"]["orphans"]) == (2, True, 1)
    assert not orphan.exists()
    assert _once(spark, lake, 42)
    code, _, errors = coterie("archive", "to-parquet-1", str(lake), "--url", node.console, *MASTER)
    assert (code, "this checkpoint has the queues" in errors) == (2, True)


def coterie_quietly(url: str, queue: str) -> str:
    """In a thread, where standard output is not ours to redirect."""
    from coterie.cli.remote import Remote, path_of

    return json.dumps(Remote(url, 30).ask("GET", path_of("queues", "/", queue)))


def _once(spark: SparkSession, lake: Path, count: int) -> bool:
    rows = spark.read.parquet(str(lake))
    return rows.count() == rows.select("queue", "position").distinct().count() == count


KILLED = """
import os, sys, time
from pathlib import Path

from coterie.cli import main
from coterie.spark.archive.delta import Delta

folder, when = Path(sys.argv[1]), sys.argv[2]
commit = Delta.commit


def hold(files):
    if files:  # the first batch is empty
        (folder / when).rename(folder / f"{when}.{os.getpid()}.held")
        time.sleep(600)


def held(self, query, batch, files, schema):
    if when == "before":
        hold(files)
    done = commit(self, query, batch, files, schema)
    hold(files)
    return done


Delta.commit = held
main(sys.argv[3:])
"""


def test_a_driver_that_is_killed_in_a_batch_has_lost_and_doubled_nothing_when_it_is_back(
    spark: SparkSession, node: Broker, tmp_path: Path
) -> None:
    node.declare("killed")
    publish(node, "killed", 0, 40)
    lake = tmp_path / "lake"
    url = node.console
    config = tmp_path / "fast.toml"
    config.write_text(
        "[spark]\n" + "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in FAST.items())
    )
    words = [
        "archive",
        "killed",
        str(lake),
        "--format",
        "delta",
        "--once",
        "--max-rows",
        "25",
        "--config",
        str(config),
        "--url",
        url,
        *MASTER,
    ]
    for when, rows in (("before", 0), ("after", 25)):
        (tmp_path / when).touch()
        with script(KILLED, [str(tmp_path), when, *words], tmp_path / f"run-{when}") as driver:
            taken(tmp_path, when, driver)
            assert under_way(lake / "_checkpoint") == {1}
            kill_driver(driver)
        assert len(bodies(spark, table_in(lake, "delta"), lake) if rows else []) == rows
        assert len([*lake.glob("date=*/*.parquet")]) == 1 + (when == "after"), "one that no commit names"
    told = archive(node, *words[1:-4])
    assert told["lag"] == 0
    assert bodies(spark, table_in(lake, "delta"), lake) == numbers(0, 40)
    assert node.count("killed") == 0


def test_mistakes_are_told_before_spark_is_started(node: Broker, tmp_path: Path) -> None:
    url = ["--url", node.console]
    config = tmp_path / "bad.toml"
    config.write_text("quue = 'orders'\n")
    node.declare("mistakes")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for words, said in (
        (["archive", *url], "QUEUE is missing"),
        (["archive", "missing", str(tmp_path / "x"), *url], "no queue 'missing' in vhost '/'"),
        (["archive", "--config", str(config), *url], "there is no 'quue'"),
        (["archive", "mistakes", str(tmp_path / "other"), *url], "holds other things than an archive"),
        (["archive", "mistakes", str(tmp_path / "x"), "--trigger", "soon", *url], "--trigger: a time is due"),
        (["replay", str(tmp_path / "x"), "nowhere", *url], "no exchange and no queue 'nowhere'"),
        (["replay", str(tmp_path / "x"), "mistakes", "--rate", "0", *url], "--rate: messages in a second are due"),
    ):
        code, _, errors = coterie(*words)
        assert (code, said in errors) == (2, True), errors
