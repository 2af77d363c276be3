"""Logins with tokens: a real node, a real issuer in another process, and clients that come with good and bad tokens."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pika
import pytest
from chromium import CHROMIUM, Browser
from console_rig import Answer, Running
from cryptography.hazmat.primitives.asymmetric import rsa
from issuer import EVERYTHING, Issuer, encoded
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

PAUSE = 0.3
"""Seconds between two fetches of keys, here."""


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with Issuer(tmp_path_factory.mktemp("issuer")) as issuer:
        yield issuer


def settings(issuer: Issuer) -> list[str]:
    return [
        "--oauth-issuer", issuer.url, "--oauth-resource-server-id", "rabbit", "--oauth-leeway", "0",
        "--oauth-keys-pause", str(PAUSE), "--oauth-timeout", "1", "--users-address-failures-max", "1000",
        "--oauth-additional-scopes-key", "roles realm.access", "--audit-publish", "true",
        "--audit-lines-per-host", "1000", "--audit-lines-in-all", "1000",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def node(issuer: Issuer) -> Iterator[Running]:
    with Running(*settings(issuer), command="node") as node:
        node.change("PUT", "/api/vhosts/other")
        yield node


def opened(node: Running, token: str, vhost: str = "/", name: str = "") -> pika.BlockingConnection:
    return node.client((name, token), vhost)


def bearer(node: Running, method: str, path: str, token: str, body: object = None) -> Answer:
    return node.ask(method, path, body, user=None, headers={"Authorization": f"Bearer {token}"})


def refused(node: Running, token: str) -> None:
    """By AMQP and by HTTP, in the words of any failed login."""
    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED - Login was refused"):
        opened(node, token)
    answer = bearer(node, "GET", "/api/overview", token)
    assert (answer.status, answer.reason) == (401, "Login failed")


def eventually(look: Callable[[], bool]) -> None:
    """For what no event tells: keys that are fetched, a token that ends."""
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(PAUSE / 4)


# Good ones.


@pytest.mark.parametrize("kid", ["first", "curve"])
def test_a_client_logs_in_with_a_token_and_does_what_its_scopes_allow(node: Running, issuer: Issuer, kid: str) -> None:
    client = opened(node, issuer.token(kid=kid))
    channel = client.channel()
    channel.queue_declare("tokens", auto_delete=True)
    channel.basic_publish("", "tokens", b"hello", pika.BasicProperties(user_id="app"))
    assert channel.basic_get("tokens", auto_ack=True)[2] == b"hello"
    (shown,) = [each for each in node.get("/api/connections") if each["user"] == "app"]
    assert shown["vhost"] == "/"
    assert "app" not in [user["name"] for user in node.get("/api/users")]
    client.close()


def test_the_name_that_comes_with_a_token_is_ignored_and_basic_authentication_takes_tokens_too(
    node: Running, issuer: Issuer
) -> None:
    token = issuer.token(sub="somebody")
    opened(node, token, name="guest").close()
    assert node.ask("GET", "/api/whoami", user=("guest", token)).json["name"] == "somebody"


def test_http_takes_a_bearer_token_with_the_rights_of_its_tags(node: Running, issuer: Issuer) -> None:
    who = bearer(node, "GET", "/api/whoami", issuer.token()).json
    assert (who["name"], who["tags"]) == ("app", ["administrator"])
    watcher = issuer.token("rabbit.tag:monitoring rabbit.tag:king rabbit.read:*/*", sub="watcher")
    assert bearer(node, "GET", "/api/whoami", watcher).json["tags"] == ["monitoring"]
    assert bearer(node, "GET", "/api/queues", watcher).status == 200
    assert bearer(node, "PUT", "/api/vhosts/new", watcher).status == 403
    nobody = bearer(node, "GET", "/api/queues", issuer.token("rabbit.read:*/*"))
    assert nobody.status == 401
    assert "no tag" in nobody.reason


def test_a_vhost_that_a_token_makes_is_open_to_nobody_by_it(node: Running, issuer: Issuer) -> None:
    """A stored user of the same name is somebody else."""
    node.add_user("app", "")
    assert bearer(node, "PUT", "/api/vhosts/made", issuer.token()).status == 201
    assert node.get("/api/users/app/permissions") == []
    node.change("DELETE", "/api/vhosts/made")
    node.change("DELETE", "/api/users/app")


def test_scopes_may_be_a_list_and_may_stand_in_other_claims(node: Running, issuer: Issuer) -> None:
    for claims in (
        {"scope": ["rabbit.tag:management"]},
        {"scope": "", "roles": ["rabbit.tag:management"]},
        {"scope": "", "roles": {"rabbit": ["tag:management"]}},
        {"scope": "", "realm": [{"access": "other rabbit.tag:management"}]},
    ):
        assert bearer(node, "GET", "/api/whoami", issuer.token(**claims)).json["tags"] == ["management"]


# What scopes do not allow.


def test_a_vhost_without_a_scope_is_shut(node: Running, issuer: Issuer) -> None:
    token = issuer.token("rabbit.read:other/* rabbit.write:other/*")
    opened(node, token, "other").close()
    for shut in (token, issuer.token("elsewhere.read:*/* read:*/*")):
        with pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED - access to vhost '/' refused"):
            opened(node, shut)


def test_names_and_routing_keys_without_a_scope_are_refused(node: Running, issuer: Issuer) -> None:
    scope = "rabbit.configure:%2F/shop-* rabbit.read:%2F/shop-* rabbit.write:%2F/shop-* rabbit.write:%2F/amq.topic/a.*"
    client = opened(node, issuer.token(scope))

    def tried(what: Any) -> int:
        channel = client.channel()
        try:
            what(channel)
        except ChannelClosedByBroker as error:
            return int(error.reply_code)
        channel.close()
        return 0

    def publish(exchange: str, key: str) -> Any:
        def act(channel: Any) -> None:
            channel.confirm_delivery()
            channel.basic_publish(exchange, key, b"")

        return act

    assert tried(lambda channel: channel.queue_declare("shop-1", auto_delete=True)) == 0
    assert tried(lambda channel: channel.queue_declare("bank-1", auto_delete=True)) == 403
    assert tried(publish("", "shop-1")) == 403  # the nameless exchange is amq.default
    assert tried(publish("amq.topic", "a.b")) == 0
    assert tried(publish("amq.topic", "b.b")) == 403
    client.close()


def test_no_scope_opens_the_audit_log_without_the_tag(node: Running, issuer: Issuer) -> None:
    everywhere = "rabbit.read:*/*/* rabbit.write:*/*/* rabbit.configure:*/*"
    eventually(lambda: node.ask("GET", "/api/exchanges/%2F/coterie.audit").status == 200)

    def tried(scope: str, act: Callable[[Any], object]) -> int:
        channel = opened(node, issuer.token(scope)).channel()
        channel.queue_declare("", exclusive=True)
        try:
            act(channel)
        except ChannelClosedByBroker as error:
            return int(error.reply_code)
        return 0

    def read(channel: Any) -> None:
        channel.queue_bind("", "coterie.audit", "#")

    def delete(channel: Any) -> None:
        channel.exchange_delete("coterie.audit", if_unused=True)

    assert tried(everywhere, read) == 403
    assert tried(everywhere, delete) == 403
    assert tried(f"{everywhere} rabbit.tag:monitoring", read) == 0
    assert tried(f"{everywhere} rabbit.tag:monitoring", delete) == 403


def test_the_audit_log_says_who_came_by_a_token(node: Running, issuer: Issuer) -> None:
    """It may have the name of a stored user, who is somebody else."""
    watch = node.channel()
    queue = watch.queue_declare("", exclusive=True).method.queue
    watch.queue_bind(queue, "coterie.audit", "#")
    token = issuer.token(sub="guest")
    renewed(opened(node, token), token)
    bearer(node, "PUT", "/api/vhosts/by-token", token)
    node.change("DELETE", "/api/vhosts/by-token")
    lines: list[tuple[str, str, bool | None]] = []
    for _, _, body in watch.consume(queue, auto_ack=True, inactivity_timeout=30):
        assert body is not None
        told = json.loads(body)["data"]
        if told["user"] == "guest" and told.get("of_vhost") in ("/", "by-token"):
            lines.append((told["action"], told["door"], told.get("token")))
        if lines[-1:] == [("vhost.deleted", "http", None)]:
            break
    assert ("login.accepted", "amqp", True) in lines
    assert ("login.renewed", "amqp", True) in lines
    assert ("vhost.created", "http", True) in lines


# Bad ones.


def test_tokens_that_are_no_good_are_refused(node: Running, issuer: Issuer) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    now = time.time()
    for token in (
        issuer.token(seconds=-1),
        issuer.token(exp="tomorrow"),
        issuer.token(exp=10**30),
        issuer.token(nbf=now + 600),
        issuer.token(aud="another"),
        issuer.token(aud=[]),
        issuer.token(iss="https://elsewhere.example"),
        issuer.token(sub=7),
        issuer.token(sub=""),
        issuer.token(sub="n" * 256),
        issuer.token(sub="\ud800"),
        issuer.token(" ".join(f"rabbit.read:{number}/*" for number in range(700))),  # larger than token_max
        issuer.token(key=stranger),
        issuer.token(kid="nobody", key=stranger),
        issuer.token()[:-8] + "AAAAAAAA",
        issuer.token()[:-1],
        "eyJ..",
        "eyJhbGciOiJSUzI1NiJ9.e30.AAAA",
    ):
        refused(node, token)
    without_end = issuer.claims()
    del without_end["exp"]
    refused(node, jwt.encode(without_end, issuer.keys["first"], "RS256", headers={"kid": "first"}))


def test_the_token_does_not_choose_how_it_is_checked(node: Running, issuer: Issuer) -> None:
    body = encoded(issuer.claims())
    unsigned = encoded({"alg": "none", "kid": "first"}) + b"." + body + b"."
    refused(node, unsigned.decode())
    # The public key, which everybody has, as the secret of HS256.
    signed = encoded({"alg": "HS256", "kid": "first"}) + b"." + body
    code = hmac.digest(issuer.public_pem("first"), signed, hashlib.sha256)
    refused(node, (signed + b"." + encoded(code)).decode())
    # Another algorithm than those of the settings, though the key could.
    refused(node, jwt.encode(issuer.claims(), issuer.keys["first"], "RS512", headers={"kid": "first"}))
    # A key's name that is another kind of key.
    refused(node, jwt.encode(issuer.claims(), issuer.keys["first"], "RS256", headers={"kid": "curve"}))
    # What must be understood, and is not.
    header = {"kid": "first", "crit": ["exp"]}
    refused(node, jwt.encode(issuer.claims(), issuer.keys["first"], "RS256", headers=header))


def test_a_header_of_any_size_harms_nobody(node: Running) -> None:
    for size in (20_000, 100_000, 1_000_000):
        connection = http.client.HTTPConnection(node.console, timeout=30)
        try:
            connection.request("GET", "/api/whoami", headers={"Authorization": f"Bearer eyJ{'a' * size}.a.a"})
            assert connection.getresponse().status in (400, 401, 431)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            connection.close()
    assert bearer(node, "GET", "/api/whoami", "[" * 9000).status == 401
    deep = encoded(b"[" * 5000) + b".e30.AAAA"
    assert bearer(node, "GET", "/api/whoami", deep.decode()).status == 401
    assert node.get("/api/whoami")["name"] == "guest"


def test_passwords_are_checked_as_ever(node: Running) -> None:
    node.client().close()
    assert node.ask("GET", "/api/whoami", user=("guest", "wrong")).status == 401


# Keys that come and go.


def test_a_new_key_is_found_when_a_token_names_it_and_unknown_ones_ask_the_issuer_seldom(
    node: Running, issuer: Issuer
) -> None:
    bearer(node, "GET", "/api/whoami", issuer.token())
    before, began = issuer.told("asked"), time.monotonic()
    stranger = rsa.generate_private_key(65537, 2048)
    for number in range(30):
        assert bearer(node, "GET", "/api/whoami", issuer.token(kid=f"none{number}", key=stranger)).status == 401
    assert issuer.told("asked") - before <= 2 + (time.monotonic() - began) / PAUSE
    issuer.add("second", rsa.generate_private_key(65537, 2048))
    eventually(lambda: bearer(node, "GET", "/api/whoami", issuer.token(kid="second")).status == 200)
    opened(node, issuer.token(kid="second")).close()
    gone = issuer.remove("second")
    eventually(  # any fetch drops it
        lambda: (
            bearer(node, "GET", "/api/whoami", issuer.token(kid="nobody", key=gone)).status
            == bearer(node, "GET", "/api/whoami", issuer.token(kid="second", key=gone)).status
            == 401
        )
    )


@pytest.mark.parametrize("trouble", ["broken", "large", "slow", "trickles"])
def test_while_the_issuer_does_not_answer_known_keys_are_used(node: Running, issuer: Issuer, trouble: str) -> None:
    assert bearer(node, "GET", "/api/whoami", issuer.token()).status == 200
    before = issuer.told(trouble)
    issuer.add(f"late-{trouble}", rsa.generate_private_key(65537, 2048))
    late = issuer.token(kid=f"late-{trouble}")
    try:
        while issuer.told("asked") == before:
            began = time.monotonic()
            assert bearer(node, "GET", "/api/whoami", late).status == 401
            time.sleep(PAUSE / 4)
            assert time.monotonic() - began < 5
        assert bearer(node, "GET", "/api/whoami", issuer.token()).status == 200
    finally:
        issuer.told("fine")
    eventually(lambda: bearer(node, "GET", "/api/whoami", late).status == 200)
    issuer.remove(f"late-{trouble}")


# The end of a token.


def test_a_connection_ends_when_its_token_does(node: Running, issuer: Issuer) -> None:
    client = opened(node, issuer.token(seconds=1.2))
    with pytest.raises(ConnectionClosedByBroker, match="has expired") as found:
        client.process_data_events(time_limit=10)
    assert found.value.reply_code == 320


def renewed(client: pika.BlockingConnection, token: str) -> None:
    """pika's own way: it returns when the broker has answered."""
    client.update_secret(token, "it runs out")


