"""Whom a reader asks, and as whom: arguments, the environment, a file."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from coterie import reader
from coterie.errors import UserError
from coterie.reader import look
from coterie.reader.brokers import brokers


def test_without_arguments_it_is_guest_on_this_host() -> None:
    found = brokers(None, {}, {})
    assert (found.urls, found.user, found.password) == (("http://127.0.0.1:15672",), "guest", "guest")


def test_the_environment_names_nodes_user_and_password() -> None:
    told = {"COTERIE_URL": "https://ann@one:1, https://two:2", "COTERIE_PASSWORD": "p", "COTERIE_CA": "ca.pem"}
    found = brokers(None, {}, told)
    assert (found.urls, found.user, found.password, found.ca_file) == (
        ("https://one:1", "https://two:2"), "ann", "p", "ca.pem",
    )  # fmt: skip


def test_an_argument_wins_over_the_environment_and_over_the_address() -> None:
    told = {"COTERIE_URL": "http://bob:b@one", "COTERIE_PASSWORD": "p"}
    found = brokers(["http://carl:c@two:2"], {"user": "ann", "password": "a"}, told)
    assert (found.urls, found.user, found.password) == (("http://two:2",), "ann", "a")
    assert brokers(["http://carl:c%40@two:2"], {}, told).password == "c@"


def test_another_users_password_is_not_sent_for_ours() -> None:
    with pytest.raises(UserError, match="no password for 'ann'"):
        brokers("http://bob:secret@one", {"user": "ann"}, {})


def test_a_password_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("geheim\n")
    assert brokers("one", {"user": "ann", "password_file": file}, {}).password == "geheim"
    with pytest.raises(UserError, match="cannot be read"):
        brokers("one", {"user": "ann", "password_file": tmp_path / "none"}, {})
    with pytest.raises(UserError, match="give one of them"):
        brokers("one", {"user": "ann", "password_file": file, "password": "p"}, {})


@pytest.mark.parametrize(
    ("nodes", "login", "wrong"),
    [
        ([], {}, "the address of a node"),
        (" , ", {}, "the address of a node"),
        (None, {"tls": True}, "no argument 'tls'"),
        (None, {"patience": 0}, "seconds are due"),
    ],
)
def test_what_makes_no_sense_is_refused(nodes: Any, login: Any, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        brokers(nodes, login, {})


def test_no_password_is_shown() -> None:
    found = brokers("http://ann:geheim@one", {}, {})
    assert "geheim" not in repr(found)
    with found.client() as client:
        assert "geheim" not in repr(client)


def test_a_look_that_nobody_answers_ends_soon_however_patient_it_would_be_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(look, "BEGINNING", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(reader.Unavailable, match=r"nobody could answer for 0\.2 s"):
            reader.read("q", url, patience=3600)
