"""The cluster's secret as a file: how it is made, by `coterie cluster init` and by `coterie up --nodes`."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.up_cluster import LocalCluster
from coterie.errors import UserError
from coterie.secret_file import check_private, make_secret_file, read_secret_file


def up(folder: Path) -> LocalCluster:
    return LocalCluster(3, folder, 0, "", durable=True)


def test_init_makes_a_secret_that_only_its_owner_can_read_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", "init"]) == 0
    file = tmp_path / "coterie.secret"
    secret = read_secret_file(file, "file")
    assert len(secret) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = capsys.readouterr().out
    assert "secret_file" in said
    assert "COTERIE_NODE_SECRET_FILE" in said
    assert secret not in said
    assert [path.name for path in tmp_path.iterdir()] == ["coterie.secret"]


def test_init_never_overwrites_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine"
    make_secret_file(file)
    before = file.read_bytes()
    assert main(["cluster", "init", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["cluster", "init", str(tmp_path / "no" / "such" / "folder")]) == 2
    assert "No such file or directory: choose another place" in capsys.readouterr().err


@pytest.mark.parametrize("show", [False, True])
def test_init_shows_the_secret_only_if_it_is_asked_to(
    tmp_path: Path, show: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine"
    assert main(["cluster", "init", str(file), "--json", *(["--show"] if show else [])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"file": str(file), **({"secret": read_secret_file(file, "file")} if show else {})}


def test_of_many_that_make_it_at_once_one_does_and_all_have_the_same(tmp_path: Path) -> None:
    file, made = tmp_path / "secret", []

    def make() -> None:
        try:
            made.append(make_secret_file(file))
        except FileExistsError:
            made.append("")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [secret for secret in made if secret] == [read_secret_file(file, "file")]
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_cluster_that_is_started_again_has_the_secret_that_it_had(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    first = up(folder)
    secret = read_secret_file(folder / "secret", "file")
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert first._secret == up(folder)._secret == ["--secret-file", str(folder / "secret")]
    assert read_secret_file(folder / "secret", "file") == secret
    (folder / "secret").chmod(0o644)
    with pytest.raises(UserError, match=f"others can read it: chmod 600 {folder}/secret"):
        up(folder)


@pytest.mark.parametrize(("owner", "fine"), [(os.geteuid(), True), (0, True), (os.geteuid() + 1, False)])
def test_a_secret_that_somebody_else_has_made_is_refused(tmp_path: Path, owner: int, fine: bool) -> None:
    """Who may write to the folder may put one there that it knows."""
    file = tmp_path / "secret"
    found = os.stat_result((stat.S_IFREG | 0o600, 1, 1, 1, owner, 0, 65, 0, 0, 0))
    if fine:
        check_private(found, file, "secret_file")
    else:
        with pytest.raises(UserError, match=f"secret_file: {file}: it is another user's: chown it"):
            check_private(found, file, "secret_file")


def test_a_secret_of_the_environment_is_that_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_NODE_SECRET", "a secret of the environment")
    assert up(tmp_path)._secret == []
    assert not (tmp_path / "secret").exists()


def test_the_secret_is_no_flag_nor_the_short_form_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["node", "--secret", "a secret of the whole cluster"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --secret" in capsys.readouterr().err
