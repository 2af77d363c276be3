"""Where jobs run: sessions in this process, on a real standalone cluster and at a real Spark Connect server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import coterie
from coterie.errors import UserError
from coterie.spark import connect
from coterie.spark.session import interruptible, parallelism, session
from spark.cluster import bare_python, connect_server, master_alone, wait_gone
from spark.script import Script, script

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SOURCE = str(Path(coterie.__file__).parents[1])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


# What cannot be


@pytest.mark.parametrize(
    "master",
    [
        "yarn-cluster",
        "k8s://",
        "k8s://host:port",
        "local[0]",
        "local[2",
        "spark://host",
        "spark://:7077",
        "host:7077",
        "http://host:7077",
        "sc:host",
    ],
)
def test_a_master_that_is_none_is_refused_with_the_forms_that_there_are(master: str) -> None:
    forms = r"--master .*: give local\[N\], spark://HOST:PORT, k8s://HOST:PORT, yarn or sc://HOST:PORT"
    with pytest.raises(UserError, match=forms), session("test", master):
        pass


@pytest.mark.parametrize("master", ["sc://", "sc://host:port", "sc://host/path"])
def test_a_spark_connect_address_that_is_none_is_refused(master: str) -> None:
    with pytest.raises(UserError, match=f"--master {master}: "), session("test", master):
        pass


@pytest.mark.parametrize("scheme", ["spark", "sc", "k8s", "k8s://http", "k8s://https"])
def test_where_nobody_listens_it_is_said_at_once(scheme: str) -> None:
    master = f"{scheme}://127.0.0.1:{free_port()}"
    began = time.monotonic()
    refused = rf"--master {master}: nobody is there \(.*connection refused\)"
    with pytest.raises(UserError, match=refused), session("test", master):
        pass
    assert time.monotonic() - began < 5


def test_a_server_that_does_not_speak_spark_connect_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "REACH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        master = f"sc://127.0.0.1:{mute.getsockname()[1]}/;token=secret"
        with pytest.raises(UserError, match="no Spark Connect server answers") as raised, session("test", master):
            pass
    assert "secret" not in str(raised.value)


ATTEMPT = """
import sys
from coterie.errors import UserError
from coterie.spark.session import session

try:
    with session("attempt", sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])):
        print("there is one")
except UserError as error:
    print(error)
