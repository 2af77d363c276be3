"""What a node is told about its links: where passwords may be, and settings that would have no effect."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_rig import Rig

from coterie.config import load_config
from coterie.errors import UserError
from coterie.node.node import _check_certificates
from coterie.site_replication.links import Links
from coterie.site_replication.settings import ReplicationSettings

SECRET = "link-secret"


def loaded(path: Path | None = None, env: dict[str, str] | None = None, **flags: object) -> ReplicationSettings:
    return load_config(path, env or {}, {"replication": flags}).replication


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(f"{SECRET}\n")
    return file


def test_a_password_comes_from_a_file_or_from_the_environment(password: Path, tmp_path: Path) -> None:
    wanted = f"amqps://link:{SECRET}@h"
    assert loaded(to="amqps://link@h", password_file=str(password)).to == wanted
    assert loaded(env={"COTERIE_REPLICATION_TO": wanted}).to == wanted
    config = tmp_path / "node.toml"
    config.touch(0o600)
    config.write_text(f'[replication]\nto = "{wanted}"\n')
    assert loaded(config).to == wanted
    assert SECRET not in repr(loaded(config))


def test_one_on_the_command_line_or_in_a_file_that_others_can_read_is_refused(password: Path, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'[replication]\nto = "amqps://a amqps://link:{SECRET}@h"\n')
    config.chmod(0o644)
    password.chmod(0o604)
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: loaded(to=f"amqps://link:{SECRET}@h"), "--replication-password-file"),
        (lambda: loaded(config), f"chmod 600 {config}"),
        (lambda: loaded(to="amqps://link@h", password_file=str(password)), f"chmod 600 {password}"),
    ]
    for attempt, text in attempts:
        with pytest.raises(UserError) as refused:
            attempt()
        assert text in str(refused.value)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("file", [os.devnull, "/none", "empty", "binary"])
def test_a_password_file_that_is_no_good_is_refused(file: str, tmp_path: Path) -> None:
    for name, data in (("empty", b"\n"), ("binary", b"\xff")):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=r"replication\.password_file"):
        loaded(to="amqps://link@h", password_file=str(tmp_path / file))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"to": "amqps://link@h"}, "replication.password_file"),
        ({"to": "amqps://h", "tls_ca": "/none"}, "tls_ca: /none: cannot be read"),
        ({"to": "amqps://h", "tls_cert": "/none"}, "need each other"),
        ({"to": "amqp://h", "tls_ca": "/none"}, "replication.tls_ca has no effect"),
        ({"tls_cert": "/none", "tls_key": "/none"}, "replication.tls_cert has no effect"),
        ({"to": "amqps://h:x"}, "no host:port"),
    ],
)
def test_half_a_configuration_and_one_without_effect_are_refused(settings: dict[str, str], text: str) -> None:
    given = ReplicationSettings(**settings)  # type: ignore[arg-type]
    with pytest.raises(UserError) as refused:
        _check_certificates(Links(Rig().broker, given), given)
    assert text in str(refused.value)