def test_a_new_token_of_the_same_user_keeps_a_connection_and_decides_what_it_may(node: Running, issuer: Issuer) -> None:
    client = opened(node, issuer.token(seconds=1.5))
    renewed(client, issuer.token("rabbit.read:%2F/*"))
    client.process_data_events(time_limit=1.8)
    channel = client.channel()
    with pytest.raises(ChannelClosedByBroker) as found:
        channel.queue_declare("of the old token")
    assert found.value.reply_code == 403
    client.close()


def test_a_new_token_may_end_sooner_than_the_old_one(node: Running, issuer: Issuer) -> None:
    client = opened(node, issuer.token())
    renewed(client, issuer.token(seconds=1.0))
    with pytest.raises(ConnectionClosedByBroker, match="has expired"):
        client.process_data_events(time_limit=10)


@pytest.mark.parametrize("claims", [{"sub": "another"}, {"seconds": -5}, {"scope": "rabbit.read:other/*"}])
def test_a_new_token_that_is_no_good_ends_the_connection(node: Running, issuer: Issuer, claims: dict[str, Any]) -> None:
    client = opened(node, issuer.token())
    with pytest.raises(ConnectionClosedByBroker) as found:
        renewed(client, issuer.token(**claims))
    assert found.value.reply_code == 530


