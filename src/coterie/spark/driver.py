"""Spark's driver: the JVM that a session in this process works through.

Promises: its output goes to a log and never to ours; no signal that is meant for this process reaches it; when the
block ends, however it ends, so does the JVM, and a later session gets a new one. Should this process be killed, the JVM
ends too, because its standard input does.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coterie.errors import UserError
from coterie.spark import java
from coterie.spark.interrupt import aside, same_handler
from coterie.spark.trouble import Log, reported

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext

LOG = "COTERIE_SPARK_LOG"
"""Environment variable: a file to which Spark's own log is appended, warnings too. Without it nobody sees that log."""

SECRET: Final = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Settings that are not for a command line, which everybody on the machine can read: as Spark hides them in its log."""

START_SECONDS = 120.0
"""How long the JVM may take until it listens: two seconds are usual."""
STOP_SECONDS = 15.0
"""How long Spark may take to stop, and then the JVM to end, before it is made to."""


@contextmanager
def driver(settings: Mapping[str, str], folder: Path) -> Iterator[SparkContext]:
    """A driver with these settings for as long as the block. `folder` is ours alone, and outlives the block."""
    import pyspark

    asked = os.environ.get(LOG)
    log = Log(Path(asked) if asked else None)
    conf = pyspark.SparkConf(loadDefaults=False)
    conf.setAll([("spark.log.level", "WARN" if asked else "ERROR"), *settings.items()])
    changes = {
        "JAVA_HOME": str(java.home(folder)),
        "SPARK_HOME": str(_home(settings["spark.master"], folder)),
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    # Somebody may have used Spark in this process before: its idle JVM is neither ours to use nor to end.
    before = pyspark.SparkContext._gateway, pyspark.SparkContext._jvm
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None
    try:
        with environment(changes), _quiet(), _jvm(conf, log, folder) as gateway:
            try:
                # While the JVM is there: it has to tell what its errors are.
                with reported(settings["spark.master"]), _ended_by_itself(gateway.proc, log):
                    with same_handler(signal.SIGINT):  # PySpark's own does not do what it is for: see interrupt.py
                        context = pyspark.SparkContext(conf=conf, gateway=gateway)
                    # It would print a traceback if the JVM went away, which whoever waits for that JVM notices too.
                    context._accumulatorServer.handle_error = _ignore  # type: ignore[method-assign]
                    yield context
            finally:
                _stop(gateway)
    finally:
        pyspark.SparkContext._gateway, pyspark.SparkContext._jvm = before


def _home(master: str, folder: Path) -> Path:
    """Where Spark finds itself: an installation elsewhere may be of another version. Executors that it starts as
    processes on this machine work in a folder there, which must be one that goes away."""
    import pyspark

    package = Path(pyspark.__file__).parent
    if not master.startswith("local-cluster"):
        return package
    home = folder / "spark"
    home.mkdir()
    for part in package.iterdir():
        (home / part.name).symlink_to(part)
    return home


@contextmanager
def _jvm(conf: SparkConf, log: Log, folder: Path) -> Iterator[JavaGateway]:
    """A JVM for as long as the block. PySpark could start it too, but leaves it behind if it is interrupted then."""
    from pyspark.java_gateway import launch_gateway

    announced = folder / "gateway"
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-submit"]
    shown = [(key, value) for key, value in conf.getAll() if not SECRET.search(key)]  # the context gets the rest
    command += [word for key, value in shown for word in ("--conf", f"{key}={value}")]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    env = {**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(announced)}
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    try:
        # A session of its own: Ctrl-C is for us, who then ask Spark to cancel.
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=same, env=env, start_new_session=True)
    except OSError as error:
        raise UserError(f"Spark does not start: {error.filename}: {error.strerror}") from None
    try:
        assert process.stdout is not None
        log.follow(process.stdout)
        port, secret = _await_gateway(process, announced, log)
        with environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
        gateway.proc = process  # as PySpark has it
        yield gateway
    finally:
        _reap(process, patient=announced.exists())
        log.close()


def _await_gateway(process: subprocess.Popen[bytes], announced: Path, log: Log) -> tuple[int, str]:
    """Wait for the file in which the JVM says where it listens."""
    until = time.monotonic() + START_SECONDS
    while not announced.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise UserError(f"Spark does not start: {log.complaint() or 'it does not say why'}")
        time.sleep(0.02)
    said = announced.read_bytes()  # two numbers, of which the second is the length of what follows
    return int.from_bytes(said[:4], "big"), said[8:].decode()


def _stop(gateway: JavaGateway) -> None:
    """Stop the context, in a thread of its own: this thread's connection may have been interrupted."""
    import pyspark
    from pyspark.sql import SparkSession

    def stop() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "unable to cleanly shutdown": so the JVM is gone already
            if (session := SparkSession._instantiatedSession) is not None:
                session.stop()
            elif (context := pyspark.SparkContext._active_spark_context) is not None:
                context.stop()
        gateway.shutdown()

    try:
        aside(stop, STOP_SECONDS)
    finally:
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        pyspark.SparkContext._active_spark_context = None


def _reap(process: subprocess.Popen[bytes], patient: bool) -> None:
    """End the JVM, by and by with more force. Before it listens, it does not notice that its input has ended."""
    assert process.stdin is not None
    ways = [process.stdin.close, process.terminate, process.kill]
    for way in ways if patient else ways[1:]:
        way()
        try:
            process.wait(STOP_SECONDS)
            break
        except subprocess.TimeoutExpired:
            continue
    process.stdin.close()


@contextmanager
def _ended_by_itself(process: subprocess.Popen[bytes], log: Log) -> Iterator[None]:
    """If something goes wrong in the block because the JVM or the context is gone: the log may tell why it went."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if (code := _exit_code(process)) is not None:
            what = (
                f"Spark's JVM has ended (signal {-code})" if code < 0 else f"Spark's JVM has ended (exit code {code})"
            )
        elif "stopped SparkContext" in str(error):  # by a master that did not answer, or that did not want us any more
            what = "Spark has ended the session"
        else:
            raise
        raise UserError(": ".join(filter(None, (what, log.complaint())))) from error


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """None if it still runs."""
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        return None


def _ignore(request: object, client_address: object) -> None:
    pass


@contextmanager
def _quiet() -> Iterator[None]:
    """Py4J logs the traceback of every call that fails, or is interrupted, besides raising it."""

    def foreign(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root = logging.getLogger()
    root.addFilter(foreign)
    try:
        yield
    finally:
        root.removeFilter(foreign)


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """These variables are set, or with None unset, in the block."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