"""


def test_without_pyspark_one_line_says_what_to_install() -> None:
    # No site folder: nothing but the standard library and this package.
    command = [sys.executable, "-S", "-c", ATTEMPT, "local"]
    done = subprocess.run(command, env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "this needs numpy, pandas, pyarrow, pyspark: pip install 'coterie[spark]'\n"
    assert done.stderr == ""


def test_without_grpc_one_line_says_what_to_install(tmp_path: Path) -> None:
    python = bare_python(tmp_path, without=("coterie", "grpc", "grpc_status"))
    done = subprocess.run(
        [python, "-c", ATTEMPT, "sc://127.0.0.1"],
        env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "this needs grpc, grpc_status: pip install 'coterie[connect]'\n"
    assert done.stderr == ""


def test_a_jvm_that_does_not_start_says_why_in_one_line(tmp_path: Path) -> None:
    with script(ATTEMPT, ["local", "spark.driver.memory=8000000g"], tmp_path) as attempt:
        code, lines = attempt.end()
        assert (code, len(lines)) == (0, 1)
        assert re.fullmatch(r"Spark does not start: .*\bheap\b.*", lines[0])
        assert attempt.errors() == ""


# In this process


def test_a_session_in_a_process_that_has_one_shares_its_context_and_leaves_it_running(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with session("inner", "local[*]", {"spark.sql.shuffle.partitions": "7"}) as inner:
        assert inner.sparkContext is spark.sparkContext
        assert inner.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.range(3).count() == 3
    with pytest.raises(UserError, match=r"works with Spark at local\[2\] already"), session("other", "spark://a:1"):
        pass


def test_parallelism_is_the_number_of_cores(spark: SparkSession) -> None:
    assert parallelism(spark) == 2


def test_an_error_in_a_task_is_the_last_line_of_its_traceback(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("the third wheel")

    with pytest.raises(UserError) as raised, session("fails") as inner:
        inner.range(0, 1, numPartitions=1).mapInArrow(fail, "id long").collect()
    assert str(raised.value) == "Spark at local[*]: ValueError: the third wheel"
    assert "Traceback" in raised.value.__notes__[0]


def test_what_a_task_tells_the_user_is_told_as_it_is(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise UserError("give another file")

    with pytest.raises(UserError) as raised, session("fails") as inner:
        inner.range(0, 1, numPartitions=1).mapInArrow(fail, "id long").collect()
    assert str(raised.value) == "Spark at local[*]: give another file"


def test_an_error_of_spark_itself_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised, session("fails") as inner:
        inner.read.parquet(str(tmp_path / "nowhere"))
    expected = f"Spark at local[*]: [PATH_NOT_FOUND] Path does not exist: file:{tmp_path}/nowhere."
    assert str(raised.value) == expected


def await_mark(mark: Path) -> int:
    """Wait for the file in which a task has written its process id."""
    until = time.monotonic() + 120
    while not mark.exists():
        assert time.monotonic() < until, "no task has begun"
        time.sleep(0.01)
    return int(mark.read_text())


def test_a_signal_cancels_the_job_and_the_session_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        taken = [*batches]  # Spark ends the Python of a cancelled task only if it waits for it: not while it feeds it
        fresh = mark.with_suffix(".new")
        fresh.write_text(str(os.getpid()))
        fresh.rename(mark)
        time.sleep(600)
        yield from taken

    def interrupt() -> None:
        await_mark(mark)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible(spark):
        spark.range(0, 1, numPartitions=1).mapInArrow(sleep, "id long").collect()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert spark.range(5).count() == 5
    assert not wait_gone([await_mark(mark)])


def test_an_error_leaves_an_interruptible_block_as_it_is_and_without_its_tag(spark: SparkSession) -> None:
    def tags() -> set[str]:
        return set(spark.sparkContext.getJobTags())

    def fail() -> None:
        inside.update(tags())
        raise ZeroDivisionError

    before, inside = tags(), set[str]()
    with pytest.raises(ZeroDivisionError), interruptible(spark):
        fail()
    assert len(inside - before) == 1
    assert tags() == before


# In processes of their own

PROGRAM = """
import os, sys
from pathlib import Path
from coterie.errors import UserError
from coterie.spark.session import interruptible, parallelism, session
from spark.cluster import FAST

master, folder = sys.argv[1], Path(sys.argv[2])

def where(batches):
    import pyarrow as pa
    import coterie.trace
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"where": [coterie.trace.__file__]})

def sleeper(mark):
    def sleep(batches):
        import os, time
        taken = [*batches]  # as above
        mark.with_suffix(".new").write_text(str(os.getpid()))
        mark.with_suffix(".new").rename(mark)
        time.sleep(600)
        yield from taken
    return sleep

def say(what):
    print(what, flush=True)

try:
    with session("program", master, FAST) as spark:
        say(0 if master.startswith("sc:") else spark.sparkContext._gateway.proc.pid)
        say(spark.range(0, 1, numPartitions=1).mapInArrow(where, "where string").collect()[0].where)
        say(parallelism(spark))
        try:
            with interruptible(spark):
                spark.range(0, 1, numPartitions=1).mapInArrow(sleeper(folder / "first"), "id long").collect()
        except KeyboardInterrupt:
            say("interrupted")
        say(spark.range(10).count())
        with interruptible(spark):
            spark.range(0, 1, numPartitions=1).mapInArrow(sleeper(folder / "second"), "id long").collect()
except KeyboardInterrupt:
    say("ended")
    sys.exit(130)
except UserError as error:
    say(error)
    sys.exit(2)
