"""How hard Java should try: a small job is over before its better compiler has paid for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path

SMALL = 200 << 20
"""Bytes of traces, a million events or so: up to there an audit takes as long as Java takes to get up to speed."""
QUICK = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


def settings_for(traces: Sequence[str]) -> Mapping[str, str]:
    """What the session of an audit of these files, folders and patterns should have."""
    return QUICK if _size(traces) < SMALL else {}


def _size(paths: Sequence[str]) -> int:
    """About how much there is to read. What is not there is complained of later."""
    if any("://" in path for path in paths):
        return SMALL  # it would have to be asked for
    roots = [Path(name) for path in paths for name in ([path] if Path(path).exists() else glob(path, recursive=True))]
    found = (file for root in roots for file in (root.rglob("*") if root.is_dir() else [root]))
    return sum(file.stat().st_size * (10 if file.suffix == ".parquet" else 1) for file in found if file.is_file())
