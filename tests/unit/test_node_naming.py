"""What a node is called if nobody says so."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.node.naming import default_name, keep_name


def test_it_is_called_after_the_host_and_the_port_if_that_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7")
    assert default_name(None, "localhost:5672") == default_name(None, "0.0.0.0:5672") == "rack7"
    assert default_name(None, "[::]:5680") == "rack7-5680"
    assert default_name(None, "127.0.0.1:0") != default_name(None, "127.0.0.1:5672")


def test_what_it_was_called_goes_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7")
    keep_name(tmp_path, default_name(tmp_path, "localhost:5672"))
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert default_name(tmp_path, "localhost:5680") == "rack7"
    keep_name(tmp_path, "chosen \u00e9")
    assert default_name(tmp_path, "localhost:5672") == "chosen \u00e9"
    (tmp_path / "node.name").write_text("")
    assert default_name(tmp_path, "localhost:5672") == "another"


def test_a_file_that_says_nothing_that_can_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "node.name").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"node\.name"):
        default_name(tmp_path, "localhost:5672")
