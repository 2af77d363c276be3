"""The HTTP API, asked by every role for whatever the OpenAPI description says, in right and wrong ways.

`make fuzz-api` asks 10,000 times a role; here some hundred requests do. A role with permissions for `^app\\.` in the
vhost /a changes nothing else, whatever it asks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pika
import pytest
from api_campaign import Campaign, Role
from api_requests import Maker
from api_wire import Request, Wire
from console_rig import GUEST, Running
from pika.exceptions import AMQPError

OWN: Final = ("^app\\.",) * 3
NODE: Final = "fuzzed"
ROLES: Final = (
    Role("anonymous"),
    Role("no-tag", ("no-tag", "no-tag-secret")),
    Role("management", ("management", "management-secret"), ("management",)),
    Role("monitoring", ("monitoring", "monitoring-secret"), ("monitoring",)),
    Role("policymaker", ("policymaker", "policymaker-secret"), ("policymaker",)),
    Role("administrator", ("root", "root-secret"), ("administrator",)),
)
SETTINGS: Final = {
    "COTERIE_NODE_NAME": NODE, "COTERIE_CONSOLE_STREAM_PATIENCE": "0.02", "COTERIE_USERS_LOGIN_FAILURES_MAX": "1000000",
    "COTERIE_NODE_LOG_LEVEL": "warning", "COTERIE_CONSOLE_BODY_MAX": "200000",
}  # fmt: skip
GROWTH_MAX: Final = 96 << 20
"""Bytes that a node may grow by, between the first tenth of a run and its end: messages, queues, lines of the log."""


def start(folder: Path) -> Running:
    with folder.with_suffix(".log").open("ab") as log:
        return Running("--data", str(folder), environment=SETTINGS, command="node", log=log)


class World:
    """What is there: of the roles, in /a, what begins with `app.`; and of others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.node = start(folder)
        node = self.node
        for vhost in ("%2Fa", "%2Fb"):
            node.change("PUT", f"/api/vhosts/{vhost}")
        for role in ROLES[1:-1]:
            assert role.user is not None
            node.add_user(role.user[0], ",".join(role.tags), *OWN, vhost="%2Fa")
        node.add_user("root", "administrator", ".*", ".*", ".*", vhost="%2Fa")
        bystander = node.add_user("bystander", "management", ".*", ".*", ".*", vhost="%2Fb")
        for vhost, queue in (("/a", "app.q1"), ("/a", "app.q2"), ("/a", "other"), ("/b", "app.q1"), ("/", "app.q1")):
            at = quote(vhost, safe="")
            node.change("PUT", f"/api/queues/{at}/{queue}", {"arguments": {"x-max-length": 1000}})
            for number in range(3):
                body = {
                    "routing_key": queue,
                    "payload": f"{number} of {queue}",
                    "properties": {"headers": {"n": number}},
                }
                node.change("POST", f"/api/exchanges/{at}/amq.default/publish", body)
        for name in ("app.x", "other.x"):
            node.change("PUT", f"/api/exchanges/%2Fa/{name}", {"type": "topic"})
        node.change("POST", "/api/bindings/%2Fa/e/app.x/q/app.q1", {"routing_key": "#"})
        node.change("POST", "/api/bindings/%2Fa/e/other.x/q/other", {"routing_key": "a"})
        node.change("PUT", "/api/policies/%2Fa/other", {"pattern": "^other$", "definition": {"max-length": 9}})
        node.change("PUT", "/api/policies/%2Fb/all", {"pattern": ".*", "definition": {"max-length": 9}})
        node.change("PUT", "/api/operator-policies/%2Fa/most", {"pattern": ".*", "definition": {"max-length": 99}})
        node.change("PUT", "/api/vhost-limits/%2Fa/max-queues", {"value": 500})
        node.change("PUT", "/api/user-limits/bystander/max-connections", {"value": 7})
        node.change("PUT", "/api/global-parameters/one", {"value": {"a": 1}})
        node.change("POST", "/api/leases/%2Fb/app.q1/l1/acquire", {"rows": 1, "session": "s1"}, bystander)
        # Asked nothing for as long as a long run takes: no heartbeats.
        host, _, port = node.amqp.rpartition(":")
        self.client = pika.BlockingConnection(
            pika.ConnectionParameters(host, int(port), "/b", pika.PlainCredentials(*bystander), heartbeat=0)
        )
        self.document: dict[str, Any] = node.get("/api/openapi.json")
        self.names = {
            "vhost": ("/a", "/a", "/a", "/b", "/"), "user": ("bystander", "management", "somebody"),
            "/api/vhosts/ vhost": ("/new", "/b", "/a b"), "/api/queues name": ("app.q1", "app.q2", "app.q3", "other"),
            "/api/leases name": ("app.q1", "app.q2", "other"), "/api/streams name": ("app.q1", "app.q2", "other"),
            "/api/nodes name": (NODE,), "/api/healthchecks name": (NODE, "other"), "lease": ("l1", "l2"),
            "/api/exchanges name": ("app.x", "app.x", "app.y", "app.y", "other.x", "amq.topic", "amq.default"),
            "/api/connections name": (node.get("/api/connections")[0]["name"],),
            "/api/feature-flags name": ("quorum_queue",),
            "/api/policies name": ("app.p", "other"), "/api/operator-policies name": ("most", "app.p"),
            "/api/global-parameters name": ("one", "two"), "component": ("operator_policy", "vhost-limits", "x"),
            "/api/parameters name": ("limits", "most"), "limit": ("max-queues", "max-connections", "max-channels"),
            "source": ("app.x", "other.x", "amq.topic", "amq.default"),
            "destination": ("app.q1", "app.q2", "other", "app.x"),
            "properties": ("~", "%23", "a"), "kind": ("q", "q", "e"), "exchange": ("app.x", "amq.topic"),
            "port": (port, "1", "0", "65536"), "protocol": ("amqp", "mqtt"), "within": ("1", "1001"),
            "unit": ("days", "years", "hours"), "path": ("css/base.css", "x"),
        }  # fmt: skip

    @property
    def memory(self) -> int:
        return int(Path(f"/proc/{self.node.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def foreign(self, role: Role) -> dict[str, Any]:
        """Everything that the role may not change. A policy may shorten any queue of its vhost, and end it: what is in
        /a is a policymaker's own, but for what an administrator has set there."""
        whole_vhost = role.name == "policymaker"

        def is_own(shape: dict[str, Any]) -> bool:
            ends = (shape.get("source"), shape["destination"]) if "destination" in shape else (shape.get("name"),)
            named = all(str(end).startswith("app.") for end in ends)
            return shape.get("vhost") == "/a" and (whole_vhost or named)

        found: dict[str, Any] = self.node.get("/api/definitions")
        for section in ("queues", "exchanges", "bindings", "policies"):
            if section != "policies" or whole_vhost:
                found[section] = [shape for shape in found[section] if not is_own(shape)]
        queues = [queue for queue in self.node.get("/api/queues") if not is_own(queue)]
        found["messages"] = {
            f"{queue['vhost']} {queue['name']}": self.node.get(
                f"/api/queues/{quote(queue['vhost'], safe='')}/{quote(queue['name'], safe='')}/messages"
            )
            for queue in queues
        }
        found["exchanges too"] = [
            shape["name"] for shape in self.node.get("/api/exchanges") if not is_own(shape) or not shape["name"]
        ]
        found["leases"] = [
            {key: value for key, value in lease.items() if key != "idle"}  # time passes
            for lease in self.node.get("/api/leases")
            if lease["vhost"] != "/a"
        ]
        found["tracing"] = self.node.get("/api/tracing")
        return found

    def check_log(self) -> None:
        log = self.log.read_text("utf-8", "replace")
        for word in ("Traceback", "traceback", "a request failed", "never awaited", "never retrieved"):
            at = log.find(word)
            assert at < 0, log[max(0, at - 1000) : at + 3000]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("api") / "data")
    try:
        yield world
    finally:
        with suppress(AMQPError):  # its vhost may be gone
            world.client.close()
        world.node.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b'{"value": "\xff"}'), ({}, b'{"value": NaN}'), ({}, b'{"value": -Infinity}'), ({}, b'{"value": 1e999}'),
        ({"Content-Encoding": "gzip"}, b'{"value": 1}'),
        ({"Content-Type": "application/json; charset=utf-16"}, b"{\0}\0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/session", "/api/global-parameters/two", "/api/exchanges/%2F/strange"])
