"""Other systems beside the benchmarks: they end with all that they started; what cannot be had is told in a line."""

from __future__ import annotations

import importlib
import os
import select
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def test_a_peer_ends_with_all_that_it_started_and_its_folder(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = peers("peers.processes")
    with module.Processes("some", tmp_path) as processes:
        note = processes.folder / "note"
        processes.start("one", ["sh", "-c", 'trap "" TERM; sleep 600 & echo $! >part; mv part note; wait'])
        processes.wait("there", note.exists, 20.0)
        ends = [os.pidfd_open(pid) for pid in (processes.each[0].pid, int(note.read_text()))]
        assert select.select(ends, [], [], 0)[0] == []
        monkeypatch.setattr(module, "STOP_TIMEOUT", 0.2)
    for end in ends:
        assert select.select([end], [], [], 20.0)[0] == [end]
        os.close(end)
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_ends_by_itself_is_told_with_its_last_words(peers: Any, tmp_path: Path) -> None:
    module = peers("peers.processes")
    with module.Processes("some", tmp_path) as processes:
        processes.start("one", ["sh", "-c", "echo no such luck; exit 3"])
        with pytest.raises(module.PeerError, match=r"^some: a process ended with code 3: no such luck$"):
            processes.wait("up", lambda: False, 20.0)


def test_a_peer_that_cannot_be_installed_is_told_in_one_line(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = peers("peers.debian")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    why = debian.install(["coterie-no-such-package"])
    assert why == "coterie-no-such-package: not installed, and there is no apt-get or no root to do it"