"""


def interrupted(program: Script, folder: Path) -> int:
    """Interrupt the program's first job, see that it is cancelled and that the session goes on into the second one.

    Returns the process id of the second one's task.
    """
    task = await_mark(folder / "first")
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "interrupted"
    assert program.line() == "10"
    assert not wait_gone([task])
    assert program.process.poll() is None
    return await_mark(folder / "second")


def submits(process: psutil.Process) -> bool:
    """Is it the JVM of a session, or about to become it?"""
    try:
        return any("SparkSubmit" in word for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_is_interrupted_or_killed_while_spark_starts_leaves_no_jvm_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    with script(PROGRAM, ["local[2]", str(tmp_path)], tmp_path / "program") as program:
        process = psutil.Process(program.process.pid)
        until = time.monotonic() + 60
        while not (started := [child for child in process.children() if submits(child)]):
            assert time.monotonic() < until, "no JVM was started"
            time.sleep(0.01)
        program.process.send_signal(number)
        assert program.end() == ((130, ["ended"]) if number == signal.SIGINT else (-signal.SIGKILL, []))
        assert program.errors() == ""
        assert not wait_gone([child.pid for child in started])
    if number == signal.SIGINT:
        assert not list(program.temporary.glob("coterie-*"))


FAILS = """
import sys
from coterie.errors import UserError
from coterie.spark.session import session
from spark.cluster import FAST

def fail(batches):
    raise ValueError("the third wheel")

try:
    with session("fails", "local[1]", FAST) as spark:
        spark.range(1).mapInArrow(fail, "id long").write.parquet(sys.argv[1])
except UserError as error:
    print(error)
"""


def test_an_error_that_ends_a_session_is_told_while_its_jvm_can_still_tell_it(tmp_path: Path) -> None:
    with script(FAILS, [str(tmp_path / "table")], tmp_path / "program") as program:
        assert program.end() == (0, ["Spark at local[1]: ValueError: the third wheel"])
        assert program.errors() == ""


def test_a_local_session_is_silent_and_leaves_nothing_behind_when_it_is_terminated(tmp_path: Path) -> None:
    with script(PROGRAM, ["local[2]", str(tmp_path)], tmp_path / "program") as program:
        jvm = int(program.line())
        assert program.line() == str(Path(coterie.__file__).parent / "trace.py")
        assert program.line() == "2"
        task = interrupted(program, tmp_path)
        program.process.send_signal(signal.SIGTERM)
        assert program.end() == (130, ["ended"])
        assert program.errors() == ""
    assert not wait_gone([jvm, task])
    assert not list(program.temporary.glob("coterie-*"))


HOLDS_SECRETS = """
import time
from coterie.spark.session import session
from spark.cluster import FAST

names = ("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.token")
with session("secrets", "local[1]", {**FAST, **{name: "hush-hush" for name in names}, "spark.mine": "told"}) as spark:
    context = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    print({hadoop.get(name.removeprefix("spark.hadoop.")) for name in names}, context.getConf().get("spark.mine"))
    print(context._gateway.proc.pid, flush=True)
    time.sleep(600)  # until it is ended
