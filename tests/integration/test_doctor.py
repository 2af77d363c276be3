"""`coterie doctor` with a real node that is not safe: what it finds, who may ask, and that what it says mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_rig import GUEST, Running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("doctor") / "data"
    found.mkdir()
    found.chmod(0o755)
    return found


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[Running]:
    """Other hosts reach it, without TLS, as guest: with passwords that everybody knows."""
    arguments = ("--data", str(folder), "--amqp", "0.0.0.0:0", "--users-loopback-users", "nobody")
    with Running(*arguments, command="node") as running:
        yield running


def checked(node: Running, expect: int, user: tuple[str, str] = GUEST) -> Any:
    told = json.loads(node.command("doctor", "--json", expect=expect, user=user).stdout)
    return told, {each["check"] for each in told["findings"] if each["severity"] == "unsafe"}


def test_doctor_names_what_is_unsafe_and_the_node_said_so_at_start(node: Running, folder: Path) -> None:
    told, unsafe = checked(node, expect=1)
    assert told["safe"] is False
    assert unsafe == {"password-known", "amqp-in-clear", "files-open"}
    said = node.command("doctor", expect=1).stdout
    assert f"mend: chmod 700 {folder}" in said
    assert said.endswith(f"http://{node.console}: 3 things unsafe\n")
    logged = [each for each in node.get("/api/log?level=warning")["items"] if each["event"] == "unsafe"]
    assert {each["facts"]["check"] for each in logged} == unsafe
    assert all(each["facts"]["what"] and each["facts"]["mend"] for each in logged)


def test_only_an_administrator_may_ask(node: Running) -> None:
    user = node.add_user("watcher", "monitoring", "", "", ".*")
    assert node.ask("GET", "/api/security", user=user).status == 403
    assert node.ask("GET", "/api/security", user=None).status == 401
    assert "needs the tag administrator" in node.command("doctor", user=user, expect=2).stderr


def test_what_is_mended_is_found_no_more(node: Running, folder: Path) -> None:
    ops = node.add_user("ops", "administrator", ".*", ".*", ".*")
    folder.chmod(0o700)
    node.command("users", "delete", "guest", user=ops)
    assert checked(node, expect=1, user=ops)[1] == {"amqp-in-clear"}
    node.change("PUT", "/api/users/weak", {"password": "weak", "tags": "administrator"}, user=ops)
    assert checked(node, expect=1, user=ops)[1] == {"amqp-in-clear", "password-known"}
    node.command("users", "delete", "weak", user=ops)
