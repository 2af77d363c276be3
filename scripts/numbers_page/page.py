"""Puts the page together: `python scripts/bench.py --again` does it again from what was measured last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from numbers_page import brokers, corosync, groups, pipeline
from numbers_page.figures import NO, YES, Row

RUN = "bench-run.json"
Section = Callable[[Row], Iterator[str]]
CHAPTERS: dict[str, dict[str, Section]] = {
    "": {"broker": brokers.section},
    "## Group": {
        "group": groups.group, "corosync": corosync.section, "unicast": groups.unicast, "views": groups.views,
        "state": groups.state,
    },
    "## Spark": {"spark": pipeline.spark, "audit": pipeline.audit},
}  # fmt: skip
PICTURES = {
    "broker": {"throughput": "Throughput of brokers", "latency": "Latency of brokers"},
    "corosync": {"corosync": "Total order beside corosync"},
    "group": {"group": "Messages delivered in groups"},
}


def read(folder: Path) -> tuple[Row, dict[str, Row]]:
    """What was run, and the results of its parts."""
    run: Row = json.loads((folder / RUN).read_text(encoding="utf-8"))
    results = {
        name: json.loads((folder / part["file"]).read_text(encoding="utf-8")) for name, part in run["parts"].items()
    }
    return run, results


def write(run: Row, results: Mapping[str, Row], page: Path) -> list[Path]:
    """The page, and its plots in the folder `img` beside it; the files."""
    plots = {
        **(brokers.plots(results["broker"]) if "broker" in results else {}),
        **groups.plots(results),
        **(corosync.plots(results["corosync"]) if "corosync" in results else {}),
    }
    images = page.parent / "img"
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob("numbers-*.svg"):
        old.unlink()
    files = {images / f"numbers-{name}.svg": text for name, text in plots.items()}
    files[page] = "\n".join(_lines(run, results, plots)) + "\n"
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return [*files]


def _lines(run: Row, results: Mapping[str, Row], plots: Mapping[str, str]) -> Iterator[str]:
    measured = [*_chapters(run, results, plots)]
    yield from _head(run)
    if measured:
        yield from (_tally(measured), "")
    yield from measured
    yield from _text("how.md")


def _tally(lines: Sequence[str]) -> str:
    """Of all tables: the goals that were met, and those that were not."""
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.strip("|").split("|")]
    met, missed = (sum(cell.partition(",")[0] == word for cell in cells) for word in (YES, NO))
    return f"Goals met: {met} of {met + missed}, with both ways of dispatch counted."


def _chapters(run: Row, results: Mapping[str, Row], plots: Mapping[str, str]) -> Iterator[str]:
    for title, parts in CHAPTERS.items():
        if title and any(part in results for part in parts):
            yield from (title, "")
        for part, section in parts.items():
            if part not in results:
                continue
            yield from section(results[part])
            for name, text in PICTURES.get(part, {}).items():
                if name in plots:
                    yield from (f"![{text}](img/numbers-{name}.svg)", "")
            yield from _command(run["parts"][part])


def _text(name: str) -> list[str]:
    """What is the same whatever was measured."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").strip().splitlines()


def _command(part: Row) -> Iterator[str]:
    yield from ("```", *part["commands"], "```", "", f"That took {_minutes(part['seconds'])}.", "")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _head(run: Row) -> Iterator[str]:
    machine = run["machine"]
    yield from ("# Numbers", "", "<!-- Written by scripts/bench.py, from what `make bench` measured. -->", "")
    yield from _text("head.md")
    if not run["parts"]:
        yield from ("", "Nothing has been measured yet: `make bench` does it, and writes this page.", "")
        return
    yield from ("", f"This page: `{run['command']}`, {run['date']}, {_minutes(run['seconds'])} in all.", "")
    if run["quick"]:
        yield from ("**A quick run, to see that everything works: its figures mean nothing.**", "")
    yield from ("| | |", "|---|---|")
    for label, value in machine.items():
        yield f"| {label} | {value} |"
    for name, peer in run["peers"].items():
        yield f"| {name} | {peer} |"
    yield ""
