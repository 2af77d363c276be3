"""Leases and bulk reads over HTTP, of a real node: rights, errors, the client, the command line, a restart."""

from __future__ import annotations

import datetime
import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pika
import pytest
from console_rig import GUEST, Running
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coterie.errors import UserError
from coterie.streams.client import Client, Conflict, Gone, Lease, NotFound, Refused, StreamError, Unavailable

PERSISTENT = pika.BasicProperties(delivery_mode=2, message_id="m", headers={"n": 1})


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running() as running:
        yield running


@pytest.fixture
def queue(node: Running, request: pytest.FixtureRequest) -> str:
    """With ten messages."""
    name = str(request.node.name)
    fill(node, name, 10)
    return name


def fill(node: Running, name: str, count: int, size: int = 0) -> None:
    channel = node.channel()
    channel.queue_declare(name, durable=True)
    channel.tx_select()
    for number in range(count):
        channel.basic_publish("", name, f"{number}".encode().ljust(size), PERSISTENT)
    channel.tx_commit()


def client(node: Running, user: tuple[str, str] = GUEST, **more: Any) -> Client:
    return Client(f"http://{node.console}", *user, patience=2.0, **more)


def bodies(client: Client, lease: Lease, first: int, stop: int, missing: str = "error") -> list[bytes]:
    return [body for batch in client.read_lease(lease, first, stop, missing) for body in batch.bodies()]


def test_a_lease_is_acquired_read_retired_and_ended(node: Running, queue: str) -> None:
    with client(node) as reader:
        lease = reader.acquire(queue, "l", "s", rows=4)
        assert (lease.acquired, lease.first, lease.next, lease.user) == (4, 0, 4, "guest")
        (batch,) = reader.read_lease(lease, 0, 4)
        assert batch.bodies() == [b"0", b"1", b"2", b"3"]
        assert [*batch.offset] == [0, 1, 2, 3]
        assert batch.redelivered == [False] * 4
        assert {each.message_id for each in batch.properties()} == {"m"}
        assert set(batch.routing_keys()) == {queue}
        assert node.channel().basic_get(queue, auto_ack=True)[2] == b"4"
        assert reader.retire(lease, 2).count == 2
        with pytest.raises(Gone, match="holds offset 0 no more"):
            bodies(reader, lease, 0, 4)
        assert bodies(reader, lease, 0, 4, missing="skip") == [b"2", b"3"]
        reader.release(lease, 3)
        again = reader.acquire(queue, "l", "s", rows=1)
        assert again.pieces[-1].redelivered
        assert bodies(reader, again, 4, 5) == [b"3"]
        assert [(each.name, each.count) for each in reader.leases() if each.queue == queue] == [("l", 2)]
        reader.end(again)
        reader.end(again)
        assert reader.lease(queue, "l") is None
        (tail,) = reader.tails([queue, "no such queue"])
        assert (tail.ready, tail.leased, tail.first, tail.next) == (7, 0, 3, 11)


def test_metrics_tell_what_leases_hold(node: Running, queue: str) -> None:
    metric = "coterie_queue_messages_leased"

    def leased(page: str, series: str) -> int:
        text = node.ask("GET", page).body.decode()
        (value,) = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{series} ")]
        return int(value)

    of_queue = f'{metric}{{vhost="/",queue="{queue}"}}'
    before = leased("/metrics", metric)
    with client(node) as reader:
        for name, rows in (("one", 3), ("two", 4)):
            reader.acquire(queue, name, "s", rows=rows)
        for name, held in (("one", 3), ("two", 4)):
            labels = f'{{vhost="/",queue="{queue}",lease="{name}"}}'
            assert leased("/metrics/per-object", f"coterie_lease_messages{labels}") == held
            assert leased("/metrics/per-object", f"coterie_lease_lag{labels}") == held + 3
            assert leased("/metrics/per-object", f"coterie_lease_idle_seconds{labels}") < 60
        assert leased("/metrics/per-object", of_queue) == 7
        assert leased("/metrics", metric) - before == 7
        for name in ("one", "two"):
            lease = reader.lease(queue, name)
            assert lease is not None
            reader.end(lease)
    assert leased("/metrics/per-object", of_queue) == 0


def test_a_batch_read_takes_nothing_and_ends_at_its_cut(node: Running, queue: str) -> None:
    with client(node) as reader:
        cut = reader.cut(queue)
        node.channel().basic_publish("", queue, b"later")
        node.eventually(lambda: reader.cut(queue).next == 12)
        found = [body for batch in reader.read_range(cut) for body in batch.bodies()]
        assert found == [str(n).encode() for n in range(10)]
        assert [body for batch in reader.read_range(cut, 3, 4) for body in batch.bodies()] == [b"2", b"3"]
        assert reader.cut(queue).ready == 11
        node.channel().queue_delete(queue)
        fill(node, queue, 1)
        with pytest.raises(Gone, match="declared anew"):
            next(reader.read_range(cut))


