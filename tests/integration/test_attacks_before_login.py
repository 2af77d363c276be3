"""Attackers who have no user, from one address, against a real node: nobody at another address notices them."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import resource
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pika
import psutil
import pytest
from certificates import Authority
from console_rig import GUEST, Running
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

ATTACKER, OTHER = "127.0.0.1", "127.0.0.2"
LOGIN = base64.b64encode(b"guest:guest").decode()
AMQP = b"AMQP\x00\x00\x09\x01"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    """With places for few, and deadlines that do not come while the tests run."""
    small = {
        "COTERIE_CONSOLE_CONNECTIONS_MAX": "60",
        "COTERIE_CONSOLE_ADDRESS_CONNECTIONS_MAX": "40",
        "COTERIE_CONSOLE_UNKNOWN_REQUESTS_MAX": "32",
        "COTERIE_CONSOLE_HEAD_TIMEOUT": "300",
        "COTERIE_CONSOLE_BODY_TIMEOUT": "600",
        "COTERIE_CONSOLE_PROBE_TIMEOUT": "300",
        "COTERIE_AMQP_HANDSHAKES_MAX": "60",
        "COTERIE_AMQP_ADDRESS_HANDSHAKES_MAX": "40",
        "COTERIE_AMQP_HANDSHAKE_TIMEOUT": "300",
    }
    with Running(command="node", environment=small) as running:
        yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """With deadlines that come at once."""
    short = {
        "COTERIE_CONSOLE_HEAD_TIMEOUT": "0.3",
        "COTERIE_CONSOLE_BODY_TIMEOUT": "0.6",
        "COTERIE_CONSOLE_IDLE_TIMEOUT": "0.5",
        "COTERIE_CONSOLE_PROBE_TIMEOUT": "0.3",
        "COTERIE_AMQP_HANDSHAKE_TIMEOUT": "0.3",
    }
    with Running(command="node", environment=short) as running:
        yield running


def dial(at: str, source: str = ATTACKER) -> socket.socket:
    host, _, port = at.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))


@contextmanager
def crowd(at: str, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections of the attacker that say this, and nothing more."""
    with ExitStack() as stack:
        found = [stack.enter_context(dial(at)) for _ in range(count)]
        for each in found:
            if say:
                try:
                    each.sendall(say)
                except OSError:  # it had to make room already
                    continue
        yield found


def asked(at: str, source: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    host, _, port = at.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30, source_address=(source, 0))
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def known(node: Running, source: str = OTHER) -> int:
    return asked(node.console, source, "GET", "/api/whoami", Authorization=f"Basic {LOGIN}")[0]


def logged_in(node: Running, source: str = OTHER) -> int:
    body = json.dumps({"name": "guest", "password": "guest"}).encode()
    return asked(node.console, source, "POST", "/api/session", body)[0]


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def answer_of(connection: socket.socket) -> int:
    return int(connection.recv(12).split()[1])


# HTTP.


def test_a_login_is_small_and_not_packed(node: Running) -> None:
    bomb = gzip.compress(b'{"name": "' + b"x" * (16 << 20) + b'"}')
    assert len(bomb) < 20_000
    status, text = asked(node.console, ATTACKER, "POST", "/api/session", bomb, Content_Encoding="gzip")
    assert (status, b"none before a login" in text) == (415, True)
    status, text = asked(node.console, ATTACKER, "POST", "/api/session", b"x" * 4097)
    assert (status, b"4096" in text) == (413, True)
    with dial(node.console) as connection:  # whoever does not say how much will come
        head = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"1000\r\n" + b"x" * 4096 + b"\r\n1\r\nx\r\n")
        assert answer_of(connection) == 413
    assert logged_in(node, ATTACKER) == 201


def test_half_sent_bodies_keep_nobody_else_from_logging_in(node: Running) -> None:
    head = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with crowd(node.console, 39, head) as attackers:
        late: list[socket.socket] = []  # whoever came when the 16 seats of one address were taken
        while len(late) < 23:
            waiting = [each for each in attackers if each not in late]
            late += select.select(waiting, [], [], 30)[0] or pytest.fail(f"{len(late)} were turned away")
        assert {answer_of(each) for each in late} == {429}
        assert (logged_in(node), known(node)) == (201, 200)
        assert asked(node.probes, ATTACKER, "GET", "/health/ready")[0] == 200
        assert logged_in(node, ATTACKER) == 429
    node.eventually(lambda: logged_in(node, ATTACKER) == 201)


