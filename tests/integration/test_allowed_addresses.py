"""A real node that lets in some addresses only: all of 127.0.0.0/8 is this host, so clients can come from several."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from console_rig import GUEST, Running
from pika.exceptions import ProbableAuthenticationError

NEAR, FAR = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    settings = (
        "--amqp-allow", "127.0.0.1,10.0.0.0/8", "--console-allow", "127.0.0.0/30", "--probes-allow", "127.0.0.1",
    )  # fmt: skip
    with Running(*settings, command="node") as node:
        yield node


def said_to(at: str, source: str) -> bytes:
    """What a client that comes from there reads first."""
    host, _, port = at.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0)) as client:
        try:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return client.recv(4)
        except ConnectionError:
            return b""


def probed(node: Running, source: str) -> int:
    return answered(node.probes, source, "/health/live", {})


def asked(node: Running, source: str, user: tuple[str, str]) -> int:
    code = base64.b64encode(":".join(user).encode()).decode()
    return answered(node.console, source, "/api/whoami", {"Authorization": f"Basic {code}"})


def answered(at: str, source: str, path: str, headers: dict[str, str]) -> int:
    host, _, port = at.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30, source_address=(source, 0))
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def test_a_listener_closes_what_comes_from_elsewhere_before_it_has_said_a_word(node: Running) -> None:
    assert said_to(node.amqp, NEAR) == b"\x01\x00\x00\x00"
    assert said_to(node.amqp, FAR) == b""
    assert probed(node, NEAR) == 200
    assert probed(node, FAR) == 0
    assert asked(node, NEAR, GUEST) == asked(node, FAR, GUEST) == 200
    assert asked(node, "127.0.0.9", GUEST) == 0
    assert json.dumps(node.get("/api/log")).count("its address is not allowed here") == 3


def test_a_user_comes_in_from_its_networks_only(node: Running) -> None:
    shop = node.add_user("shop", "management", ".*", ".*", ".*")
    node.client(shop).close()
    node.command("users", "allow", "shop", FAR)
    with pytest.raises(ProbableAuthenticationError, match="Login was refused"):
        node.client(shop)
    assert (asked(node, NEAR, shop), asked(node, FAR, shop)) == (401, 200)
    assert node.get("/api/users/shop")["allow"] == ["127.0.0.2/32"]
    assert "127.0.0.2/32" in node.command("users").stdout
    exported = node.get("/api/definitions")
    node.command("users", "allow", "shop")
    node.client(shop).close()
    node.change("POST", "/api/definitions", exported)
    assert node.get("/api/users/shop")["allow"] == ["127.0.0.2/32"]
    node.change("DELETE", "/api/user-addresses/shop")
    assert node.get("/api/users/shop")["allow"] == []
    for body in ({"value": "10.0.0.0/8"}, {"value": [7]}, {"value": ["10.0.0.1/8"]}, {}, {"value": None}):
        assert node.ask("PUT", "/api/user-addresses/shop", body).status == 400
    assert node.ask("PUT", "/api/user-addresses/nobody", {"value": []}).status == 404
    assert node.ask("PUT", "/api/user-addresses/guest", {"value": []}, user=shop).status == 403


def test_a_login_on_the_page_ends_when_its_address_is_no_longer_allowed(node: Running) -> None:
    ops = node.add_user("ops", "management")
    began = node.ask("POST", "/api/session", {"name": ops[0], "password": ops[1]}, user=None)
    cookie = {"Cookie": began.headers["Set-Cookie"].partition(";")[0]}
    assert node.ask("GET", "/api/whoami", user=None, headers=cookie).status == 200
    node.change("PUT", "/api/user-addresses/ops", {"value": ["10.0.0.0/8"]})
    assert node.ask("GET", "/api/whoami", user=None, headers=cookie).status == 401
