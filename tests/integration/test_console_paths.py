"""The HTTP API as RabbitMQ's tools, and the test suites of other clients, use it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest
from console_rig import Running

ROOT = "/api/queues/%2F"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running() as running:
        yield running


# Paths and methods.


@pytest.mark.parametrize(
    "path",
    [
        "/api/overview", "/api/nodes", "/api/connections", "/api/queues", "/api/queues/%2F", "/api/exchanges/%2F",
        "/api/exchanges/%2F/amq.topic", "/api/bindings", "/api/vhosts/%2F", "/api/users/guest",
        "/api/permissions/%2F/guest", "/api/health/checks/alarms", "/api/cluster", "/api/definitions", "/api/whoami",
    ],
)  # fmt: skip
def test_a_path_may_end_with_a_slash_and_be_asked_for_its_head(node: Running, path: str) -> None:
    plain, slashed = node.ask("GET", path), node.ask("GET", f"{path}/")
    assert (plain.status, slashed.status) == (200, 200)
    assert type(slashed.json) is type(plain.json)
    for each in (path, f"{path}/"):
        head = node.ask("HEAD", each)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Type"].startswith("application/json")
    assert node.ask("HEAD", path, user=None).status == 401


def test_changes_may_end_with_a_slash_and_what_is_not_there_has_no_head(node: Running) -> None:
    assert node.change("PUT", f"{ROOT}/slash/", {}).status == 201
    body = {"routing_key": "slash", "payload": "x"}
    assert node.change("POST", "/api/exchanges/%2F/amq.default/publish/", body).json == {"routed": True}
    assert node.ask("HEAD", f"{ROOT}/slash").status == 200
    assert node.change("DELETE", f"{ROOT}/slash/").status == 204
    assert node.ask("HEAD", f"{ROOT}/slash").status == 404
    assert node.ask("GET", f"{ROOT}/slash//").status == 404
    assert node.ask("HEAD", "/metrics").status == 200


def test_numbers_may_be_texts_as_tools_without_types_write_them(node: Running) -> None:
    node.change("PUT", f"{ROOT}/numbers", {})
    for _ in range(3):
        node.change("POST", "/api/exchanges/%2F/amq.default/publish", {"routing_key": "numbers", "payload": "abcdef"})
    body = {"count": "2", "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": "3"}
    assert [each["payload"] for each in node.change("POST", f"{ROOT}/numbers/get", body).json] == ["abc", "abc"]
    for wrong in ("", "two", "2.0", "--2", "\u0662", "1" * 30, [2], True, None):
        answer = node.ask("POST", f"{ROOT}/numbers/get", {**body, "count": wrong})
        assert (answer.status, answer.reason) == (400, "'count' must be a whole number")
    node.change("PUT", "/api/vhost-limits/%2F/max-queues", {"value": "-1"})
    node.change("DELETE", f"{ROOT}/numbers")


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("a/b", "a%2Fb"), ("a b", "a+b"), ("a+b", "a%2Bb"), ("a.#", "a.%23"), ("a~b", "a%7Eb"), ("a%2Fb", "a%252Fb"),
        ("A.b-c_d", "A.b-c_d"), ("a:b@c", "a%3Ab%40c"), ("é", "%C3%A9"), ("", "~"),
    ],
)  # fmt: skip
def test_a_bindings_key_is_percent_encoded_and_finds_it(node: Running, key: str, told: str) -> None:
    node.change("PUT", f"{ROOT}/keys", {})
    between = "/api/bindings/%2F/e/amq.topic/q/keys"
    for arguments in ({}, {"x": 1}):
        made = node.change("POST", between, {"routing_key": key, "arguments": arguments})
        (row,) = [row for row in node.get(between) if bool(row["arguments"]) == bool(arguments)]
        told_now = row["properties_key"]
        assert told_now == told if not arguments else told_now.startswith(f"{told}~".replace("~~", "~"))
        assert urljoin(between, made.headers["Location"]) == f"{between}/{quote(told_now, safe='')}"
        # As it was told, which a server decodes, and quoted for a path, which is what `Location` says.
        for path in (f"{between}/{told_now}", f"{between}/{quote(told_now, safe='')}"):
            assert node.get(path)["routing_key"] == key
        # As RabbitMQ does: a client may have encoded the routing key by itself, and quoted that for a path.
        by_client = "".join(f"%{byte:02X}" for byte in key.encode()) + told_now[len(told.rstrip("~")) :]
        assert node.get(f"{between}/{quote(by_client, safe='')}")["routing_key"] == key
        assert node.change("DELETE", f"{between}/{told_now}").status == 204
    node.change("DELETE", f"{ROOT}/keys")


# What RabbitMQ has paths for.


def test_tools_find_what_they_ask_for_before_they_use_a_node(node: Running) -> None:
    name = node.get("/api/overview")["node"]
    assert node.get("/api/extensions") == []
    assert node.get("/api/auth") == node.get("/api/auth", user=None) == {"oauth_enabled": False}
    flags = {flag["name"]: flag["state"] for flag in node.get("/api/feature-flags")}
    assert flags["user_limits"] == "enabled"
    assert node.change("PUT", "/api/feature-flags/user_limits/enable", {}).status == 204
    assert node.ask("PUT", "/api/feature-flags/nothing/enable", {}).reason == "unsupported"
    memory = node.get(f"/api/nodes/{quote(name, safe='')}/memory")["memory"]
    assert memory["total"]["rss"] > 1_000_000
    assert node.ask("GET", "/api/nodes/nobody/memory").status == 404


def test_a_message_goes_through_the_queue_of_the_aliveness_test(node: Running) -> None:
    for _ in range(3):
        assert node.get("/api/aliveness-test/%2F") == {"status": "ok"}
    assert node.get(f"{ROOT}/aliveness-test")["messages"] == 0
    assert node.ask("GET", "/api/aliveness-test/nowhere").status == 404
    stranger = node.add_user("stranger", "management", "^mine", "^mine", "^mine")
    assert node.ask("GET", "/api/aliveness-test/%2F", user=stranger).status == 403


def test_the_older_check_of_a_node_and_those_for_clusters_are_well(node: Running) -> None:
    name = node.get("/api/overview")["node"]
    assert node.get("/api/healthchecks/node") == {"status": "ok"}
    assert node.get(f"/api/healthchecks/node/{quote(name, safe='')}") == {"status": "ok"}
    assert node.ask("GET", "/api/healthchecks/node/nobody").status == 404
    for check in ("node-is-quorum-critical", "node-is-mirror-sync-critical"):
        assert node.get(f"/api/health/checks/{check}") == {"status": "ok", "reason": "single node cluster"}


def test_parameters_are_those_of_components_that_there_are(node: Running) -> None:
    limits = "/api/parameters/vhost-limits/%2F/limits"
    assert node.change("PUT", limits, {"value": {"max-queues": 1000}}).status == 201
    shape = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1000}}
    assert node.get(limits) == shape
    assert node.get("/api/vhost-limits/%2F") == [{"vhost": "/", "value": {"max-queues": 1000}}]
    value = {"pattern": "^q", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
    policy = "/api/parameters/operator_policy/%2F/small"
    assert node.change("PUT", policy, {"value": value}).status == 201
    assert node.get("/api/operator-policies/%2F/small")["definition"] == {"max-length": 5}
    assert [each["component"] for each in node.get("/api/parameters")] == ["operator_policy", "vhost-limits"]
    assert node.get("/api/parameters/vhost-limits") == node.get("/api/parameters/vhost-limits/%2F") == [shape]
    assert node.get("/api/parameters/shovel") == []
    assert node.change("PUT", limits, {"value": {"max-connections": 50}}).status == 204
    assert node.get(limits)["value"] == {"max-connections": 50}
    for path in (limits, policy):
        assert node.change("DELETE", path).status == 204
        assert node.ask("DELETE", path).status == 404
    assert node.get("/api/parameters") == []
    answer = node.ask("PUT", "/api/parameters/shovel/%2F/mine", {"value": {}})
    assert (answer.status, "component shovel not found" in answer.reason) == (400, True)
    for body in ({"value": {"max-colour": 1}}, {"value": {"max-queues": "many"}}, {"value": 5}, {}):
        assert node.ask("PUT", limits, body).status == 400
    assert node.get("/api/parameters") == []
    maker = node.add_user("maker", "policymaker", ".*", ".*", ".*")
    assert node.ask("GET", "/api/parameters", user=maker).status == 200
    assert node.ask("PUT", limits, {"value": {"max-queues": 1}}, maker).status == 403


def test_global_parameters_are_kept_and_are_in_definitions(tmp_path: Path) -> None:
    with Running("--data", str(tmp_path)) as node:
        path = "/api/global-parameters/cluster_tags"
        assert node.change("PUT", path, {"value": {"zone": "a"}}).status == 201
        assert node.change("PUT", path, {"value": ["a", 1, None]}).status == 204
        node.change("PUT", "/api/global-parameters/a%2Fb", {"value": ""})
        listed = [{"name": "a/b", "value": ""}, {"name": "cluster_tags", "value": ["a", 1, None]}]
        assert node.get("/api/global-parameters") == listed
        deep: object = 1
        for _ in range(40):
            deep = [deep]
        for wrong in ({}, {"value": deep}, {"value": "x" * 70_000}, b'{"value": NaN}'):
            assert node.ask("PUT", path, wrong).status == 400
        assert node.ask("PUT", f"/api/global-parameters/{'x' * 256}", {"value": 1}).status == 400
        node.stop(signal.SIGKILL)
    with Running("--data", str(tmp_path)) as node:
        assert node.get(path) == {"name": "cluster_tags", "value": ["a", 1, None]}
        document = node.get("/api/definitions")
        assert document["global_parameters"] == listed
        assert node.change("DELETE", path).status == 204
        assert node.ask("GET", path).status == node.ask("DELETE", path).status == 404
        assert node.change("POST", "/api/definitions", document).json["done"]["global_parameters"] == 1
        assert node.get("/api/global-parameters") == listed
        maker = node.add_user("maker", "policymaker", ".*", ".*", ".*")
        assert node.ask("PUT", path, {"value": 1}, maker).status == 403


def test_certificates_that_end_soon_are_told(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=broker", "-days", "20"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    environment = {
        "COTERIE_LISTEN_AMQPS": "127.0.0.1:0", "COTERIE_LISTEN_TLS_CERT": str(cert), "COTERIE_LISTEN_TLS_KEY": str(key)
    }  # fmt: skip
    with Running(environment=environment, command="node") as node:
        check = "/api/health/checks/certificate-expiration"
        assert node.get(f"{check}/1/weeks") == {"status": "ok"}
        answer = node.ask("GET", f"{check}/1/months")
        assert (answer.status, answer.json["status"]) == (503, "failed")
        (ending,) = answer.json["expired"]
        assert ending["file"] == str(cert)
        assert node.ask("GET", f"{check}/1/fortnights").status == node.ask("GET", f"{check}/x/days").status == 400
        cert.write_text("nothing")
        assert node.ask("GET", f"{check}/1/weeks").status == 400
    with Running() as node:
        assert node.get(f"{check}/1000/years") == {"status": "ok"}
