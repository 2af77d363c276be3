"""Certificates of a running node: another file is used by new connections, one that is no good by nobody."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO

import pytest
from certificates import Authority
from console_rig import Running
from cryptography import x509
from test_streams_node import certificate

from coterie.workers import free_ports


class Files:
    """The two files that nodes are told of, and others to put in their place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self._made = 0
        self.replace()

    def another(self) -> tuple[Path, Path]:
        self._made += 1
        folder = self.folder / str(self._made)
        folder.mkdir()
        return certificate(folder)

    def replace(self) -> int:
        """With new ones; gives the serial number."""
        cert, key = self.another()
        serial = x509.load_pem_x509_certificate(cert.read_bytes()).serial_number
        shutil.copy(cert, self.cert)
        shutil.copy(key, self.key)
        return serial

    @property
    def environment(self) -> dict[str, str]:
        return {
            "COTERIE_LISTEN_CONSOLE_TLS": "true", "COTERIE_LISTEN_TLS_CERT": str(self.cert),
            "COTERIE_LISTEN_TLS_KEY": str(self.key),
        }  # fmt: skip


def serial(at: str) -> int:
    """Of the certificate that is shown there."""
    host, _, port = at.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=30) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def eventually(at: str, wanted: int) -> None:
    deadline = time.monotonic() + 30
    while serial(at) != wanted:
        assert time.monotonic() < deadline, "the new certificate is never shown"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def node(files: Files) -> Iterator[Running]:
    settings = ("--amqps", "127.0.0.1:0", "--tls-reload", "0.1")
    with Running(*settings, command="node", environment=files.environment) as node:
        yield node


def test_changed_files_are_used_by_new_connections_and_old_ones_go_on(node: Running, files: Files) -> None:
    doors = node.told["amqp"][1], node.console
    assert serial(doors[0]) == serial(doors[1])
    context = ssl.create_default_context(cafile=str(files.cert))
    host, _, port = node.console.rpartition(":")
    with closing(context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)) as old:
        wanted = files.replace()
        for door in doors:
            eventually(door, wanted)
        old.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert old.recv(12) == b"HTTP/1.1 200"


def test_files_that_are_no_good_are_told_and_the_old_ones_stay_in_use(node: Running, files: Files) -> None:
    doors = node.told["amqp"][1], node.console
    before = serial(doors[0])

    def complaints() -> int:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, _, port = node.console.rpartition(":")
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(
                b"GET /api/log HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
            )
            answer = b""
            while piece := secure.recv(65536):
                answer += piece
        return answer.count(b"changed TLS files are no good")

    cert, key = files.another()
    for spoil in (
        lambda: files.cert.write_text("garbage"),
        lambda: files.cert.write_bytes(cert.read_bytes()[:300]),  # half written
        lambda: shutil.copy(cert, files.cert),  # its key has not come yet
        lambda: files.cert.unlink(),
    ):
        told = complaints()
        spoil()
        deadline = time.monotonic() + 30
        while complaints() == told:
            assert time.monotonic() < deadline
        assert [serial(door) for door in doors] == [before, before]
    shutil.copy(cert, files.cert)
    shutil.copy(key, files.key)
    for door in doors:
        eventually(door, x509.load_pem_x509_certificate(cert.read_bytes()).serial_number)


def test_what_brokers_show_each_other_is_loaded_again_too(tmp_path: Path) -> None:
    """And the cluster that had the old certificates is one with the new ones, each replaced by itself."""
    authority = Authority(tmp_path)
    at = [f"127.0.0.1:{port}" for port in free_ports(3)]
    named: list[Path] = []

    def renew(number: int) -> int:
        made, key = authority.certificate(f"new{number}"), named[number].with_suffix(".key")
        key.touch(mode=0o600)
        key.write_bytes(Path(made.key).read_bytes())
        shutil.copy(made.cert, named[number])
        return x509.load_pem_x509_certificate(Path(made.cert).read_bytes()).serial_number

    with ExitStack() as stack:
        nodes: list[Running] = []
        for number, bind in enumerate(at):
            named.append(tmp_path / f"broker{number}.pem")
            renew(number)
            nodes.append(stack.enter_context(Running(
                "--name", f"n{number}", "--cluster-size", "3", "--bind", bind, "--peers", ",".join(at),
                "--probes", "127.0.0.1:0", "--tls-reload", "0.1", "--group-tls-ca", authority.ca,
                "--group-tls-cert", str(named[number]), "--group-tls-key", str(named[number].with_suffix(".key")),
                command="node",
            )))  # fmt: skip
        for number, bind in enumerate(at):
            eventually(bind, renew(number))
        nodes[2].stop()
        with Running(
            "--name", "late", "--cluster-size", "3", "--bind", at[2], "--peers", ",".join(at),
            "--probes", "127.0.0.1:0", "--group-tls-ca", authority.ca,
            "--group-tls-cert", str(named[2]), "--group-tls-key", str(named[2].with_suffix(".key")), command="node",
        ) as late:  # fmt: skip
            late.eventually(lambda: late.ask("GET", "/api/cluster").json.get("state") == "serving")
            members = late.get("/api/cluster")["members"]
            assert {"n0", "n1", "late"} <= {each["name"] for each in members if each["state"] != "lost"}


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [
        (("node", "--amqp", "127.0.0.1:0", "--console", "127.0.0.1:0", "--probes", "127.0.0.1:0"), "_asyncio"),
        (("up", "--port", "0"), "_asyncio"),
        (("up", "--nodes", "2", "--port", "0"), ""),
    ],
)
def test_sighup_while_it_starts_and_without_any_certificates_ends_nothing(
    arguments: tuple[str, ...], begun: str
) -> None:
    """From the moment that it loads what it consists of, or has started the first of its brokers."""
    up = subprocess.Popen(
        [sys.executable, "-m", "coterie", *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    process = Path("/proc") / str(up.pid)
    look = process / "maps" if begun else process / "task" / str(up.pid) / "children"
    try:
        deadline = time.monotonic() + 30
        while begun not in (found := look.read_text()) or not found:
            assert time.monotonic() < deadline
        assert up.stdout is not None
        readable: list[IO[bytes]] = []
        while not readable:
            up.send_signal(signal.SIGHUP)
            readable, _, _ = select.select([up.stdout], [], [], 0.01)
        assert up.stdout.readline() == b"{\n"
    finally:
        up.terminate()
        up.communicate(timeout=60)
    assert up.returncode == 0


def test_sighup_loads_them_in_every_broker_and_ends_none(files: Files) -> None:
    """With `up` it is passed on. The files are not watched here."""
    command = [sys.executable, "-m", "coterie", "up", "--nodes", "2", "--json", "--port", "0"]
    environment = {**os.environ, **files.environment, "COTERIE_LISTEN_TLS_RELOAD": "0"}
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert up.stdout is not None
        text = ""
        while not text.rstrip().endswith("]\n}"):
            line = up.stdout.readline()
            assert line
            text += line
        doors = [str(each["console"]) for each in json.loads(text)["nodes"]]
        before = [serial(door) for door in doors]
        wanted = files.replace()
        assert [serial(door) for door in doors] == before
        up.send_signal(signal.SIGHUP)
        for door in doors:
            eventually(door, wanted)
        files.cert.write_text("garbage")
        for _ in range(3):
            up.send_signal(signal.SIGHUP)
        assert [serial(door) for door in doors] == [wanted, wanted]
        assert up.poll() is None
    finally:
        up.terminate()
        up.communicate(timeout=60)
    assert up.returncode == 0