def test_half_sent_bodies_from_some_addresses_keep_no_other_from_logging_in(node: Running) -> None:
    head = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as stack:
        attackers = [stack.enter_context(dial(node.console, f"127.0.0.{31 + number % 4}")) for number in range(40)]
        for each in attackers:
            each.sendall(head)
        over: list[socket.socket] = []  # 8 found no seat left; which ones depends on the order of reading
        while len(over) < 8:
            waiting = [each for each in attackers if each not in over]
            over += select.select(waiting, [], [], 30)[0] or pytest.fail(f"{len(over)} had to make room")
        assert all(map(ended, over))
        for _ in range(3):
            assert (logged_in(node), known(node)) == (201, 200)


@pytest.mark.parametrize("say", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_idle_connections_are_replaced_and_not_those_of_others(node: Running, say: bytes) -> None:
    host, _, port = node.console.rpartition(":")
    kept = http.client.HTTPConnection(host, int(port), timeout=30, source_address=(OTHER, 0))
    headers = {"Authorization": f"Basic {LOGIN}"}
    kept.request("GET", "/api/whoami", headers=headers)
    assert kept.getresponse().read()
    with crowd(node.console, 100, say) as attackers:
        assert (known(node), logged_in(node), known(node, ATTACKER)) == (200, 201, 200)
        kept.request("GET", "/api/whoami", headers=headers)
        assert kept.getresponse().status == 200
        assert all(map(ended, attackers[:50]))
    kept.close()


def peak(node: Running) -> int:
    """The most memory that it had since it was told to begin anew."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_requests_behind_one_that_is_being_answered_are_not_read_without_bound(node: Running) -> None:
    """A password takes its time to check; whatever the same client sends meanwhile stays on its side of the network."""
    assert known(node) == 200
    before = psutil.Process(node.pid).memory_info().rss
    Path(f"/proc/{node.pid}/clear_refs").write_text("5")  # the peak begins anew
    login = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic %b\r\n\r\n"
    with dial(node.console) as connection:
        for number in range(15):
            connection.sendall(login % base64.b64encode(b"nobody%d:x" % number))
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * (2 << 20))
        connection.settimeout(30)
        assert answer_of(connection) == 401
    # 48 MiB were offered. The password that is being checked, one at a time, takes 16 MiB by itself (`passwords.COST`).
    assert peak(node) < before + (16 << 20) + (8 << 20)
    assert logged_in(node) == 201


def test_a_user_has_bodies_unpacked_up_to_a_size(node: Running) -> None:
    path, login = "/api/exchanges/%2F/amq.default/publish", {"Authorization": f"Basic {LOGIN}"}
    message = json.dumps({"routing_key": "nobody", "payload": "x" * 100_000, "properties": {}}).encode()
    packed = gzip.compress(message)
    assert asked(node.console, OTHER, "POST", path, packed, Content_Encoding="gzip", **login)[0] == 200
    bomb = gzip.compress(b" " * ((16 << 20) + 1))
    assert asked(node.console, OTHER, "POST", path, bomb, Content_Encoding="gzip", **login)[0] == 413
    assert asked(node.console, OTHER, "POST", path, packed[:-9], Content_Encoding="gzip", **login)[0] == 400
    assert asked(node.console, OTHER, "POST", path, packed, Content_Encoding="br", **login)[0] == 415
    countless = b'{"routing_key": "", "payload": "", "properties": {"x": [' + b"[]," * 500_000 + b"0]}}"
    status, text = asked(node.console, OTHER, "POST", path, countless, **login)
    assert (status, b"commas and brackets" in text) == (400, True)
    long = b'{"durable": true' + b" " * (1 << 20) + b"}"
    assert asked(node.console, OTHER, "PUT", "/api/queues/%2F/long", long, **login)[0] == 413


# Probes and metrics.


def test_probes_have_places_of_their_own_that_nobody_can_fill(node: Running) -> None:
    with crowd(node.console, 100), crowd(node.amqp, 100), crowd(node.probes, 150, b"GET /met") as attackers:
        for source in (ATTACKER, OTHER):
            assert asked(node.probes, source, "GET", "/health/live") == (200, b'{"status": "ok"}')
            assert asked(node.probes, source, "GET", "/health/ready") == (200, b'{"status": "ok"}')
            assert b"rabbitmq_queues " in asked(node.probes, source, "GET", "/metrics")[1]
        assert all(map(ended, attackers[:50]))


def test_who_asks_the_probes_and_does_not_hang_up_keeps_no_other_from_asking(node: Running) -> None:
    with ExitStack() as stack:
        for source in ("127.0.0.31", "127.0.0.32"):
            for _ in range(40):
                each = stack.enter_context(dial(node.probes, source))
                with suppress(OSError):  # it had to make room already
                    each.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                    each.recv(1)  # the answer has come, and is not read
        for source in ("127.0.0.31", OTHER):
            assert asked(node.probes, source, "GET", "/health/live") == (200, b'{"status": "ok"}')


def test_without_a_login_no_name_of_a_queue_or_client_is_told(node: Running) -> None:
    node.change("PUT", "/api/queues/%2F/secret-name", {})
    for path in ("/metrics", "/metrics/per-object", "/health/live"):
        answer = node.ask("GET", path, user=None)
        assert answer.status == (404 if path == "/health/live" else 401)
        assert b"secret-name" not in answer.body
    assert b"secret-name" not in asked(node.probes, OTHER, "GET", "/metrics")[1]
    assert asked(node.probes, OTHER, "GET", "/metrics/per-object")[0] == 404
    assert b"secret-name" in node.ask("GET", "/metrics/per-object").body
    manager = node.add_user("manager", "management", ".*", ".*", ".*")
    assert node.ask("GET", "/metrics/per-object", user=manager).status == 403
    assert node.ask("GET", "/metrics", user=node.add_user("prometheus", "monitoring")).status == 200


@pytest.mark.parametrize(
    ("say", "status"),
    [
        (b"POST /health/live HTTP/1.1\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"AMQP\x00\x00\x09\x01\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"x" * 9000, 400),
        (b"HEAD /metrics HTTP/1.0\r\nHost: \xff\r\n\r\n", 200),
        (b"GET /health/ready?x=%00 HTTP/1.1\r\n\r\n" * 100, 200),
    ],
)
def test_whatever_is_said_to_probes_is_one_answer_and_the_end(node: Running, say: bytes, status: int) -> None:
    with dial(node.probes) as connection:
        connection.sendall(say)
        text = b""
        while piece := connection.recv(65536):
            text += piece
    assert int(text.split()[1]) == status
    assert text.count(b"HTTP/1.1 ") == 1
    assert say[:4] != b"HEAD" or text.endswith(b"\r\n\r\n")


# Passwords.


def test_who_guesses_passwords_locks_out_itself_and_nobody_else(node: Running) -> None:
    """Not the user elsewhere, nor other users behind the same address, as behind a proxy."""
    for name in ("victim", "neighbour"):
        node.change("PUT", f"/api/users/{name}", {"password": f"{name}-secret", "tags": "management"})

    def comes_in(source: str, name: str, password: str) -> bool:
        login = base64.b64encode(f"{name}:{password}".encode()).decode()
        return asked(node.console, source, "GET", "/api/whoami", Authorization=f"Basic {login}")[0] == 200

    assert comes_in(OTHER, "victim", "victim-secret")
    for number in range(20):
        assert not comes_in(ATTACKER, "victim", str(number))
    assert not comes_in(ATTACKER, "victim", "victim-secret")
    assert comes_in(ATTACKER, "neighbour", "neighbour-secret")
    assert comes_in(OTHER, "victim", "victim-secret")
    host, _, port = node.amqp.rpartition(":")
    for name, fits in (("neighbour", True), ("victim", False)):  # AMQP counts the same
        login = pika.PlainCredentials(name, f"{name}-secret")
        with pytest.raises(ProbableAuthenticationError if not fits else ProbableAccessDeniedError):
            pika.BlockingConnection(pika.ConnectionParameters(host, int(port), "/", login))


# AMQP.


@pytest.mark.parametrize("say", [b"", b"AMQ", AMQP])
def test_silent_clients_keep_nobody_from_logging_in_over_amqp(node: Running, say: bytes) -> None:
    open_before = node.client()
    with crowd(node.amqp, 150, say) as attackers:
        with dial(node.amqp, OTHER) as other:
            other.sendall(AMQP)
            assert other.recv(1) == b"\x01"  # connection.start
            for _ in range(30):
                attackers.append(dial(node.amqp))
            other.setblocking(False)
            assert not cut_off(other)  # it is not the one who has to make room
        node.client().close()  # not even at the attacker's address
        assert all(ended_by(each, say) for each in attackers[:50])
        for each in attackers[150:]:
            each.close()
    assert open_before.is_open
    open_before.channel().queue_declare("", exclusive=True)
    open_before.close()


def test_silent_clients_from_some_addresses_keep_no_other_from_logging_in_over_amqp(node: Running) -> None:
    with ExitStack() as stack:
        attackers = [stack.enter_context(dial(node.amqp, f"127.0.0.{31 + number % 4}")) for number in range(100)]
        other = stack.enter_context(dial(node.amqp, OTHER))
        other.sendall(AMQP)
        assert other.recv(1) == b"\x01"  # connection.start
        attackers += [stack.enter_context(dial(node.amqp, f"127.0.0.{31 + number % 4}")) for number in range(40)]
        node.client().close()
        other.setblocking(False)
        assert not cut_off(other)  # it has few places, and others have many
        assert all(map(ended, attackers[:80]))


HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How the first record of a TLS client begins."""


def test_silent_handshakes_of_tls_keep_nobody_from_logging_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.certificate("node", "127.0.0.1")
    few = {
        "COTERIE_AMQP_HANDSHAKES_MAX": "60", "COTERIE_AMQP_ADDRESS_HANDSHAKES_MAX": "40",
        "COTERIE_AMQP_HANDSHAKE_TIMEOUT": "300", "COTERIE_CONSOLE_CONNECTIONS_MAX": "60",
        "COTERIE_CONSOLE_ADDRESS_CONNECTIONS_MAX": "40", "COTERIE_CONSOLE_HEAD_TIMEOUT": "300",
        "COTERIE_LISTEN_CONSOLE_TLS": "true", "COTERIE_LISTEN_AMQPS": "127.0.0.1:0",
        "COTERIE_LISTEN_TLS_CERT": cert, "COTERIE_LISTEN_TLS_KEY": key,
    }  # fmt: skip
    context = ssl.create_default_context(cafile=authority.ca)
    with Running(command="node", environment=few) as node:
        amqps = str(node.told["amqp"][-1])
        for at, say, answer in ((amqps, AMQP, b"\x01"), (node.console, b"GET / HTTP/1.0\r\n\r\n", b"H")):
            with crowd(at, 50), crowd(at, 50, HELLO):
                for source in (OTHER, ATTACKER):
                    with context.wrap_socket(dial(at, source), server_hostname="127.0.0.1") as client:
                        client.sendall(say)
                        assert client.recv(1) == answer


def cut_off(connection: socket.socket) -> bool:
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    return True


def ended_by(connection: socket.socket, say: bytes) -> bool:
    """After what it may have been told."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


# Clients that are gone.


@pytest.mark.parametrize("door", ["amqp", "console", "probes"])
def test_the_kernel_asks_a_silent_client_whether_it_is_still_there(node: Running, door: str) -> None:
    """Whoever is unplugged says no goodbye, and would keep its place for ever."""
    with dial(getattr(node, door)) as connection:
        ours, theirs = (name[1] for name in (connection.getsockname(), connection.getpeername()))
        row = (f":{theirs:04X}", f":{ours:04X}")

        def timers() -> list[str]:
            rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
            return [timer for _, local, remote, _, _, timer, *_ in rows if (local[8:], remote[8:]) == row]

        node.eventually(lambda: [timer[:3] for timer in timers()] == ["02:"])  # keep-alive runs


# Descriptors.


def test_a_node_has_more_descriptors_than_strangers_can_take() -> None:
    """It is started as a shell does it, and lets strangers have more places than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        running = Running(command="node", environment={"COTERIE_AMQP_HANDSHAKE_TIMEOUT": "300"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with running as node, crowd(node.amqp, 300):
        node.client().close()
        assert logged_in(node) == 201
        assert asked(node.probes, OTHER, "GET", "/health/ready")[0] == 200


# Deadlines.


@pytest.mark.parametrize(
    ("door", "say"),
    [
        ("console", b""),
        ("console", b"GET / HTTP/1.1\r\n"),
        ("console", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT"),
        ("console", b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"),
        ("probes", b""),
        ("probes", b"GET /metrics"),
        ("amqp", b""),
        ("amqp", AMQP),
    ],
)
def test_what_comes_half_ends_by_a_deadline(hasty: Running, door: str, say: bytes) -> None:
    with dial(getattr(hasty, door)) as connection:
        connection.sendall(say)
        ended_by(connection, say)


def test_a_users_half_body_is_a_timeout_and_an_idle_connection_ends(hasty: Running) -> None:
    head = f"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {LOGIN}\r\n"
    with dial(hasty.console) as connection:
        connection.sendall(f"{head}Content-Length: 99\r\n\r\n{{".encode())
        assert answer_of(connection) == 408
    with dial(hasty.console) as connection:
        connection.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        assert answer_of(connection) == 201
        ended_by(connection, b"")


def test_patterns_that_backtracking_engines_choke_on_stop_nothing(node: Running) -> None:
    for number in range(50):
        node.change("PUT", f"/api/queues/%2F/{'a' * 240}{number}", {})
    for pattern in ("(a%2B)%2B$", "(a*)*(a*)*(a*)*(a*)*!", "(a|aa)%2B!", "(.*a){9}!"):
        assert node.get(f"/api/queues?use_regex=true&name={pattern}") == []
    answer = node.ask("GET", "/api/queues?use_regex=true&name=(%3F!a)")
    assert (answer.status, "RE2 does not know" in answer.reason) == (400, True)
    policy = {"pattern": "(.*a){9}!", "definition": {"max-length": 5}}
    node.change("PUT", "/api/policies/%2F/costly", policy)
    answer = node.ask("PUT", "/api/policies/%2F/costly", {**policy, "pattern": r"(a)\1"})
    assert (answer.status, "refers back" in answer.reason) == (400, True)
    assert node.ask("GET", "/api/whoami", user=GUEST).status == 200
