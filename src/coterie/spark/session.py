"""Where a job runs: in this process, on a standalone cluster or through Spark Connect (docs/spark.md).

Promises: Java is found or brought along; executors have this very package; of Spark nothing is heard but what went
wrong, in one line; what cannot be reached is known within seconds; and with the `with` block everything ends that it
began: the JVM, its jobs, its temporary files.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import UserError
from coterie.spark.driver import driver, environment
from coterie.spark.interrupt import handled_by, interruptible, stop_at_once
from coterie.spark.package import packed
from coterie.spark.reach import need_spark, reach
from coterie.spark.trouble import reported, shown

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["LOCAL", "interruptible", "parallelism", "session"]

LOCAL = "local[*]"

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
"""What every session has, unless told otherwise."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
"""What a session in this process has besides."""

EXECUTOR_SECONDS = 60.0
"""How long a standalone cluster may take until it has given a session its first executor."""
CONTAINER_SECONDS = 600.0
"""And one that has to make room for it first, and fetch an image."""

_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?")
_PROCESSES = re.compile(r"local-cluster\[[1-9]\d*, *[1-9]\d*, *[1-9]\d*\]")
"""Executors that are processes of their own on this machine: how many, the cores of each, its MiB."""
_CLUSTER = re.compile(r"spark://[^/:,\s]+:\d{1,5}(,[^/:,\s]+:\d{1,5})*")
_KUBERNETES = re.compile(r"k8s://(?:(https?)://)?([^/:,\s]+)(?::(\d{1,5}))?(?:/\S*)?")
_YARN = "yarn"
_YARN_SETTINGS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Environment variables, one of which tells Spark where YARN is."""


@contextmanager
def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session, for as long as the block. `master`: local[N], spark://HOST:PORT, k8s://HOST:PORT, yarn or
    sc://HOST:PORT (Spark Connect).

    Where this process has a local session already (a notebook, a test), the block gets one on the same context, which
    goes on after it. Raises UserError if there can be no session, or for what Spark raises in the block.
    """
    need_spark()
    master = master or LOCAL
    wanted = {**SETTINGS, **(settings or {})}
    with (
        handled_by(stop_at_once),
        tempfile.TemporaryDirectory(prefix="coterie-spark-", ignore_cleanup_errors=True) as folder,
        _at(name, master, wanted, Path(folder)) as spark,
        interruptible(spark),
    ):
        yield spark


@contextmanager
def _at(name: str, master: str, settings: Mapping[str, str], folder: Path) -> Iterator[SparkSession]:
    if master == _YARN and not any(os.environ.get(name) for name in _YARN_SETTINGS):
        raise UserError(f"--master yarn: set {' or '.join(_YARN_SETTINGS)} to the folder that tells where it is")
    if master.startswith("sc://"):
        from coterie.spark.connect import remote

        with remote(master, settings, folder) as spark:
            yield spark
    elif (running := _running(master)) is not None:
        for key, value in settings.items():
            if key.startswith("spark.sql.") and running.conf.isModifiable(key):
                running.conf.set(key, value)
        with reported(master):
            yield running
    elif _LOCAL.fullmatch(master):
        with _own(name, master, {**LOCAL_SETTINGS, **settings}, sys.executable, folder) as spark:
            yield spark
    elif _CLUSTER.fullmatch(master) or _PROCESSES.fullmatch(master):
        if master.startswith("spark://"):
            hosts = [place.rpartition(":") for place in master.removeprefix("spark://").split(",")]
            reach(master, [(host, int(port)) for host, _, port in hosts])
        with _away(name, master, settings, sys.executable, folder, EXECUTOR_SECONDS) as spark:
            yield spark
    elif (found := _KUBERNETES.fullmatch(master)) is not None:
        reach(master, [(found[2], int(found[3] or (80 if found[1] == "http" else 443)))])
        with _away(name, master, settings, "python3", folder, CONTAINER_SECONDS) as spark:
            yield spark
    elif master == _YARN:
        with _away(name, master, settings, "python3", folder, CONTAINER_SECONDS) as spark:
            yield spark
    else:
        raise UserError(
            f"--master {shown(master)}: give local[N], spark://HOST:PORT, k8s://HOST:PORT, yarn or sc://HOST:PORT"
        )


@contextmanager
def _away(
    name: str, master: str, settings: Mapping[str, str], python: str, folder: Path, patience: float
) -> Iterator[SparkSession]:
    """A session whose executors are elsewhere. They get the package, and run that Python unless told otherwise."""
    with _own(name, master, settings, os.environ.get("PYSPARK_PYTHON") or python, folder) as spark:
        spark.sparkContext.addPyFile(str(packed(folder)))
        _await_executor(spark.sparkContext, patience)
        yield spark


@contextmanager
def _own(name: str, master: str, settings: Mapping[str, str], python: str, folder: Path) -> Iterator[SparkSession]:
    """A session with a JVM of its own. Its tasks run that Python."""
    from pyspark.sql import SparkSession

    wanted = {**settings, "spark.app.name": name, "spark.master": master}
    with environment({"PYSPARK_PYTHON": python}), driver(wanted, folder) as context:
        yield SparkSession(context)


def _running(master: str) -> SparkSession | None:
    """A session on the context that this process has already, if it has one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if not (_LOCAL.fullmatch(master) and _LOCAL.fullmatch(str(context.master))):
        raise UserError(f"--master {master}: this process works with Spark at {context.master} already")
    return SparkSession(context).newSession()


def _await_executor(context: SparkContext, patience: float) -> None:
    """A cluster without a free worker lets jobs wait for ever, and says so in a log only."""
    until = time.monotonic() + patience
    status = context._jsc.sc().getExecutorMemoryStatus
    while status().size() < 2:  # the driver counts
        if time.monotonic() > until:
            raise UserError(
                f"--master {context.master}: no worker took the job within {patience:.0f} s; "
                "the cluster has none, or none that is free"
            )
        time.sleep(0.05)


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at the same time, at this moment. (Through Spark Connect it takes a small job to find out.)"""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    if isinstance(spark, SparkSession):
        return spark.sparkContext.defaultParallelism
    # A range is cut into as many partitions as there are cores.
    return max(1, spark.range(100_000).select(f.spark_partition_id()).distinct().count())
