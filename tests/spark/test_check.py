"""Runs checked by Spark, whole and cut into parts by the keys of properties: both say what the plain checker says."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tracescript import Script, events, load

from coterie.audit import check as check_plainly
from coterie.audit import properties
from coterie.spark import check, ingest, parts
from coterie.spark.rows import columns_of
from coterie.spark.schema import EVENT_COLUMNS
from coterie.trace import Event
from spark.traces import FAULTS, Verdict, damaged, live, mark, plain, read, renamed, simulate, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = load(Path(__file__).parent.parent / "unit" / "testdata" / "traces")
BASES = ("vs-0", "total-0", "live")
CLEAN = ("channel-3", *BASES)
MODES = ("whole", "parts")
GOOD = "A start\n B view members=A,B start=A:1\n A view members=A,B\n A send n=1 to=all\n B deliver from=A n=1"


@dataclass
class Outcome:
    """What Spark says of one run."""

    verdict: Verdict
    causal: bool
    ignored: int
    cut: list[str]


@dataclass
class Examined:
    plain: dict[str, Verdict]
    ignored: int
    """As the plain checker counts them."""
    spark: dict[str, dict[str, Outcome]]
    """By mode and run."""
    marks: dict[str, list[tuple[str, int, str]]]
    """By run that was damaged: the events concerned."""


def by_node(folder: Path, trace: list[Event]) -> None:
    """A file for each node, as real ones write them."""
    for node in {event.node for event in trace}:
        write(folder / f"{node}.jsonl", [event for event in trace if event.node == node])


def odd_runs(folder: Path) -> None:
    """Runs that are not as they should be: holes, copies, contradictions, several files."""
    trace = events(GOOD)
    many = renamed(trace, "many-files")
    write(folder / "many-1.jsonl", [*renamed(trace, "shares-a-file"), *many[:2]])
    write(folder / "many-2.jsonl", many[2:])
    write(folder / "copy-1.jsonl", renamed(trace, "copied"))
    write(folder / "copy-2.jsonl", renamed(trace, "copied"))
    write(folder / "hole.jsonl", [event for event in renamed(trace, "hole") if (event.node, event.n) != ("A", 1)])
    write(
        folder / "headless.jsonl", [event for event in renamed(trace, "headless") if (event.node, event.n) != ("A", 0)]
    )
    other = renamed(trace, "contradiction")
    write(folder / "contradiction.jsonl", [*other, replace(other[3], sum=77)])
    mixed = renamed(trace, "mixed")
    write(folder / "mixed.jsonl", [*mixed[::2], *mixed[1::2]])
    write(folder / "real.jsonl", renamed(events("real\n A start\n B start\n A stop"), "real"))
    twice = renamed(events(f"{GOOD}\n A send n=2 to=all\n B deliver from=A n=2\n B deliver from=A n=2"), "twice")
    write(folder / "twice-1.jsonl", twice)
    write(folder / "twice-2.jsonl", twice[:4])


def examine(spark: SparkSession, folder: Path, work: Path, whole_max: int) -> dict[str, Outcome]:
    judged = check.judge(spark, ingest.find([str(folder)]), work, whole_max)
    rows = judged.checked.collect()
    judged.close()
    found = {
        row["run"]: Outcome([], row["causal"], row["ignored"], sorted(row["cut"]))
        for row in rows
        if not row["property"]
    }
    for row in rows:
        if row["property"]:
            found[row["run"]].verdict.append((row["property"], row["text"], tuple(row["proof"])))
    for outcome in found.values():
        outcome.verdict.sort()
    return found


@pytest.fixture(scope="module")
def examined(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """One folder with everything in it, checked three times."""
    home = tmp_path_factory.mktemp("check")
    folder = home / "traces"
    simulate(folder)
    live(folder / "live")
    marks = {}
    for base in BASES:
        files = sorted((folder / "live").glob("*.jsonl")) if base == "live" else [folder / f"{base}.jsonl"]
        trace = [event for file in files for event in read(file)]
        for name, (fault, _) in FAULTS.items():
            run = f"{base}-{name}"
            changed, marks[run] = damaged(trace, run, fault)
            if base == "live":
                by_node(folder / run, changed)
            else:
                write(folder / f"{run}.jsonl", changed)
    for script in SCRIPTS:
        write(folder / "scripts" / f"{script.name}.jsonl", renamed(script.events, f"script {script.name}"))
    odd_runs(folder / "odd")
    said, reading = plain(folder)
    limits = {"whole": check.WHOLE_MAX, "parts": 1}
    found = {mode: examine(spark, folder, home / mode, limit) for mode, limit in limits.items()}
    return Examined(said, reading.ignored, found, marks)


@pytest.mark.parametrize("mode", MODES)
def test_every_run_gets_the_verdict_of_the_plain_checker(examined: Examined, mode: str) -> None:
    assert {run: outcome.verdict for run, outcome in examined.spark[mode].items()} == examined.plain
    assert sum(outcome.ignored for outcome in examined.spark[mode].values()) == examined.ignored


@pytest.mark.parametrize("mode", MODES)
def test_runs_of_real_processes_and_of_the_simulator_are_clean(examined: Examined, mode: str) -> None:
    for run in CLEAN:
        outcome = examined.spark[mode][run]
        assert outcome.verdict == []
        assert outcome.causal == (run != "live")
        assert outcome.cut == (["cy#1"] if run == "live" else [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("base", BASES)
def test_one_thing_that_went_wrong_is_found_by_its_property_and_proven(
    examined: Examined, base: str, fault: str, mode: str
) -> None:
    run, name = f"{base}-{fault}", FAULTS[fault][1]
    proofs = [{mark(line) for line in proof} for found, _, proof in examined.spark[mode][run].verdict if found == name]
    assert any(proof.issuperset(examined.marks[run]) for proof in proofs), proofs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", BASES)
def test_a_message_that_one_of_two_did_not_get_breaks_virtual_synchrony(
    examined: Examined, base: str, mode: str
) -> None:
    assert "G6" in {name for name, _, _ in examined.spark[mode][f"{base}-dropped"].verdict}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_hand_written_traces_give_what_they_expect(examined: Examined, script: Script, mode: str) -> None:
    found = examined.spark[mode][f"script {script.name}"].verdict
    assert sorted(f"{name}: {text}" for name, text, _ in found) == sorted(script.expected)


@pytest.mark.parametrize("mode", MODES)
def test_how_a_run_was_read_is_told(examined: Examined, mode: str) -> None:
    read = {run: (o.causal, o.ignored, o.cut) for run, o in examined.spark[mode].items() if " " not in run}
    assert read["shares-a-file"] == (True, 0, [])
    assert read["many-files"] == (False, 0, [])
    assert read["copied"] == (False, 5, [])
    assert read["hole"] == (False, 1, ["A#1"])
    assert read["headless"] == (False, 2, ["A#1"])
    assert read["contradiction"] == (False, 2, ["A#1"])
    assert read["mixed"] == (False, 0, [])
    assert read["real"] == (False, 0, ["B#1"])
    assert read["twice"] == (False, 4, [])


def test_properties_that_are_split_alike_share_their_events() -> None:
    shared = parts.splits()
    assert len(shared) < len({fold.split_by for fold in properties()}) < len(properties())
    for fold in properties():
        (kinds,) = (kinds for split, kinds in shared if split == parts.part_of(fold))
        assert kinds.issuperset(fold.kinds)


@pytest.mark.parametrize("causal", [True, False])
def test_the_chunks_of_a_part_may_overlap(tmp_path: Path, causal: bool) -> None:
    simulate(tmp_path)
    trace, _ = damaged(read(tmp_path / "vs-0.jsonl"), "run", FAULTS["altered"][0])
    order = trace if causal else sorted(trace, key=lambda event: (event.node, event.inc, event.n))
    expected = sorted(map(str, check_plainly(order, properties(causal))))
    columns = [*columns_of(order), pa.array(range(len(order)))]
    table = pa.RecordBatch.from_arrays(columns, names=[*EVENT_COLUMNS, "place"])
    rows = [*range(len(order))]
    random.Random(1).shuffle(rows)
    batches = [table.take(pa.array(sorted(rows[at::5]))) for at in range(5)] + [table.slice(10, 20)]
    chunks = [
        {**chunk, "kept": len(order)}
        for batch in batches
        for found in parts.chunked(batch, {"run": causal}, [parts.bucket_of(split) for split, _ in parts.splits()])
        for chunk in found.to_pylist()
    ]
    found = []
    for number in sorted({chunk["part"] for chunk in chunks}):
        part = parts.Part("run", number, causal)
        mine = [chunk for chunk in chunks if chunk["part"] == number]
        for chunk in sorted(mine, key=lambda chunk: (chunk["node"] or "", chunk["inc"] or 0, chunk["at"])):
            part.take(chunk)
        found += part.finish()
    assert sorted(map(str, found)) == expected
    assert any(line.startswith("G3") for line in expected)