"""


def test_settings_that_are_secrets_are_used_and_are_on_no_command_line(tmp_path: Path) -> None:
    with script(HOLDS_SECRETS, [], tmp_path / "program") as program:
        assert program.line() == "{'hush-hush'} told"
        words = psutil.Process(int(program.line())).cmdline()
    assert any("spark.mine=told" in word for word in words)
    assert not any("hush-hush" in word for word in words)


def test_executors_apart_on_this_machine_get_the_package_and_end_with_the_session(tmp_path: Path) -> None:
    import pyspark

    before = {*Path(pyspark.__file__).parent.iterdir()}
    with script(PROGRAM, ["local-cluster[1,1,512]", str(tmp_path)], tmp_path / "program") as program:
        jvm = int(program.line())
        assert program.line().endswith("coterie.zip/coterie/trace.py")
        assert program.line() == "2"  # which is the least that Spark says
        task = interrupted(program, tmp_path)
        executors = [child.pid for child in psutil.Process(jvm).children(recursive=True)]
        assert task in executors
        program.process.send_signal(signal.SIGTERM)
        assert program.end() == (130, ["ended"])
    assert not wait_gone([jvm, *executors])
    assert not list(program.temporary.glob("coterie-*"))
    assert {*Path(pyspark.__file__).parent.iterdir()} == before


def test_a_cluster_gets_the_package_and_ends_the_job_with_its_driver(tmp_path: Path) -> None:
    """The executors run a Python that has everything installed but this package."""
    python = bare_python(tmp_path / "python")
    assert subprocess.run([python, "-c", "import coterie"], capture_output=True).returncode == 1
    with master_alone(tmp_path / "cluster") as cluster:
        see_that_a_cluster_without_workers_is_not_waited_for_for_ever(cluster.url, tmp_path / "attempt")
        cluster.add_workers(2)
        words, env = [cluster.url, str(tmp_path)], {"PYSPARK_PYTHON": str(python)}
        with script(PROGRAM, words, tmp_path / "program", env) as program:
            jvm = int(program.line())
            assert "coterie.zip" in program.line()
            assert program.line() == "2"
            task = interrupted(program, tmp_path)
            os.kill(jvm, signal.SIGKILL)
            assert program.end() == (2, ["Spark's JVM has ended (signal 9)"])
            assert program.errors() == ""
            assert not wait_gone([task])
            assert not list(program.temporary.glob("coterie-*"))


def see_that_a_cluster_without_workers_is_not_waited_for_for_ever(master: str, folder: Path) -> None:
    impatient = "import coterie.spark.session as s; s.EXECUTOR_SECONDS = 1.0\n" + ATTEMPT
    with script(impatient, [master, "spark.driver.host=127.0.0.1"], folder) as attempt:
        code, lines = attempt.end()
        assert (code, attempt.errors()) == (0, "")
    refused = "no worker took the job within 1 s; the cluster has none, or none that is free"
    assert lines == [f"--master {master}: {refused}"]


class Kubernetes:
    """As much of its API as a driver needs that wants executors: none of them ever runs."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        pods = self.pods

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._say({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})

            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if said["kind"] == "Pod":
                    pods.append(said)
                said["metadata"] |= {"uid": str(len(pods)), "resourceVersion": "1", "namespace": "default"}
                self._say(said, 201)

            def do_DELETE(self) -> None:
                self._say({"kind": "Status", "apiVersion": "v1", "status": "Success"})

            def _say(self, value: object, status: int = 200) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"k8s://http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_kubernetes_is_asked_for_executors_that_run_a_python_of_theirs(tmp_path: Path) -> None:
    kubernetes = Kubernetes()
    impatient = "import coterie.spark.session as s; s.CONTAINER_SECONDS = 5.0\n" + ATTEMPT
    settings = ["spark.driver.host=127.0.0.1", "spark.kubernetes.container.image=spark-py:4.3.0"]
    try:
        with script(impatient, [kubernetes.url, *settings], tmp_path / "attempt") as attempt:
            code, lines = attempt.end()
            assert (code, attempt.errors()) == (0, "")
    finally:
        kubernetes.stop()
    assert lines == [
        f"--master {kubernetes.url}: no worker took the job within 5 s; the cluster has none, or none that is free"
    ]
    assert {pod["spec"]["containers"][0]["image"] for pod in kubernetes.pods} == {"spark-py:4.3.0"}


def test_yarn_needs_to_be_told_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="--master yarn: set HADOOP_CONF_DIR or YARN_CONF_DIR"), session("test", "yarn"):
        pass


def test_a_spark_connect_server_gets_the_package_and_cancels_what_is_interrupted(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "python")
    with connect_server(tmp_path / "server", python) as master:
        with script(PROGRAM, [master, str(tmp_path)], tmp_path / "program") as program:
            assert program.line() == "0"
            assert "coterie.zip" in program.line()
            assert program.line() == "2"
            task = interrupted(program, tmp_path)
            program.process.send_signal(signal.SIGTERM)
            assert program.end() == (130, ["ended"])
            assert program.errors() == ""
        assert not wait_gone([task])  # the server is still there: it was told to
        assert not list(program.temporary.glob("coterie-*"))
