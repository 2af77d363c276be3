"""The port that brokers reach each other at, attacked: by strangers, and by somebody in the middle. Real processes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from group_port_rig import PATIENCE, Flood, NodeProcess, Pair, Stranger, eventually, started
from three_brokers import ThreeBrokers

from coterie.group.members import Address
from coterie.group.packet import Packet, encode_header, group_tag
from coterie.group.protocols.tcp_peer import CODEC, TCP_ID, Hello
from coterie.runtime.aio.authority import trust_key
from coterie.secret_file import make_secret_file
from coterie.workers import free_ports

TRIES = 8
ROUNDS = 5
MARKER = b"the marker that nobody else may read " * 50
ANOTHER = "another secret, which is just as long"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with started(Pair(tmp_path_factory.mktemp("pair"))) as pair:
        pair.pass_on(b"they are one")
        yield pair


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ThreeBrokers, Path]]:
    folder = tmp_path_factory.mktemp("up")
    three = ThreeBrokers(folder, consoles=True)
    three.channel("node1")
    yield three, folder
    three.stop()


def ports_of(folder: Path) -> list[int]:
    return [int(port) for port in json.loads((folder / "ports.json").read_text())]


# Strangers.

STRANGERS: dict[str, dict[str, Any]] = {
    "no secret": {},
    "another secret": {"secret": ANOTHER},
    "another secret, encrypted": {"secret": ANOTHER, "encrypt": True},
}


@pytest.mark.parametrize("who", [*STRANGERS])
def test_a_stranger_is_no_member_of_what_up_starts_and_is_told_nothing(
    who: str, brokers: tuple[ThreeBrokers, Path]
) -> None:
    three, folder = brokers
    intruder = Stranger("intruder", ports_of(folder), **STRANGERS[who])
    intruder.tries(TRIES)
    impostor = Stranger("node2", ports_of(folder), incarnation=2**62, **STRANGERS[who])
    impostor.tries(TRIES)
    assert intruder.stayed_outside
    assert impostor.stayed_outside
    channel = three.channel("node2")  # it lives, and has not made room for its namesake
    status = subprocess.run(
        [
            sys.executable, "-m", "coterie", "cluster", "members", "--json",
            "--url", f"http://guest:guest@{three.console['node1']}",
        ],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert sorted(row["name"] for row in json.loads(status.stdout)["members"]) == ["node1", "node2", "node3"]
    channel.connection.close()


@pytest.mark.parametrize("who", [*STRANGERS])
def test_a_stranger_is_no_member_of_nodes_that_encrypt_and_is_told_nothing(who: str, pair: Pair) -> None:
    intruder = Stranger("intruder", pair.ports, **STRANGERS[who])
    intruder.tries(TRIES)
    assert intruder.stayed_outside
    pair.pass_on(b"and they go on")


def test_a_stranger_that_only_says_hello_hears_no_name_and_no_place(
    pair: Pair, brokers: tuple[ThreeBrokers, Path]
) -> None:
    hello = CODEC.encode(Hello(1, 1, "127.0.0.1", 9, 1, 1, ()))
    packet = Packet(hello, None, TCP_ID)
    packet.sender = Address("intruder", 1)
    said = encode_header(packet, group_tag("coterie"), b"intruder", True) + hello
    for port in (pair.ports[0], ports_of(brokers[1])[0]):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stranger:
            stranger.sendall(said)
            heard = b""
            with contextlib.suppress(ConnectionError):
                while data := stranger.recv(65536):
                    heard += data
        assert len(heard) < 200
        for each in (b"node", b"127.0", *(number.to_bytes(2, "little") for number in pair.ports)):
            assert each not in heard


@pytest.mark.parametrize("certified", [False, True], ids=["without a certificate", "with one of its own authority"])
def test_a_stranger_hears_nothing_inside_tls(pair: Pair, certified: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if certified:  # all names in it are as a member has them
        trust_key(context, b"a key that anybody can make up..")
    context.verify_mode = ssl.CERT_NONE
    heard = b""
    plain = socket.create_connection(("127.0.0.1", pair.ports[0]), timeout=PATIENCE)
    with contextlib.suppress(ssl.SSLError, ConnectionError), context.wrap_socket(plain) as stranger:
        assert stranger.version() == "TLSv1.3"
        heard = stranger.recv(65536)
    assert heard == b""


def test_a_node_with_another_secret_stays_outside_and_both_sides_say_why_in_one_line(
    pair: Pair, tmp_path: Path
) -> None:
    make_secret_file(tmp_path / "secret")
    peers = ",".join(f"127.0.0.1:{port}" for port in pair.ports)
    late = NodeProcess(
        tmp_path, "late", "--console", "", "--bind", "127.0.0.1:0", "--peers", peers, "--cluster-size", "2",
        "--secret-file", str(tmp_path / "secret"), "--encrypt", "always",
    )  # fmt: skip
    try:
        late.up()
        both = [late, *pair.nodes]
        eventually("all say it", lambda: all("another secret: set the same secret" in each.log() for each in both))
        time.sleep(0.5)  # a few attempts more
        assert late.log().count("another secret") == 1
        assert "Traceback" not in "".join(each.log() for each in both)
    finally:
        late.stop()


@pytest.mark.parametrize("encrypt", ["never", "always"])
def test_who_fills_the_port_with_silent_connections_keeps_no_member_out(encrypt: str, tmp_path: Path) -> None:
    make_secret_file(tmp_path / "secret")
    seed, *_ = ports = free_ports(2)
    with contextlib.ExitStack() as stack:

        def start(port: int) -> NodeProcess:
            """Whom only the second one dials, and only there."""
            node = NodeProcess(
                tmp_path, f"node{port}", "--console", "", "--bind", f"127.0.0.1:{port}",
                "--peers", f"127.0.0.1:{seed}", "--cluster-size", "2", "--secret-file", str(tmp_path / "secret"),
                "--encrypt", encrypt,
            )  # fmt: skip
            stack.callback(node.stop)
            node.up()
            return node

        first = start(ports[0])
        flood = stack.enter_context(Flood(seed, 700))
        eventually("it is full", lambda: flood.turned_away > 0)
        start(ports[1])
        first.channel().connection.close()  # it serves, as two do that have found each other
        assert "Traceback" not in first.log()


# Somebody in the middle.


def test_who_listens_in_reads_nothing_and_sees_only_tls(pair: Pair) -> None:
    before = len(pair.heard)
    pair.pass_on(MARKER)
    heard = pair.heard
    assert len(heard) - before > len(MARKER)
    for secret in (MARKER[:20], b"a-queue-by-name", b"node1", b"guest", pair.secret.encode()):
        assert secret not in heard


def test_who_alters_bytes_breaks_the_connection_and_nothing_else(pair: Pair) -> None:
    before = sum(tap.connections for tap in pair.taps)
    for tap in pair.taps:
        tap.alter(1)
    eventually("bytes were altered", lambda: any(tap.altered for tap in pair.taps))
    eventually("they connect anew", lambda: sum(tap.connections for tap in pair.taps) > before)
    for tap in pair.taps:
        tap.alter(0)
    pair.pass_on(MARKER)
    assert all(node.process.poll() is None for node in pair.nodes)
    assert "Traceback" not in "".join(node.log() for node in pair.nodes)


def test_what_is_confirmed_is_not_lost_to_a_consumer_that_has_left_while_bytes_were_altered(pair: Pair) -> None:
    """What its broker says of a consumer that leaves comes late, as the connection breaks with it. It is one without
    acknowledgements: until the other broker knows that it is gone, what is published is given to it."""
    for _ in range(ROUNDS):
        leaver = pair.nodes[1].channel()
        leaver.basic_consume("a-queue-by-name", lambda *_: None, auto_ack=True)
        for tap in pair.taps:
            tap.alter(1)
        leaver.connection.close()
        for tap in pair.taps:
            tap.alter(0)
        pair.pass_on(MARKER)


# What starts, and what does not.


def refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "node", *arguments], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_node_that_others_can_reach_does_not_start_without_a_secret() -> None:
    told = refused("--bind", "0.0.0.0:0", "--peers", "other:7800")
    assert "node.bind 0.0.0.0:0 is not on loopback and the cluster has no secret" in told
    assert "coterie cluster init" in told


def test_up_makes_a_secret_once_for_nobody_else_to_read(brokers: tuple[ThreeBrokers, Path]) -> None:
    _, folder = brokers
    file = folder / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text().strip()) == 64
    for made in (folder / "node1", folder / "node1" / "log"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    files = [path for path in (folder / "node1" / "log").iterdir() if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
