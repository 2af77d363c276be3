"""A link over TLS: whom it trusts, whom it tells its password, and where it takes that from."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from certificates import Authority, Files
from console_rig import Running
from three_brokers import PERSISTENT, eventually

QUICK = (
    "--replication-queues", "^r", "--replication-retry-min", "0.05", "--replication-retry-max", "0.1",
    "--replication-look-interval", "0.1",
)  # fmt: skip
SECRET = "link-secret"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(f"{SECRET}\n")
    return file


def test_links_by_tls_with_a_password_from_a_file_and_by_their_certificate(ours: Authority, password: Path) -> None:
    own, theirs = ours.certificate("by-certificate"), ours.certificate("target", "127.0.0.1")
    door = (
        "--amqps", "127.0.0.1:0", "--tls-cert", theirs.cert, "--tls-key", theirs.key, "--tls-ca", ours.ca,
        "--tls-clients", "optional",
    )  # fmt: skip
    with Running(*door, command="node") as target:
        (secured,) = [where for where in target.told["amqp"] if where != target.amqp]
        target.change("PUT", "/api/vhosts/other")
        target.change("PUT", "/api/permissions/other/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        target.add_user("link", "replicator", ".*", ".*", ".*", vhost="other")
        target.add_user("by-certificate", "replicator", ".*", ".*", ".*")
        to = (
            "--replication-to", f"amqps://{secured}/ amqps://link@{secured}/other", "--replication-tls-ca", ours.ca,
            "--replication-password-file", str(password), "--replication-tls-cert", own.cert,
            "--replication-tls-key", own.key,
        )  # fmt: skip

        def is_in(vhost: str) -> bool:
            answer = target.ask("GET", f"/api/queues/{vhost}/r")
            return answer.status == 200 and answer.json["messages"] == 1

        with Running(*to, *QUICK, command="node") as source:
            channel = source.channel()
            channel.confirm_delivery()
            channel.queue_declare("r", durable=True)
            channel.basic_publish("", "r", b"one", PERSISTENT)
            eventually("it is there by the certificate", lambda: is_in("%2F"))
            eventually("it is there by the password", lambda: is_in("other"))
            users = {each["user"] for each in target.get("/api/connections")}
            assert users == {"link", "by-certificate"}


class Thief:
    """Stands where a link leads to, and keeps what it is told. With TLS, or without."""

    def __init__(self, files: Files | None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._context = None if files is None else files.server()
        self.heard = b""
        self.refused = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            accepted.settimeout(5)
            try:
                with accepted if self._context is None else self._context.wrap_socket(accepted, True) as stream:
                    self.heard += stream.recv(4096)
            except (OSError, ssl.SSLError):
                accepted.close()
            self.refused += 1

    def close(self) -> None:
        self._listener.close()


def test_who_cannot_prove_to_be_the_other_side_is_told_nothing(ours: Authority, tmp_path: Path, password: Path) -> None:
    host = "127.0.0.1"
    thieves = {
        "another authority": Thief(Authority(tmp_path, "theirs").certificate("thief", host)),
        "another host": Thief(ours.certificate("thief", "127.0.0.2")),
        "no TLS": Thief(None),
    }
    arguments = (
        "--replication-to", " ".join(f"amqps://link@{host}:{thief.port}" for thief in thieves.values()),
        "--replication-tls-ca", ours.ca, "--replication-password-file", str(password), *QUICK,
    )  # fmt: skip
    with Running(*arguments, command="node") as source:
        for kind, thief in thieves.items():
            eventually(f"it has tried {kind}", lambda thief=thief: thief.refused > 1)  # type: ignore[misc]
        links = {each["to"]: each for each in source.get("/api/replication")}
        assert {each["state"] for each in links.values()} == {"waiting"}
        for kind in ("another authority", "another host"):
            assert "replication.tls_ca" in links[f"{host}:{thieves[kind].port}"]["why"]
    for thief in thieves.values():
        thief.close()
        assert b"AMQP" not in thief.heard
        assert SECRET.encode() not in thief.heard


def test_a_password_on_the_command_line_is_refused_with_what_to_do() -> None:
    said = Running.refused("node", "--replication-to", f"amqps://link:{SECRET}@127.0.0.1")
    assert "--replication-password-file" in said
    assert "COTERIE_REPLICATION_TO" in said
    assert SECRET not in said
