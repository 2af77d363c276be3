"""The folder of a campaign: what was asked, what is done, and the traces of what failed.

    campaign.json             what was asked, and of which code
    runs/A-B.parquet          the outcomes of the seeds from A to B, both included
    mutations/NAME.parquet    where a mutation was caught
    failures/P-SEED.*         .jsonl trace, .plan.json plan and .html diagram of a failing run
    summary.json, report.html what came of it

A file appears under its name only when it is complete; so whatever is there is done, and a campaign that was stopped at
any moment goes on from what it finds. Two campaigns never share a folder.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from coterie.errors import UserError
from coterie.sim import mutations

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
TRACES_MAX = 100
"""Failing runs whose traces are kept: those with the smallest seeds. The others can be had from their seeds."""


@dataclass(slots=True)
class Asked:
    """What a campaign is to run."""

    profile: str
    first_seed: int
    seeds: int
    mutation: str | None
    version: str
    fingerprint: str
    """Of the code (campaign_runs.fingerprint)."""
    change: str = ""
    """Of the mutation (change_of)."""
    earlier: list[str] = field(default_factory=list)
    """Fingerprints of other code that made some of the runs, if somebody went on anyway."""
    format: int = FORMAT

    @property
    def end(self) -> int:
        return self.first_seed + self.seeds

    def mutate_words(self) -> str:
        return f" --mutate {self.mutation}" if self.mutation else ""


_OURS = ("campaign.json.part", "failures", "lock", "mutations", "runs")
"""What is there before campaign.json is."""


class Folder:
    """The folder, open for one campaign at a time. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs, self.mutations, self.failures = path / "runs", path / "mutations", path / "failures"
        self._lock: TextIO | None = None

    def __enter__(self) -> Folder:
        try:
            self._look()
            for folder in (self.path, self.runs, self.mutations, self.failures):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise UserError(f"--out {self.path}: another campaign is at work there") from None
        except OSError as error:
            raise UserError(f"--out {self.path}: {error.strerror or error}") from None
        for folder in (self.path, self.runs, self.mutations, self.failures):
            for left in folder.glob("*.part"):  # a campaign was killed while it wrote this
                left.unlink()
        return self

    def _look(self) -> None:
        """Raises UserError if the folder is somebody else's."""
        if self.path.is_dir() and not (self.path / "campaign.json").exists():
            for path in self.path.iterdir():
                if path.name not in _OURS:
                    raise UserError(f"--out {self.path}: holds '{path.name}' and no campaign; choose another folder")

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    # What was asked.

    def begin(self, asked: Asked, anyway: bool = False) -> None:
        """Note what is asked, or compare it with what was asked before. Raises UserError if they do not fit."""
        before = self.asked()
        if before is not None:
            self._compare(before, asked, anyway)
            others = [*before.earlier, before.fingerprint]
            asked.earlier = [other for other in dict.fromkeys(others) if other != asked.fingerprint]
        self.write("campaign.json", json.dumps(asdict(asked), indent=2) + "\n")

    def asked(self) -> Asked | None:
        try:
            text = (self.path / "campaign.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            if any(self.runs.iterdir()):
                raise UserError(f"--out {self.path}: has runs but no campaign.json; choose another folder") from None
            return None
        try:
            raw = json.loads(text)
            if raw.get("format") != FORMAT:
                raise ValueError
            return Asked(**raw)
        except (ValueError, TypeError, AttributeError):
            raise UserError(
                f"--out {self.path}: its campaign.json is of another version; choose another folder"
            ) from None

    def _compare(self, before: Asked, asked: Asked, anyway: bool) -> None:
        where = f"--out {self.path}: holds a campaign of"
        if before.profile != asked.profile:
            raise UserError(f"{where} profile {before.profile}, not {asked.profile}; choose another folder")
        if before.mutation != asked.mutation:
            held, wanted = (f"mutation {name}" if name else "no mutation" for name in (before.mutation, asked.mutation))
            raise UserError(f"{where} {held}, not of {wanted}; choose another folder")
        if before.change != asked.change:
            raise UserError(f"{where} mutation {asked.mutation}, which was another change then; choose another folder")
        if asked.first_seed > before.first_seed or asked.end < before.end:
            raise UserError(
                f"{where} seeds {before.first_seed} to {before.end - 1}: ask for these, and more if you like, "
                "or choose another folder"
            )
        if before.fingerprint != asked.fingerprint and not anyway:
            raise UserError(
                f"{where} other code (version {before.version}, {before.fingerprint}; this is {asked.version}, "
                f"{asked.fingerprint}): choose another folder, or go on with --resume-anyway"
            )

    # What is done.

    def done(self) -> list[tuple[int, int]]:
        """Ranges of seeds that are done, first and end, in their order; each seed once."""
        ranges = sorted(_range(path) for path in self.runs.glob("*.parquet"))
        for (_, end), (first, _) in itertools.pairwise(ranges):
            if first < end:
                raise UserError(f"--out {self.path}: seed {first} is in runs/ twice; remove one of its files")
        return ranges

    def tables(self) -> Iterator[pa.Table]:
        """The outcomes, a piece at a time, in the order of their seeds."""
        import pyarrow.parquet as pq

        for first, end in self.done():
            yield pq.read_table(self.runs / f"{first}-{end - 1}.parquet")

    def add_runs(self, outcomes: pa.Table) -> None:
        """Keep the outcomes of a range of seeds, and the traces of those that failed."""
        seeds = outcomes.column("seed").to_pylist()
        for row in outcomes.filter(failing(outcomes)).select(["seed", "plan", "trace"]).to_pylist():
            self._add_failure(row["seed"], row["plan"], row["trace"])
        self._parquet(self.runs / f"{seeds[0]}-{seeds[-1]}.parquet", outcomes.drop_columns(["plan", "trace"]))

    def mutation_file(self, name: str) -> Path:
        """Where it says how a mutation fared, as it is now."""
        return self.mutations / f"{name}-{change_of(name)}.parquet"

    def add_mutation(self, name: str, row: pa.Table) -> None:
        self._parquet(self.mutation_file(name), row)

    def mutation_tables(self) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq

        for mutation in mutations.MUTATIONS:
            path = self.mutation_file(mutation.name)
            if path.exists():
                yield pq.read_table(path)

    # What failed.

    def failure(self, profile: str, seed: int, ending: str) -> Path:
        return self.failures / f"{profile}-{seed}{ending}"

    def _add_failure(self, seed: int, plan: str | None, trace: bytes | None) -> None:
        asked = self.asked()
        assert asked is not None
        kept = sorted(int(path.name.rpartition("-")[2].partition(".")[0]) for path in self.failures.glob("*.plan.json"))
        if len(kept) >= TRACES_MAX:
            if seed > kept[-1]:
                return
            for path in self.failures.glob(f"{asked.profile}-{kept[-1]}.*"):
                path.unlink()
        if trace is not None:
            self.write(self.failure(asked.profile, seed, ".jsonl"), zlib.decompress(trace))
        if plan is not None:
            self.write(self.failure(asked.profile, seed, ".plan.json"), plan + "\n")

    # Files.

    def write(self, name: str | Path, content: str | bytes) -> Path:
        """Write a file at one blow."""
        path = self.path / name
        part = path.with_name(path.name + ".part")
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
        return path

    @staticmethod
    def _parquet(path: Path, rows: pa.Table) -> None:
        import pyarrow.parquet as pq

        part = path.with_name(path.name + ".part")
        pq.write_table(rows, part, compression="zstd")
        os.replace(part, path)


def change_of(mutation: str | None) -> str:
    """A short name for what a mutation changes."""
    return "" if mutation is None else f"{zlib.crc32(repr(mutations.find(mutation)).encode()):08x}"


def failing(outcomes: pa.Table) -> pa.Array:
    """Which of the runs failed."""
    import pyarrow.compute as pc

    return pc.greater(outcomes.column("violation_count"), 0)


def _range(path: Path) -> tuple[int, int]:
    """The first seed of a file, and the one after its last."""
    first, _, last = path.stem.rpartition("-")
    return int(first), int(last) + 1
