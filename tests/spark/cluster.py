"""Real Spark to test against, started from the package pyspark: a standalone cluster and a Spark Connect server.

Each is a context manager. Ports are chosen by the system, output goes to files in the folder that one gives (a wait
that fails shows their ends), and whatever was started is gone afterwards.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from coterie.spark import java

START_SECONDS = 120.0
"""On a quiet machine each takes about three."""
QUICK = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""JVMs that start rather than run fast; a quarter of a start is the verification of classes, which Spark's need not."""

FAST = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.python.task.killTimeout": "200ms",
    "spark.executor.extraJavaOptions": QUICK,
}
"""What makes small jobs quick: a session takes half as long to start, a small streaming query a third."""


class Standalone:
    """A master, and workers of one core each."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._env = folder, _environment(folder)
        self._master = _Server(folder / "master.log")
        self._workers: list[_Server] = []
        self.url = ""
        """spark://HOST:PORT"""

    def start(self) -> None:
        self._master.start(_daemon(self._env, "org.apache.spark.deploy.master.Master"), self._env)
        self.url = self._master.await_line(r"Starting Spark master at (spark://\S+)")

    def add_workers(self, number: int) -> None:
        """Start that many more, and wait until the master knows them."""
        fresh = [_Server(self._folder / f"worker-{len(self._workers) + i}.log") for i in range(number)]
        self._workers += fresh
        for worker in fresh:
            where = ["--work-dir", str(worker.log.with_suffix("")), "--cores", "1", "--memory", "1g", self.url]
            worker.start([*_daemon(self._env, "org.apache.spark.deploy.worker.Worker"), *where], self._env)
        for worker in fresh:
            worker.await_line("Successfully registered with master")

    def end(self) -> None:
        for server in (*self._workers, self._master):
            server.terminate()
        for server in (*self._workers, self._master):
            server.end()


def _daemon(env: Mapping[str, str], name: str) -> list[str]:
    """Without the script spark-class, which starts a JVM to find out how to start a JVM."""
    java = [str(Path(env["JAVA_HOME"]) / "bin" / "java"), *QUICK.split(), "-Xmx512m"]
    return [
        *java,
        "-cp",
        f"{env['SPARK_HOME']}/jars/*",
        name,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--webui-port",
        "0",
    ]


@contextmanager
def master_alone(folder: Path) -> Iterator[Standalone]:
    """A cluster that has no workers yet."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """A cluster with that many workers. Yields spark://HOST:PORT."""
    with master_alone(folder) as cluster:
        cluster.add_workers(workers)
        yield cluster.url


@contextmanager
def connect_server(folder: Path, python: Path | None = None) -> Iterator[str]:
    """A Spark Connect server with two cores, whose tasks run that Python. Yields sc://HOST:PORT."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.task.killTimeout": "200ms",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.driver.memory": "1g",
    }
    flags = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = _Server(folder / "connect.log")
    try:
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        server.start(
            [submit, "org.apache.spark.deploy.SparkSubmit", "--class", service, *flags, "spark-internal"],
            # What is on the path of these tests is not on that of a server.
            _environment(folder) | {"PYSPARK_PYTHON": str(python or sys.executable), "PYTHONPATH": ""},
        )
        port = server.await_line(r"Spark Connect server started at: \S*?:(\d+)$")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.end()


def bare_python(folder: Path, without: Sequence[str] = ("coterie",)) -> Path:
    """A Python with everything that this one has installed, but those packages: what executors elsewhere may run."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # Files *.pth do nothing here: this is no site folder.
        if entry.name.split("-")[0] not in without:
            (packages / entry.name).symlink_to(entry)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    return python


def wait_gone(pids: Sequence[int], seconds: float = 60.0) -> list[psutil.Process]:
    """Wait until these processes are gone; returns those that are not."""
    there = []
    for pid in pids:
        try:
            there.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(there, seconds)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def _environment(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    return os.environ | {
        "JAVA_HOME": str(java.home(folder)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": QUICK,
        "SPARK_SCALA_VERSION": "2.13",  # a worker that spark-class did not start needs to be told
    }


class _Server:
    """One JVM in the background, with its log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def await_line(self, pattern: str) -> str:
        """Wait until the log has a line like that; returns the first group, or all of what matched."""
        assert self.process is not None
        until = time.monotonic() + START_SECONDS
        while True:
            ended = self.process.poll() is not None
            text = self.log.read_text(errors="replace")
            if found := re.search(pattern, text, re.MULTILINE):
                return found[found.re.groups and 1]
            if ended or time.monotonic() > until:
                raise AssertionError(f"{self.log.name} has no line like {pattern!r}:\n{text[-3000:]}")
            time.sleep(0.05)

    def terminate(self) -> None:
        """Let it begin to end."""
        if self.process is not None:
            self.process.terminate()

    def end(self) -> None:
        """End it with all that it has started."""
        if self.process is None:
            return
        try:
            family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        self.process.terminate()
        _, alive = psutil.wait_procs(family, 15)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