def test_a_body_that_cannot_be_read_is_a_bad_request_before_a_login_and_after_it(
    world: World, path: str, headers: dict[str, str], body: bytes
) -> None:
    method = "POST" if path == "/api/session" else "PUT"
    answer = world.node.ask(method, path, body, headers=headers, user=None if method == "POST" else GUEST)
    packed = path == "/api/session" and "Content-Encoding" in headers
    assert (answer.status, answer.json["error"]) == (
        (415, "unsupported_media_type") if packed else (400, "bad_request")
    )


def test_the_charset_of_json_is_utf_8_whatever_a_client_says(world: World) -> None:
    headers = {"Content-Type": "application/json; charset=nonsense"}
    answer = world.node.ask("PUT", "/api/global-parameters/two", '{"value": "é"}'.encode(), headers=headers)
    assert answer.status in (201, 204)
    assert world.node.get("/api/global-parameters/two")["value"] == "é"


def test_what_is_no_http_and_a_body_that_nobody_reads_are_no_tracebacks_in_the_log(world: World) -> None:
    wire = Wire(world.node.console)
    for method, headers in (("X" * 200, []), ("DELETE", [("Content-Encoding", b"gzip"), ("Host", b"localhost")])):
        assert wire.ask(Request("GET", "", "/api/whoami", [("Host", b"localhost")])).status == 401
        assert wire.ask(Request(method, "", "/api/whoami", headers, b"no gzip")).status in (400, 405)
    wire.close()
    world.check_log()


