"""Campaigns: real Spark, real simulated runs, in a folder that survives whatever happens."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import coterie
from coterie import __version__
from coterie.cli import main
from coterie.errors import CoterieError
from coterie.sim.runner import Campaign, campaign
from coterie.spark.campaign import Job, missing
from coterie.spark.campaign_folder import Asked, Folder
from coterie.spark.campaign_report import write
from coterie.spark.campaign_rows import outcome_batch
from coterie.spark.campaign_runs import NO_CODE, Outcome, code_files, fingerprint
from coterie.spark.campaign_task import Hunt
from coterie.spark.campaign_totals import add_up
from coterie.trace import Event
from spark.cluster import connect_server, standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = 12
LONG = 48
"""Seeds of a campaign in which something can be met in the middle of its runs, on a busy machine too."""
MUTATION = "nakack-delivers-duplicates"
LIMIT = 240.0
"""Seconds that a campaign in a process of its own may take, on a busy machine."""

IMPORTS = 1.0
"""CPU seconds after which a process that runs seeds has imported everything, and is in the middle of a run."""

Answer = dict[str, Any]


@pytest.fixture(scope="module")
def plain() -> Campaign:
    """The same seeds without Spark."""
    return campaign("channel", range(SEEDS), jobs=2)


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """JVMs that start rather than run fast."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:-UsePerfData")


def words(out: Path, *more: str, seeds: int = SEEDS) -> list[str]:
    return ["campaign", "--profile", "channel", "--seeds", str(seeds), "--out", str(out), *more]


def run(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 0) -> Answer:
    assert main([*argv, "--json"]) == code
    answer: Answer = json.loads(capsys.readouterr().out)
    return answer


def counts(answer: Answer) -> Answer:
    """What `coterie sim run --json` says, too."""
    keys = (
        "profile",
        "runs",
        "events",
        "sim_seconds",
        "faults",
        "rules",
        "unreached_rules",
        "violations",
        "failing_seeds",
    )
    return {key: answer[key] for key in keys}


def seeds_in(out: Path) -> list[int]:
    return sorted(seed for path in (out / "runs").iterdir() for seed in pq.read_table(path).column("seed").to_pylist())


def asked_for(out: Path, seeds: int = 1, profile: str = "channel", mark: str | None = None) -> Asked:
    return Asked(profile, 0, seeds, None, __version__, mark or fingerprint())


def await_runs(out: Path, process: subprocess.Popen[str]) -> None:
    """Until the first outcomes are in the folder."""
    until = time.monotonic() + LIMIT
    while not list((out / "runs").glob("*.parquet")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def start(argv: list[str]) -> subprocess.Popen[str]:
    """As from a terminal: a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def runners(used: float = 0.0) -> list[psutil.Process]:
    """The processes below this one that run seeds and have used that much CPU time."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if "coterie.spark.campaign_runs" in each.cmdline() and each.cpu_times().user >= used:
                found.append(each)
        except psutil.NoSuchProcess:
            pass
    return found


def outcome(seed: int) -> pa.Table:
    """A run that failed, as a task tells of it."""
    trace = zlib.compress(Event(f"channel-{seed}", "n1", 1, 0, 0.0, "start").to_json().encode() + b"\n")
    failed = Outcome(seed, violations=[("G1", "so it is")], violation_count=1, plan="{}", trace=trace)
    return pa.Table.from_batches([outcome_batch([failed])])


# What it finds.


def test_a_campaign_counts_what_plain_runs_of_the_same_seeds_count(
    spark: SparkSession, plain: Campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, words(tmp_path / "c"))
    assert counts(answer) == counts(plain.to_json())
    assert answer["complete"]
    assert json.loads((tmp_path / "c" / "summary.json").read_text()) == answer
    assert seeds_in(tmp_path / "c") == list(range(SEEDS))


def test_rules_that_no_run_reached_stand_in_the_report_and_in_the_answer(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path / "c", seeds=1)) == 0
    told = capsys.readouterr().out
    answer = run(capsys, words(tmp_path / "c", seeds=1))
    page = Path(answer["report"]).read_text()
    assert "udp.replayed" in answer["unreached_rules"]
    assert "never reached: " in told
    never = page[page.index("Never reached") :]
    for rule in answer["unreached_rules"]:
        assert rule in told
        assert rule in never[: never.index("</p>")]
        assert f"<code>{rule}</code></th><td>never</td>" in page.replace(' class="n"', "")