def test_an_old_session_is_refused_and_anothers_lease_is_for_operators(node: Running, queue: str) -> None:
    ann = node.add_user("ann", "management", "", "", ".*")
    bob = node.add_user("bob", "management", "", "", ".*")
    with client(node, ann) as hers, client(node, bob) as his, client(node) as operator:
        lease = hers.acquire(queue, "l", "first", rows=3)
        taken = hers.take(lease, "second")
        with pytest.raises(Conflict, match="another session"):
            hers.retire(lease, 1)
        with pytest.raises(Conflict, match="another session"):
            hers.acquire(queue, "l", "first")
        for theirs in (lambda: his.retire(taken, 1), lambda: his.end(taken), lambda: his.take(taken, "third")):
            with pytest.raises(Refused, match="that of the user 'ann'"):
                theirs()
        assert bodies(his, taken, 0, 3) == [b"0", b"1", b"2"]  # it may read the queue
        operator.end(operator.take(taken, "operator"))
        with pytest.raises(NotFound):
            hers.retire(taken, 1)


def test_who_may_not_read_the_queue_gets_nothing(node: Running, queue: str) -> None:
    eve = node.add_user("eve", "management", ".*", ".*", "^other$")
    with client(node) as reader, client(node, eve) as hers:
        lease = reader.acquire(queue, "l", "s", rows=1)
        for call in (
            lambda: hers.acquire(queue, "m", "s"),
            lambda: bodies(hers, lease, 0, 1),
            lambda: hers.cut(queue),
            lambda: hers.tails([queue]),
            lambda: hers.lease(queue, "l"),
        ):
            with pytest.raises(Refused):
                call()
        assert hers.tails() == []
    with client(node, ("eve", "wrong")) as nobody, pytest.raises(Refused, match="Login failed"):
        nobody.nodes()
    assert "wrong" not in repr(client(node, ("eve", "wrong")))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("read/%2F/{}?lease=l&from=x", 400),
        ("read/%2F/{}?lease=l&to=99", 410),
        ("read/%2F/{}?at=tomorrow", 400),
        ("read/%2F/{}?lease=l&missing=maybe", 400),
        ("read/%2F/{}?lease=none", 404),
        ("read/%2F/none", 404),
        ("read/nowhere/{}", 404),
        ("read/%2F/{}?incarnation=1", 410),
        ("read/%2F/{}?lease=l&id=1", 410),
        ("tails?vhost=nowhere", 404),
        ("tails?pattern=(%3F=a)", 400),
        ("cut/%2F/none", 404),
    ],
)
def test_what_makes_no_sense_is_refused(node: Running, path: str, status: int) -> None:
    if not node.get("/api/streams/tails?name=odd")["queues"]:
        fill(node, "odd", 1)
        node.change("POST", "/api/leases/%2F/odd/l/acquire", {"session": "s"})
    answer = node.ask("GET", "/api/streams/" + path.format("odd"))
    assert (answer.status, bool(answer.reason)) == (status, True)


@pytest.mark.parametrize(
    ("do", "body"),
    [("acquire", {"rows": "x"}), ("acquire", {"lines": 1}), ("retire", {}), ("take", {"session": 1}), ("retire", [])],
)
def test_steps_that_make_no_sense_are_refused(node: Running, queue: str, do: str, body: object) -> None:
    assert node.ask("POST", f"/api/leases/%2F/{queue}/l/{do}", body).status == 400


def test_operators_list_and_end_leases_from_the_command_line(node: Running, queue: str) -> None:
    with client(node) as reader:
        lease = reader.acquire(queue, "query-1", "s", rows=2)
        shown = node.command("leases", "--queue", queue).stdout
        assert "query-1" in shown
        assert "guest" in shown
        (found,) = json.loads(node.command("leases", "--queue", queue, "--json").stdout)["leases"]
        assert (found["count"], found["first_position"], found["last_position"]) == (2, 1, 2)
        node.command("leases", "release", "query-1", "--queue", queue, "--id", "1", expect=2)
        node.command("leases", "release", "query-1", "--queue", queue)
        with pytest.raises(NotFound):
            reader.retire(lease, 1)
        assert reader.cut(queue).ready == 10
        node.command("leases", "release", "query-1", "--queue", queue, expect=2)


