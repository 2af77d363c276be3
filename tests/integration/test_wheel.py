"""The wheel: it has everything that the package needs, and works where nothing else is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
NEEDED = ("cryptography", "cffi", "google-re2", "pycparser")
"""By the core, with what they need themselves; uvloop is for speed only."""


def run(*command: str | Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Without the environment's own packages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COTERIE_"))}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, check=False, env=clean, cwd="/"
    )
    assert done.returncode == expect, (command, done.stdout, done.stderr)
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has this wheel and what it needs: no client, aiohttp, uvloop or Spark."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        for file in distribution(name).files or ():
            if ".." not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), site / file)
    return folder / "bin"


def test_every_file_of_the_sources_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    kept = [path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert there == {path.relative_to(SOURCES).as_posix() for path in kept}
    assert {"coterie/py.typed", "coterie/sim/diagram.js", "coterie/spark/page.css"} <= there


def test_the_metadata_names_the_command_the_fixtures_and_the_extras(fresh: Path) -> None:
    text = run(
        fresh / "python", "-c",
        "import json, importlib.metadata as m; d = m.distribution('coterie'); print(json.dumps({"
        "'points': sorted(f'{p.group}:{p.name}' for p in d.entry_points), "
        "'extras': d.metadata.get_all('Provides-Extra'),"
        "'license': d.metadata['License-Expression'], 'needs': [r for r in d.requires if 'extra' not in r]}))",
    ).stdout  # fmt: skip
    told = json.loads(text)
    assert told["points"] == ["console_scripts:coterie", "pytest11:coterie.pytest_plugin"]
    assert {"console", "docs", "demo", "secure", "spark"} <= set(told["extras"])
    assert told["license"] == "Apache-2.0"
    assert [need.partition(">")[0] for need in told["needs"]] == ["cryptography", "google-re2", "uvloop"]


def test_the_command_runs_and_says_in_a_line_what_it_lacks(fresh: Path, tmp_path: Path) -> None:
    assert run(fresh / "coterie", "--version").stdout.startswith("coterie ")
    page = tmp_path / "run.html"
    run(fresh / "coterie", "sim", "replay", "--profile", "vs", "1", "--html", page)
    assert "--mcast" in page.read_text()  # of its style sheet, which is a file of the package
    refused = run(fresh / "coterie", "audit", tmp_path, "--out", tmp_path / "out", expect=2)
    assert "coterie[spark]" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_broker_serves_without_anything_else(fresh: Path) -> None:
    program = """
import socket, coterie.testing
with coterie.testing.broker() as broker:
    with socket.create_connection((broker.host, broker.port)) as client:
        client.sendall(b"AMQP\\0\\0\\x09\\x01")
        print(client.recv(1 << 16)[:1], broker.queues())
"""
    assert run(fresh / "python", "-c", program).stdout == "b'\\x01' {}\n"  # a method frame: connection.start
