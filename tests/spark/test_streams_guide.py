"""The first lines of the guide to streams do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli import main
from coterie.testing import broker

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs" / "spark-streams.md"


def test_from_an_empty_broker_to_a_stream_in_ten_lines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, program = re.findall(r"```(?:bash|python)\n(.*?)```", GUIDE.read_text(), re.DOTALL)[:2]
    assert len([line for line in (shell + program).splitlines() if line]) <= 10
    with broker(console=True) as running:
        assert running.console is not None
        monkeypatch.setenv("COTERIE_URL", running.console.replace("://", "://guest:guest@"))
        for command in shell.splitlines()[-1].split(" && "):  # as a shell would take them apart
            words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
            assert main(words[1:]) == 0
        assert running.queue("orders").ready == 1
        # As it stands, but here, to its end, and into a table that can be looked at.
        for old, new in (
            ("http://127.0.0.1:15672", running.console), ("/tmp/orders", str(tmp_path)),
            ('format("console")', 'format("memory").queryName("guide").trigger(availableNow=True)'),
        ):  # fmt: skip
            assert old in program
            program = program.replace(old, new)
        there: dict[str, object] = {}
        exec(program + "    found = spark.table('guide').collect()\n", there)
    assert [tuple(row) for row in there["found"]] == [(1, "a first order")]  # type: ignore[attr-defined]