def test_a_lease_outlives_kill_9_and_gives_the_same_rows(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    with Running(*data) as first:
        fill(first, "q", 30, size=1000)
        with client(first) as reader:
            lease = reader.acquire("q", "l", "s", rows=20)
            before = bodies(reader, lease, 0, 20)
            lease = reader.retire(lease, 5)
        first.stop(signal.SIGKILL)
    with Running(*data, environment={"COTERIE_BROKER_QUEUE_RESIDENT_MAX": "0"}) as second, client(second) as reader:
        again = reader.lease("q", "l")
        assert again is not None
        assert (again.id, again.first, again.next, again.pieces) == (lease.id, 5, 20, lease.pieces)
        assert bodies(reader, again, 5, 20) == before[5:]  # from disk
        (batch,) = reader.read_lease(again, 5, 20)
        assert not any(batch.redelivered)
        assert reader.acquire("q", "l", "s").next == 30
        assert reader.retire(again, 30).count == 0
        assert reader.cut("q").messages == 0


def test_long_reads_come_in_batches_while_publishers_go_on(node: Running) -> None:
    fill(node, "long", 3000, size=2000)
    with client(node) as reader:
        lease = reader.acquire("long", "l", "s")
        batches = reader.read_lease(lease, 0, 3000)
        first = next(batches)
        assert first.rows < 3000
        fill(node, "long", 5)
        assert first.rows + sum(batch.rows for batch in batches) == 3000
        assert reader.acquire("long", "l", "s", rows=2).acquired == 2
        assert next(reader.read_lease(lease, 0, 3000)).rows  # and it is left in the middle
        assert bodies(reader, lease, 2999, 3000)[0].startswith(b"2999")


def test_a_client_gives_up_when_nobody_answers_and_says_no_secret() -> None:
    with pytest.raises(UserError):
        Client([])
    with pytest.raises(UserError, match="should read"):
        Client("ftp://user:secret@host")
    with Client("http://user:secret@127.0.0.1:1", patience=0.1) as reader:
        with pytest.raises(Unavailable) as found:
            reader.nodes()
        assert isinstance(found.value, StreamError)
        assert "secret" not in str(found.value) + repr(reader)


def certificate(folder: Path) -> tuple[Path, Path]:
    """One for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(private)
    return files


def test_streams_are_read_over_https_and_the_certificate_is_looked_at(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    environment = {
        "COTERIE_LISTEN_CONSOLE_TLS": "true", "COTERIE_LISTEN_TLS_CERT": str(cert), "COTERIE_LISTEN_TLS_KEY": str(key)
    }  # fmt: skip
    with Running(environment=environment) as node:
        fill(node, "q", 3)
        url = f"https://{node.console}"
        with Client(url, *GUEST, ca_file=str(cert), patience=2.0) as reader:
            assert [each.url for each in reader.nodes()] == [url]
            lease = reader.acquire("q", "l", "s")
            assert bodies(reader, lease, 0, 3) == [b"0", b"1", b"2"]
        with Client(url, *GUEST, patience=0.1) as distrustful, pytest.raises(Unavailable, match="certificate"):
            distrustful.nodes()
    with pytest.raises(UserError, match="certificates cannot be used"):
        Client(url, ca_file=str(tmp_path / "none.pem"))
    assert "listen.console_tls needs" in Running.refused("node", "--amqp", "127.0.0.1:0", "--console-tls", "true")


def test_a_reader_over_https_tells_its_password_to_nobody_who_advertises_http(tmp_path: Path) -> None:
    """A node that is compromised, or set up wrongly, sends its readers to a thief."""
    cert, key = certificate(tmp_path)
    heard: list[bytes] = []

    class Thief(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(str(self.headers).encode())
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Thief) as thief:
        threading.Thread(target=thief.serve_forever, daemon=True).start()
        told = f"http://127.0.0.1:{thief.server_address[1]}"
        environment = {
            "COTERIE_LISTEN_CONSOLE_TLS": "true", "COTERIE_LISTEN_TLS_CERT": str(cert),
            "COTERIE_LISTEN_TLS_KEY": str(key), "COTERIE_CONSOLE_ADVERTISE": told,
        }  # fmt: skip
        with Running(environment=environment) as node:
            fill(node, "q", 3)
            url = f"https://{node.console}"
            with Client(url, *GUEST, ca_file=str(cert), patience=2.0) as reader:
                assert [each.url for each in reader.nodes()] == [told]
                assert reader.spread() == [url]
                assert [each.name for each in reader.tails()] == ["q"]
        thief.shutdown()
    assert not heard