def test_the_description_asks_for_a_login_and_is_sent_once(world: World) -> None:
    assert world.node.ask("GET", "/api/openapi.json", user=None).status == 401
    answer = world.node.ask("GET", "/api/openapi.json")
    assert answer.json["openapi"].startswith("3.1")
    again = world.node.ask("GET", "/api/openapi.json", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_no_request_of_a_role_fails_the_node_or_changes_what_is_not_its_own(
    world: World, role: Role, request: pytest.FixtureRequest
) -> None:
    requests, seed = (int(request.config.getoption(f"--api-fuzz-{what}")) for what in ("requests", "seed"))
    before = world.foreign(role)
    maker = Maker(world.document, f"{seed} {role.name}", world.names)
    campaign = Campaign(world.node.console, world.document, role, maker)
    campaign.run(requests // 10)
    memory = world.memory
    campaign.run(requests - requests // 10)
    grown = world.memory - memory
    assert not campaign.problems, "\n\n".join([f"--api-fuzz-seed {seed}", *campaign.problems.values()])
    world.check_log()
    assert world.node.get("/api/whoami")["name"] == "guest"
    if role.name != "administrator":
        after = world.foreign(role)
        for section, shapes in before.items():
            assert after[section] == shapes, section
        world.client.process_data_events(time_limit=0)
        assert world.client.is_open
    assert grown < GROWTH_MAX, f"the node has grown by {grown >> 20} MiB"
    statuses = dict(sorted(campaign.statuses.items()))
    print(json.dumps({"role": role.name, "seed": seed, "statuses": statuses, "grown": grown}))


def test_what_was_left_after_all_of_that_is_there_after_a_restart(world: World) -> None:
    def look() -> Any:
        found = world.node.get("/api/definitions")
        # The default vhost is there whenever a broker starts.
        found["vhosts"] = [vhost for vhost in found["vhosts"] if vhost["name"] != "/"]
        return found

    definitions = look()
    code, _ = world.node.stop()
    assert code == 0
    world.node = start(world.folder)
    assert look() == definitions
    world.check_log()
