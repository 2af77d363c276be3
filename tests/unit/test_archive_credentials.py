"""Where `coterie archive` and `coterie replay` have passwords from: never where others on the machine can read them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.archive import KNOWN, remote_by
from coterie.cli.archive_config import Told
from coterie.cli.remote import PASSWORD
from coterie.errors import UserError

SECRET = "archivers-secret"


def config(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "archive.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def password(file: Path | None, table: str = "source", **flags: str) -> str:
    options = argparse.Namespace(config=file, **flags)
    return remote_by(options, Told(options, KNOWN), table).password


@pytest.mark.parametrize("command", ["archive", "replay"])
@pytest.mark.parametrize("form", ["http://ops:{}@127.0.0.1:1", "ops:{}@127.0.0.1:1", "http://:{}@127.0.0.1:1/a@b"])
def test_a_password_on_the_command_line_is_refused(
    command: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["orders", str(tmp_path / "lake")] if command == "archive" else [str(tmp_path / "lake"), "orders"]
    assert main([command, *words, "--url", form.format(SECRET)]) == 2
    said = capsys.readouterr().err
    assert "a password on a command line can be read by everybody" in said
    assert SECRET not in said
    assert not (tmp_path / "lake").exists()


def test_one_in_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    assert password(None, url="http://ops@127.0.0.1:1") == SECRET


@pytest.mark.parametrize("table", ["source", "sink"])
def test_one_in_a_file_is_taken_without_asking_anybody(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    held = tmp_path / "password"
    held.write_text(f"{SECRET}\n")
    held.chmod(0o600)
    file = config(tmp_path, f'url = "http://ops@127.0.0.1:1"\n[{table}]\npasswordFile = "{held}"\n')
    assert password(file, table) == SECRET
    file = config(tmp_path, f'url = "http://ops@127.0.0.1:1"\n[{table}]\npassword = "{SECRET}"\n')
    assert password(file, table) == SECRET


@pytest.mark.parametrize(
    "text",
    [
        f'url = "http://ops:{SECRET}@127.0.0.1:1"',
        f'[source]\npassword = "{SECRET}"',
        f'[sink]\nPassWord = "{SECRET}"',
        f'[catalog]\n"s3.secret-access-key" = "{SECRET}"',
        f'[spark]\n"spark.hadoop.fs.s3a.access.key" = "{SECRET}"',
    ],
)
def test_a_file_with_a_secret_that_others_can_read_is_refused(text: str, tmp_path: Path) -> None:
    file = config(tmp_path, text, 0o644)
    with pytest.raises(UserError, match=f"others can read it: chmod 600 {file}") as refused:
        password(file)
    assert SECRET not in str(refused.value)
    file.chmod(0o600)
    Told(argparse.Namespace(config=file), KNOWN)


def test_a_file_without_a_secret_may_be_everybodys(tmp_path: Path) -> None:
    text = 'url = "http://ops@127.0.0.1:1"\n[source]\npasswordFile = "/run/secrets/archiver"\n'
    Told(argparse.Namespace(config=config(tmp_path, text, 0o644)), KNOWN)