def test_of_a_user_with_a_password_any_new_secret_is_taken(node: Running, issuer: Issuer) -> None:
    client = node.client()
    renewed(client, "whatever")
    renewed(client, issuer.token())
    assert client.channel().is_open
    client.close()


def test_a_login_on_the_page_ends_with_its_token(node: Running, issuer: Issuer) -> None:
    assert node.get("/api/auth", user=None) == {
        "oauth_enabled": True, "oauth_issuer": issuer.url, "oauth_resource_server_id": "rabbit"
    }  # fmt: skip
    began = node.ask("POST", "/api/session", {"token": issuer.token(seconds=1.0)}, user=None)
    assert (began.status, began.json["name"]) == (201, "app")
    cookie = {"Cookie": began.headers["Set-Cookie"].partition(";")[0]}
    assert node.ask("GET", "/api/whoami", user=None, headers=cookie).json["name"] == "app"
    eventually(lambda: node.ask("GET", "/api/whoami", user=None, headers=cookie).status == 401)
    for body in ({"token": "nonsense"}, {"token": 7}, {"token": "é" * 9999}, {"token": ""}):
        assert node.ask("POST", "/api/session", body, user=None).status in (400, 401, 413)


@pytest.mark.browser
def test_a_token_is_pasted_on_the_page(node: Running, issuer: Issuer, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is missing: `apt-get install chromium` gives it")
    page = Browser(tmp_path / "profile")
    try:
        page.open(f"http://{node.console}/")
        page.sees("Log in with a token", "#by-token")
        page.sees(f"An access token (JWT) of {issuer.url}.", "#by-token")
        page.fill("input[name=token]", issuer.token(seconds=-5))
        page.press("Enter")
        page.sees("That token is not accepted here")
        page.fill("input[name=token]", issuer.token())
        page.press("Enter")
        page.sees("app", ".who b")
    finally:
        page.close()


# Nothing but settings.


def test_an_issuer_over_https_is_asked_with_its_own_authority_and_one_that_is_away_does_not_keep_a_node_from_starting(
    tmp_path: Path,
) -> None:
    from test_streams_node import certificate

    cert, key = certificate(tmp_path)
    with Issuer(tmp_path, cert, key) as issuer:
        with Running(*settings(issuer), "--oauth-ca", str(cert), command="node") as node:
            assert bearer(node, "GET", "/api/whoami", issuer.token()).status == 200
            issuer.stop()
            assert bearer(node, "GET", "/api/whoami", issuer.token()).status == 200
        with Running(*settings(issuer), "--oauth-ca", str(cert), command="node") as node:
            assert bearer(node, "GET", "/api/whoami", issuer.token()).status == 401
            with pytest.raises(ProbableAuthenticationError):
                opened(node, issuer.token())
            node.client().close()


def test_the_scopes_of_the_tests_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "oauth.md").read_text()
    assert all(scope.replace("rabbit.", "") in page for scope in EVERYTHING.split())
    assert json.dumps("scope") in page