def test_failing_seeds_come_first_with_traces_that_are_guilty_and_commands_that_work(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    assert main(words(out, "--mutate", MUTATION, seeds=4)) == 1
    told = capsys.readouterr().out.splitlines()
    answer = run(capsys, words(out, "--mutate", MUTATION, seeds=4), code=1)
    first = min(answer["failing_seeds"])
    assert answer["failing_seeds"] == sorted(answer["failing_seeds"])
    assert told[0].startswith(f"seed {first}: ")
    assert {failure["seed"] for failure in answer["failures"]} == set(answer["failing_seeds"])

    trace = out / "failures" / f"channel-{first}.jsonl"
    assert main(["check", str(trace), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["violations"] > 0
    page = (out / "report.html").read_text()
    assert page.index(f"Seed {first}:") < page.index('id="rules"')
    assert f"failures/channel-{first}.html" in page
    assert (out / "failures" / f"channel-{first}.html").exists()

    replay = told[1].strip()
    assert replay in page
    again = subprocess.run(
        [sys.executable, "-m", *shlex.split(replay), "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LIMIT,
    )
    assert again.returncode == 1, again.stderr
    found = [failure for failure in answer["failures"] if failure["seed"] == first]
    assert json.loads(again.stdout)["failures"][: len(found)] == [
        {"property": failure["property"], "text": failure["text"]} for failure in found
    ]


def test_a_campaign_can_end_with_the_first_failures(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    answer = run(capsys, words(out, "--mutate", MUTATION, "--stop-after", "1", seeds=1000), code=1)
    assert answer["failing_runs"] >= 1
    assert answer["runs"] < 100
    assert not answer["complete"]


def test_a_mutation_is_caught_or_has_survived_and_survivors_come_first(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hunts = [
        Hunt("nakack-skips-holes", "G8", (0, 1, 2)),
        Hunt("stable-anybody", "G1", (0, 1)),  # another property than the one that is there for it
    ]
    with Folder(tmp_path / "c") as folder:
        folder.begin(asked_for(tmp_path))
        state = Job(spark, folder, asked_for(tmp_path), hunts).run(threading.Event())
    assert (state.done, state.hunts) == (1, 0)
    answer = run(capsys, words(tmp_path / "c", seeds=1), code=1)
    survivor, caught = answer["mutations"]
    assert answer["survived"] == ["stable-anybody"]
    assert (survivor["caught"], survivor["runs"]) == (None, 2)
    assert "G14" in survivor["others"]
    assert (caught["name"], caught["caught"], caught["runs"]) == ("nakack-skips-holes", 0, 1)
    page = (tmp_path / "c" / "report.html").read_text()
    assert "1 mutation survived" in page
    assert page.index("stable-anybody") < page.index("nakack-skips-holes")


# What it survives.


def test_an_interrupted_campaign_goes_on_as_if_it_had_not_been(
    spark: SparkSession, plain: Campaign, quick_java: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    process = start(words(out, "--master", "local[2]", "--json"))
    await_runs(out, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    told, complaints = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, complaints
    assert "Traceback" not in complaints
    assert "the same command goes on: coterie campaign --profile channel" in complaints
    _, alive = psutil.wait_procs(family, 30)
    assert not alive

    before = seeds_in(out)
    assert 0 < len(before) < SEEDS
    assert json.loads(told)["runs"] == len(before)
    answer = run(capsys, words(out))
    assert seeds_in(out) == list(range(SEEDS))
    assert counts(answer) == counts(plain.to_json())


def test_a_campaign_survives_the_death_of_the_processes_that_run_it(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for idle in runners():  # left by other campaigns
        idle.kill()
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        """A process in the middle of its runs; then the Spark worker that started another one."""
        while not over.is_set() and len(killed) < 2:
            for each in runners(IMPORTS):
                victim = each.parent() if killed else each
                if each.pid not in killed and victim is not None:
                    victim.kill()
                    killed.append(victim.pid)
                    break
            over.wait(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        answer = run(capsys, words(tmp_path / "c", seeds=LONG))
    finally:
        over.set()
        killer.join()
    assert len(killed) == 2
    assert counts(answer) == counts(campaign("channel", range(LONG), jobs=2).to_json())
    assert seeds_in(tmp_path / "c") == list(range(LONG))


def test_a_run_that_does_not_end_is_a_failing_seed_and_holds_up_nobody(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(capsys, words(tmp_path / "c", "--run-limit", "0.01", seeds=3), code=1)
    assert answer["runs"] == 3
    assert answer["failing_seeds"] == [0, 1, 2]
    assert answer["failures"][0]["property"] == "timeout"
    assert (tmp_path / "c" / "failures" / "channel-0.plan.json").exists()


def test_a_job_that_always_fails_is_given_up_and_named(spark: SparkSession, tmp_path: Path) -> None:
    asked = asked_for(tmp_path, profile="nonsense")
    with Folder(tmp_path / "c") as folder:
        folder.begin(asked)
        state = Job(spark, folder, asked).run(threading.Event())
    ((what, reason),) = state.given_up
    assert what == "seed 0"
    assert "there is no profile 'nonsense'" in reason


def test_executors_with_other_code_end_the_campaign(spark: SparkSession, tmp_path: Path) -> None:
    asked = asked_for(tmp_path, mark="another")
    with Folder(tmp_path / "c") as folder:
        folder.begin(asked)
        with pytest.raises(CoterieError, match="is not the campaign's"):
            Job(spark, folder, asked).run(threading.Event())


def test_the_fingerprint_covers_all_that_a_run_imports() -> None:
    script = (
        "import sys; from coterie.sim.profiles import PROFILES; from coterie.sim.runner import run_plan\n"
        "for found in PROFILES.values(): run_plan(found.make(0))\n"
        "print(*(m.__file__ for name, m in sys.modules.items() if name.startswith('coterie.')), sep='\\n')"
    )
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=True)
    home = Path(coterie.__file__).parent
    imported = {Path(line).relative_to(home).as_posix() for line in listed.stdout.splitlines()}
    covered = {file.as_posix() for file in code_files(home)}
    assert "group/protocols/gms/gms.py" in imported
    assert imported - covered <= {*NO_CODE, "logs.py", "runtime/__init__.py"}


# What goes wrong before it begins.


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A folder with a campaign of the seeds from 0 to 9."""
    with Folder(tmp_path / "held") as folder:
        folder.begin(asked_for(tmp_path, 10))
    return tmp_path / "held"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--profile", "chanel"], "there is no profile 'chanel'"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--first-seed", "-1"], "--first-seed must be at least 0"),
        (["--stop-after", "0"], "--stop-after must be at least 1"),
        (["--run-limit", "0"], "--run-limit must be more than 0"),
        (["--mutate", "nonsense"], "there is no mutation 'nonsense'"),
        (["--profile", "vs"], "holds a campaign of profile channel, not vs"),
        (["--mutate", MUTATION], f"holds a campaign of no mutation, not of mutation {MUTATION}"),
        (["--seeds", "9"], "holds a campaign of seeds 0 to 9"),
        (["--first-seed", "5", "--seeds", "100"], "holds a campaign of seeds 0 to 9"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_change(
    held: Path, more: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (held / "campaign.json").read_text()
    assert main([*words(held, seeds=10), *more]) == 2
    output = capsys.readouterr()
    assert complaint in output.err
    assert output.err.count("\n") == 1
    assert not output.out
    assert (held / "campaign.json").read_text() == before


def test_a_folder_of_other_code_is_refused_unless_one_insists(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Folder(tmp_path / "c") as folder:
        folder.begin(asked_for(tmp_path, mark="another"))
    assert main(words(tmp_path / "c", seeds=1)) == 2
    assert "--resume-anyway" in capsys.readouterr().err
    answer = run(capsys, words(tmp_path / "c", "--resume-anyway", seeds=1))
    assert answer["runs"] == 1
    assert answer["earlier_code"] == ["another"]
    assert "another" in Path(answer["report"]).read_text()


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.part").write_text("all of it")
    assert main(words(tmp_path)) == 2
    assert "holds 'thesis.part' and no campaign" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.part"]
    assert main(words(tmp_path / "thesis.part")) == 2
    assert "coterie: --out" in capsys.readouterr().err


def test_two_campaigns_never_share_a_folder(held: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Folder(held):
        assert main(words(held, seeds=10)) == 2
    assert "another campaign is at work there" in capsys.readouterr().err


def test_what_a_killed_campaign_left_half_written_is_not_taken_for_done(held: Path) -> None:
    (held / "runs" / "0-3.parquet.part").write_bytes(b"PAR1")
    with Folder(held) as folder:
        assert folder.done() == []
    assert not list((held / "runs").iterdir())


def test_seeds_that_are_missing_are_found_between_those_that_are_done() -> None:
    assert missing(0, 10, []) == [(0, 10)]
    assert missing(0, 10, [(0, 10)]) == []
    assert missing(0, 10, [(2, 4), (4, 5), (8, 20)]) == [(0, 2), (5, 8)]
    assert missing(5, 10, [(0, 3), (6, 7)]) == [(5, 6), (7, 10)]


def test_a_campaign_that_is_done_needs_no_spark_to_say_so_again(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(capsys, words(tmp_path / "c", seeds=2))
    again = run(capsys, words(tmp_path / "c", "--master", "nowhere", seeds=2))
    assert again == first
    assert main(words(tmp_path / "c", "--master", "nowhere", seeds=3)) == 2


def test_only_the_traces_of_the_smallest_failing_seeds_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.spark.campaign_folder.TRACES_MAX", 2)
    asked = asked_for(tmp_path, 10)
    with Folder(tmp_path / "c") as folder:
        folder.begin(asked)
        for seed in (7, 3, 9, 1):
            folder.add_runs(outcome(seed))
        write(folder, add_up(asked, folder))
    assert sorted(path.name for path in (tmp_path / "c" / "failures").glob("*.jsonl")) == [
        "channel-1.jsonl",
        "channel-3.jsonl",
    ]
    assert not list((tmp_path / "c" / "failures").glob("channel-[79]*"))


# Elsewhere.


def test_a_campaign_on_a_cluster_survives_an_executor_that_dies(
    plain: Campaign, quick_java: None, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    with standalone(tmp_path / "cluster") as master:
        process = start(words(out, "--master", master, "--json"))
        await_runs(out, process)
        executors = [each for each in psutil.process_iter(["cmdline"]) if _is_executor_of(each, tmp_path)]
        assert executors
        executors[0].kill()
        told, complaints = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, complaints
    assert counts(json.loads(told)) == counts(plain.to_json())


def _is_executor_of(process: psutil.Process, folder: Path) -> bool:
    line = process.info["cmdline"] or []
    return any("CoarseGrainedExecutorBackend" in word for word in line) and str(folder) in str(_cwd(process))


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""


def test_a_campaign_runs_through_spark_connect_with_a_mutation_too(quick_java: None, tmp_path: Path) -> None:
    with connect_server(tmp_path / "server") as master:
        process = start(words(tmp_path / "c", "--master", master, "--mutate", MUTATION, "--json", seeds=2))
        told, complaints = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, complaints
    answer = json.loads(told)
    assert answer["runs"] == 2
    assert answer["failing_seeds"] == [0, 1]
