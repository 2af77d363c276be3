"""The HTTP API and the metrics of a real node: what they show, what they change, whom they let in."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from console_rig import Running
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

ROOT = "/api/queues/%2F"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running() as running:
        yield running


# Queues, exchanges, bindings.


def test_a_queue_is_declared_shown_and_deleted(node: Running) -> None:
    body = {"durable": True, "arguments": {"x-max-length": 10}}
    assert node.change("PUT", f"{ROOT}/life", body).status == 201
    assert node.change("PUT", f"{ROOT}/life", body).status == 204
    queue = node.get(f"{ROOT}/life")
    assert (queue["name"], queue["vhost"], queue["durable"], queue["type"]) == ("life", "/", True, "classic")
    assert queue["arguments"] == {"x-max-length": 10}
    assert queue["effective_limits"] == {"max-length": 10, "overflow": "drop-head"}
    assert node.change("DELETE", f"{ROOT}/life").status == 204
    assert node.ask("GET", f"{ROOT}/life").status == 404
    assert node.ask("DELETE", f"{ROOT}/life").status == 404


def test_a_second_declaration_that_differs_is_refused_as_a_client_would_be(node: Running) -> None:
    node.change("PUT", f"{ROOT}/same", {})
    answer = node.ask("PUT", f"{ROOT}/same", {"durable": False})
    assert answer.status == 400
    assert "inequivalent arg 'durable'" in answer.reason
    answer = node.ask("PUT", f"{ROOT}/odd", {"arguments": {"x-max-length": "many"}})
    assert answer.status == 400
    assert "x-max-length" in answer.reason


def test_names_with_every_kind_of_character_go_through_paths(node: Running) -> None:
    for name in ("a b", "a/b", "ü€", "100%", "a%2Fb", "#?&", "+", ".x"):
        path = f"{ROOT}/{quote(name, safe='')}"
        node.change("PUT", path, {})
        assert node.get(path)["name"] == name
        node.change("DELETE", path)


def test_a_queue_is_deleted_only_if_it_is_empty_or_unused_where_that_is_asked_for(node: Running) -> None:
    channel = node.channel()
    channel.queue_declare("guarded")
    channel.basic_publish("", "guarded", b"x")
    node.eventually(lambda: node.get(f"{ROOT}/guarded")["messages"] == 1)
    answer = node.ask("DELETE", f"{ROOT}/guarded?if-empty=true")
    assert (answer.status, "not empty" in answer.reason) == (400, True)
    channel.basic_consume("guarded", lambda *_: None)
    answer = node.ask("DELETE", f"{ROOT}/guarded?if-unused=true")
    assert (answer.status, "in use" in answer.reason) == (400, True)
    node.change("DELETE", f"{ROOT}/guarded")


def test_somebodys_exclusive_queue_is_shown_and_left_alone(node: Running) -> None:
    channel = node.channel()
    channel.queue_declare("mine", exclusive=True)
    channel.basic_publish("", "mine", b"secret")
    node.eventually(lambda: node.get(f"{ROOT}/mine")["messages"] == 1)
    assert node.get(f"{ROOT}/mine")["owner_connection"] in {row["name"] for row in node.get("/api/connections")}
    for method, path, body in (
        ("DELETE", f"{ROOT}/mine", None),
        ("DELETE", f"{ROOT}/mine/contents", None),
        ("POST", f"{ROOT}/mine/get", {}),
        ("GET", f"{ROOT}/mine/messages", None),
    ):
        assert node.ask(method, path, body).status == 409
    assert node.ask("PUT", f"{ROOT}/other", {"exclusive": True}).status == 400


def test_exchanges_and_bindings_are_made_found_and_deleted(node: Running) -> None:
    assert node.change("PUT", "/api/exchanges/%2F/news", {"type": "topic"}).status == 201
    assert node.change("PUT", "/api/exchanges/%2F/more", {"type": "fanout"}).status == 201
    node.change("PUT", f"{ROOT}/inbox", {})
    between = "/api/bindings/%2F/e/news/q/inbox"
    assert node.change("POST", between, {"routing_key": "a.#"}).status == 201
    node.change("POST", between, {"routing_key": "b", "arguments": {"k": 1}})
    node.change("POST", "/api/bindings/%2F/e/news/e/more", {"routing_key": ""})
    keys = {row["routing_key"]: row["properties_key"] for row in node.get(between)}
    assert keys["a.#"] == "a.%23"
    assert keys["b"].startswith("b~")
    assert len(node.get("/api/exchanges/%2F/news/bindings/source")) == 3
    assert len(node.get("/api/exchanges/%2F/more/bindings/destination")) == 1
    assert {row["source"] for row in node.get(f"{ROOT}/inbox/bindings")} == {"", "news"}
    for key in keys.values():
        assert node.get(f"{between}/{quote(key, safe='')}")["destination"] == "inbox"
        assert node.change("DELETE", f"{between}/{quote(key, safe='')}").status == 204
    assert node.get(between) == []
    assert node.get("/api/bindings/%2F/e/news/e/more/~")["destination_type"] == "exchange"
    assert node.ask("POST", "/api/bindings/%2F/e/nowhere/q/inbox", {}).status == 404
    node.change("DELETE", "/api/exchanges/%2F/news")
    assert node.ask("GET", "/api/exchanges/%2F/news").status == 404
    assert node.ask("DELETE", "/api/exchanges/%2F/amq.topic").status == 403
    assert node.get("/api/exchanges/%2F/amq.default")["name"] == ""


def test_lists_are_filtered_sorted_and_cut_into_pages(node: Running) -> None:
    node.change("PUT", "/api/vhosts/pages")
    channel = node.channel(vhost="pages")
    for number in range(7):
        channel.queue_declare(f"q{number}")
        for _ in range(number):
            channel.basic_publish("", f"q{number}", b"x")
    node.eventually(lambda: node.get("/api/queues/pages/q6")["messages"] == 6)
    page = node.get("/api/queues/pages?page=2&page_size=3&sort=messages&sort_reverse=true&columns=name,messages")
    assert page["items"] == [
        {"name": "q3", "messages": 3},
        {"name": "q2", "messages": 2},
        {"name": "q1", "messages": 1},
    ]
    assert (page["page_count"], page["total_count"], page["filtered_count"], page["item_count"]) == (3, 7, 7, 3)
    found = node.get("/api/queues/pages?name=%5Eq%5B12%5D%24&use_regex=true")
    assert [row["name"] for row in found] == ["q1", "q2"]
    for wrong in (
        "page=0",
        "page=9",
        "page_size=100000&page=1",
        "page=x",
        "name=(%3F%3Da)&use_regex=true",
        "name=(&use_regex=true",
    ):
        assert node.ask("GET", f"/api/queues/pages?{wrong}").status == 400
    node.change("DELETE", "/api/vhosts/pages")
    assert node.ask("GET", "/api/queues/pages").status == 404


# Messages.


def test_a_message_is_published_looked_at_and_taken(node: Running) -> None:
    node.change("PUT", f"{ROOT}/letters", {})
    publish = "/api/exchanges/%2F/amq.default/publish"
    properties = {"delivery_mode": 2, "content_type": "text/plain", "headers": {"n": 1}}
    message = {"routing_key": "letters", "payload": "ü", "properties": properties}
    assert node.change("POST", publish, message).json == {"routed": True}
    binary = {"routing_key": "letters", "payload": "/w==", "payload_encoding": "base64"}
    assert node.change("POST", publish, binary).json == {"routed": True}
    assert node.change("POST", publish, message | {"routing_key": "nowhere"}).json == {"routed": False}

    first, second = node.change("POST", f"{ROOT}/letters/get", {"count": 5}).json
    assert (first["payload"], first["payload_encoding"], first["payload_bytes"]) == ("ü", "string", 2)
    assert (first["properties"], first["redelivered"], first["message_count"]) == (properties, False, 1)
    assert (second["payload"], second["payload_encoding"]) == ("/w==", "base64")
    (again,) = node.change("POST", f"{ROOT}/letters/get", {"count": 1, "ackmode": "ack_requeue_false"}).json
    assert (again["payload"], again["redelivered"]) == ("ü", True)
    assert node.get(f"{ROOT}/letters")["messages"] == 1
    method, _, body = node.channel().basic_get("letters", auto_ack=True)
    assert (method is not None, body) == (True, b"\xff")


def test_what_is_rejected_goes_to_the_dead_letter_exchange(node: Running) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    node.change("PUT", f"{ROOT}/doomed", {"arguments": dead})
    node.change("PUT", f"{ROOT}/grave", {})
    node.change("POST", "/api/exchanges/%2F/amq.default/publish", {"routing_key": "doomed", "payload": "x"})
    node.change("POST", f"{ROOT}/doomed/get", {"ackmode": "reject_requeue_false"})
    assert node.get(f"{ROOT}/doomed")["messages"] == 0
    (letter,) = node.change("POST", f"{ROOT}/grave/get", {}).json
    assert letter["properties"]["headers"]["x-first-death-reason"] == "rejected"


def test_browsing_by_position_shows_what_is_ready_and_what_is_held_and_changes_nothing(node: Running) -> None:
    channel = node.channel()
    channel.queue_declare("shelf")
    for number in range(6):
        channel.basic_publish("", "shelf", b"%d" % number)
    held, _, _ = channel.basic_get("shelf")
    assert held is not None
    before = node.get(f"{ROOT}/shelf")
    page = node.get(f"{ROOT}/shelf/messages?limit=4")
    assert [(item["position"], item["payload"], item["state"]) for item in page["items"]] == [
        (1, "0", "acquired"),
        (2, "1", "ready"),
        (3, "2", "ready"),
        (4, "3", "ready"),
    ]
    rest = node.get(f"{ROOT}/shelf/messages?first={page['next_first']}")
    assert [item["payload"] for item in rest["items"]] == ["4", "5"]
    assert (rest["next_first"], rest["next_position"]) == (None, 7)
    assert [item["position"] for item in node.get(f"{ROOT}/shelf/messages?first=2&last=3")["items"]] == [2, 3]
    after = node.get(f"{ROOT}/shelf")
    assert {key: value for key, value in after.items() if "message" in key and key != "message_stats"} == {
        key: value for key, value in before.items() if "message" in key and key != "message_stats"
    }
    assert node.change("POST", f"{ROOT}/shelf/get", {}).json[0]["redelivered"] is False


def test_purging_drops_what_is_ready(node: Running) -> None:
    node.change("PUT", f"{ROOT}/full", {})
    for _ in range(3):
        node.change("POST", "/api/exchanges/%2F/amq.default/publish", {"routing_key": "full", "payload": ""})
    assert node.change("DELETE", f"{ROOT}/full/contents").status == 204
    queue = node.get(f"{ROOT}/full")
    assert (queue["messages"], queue["counters"]["purged"]) == (0, 3)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"payload": "x"}, "routing_key"),
        ({"routing_key": "q", "payload": 1}, "payload"),
        ({"routing_key": "q", "payload": "*", "payload_encoding": "base64"}, "base64"),
        ({"routing_key": "q", "payload": "x", "properties": {"colour": "red"}}, "colour"),
        ({"routing_key": "q", "payload": "x", "properties": {"priority": 256}}, "priority"),
        ({"routing_key": "q", "payload": "x", "properties": {"expiration": "soon"}}, "expiration"),
        ({"routing_key": "q", "payload": "x", "properties": {"user_id": "somebody"}}, "user_id"),
        ({"routing_key": "q" * 300, "payload": "x"}, ""),
        ({"routing_key": "\ud800", "payload": "x"}, "Unicode"),
        ({"routing_key": "q", "payload": "x", "properties": {"headers": {"a": 2**70}}}, "64 bits"),
        ({"routing_key": "q", "payload": "x", "properties": {"type": "x" * 300}}, ""),
        ([], "object"),
        (b"{", "JSON"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_with_the_reason(node: Running, body: object, reason: str) -> None:
    answer = node.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
    assert answer.status == 400
    assert reason in answer.reason


# Clients.


def test_connections_channels_and_consumers_are_shown_as_they_are(node: Running) -> None:
    client = node.client(name="the reader")
    channel = client.channel()
    channel.queue_declare("read")
    channel.basic_qos(prefetch_count=7)
    tag = channel.basic_consume("read", lambda *_: None)
    (connection,) = [row for row in node.get("/api/connections") if row["user_provided_name"] == "the reader"]
    assert (connection["user"], connection["vhost"], connection["state"], connection["channels"]) == (
        "guest", "/", "running", 1
    )  # fmt: skip
    assert connection["recv_oct"] > 0
    path = f"/api/connections/{quote(connection['name'], safe='')}"
    assert node.get(path)["name"] == connection["name"]
    (shown,) = node.get(f"{path}/channels")
    assert (shown["consumer_count"], shown["prefetch_count"]) == (1, 7)
    assert node.get(f"/api/channels/{quote(shown['name'], safe='')}")["consumer_details"][0]["consumer_tag"] == tag
    (consumer,) = [row for row in node.get("/api/consumers/%2F") if row["consumer_tag"] == tag]
    assert (consumer["queue"]["name"], consumer["ack_required"], consumer["prefetch_count"]) == ("read", True, 7)
    assert consumer["channel_details"]["connection_name"] == connection["name"]


def test_a_connection_that_is_closed_hears_why(node: Running) -> None:
    client = node.client(name="unwanted")
    (connection,) = [row for row in node.get("/api/connections") if row["user_provided_name"] == "unwanted"]
    path = f"/api/connections/{quote(connection['name'], safe='')}"
    assert node.ask("DELETE", path, headers={"X-Reason": "enough"}).status == 204
    with pytest.raises(ConnectionClosedByBroker, match=r"320.*enough"):
        client.process_data_events(time_limit=30)
    node.eventually(lambda: node.ask("GET", path).status == 404)


def test_rates_are_made_of_samples() -> None:
    with Running(command="node", environment={"COTERIE_CONSOLE_SAMPLE_INTERVAL": "0.1"}) as node:
        channel = node.channel()
        channel.queue_declare("busy")
        channel.confirm_delivery()

        def busy() -> bool:
            for _ in range(20):
                channel.basic_publish("", "busy", b"x")
            rate = node.get(f"{ROOT}/busy")["message_stats"]["publish_details"]["rate"]
            overall = node.get("/api/overview")["message_stats"]["publish_details"]["rate"]
            return bool(rate > 0 and overall > 0)

        node.eventually(busy)
        stats = node.get(f"{ROOT}/busy")["message_stats"]
        assert stats["publish"] == node.get("/api/overview")["message_stats"]["publish"] > 0
        node.eventually(lambda: node.get(f"{ROOT}/busy")["message_stats"]["publish_details"]["rate"] == 0)


# Users, vhosts, policies.


def test_a_user_is_made_changed_and_deleted_and_its_connections_end(node: Running) -> None:
    user = node.add_user("clerk", "", ".*", ".*", ".*")
    assert node.get("/api/users/clerk") == {
        "name": "clerk",
        "tags": [],
        "has_password": True,
        "limits": {},
        "allow": [],
    }
    client = node.client(user)
    node.change("PUT", "/api/users/clerk", {"password": "another", "tags": "management"})
    with pytest.raises(AMQPConnectionError):
        node.client(user)
    node.client(("clerk", "another"))
    assert node.get("/api/whoami", ("clerk", "another")) == {"name": "clerk", "tags": ["management"]}
    node.change("PUT", "/api/users/clerk", {"tags": ""})  # and its password stays
    assert node.ask("GET", "/api/whoami", user=("clerk", "another")).status == 401
    node.change("DELETE", "/api/users/clerk")
    with pytest.raises(ConnectionClosedByBroker):
        client.process_data_events(time_limit=30)
    assert node.ask("DELETE", "/api/users/clerk").status == 404
    assert node.ask("PUT", "/api/users/new", {"tags": ""}).status == 400
    assert node.ask("DELETE", "/api/users/guest").status == 400


def test_several_users_are_deleted_at_once_or_none_of_them(node: Running) -> None:
    path, names = "/api/users/bulk-delete", ["first", "second"]
    for name in names:
        node.change("PUT", f"/api/users/{name}", {"password": "x", "tags": ""})
    for wrong in ([*names, "nobody"], [*names, "guest"], "first", [1]):
        assert node.ask("POST", path, {"users": wrong}).status == 400
    assert node.ask("POST", path).status == 400
    clerk = node.add_user("clerk", "management", ".*", ".*", ".*")
    assert node.ask("POST", path, {"users": names}, clerk).status == 403
    assert {each["name"] for each in node.get("/api/users")} >= {*names}
    assert node.change("POST", path, {"users": [*names, "first"]}).status == 204
    assert not {each["name"] for each in node.get("/api/users")} & {*names}
    node.change("POST", path, {"users": ["clerk"]})
    assert node.change("POST", path, {"users": []}).status == 204


def test_the_overview_and_a_node_say_where_their_http_api_is(node: Running) -> None:
    overview = node.get("/api/overview")
    [here] = [each for each in overview["contexts"] if each["ip"] == "127.0.0.1"]
    assert here["node"] == overview["node"]
    assert node.console.endswith(f":{here['port']}")
    assert {"node": here["node"]} | node.get(f"/api/nodes/{here['node']}")["contexts"][0] in overview["contexts"]


def test_vhosts_limits_and_policies_are_set_and_apply(node: Running) -> None:
    node.change("PUT", "/api/vhosts/shop")
    assert node.change("PUT", "/api/vhosts/shop").status == 204
    node.change("PUT", "/api/vhost-limits/shop/max-queues", {"value": 1})
    assert node.get("/api/vhost-limits/shop") == [{"vhost": "shop", "value": {"max-queues": 1}}]
    node.change("PUT", "/api/queues/shop/one", {})
    assert node.ask("PUT", "/api/queues/shop/two", {}).status == 400
    node.change("DELETE", "/api/vhost-limits/shop/max-queues")
    node.change("PUT", "/api/queues/shop/two", {})

    policy = {"pattern": "^o", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
    assert node.change("PUT", "/api/policies/shop/short", policy).status == 201
    node.change("PUT", "/api/operator-policies/shop/shorter", {"pattern": ".*", "definition": {"max-length": 3}})
    one = node.get("/api/queues/shop/one")
    assert (one["policy"], one["operator_policy"], one["effective_limits"]["max-length"]) == ("short", "shorter", 3)
    assert node.get("/api/policies/shop") == [{"vhost": "shop", "name": "short", **policy}]
    for wrong in ({"pattern": "(", "definition": {"max-length": 1}}, {"pattern": "", "definition": {"colour": 1}}):
        assert node.ask("PUT", "/api/policies/shop/wrong", wrong).status == 400
    node.change("DELETE", "/api/policies/shop/short")
    assert node.get("/api/queues/shop/one")["policy"] is None
    node.change("DELETE", "/api/vhosts/shop")
    assert "shop" not in {vhost["name"] for vhost in node.get("/api/vhosts")}


def test_tags_and_permissions_decide_what_is_shown_and_what_may_be_changed(node: Running) -> None:
    node.change("PUT", "/api/vhosts/open")
    node.change("PUT", "/api/vhosts/closed")
    for vhost in ("open", "closed"):
        node.change("PUT", f"/api/queues/{vhost}/visible", {})
    plain = node.add_user("plain", "management", "^my", "^my", "^my", vhost="open")
    maker = node.add_user("maker", "policymaker", "", "", "", vhost="open")
    watcher = node.add_user("watcher", "monitoring")
    nobody = node.add_user("nobody", "", ".*", ".*", ".*")
    mine = node.client(plain, "open")
    node.channel()

    assert node.ask("GET", "/api/overview", user=nobody).status == 401
    assert {queue["vhost"] for queue in node.get("/api/queues", plain)} == {"open"}
    assert [vhost["name"] for vhost in node.get("/api/vhosts", plain)] == ["open"]
    assert node.get("/api/overview", plain)["object_totals"]["queues"] == 1
    assert node.ask("GET", "/api/queues/closed", user=plain).status == 403
    assert {row["user"] for row in node.get("/api/connections", plain)} == {"plain"}
    for path in ("/api/nodes", "/api/users", "/api/permissions", "/api/policies", "/api/definitions"):
        assert node.ask("GET", path, user=plain).status == 403, path
    node.change("PUT", "/api/queues/open/my.queue", {}, plain)
    assert node.ask("PUT", "/api/queues/open/other", {}, plain).status == 403
    assert node.ask("POST", "/api/queues/open/visible/get", {}, plain).status == 403
    assert node.ask("GET", "/api/queues/open/visible/messages", user=plain).status == 403
    assert node.ask("DELETE", "/api/queues/open/visible/contents", user=plain).status == 403
    publish = {"routing_key": "visible", "payload": "x"}
    assert node.ask("POST", "/api/exchanges/open/amq.default/publish", publish, plain).status == 403
    assert node.ask("POST", "/api/bindings/open/e/amq.direct/q/my.queue", {}, plain).status == 403

    policy = {"pattern": ".*", "definition": {"max-length": 5}}
    assert node.ask("PUT", "/api/policies/open/p", policy, plain).status == 403
    node.change("PUT", "/api/policies/open/p", policy, maker)
    assert node.ask("PUT", "/api/policies/closed/p", policy, maker).status == 403
    assert node.ask("PUT", "/api/operator-policies/open/p", policy, maker).status == 403

    assert {"open", "closed"} <= {queue["vhost"] for queue in node.get("/api/queues", watcher)}
    assert {"guest", "plain"} <= {row["user"] for row in node.get("/api/connections", watcher)}
    assert node.get("/api/nodes", watcher)[0]["running"] is True
    assert node.ask("PUT", "/api/queues/open/w", {}, watcher).status == 403
    assert node.ask("PUT", "/api/users/w", {"password": "w", "tags": ""}, watcher).status == 403
    (own,) = node.get("/api/connections", plain)
    path = f"/api/connections/{quote(own['name'], safe='')}"
    assert node.ask("DELETE", path, user=watcher).status == 403
    assert node.ask("DELETE", path, user=plain).status == 204
    with pytest.raises(ConnectionClosedByBroker):
        mine.process_data_events(time_limit=30)


def test_topic_permissions_hold_over_http_too(node: Running) -> None:
    node.change("PUT", "/api/exchanges/%2F/topics", {"type": "topic"})
    node.change("PUT", f"{ROOT}/listener", {})
    user = node.add_user("speaker", "management", ".*", ".*", ".*")
    keys = {"exchange": "topics", "write": "^own", "read": "^own"}
    assert node.change("PUT", "/api/topic-permissions/%2F/speaker", keys).status == 201
    assert node.get("/api/users/speaker/topic-permissions", user) == [{"user": "speaker", "vhost": "/", **keys}]
    publish = "/api/exchanges/%2F/topics/publish"
    node.change("POST", publish, {"routing_key": "own.x", "payload": ""}, user)
    assert node.ask("POST", publish, {"routing_key": "other", "payload": ""}, user).status == 403
    between = "/api/bindings/%2F/e/topics/q/listener"
    node.change("POST", between, {"routing_key": "own.#"}, user)
    assert node.ask("POST", between, {"routing_key": "#"}, user).status == 403
    node.change("DELETE", "/api/topic-permissions/%2F/speaker")
    node.change("POST", publish, {"routing_key": "other", "payload": ""}, user)


# The front door.


def test_nobody_comes_in_without_the_right_password(node: Running) -> None:
    for user in (None, ("guest", "wrong"), ("nobody at all", "x"), ("guest", "")):
        answer = node.ask("GET", "/api/overview", user=user)
        assert answer.status == 401
        assert answer.json["error"] == "not_authorized"
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    for header in ("Basic", "Basic !!!", "Bearer x", "Basic Zm9v"):
        assert node.ask("GET", "/api/overview", user=None, headers={"Authorization": header}).status == 401


def test_a_page_of_another_site_changes_nothing(node: Running) -> None:
    node.change("PUT", f"{ROOT}/kept", {})
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": f"http://{node.console}.evil.example"},
    ):
        assert node.ask("DELETE", f"{ROOT}/kept", headers=headers).status == 403
    assert node.ask("GET", f"{ROOT}/kept", headers={"Origin": "http://evil.example"}).status == 200
    assert node.ask("DELETE", f"{ROOT}/kept", headers={"Origin": f"http://{node.console}"}).status == 204


def test_a_name_that_somebody_made_lead_here_is_not_served(node: Running) -> None:
    assert node.ask("GET", "/api/whoami", headers={"Host": "evil.example:15672"}).status == 403
    for host in ("localhost:15672", "127.0.0.1", "[::1]:15672"):
        assert node.ask("GET", "/api/whoami", headers={"Host": host}).status == 200


def test_errors_are_json_and_answers_carry_the_headers_that_protect_browsers(node: Running) -> None:
    for method, path, status in (
        ("GET", "/api/nothing", 404),
        ("PATCH", "/api/overview", 405),
        ("GET", "/api/queues/nowhere", 404),
        ("PUT", "/api/permissions/%2F/somebody-else", 404),
    ):
        answer = node.ask(method, path, {})
        assert (answer.status, set(answer.json)) == (status, {"error", "reason"})
    for path in ("/api/overview", "/metrics", "/api/nothing"):
        headers = node.ask("GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Server"] == "coterie"


@pytest.mark.parametrize("path", ["/api/whoami", "/", "/api/nothing"])
@pytest.mark.parametrize("expected", [b"\xff\xfe", b"200-ok", b"100-continue, x"])
def test_who_expects_anything_but_to_continue_is_told_so(node: Running, path: str, expected: bytes) -> None:
    host, _, port = node.console.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\nExpect: %b\r\n\r\n" % (path.encode(), expected))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["Server"]) == (417, "coterie")
        assert json.loads(answer.read())["error"] == "expectation_failed"
        assert connection.recv(1) == b""


@pytest.mark.parametrize("algorithm", [{}, [], 7, True, "md5"])
def test_a_hash_of_an_unknown_kind_is_refused_whatever_names_it(node: Running, algorithm: object) -> None:
    user = {"password_hash": "AAAAAAAA", "hashing_algorithm": algorithm, "tags": ""}
    for method, path, body in (
        ("PUT", "/api/users/somebody", user),
        ("POST", "/api/definitions", {"users": [{"name": "somebody", **user}]}),
    ):
        answer = node.ask(method, path, body)
        assert (answer.status, "is not known" in answer.reason) == (400, True)


def test_what_a_password_makes_needless_is_looked_at_all_the_same(node: Running) -> None:
    wrong: tuple[dict[str, object], ...] = {"password_hash": [[]]}, {"hashing_algorithm": {}}
    for more in wrong:
        answer = node.ask("PUT", "/api/users/somebody", {"password": "secret", "tags": "", **more})
        assert (answer.status, node.ask("GET", "/api/users/somebody").status) == (400, 404)


def test_a_body_that_is_too_large_is_refused() -> None:
    with Running(command="node", environment={"COTERIE_CONSOLE_BODY_MAX": "2000"}) as node:
        message = {"routing_key": "q", "payload": "x" * 3000}
        answer = node.ask("POST", "/api/exchanges/%2F/amq.default/publish", message)
        assert (answer.status, set(answer.json)) == (413, {"error", "reason"})
        assert node.ask("GET", "/api/whoami").status == 200


def test_garbage_on_the_port_does_no_harm(node: Running) -> None:
    host, _, port = node.console.rpartition(":")
    for garbage in (
        b"AMQP\x00\x00\x09\x01",
        b"\x00" * 100,
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nX:\xff\x00\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert node.ask("GET", "/api/whoami").status == 200


# Health and metrics.


def test_health_checks_say_what_is_well(node: Running) -> None:
    assert node.get("/api/health/checks/alarms") == {"status": "ok"}
    assert node.get("/api/health/checks/local-alarms") == {"status": "ok"}
    port = node.amqp.rpartition(":")[2]
    assert node.get(f"/api/health/checks/port-listener/{port}")["status"] == "ok"
    answer = node.ask("GET", "/api/health/checks/port-listener/1")
    assert (answer.status, answer.json["status"]) == (503, "failed")
    assert node.get("/api/health/checks/virtual-hosts")["status"] == "ok"


SAMPLE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="(\\[\\n"]|[^"\\\n])*"(,|(?=\})))*\})? (\+Inf|-?[0-9.]+(e[+-]?[0-9]+)?)'
)


def samples(text: str) -> dict[str, float]:
    """Series to value; every line must be as the format wants it, and no series comes twice."""
    found: dict[str, float] = {}
    families: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in families, f"{name} is there twice"
            families.add(name)
        elif not line.startswith("# HELP "):
            assert SAMPLE.fullmatch(line), line
            series, _, value = line.rpartition(" ")
            assert series not in found
            found[series] = float(value)
    return found


def test_metrics_tell_what_went_through_and_never_fall(node: Running) -> None:
    channel = node.channel()
    channel.queue_declare("measured")
    channel.confirm_delivery()
    before = samples(node.ask("GET", "/metrics").body.decode())
    for _ in range(10):
        channel.basic_publish("", "measured", b"12345")
    for _ in range(4):
        channel.basic_get("measured", auto_ack=True)
    after = samples(node.ask("GET", "/metrics").body.decode())

    def grown(name: str) -> float:
        return after[name] - before[name]

    label = '{protocol="amqp091"}'
    assert grown(f"rabbitmq_global_messages_received_total{label}") == 10
    assert grown(f"rabbitmq_global_messages_confirmed_total{label}") == 10
    assert grown(f"rabbitmq_global_messages_delivered_get_auto_ack_total{label}") == 4
    assert grown("rabbitmq_queue_messages_ready") == 6
    assert grown("rabbitmq_queue_messages_ready_bytes") == 30
    assert after["rabbitmq_connections"] >= 1
    assert after["rabbitmq_alarms_memory_used_watermark"] == 0
    assert after["coterie_event_loop_lag_seconds_count"] >= 0
    node.change("DELETE", f"{ROOT}/measured")
    gone = samples(node.ask("GET", "/metrics").body.decode())
    for name, value in after.items():
        if name.partition("{")[0].endswith("_total"):
            assert gone[name] >= value, name


OVERVIEW = [
    "alarms_free_disk_space_watermark",
    "alarms_memory_used_watermark",
    "build_info",
    "channels",
    "channels_closed_total",
    "channels_opened_total",
    "connections",
    "connections_closed_total",
    "connections_opened_total",
    "consumers",
    "disk_space_available_bytes",
    "disk_space_available_limit_bytes",
    "global_consumers",
    "global_messages_acknowledged_total",
    "global_messages_confirmed_total",
    "global_messages_delivered_consume_auto_ack_total",
    "global_messages_delivered_consume_manual_ack_total",
    "global_messages_delivered_get_auto_ack_total",
    "global_messages_delivered_get_manual_ack_total",
    "global_messages_delivered_total",
    "global_messages_get_empty_total",
    "global_messages_received_confirm_total",
    "global_messages_received_total",
    "global_messages_redelivered_total",
    "global_messages_routed_total",
    "global_messages_unroutable_dropped_total",
    "global_messages_unroutable_returned_total",
    "global_publishers",
    "identity_info",
    "process_max_fds",
    "process_max_tcp_sockets",
    "process_open_fds",
    "process_open_tcp_sockets",
    "process_resident_memory_bytes",
    "queue_messages_ready",
    "queue_messages_unacked",
    "queue_messages_published_total",
    "queues",
    "queues_created_total",
    "queues_declared_total",
    "queues_deleted_total",
    "resident_memory_limit_bytes",
    "channel_consumers",
    "channel_get_ack_total",
    "channel_get_empty_total",
    "channel_get_total",
    "channel_messages_acked_total",
    "channel_messages_confirmed_total",
    "channel_messages_delivered_ack_total",
    "channel_messages_delivered_total",
    "channel_messages_published_total",
    "channel_messages_redelivered_total",
    "channel_messages_unacked",
    "channel_messages_unconfirmed",
    "channel_messages_unroutable_dropped_total",
    "channel_messages_unroutable_returned_total",
]
"""What RabbitMQ's dashboard "Overview" is made of, now and before."""


def test_rabbitmqs_dashboard_finds_its_metrics_and_they_tell_what_happened(tmp_path: Path) -> None:
    with Running("--data", str(tmp_path)) as node:

        def look() -> dict[str, float]:
            return samples(node.ask("GET", "/metrics").body.decode())

        before = look()
        assert {f"rabbitmq_{name}" for name in OVERVIEW} <= {series.partition("{")[0] for series in before}
        assert before["rabbitmq_resident_memory_limit_bytes"] > before["rabbitmq_process_resident_memory_bytes"]
        assert before["rabbitmq_process_max_tcp_sockets"] > before["rabbitmq_process_open_tcp_sockets"] == 0
        client = node.client()
        channel, other = client.channel(), client.channel()
        for _ in range(2):
            channel.queue_declare("seen", durable=True)
        channel.queue_delete("seen")
        channel.basic_publish("", "nowhere", b"")
        channel.confirm_delivery()
        channel.basic_publish("", "nowhere", b"")
        channel.queue_declare("read")
        other.basic_consume("read", lambda *_: None)
        after = look()

        def grown(name: str) -> float:
            series = [name, f'{name}{{protocol="amqp091"}}']
            return next(after[each] - before[each] for each in series if each in after)

        told = {
            "rabbitmq_connections_opened_total": 1, "rabbitmq_connections_closed_total": 0,
            "rabbitmq_channels_opened_total": 2, "rabbitmq_channels_closed_total": 0,
            "rabbitmq_queues_declared_total": 3, "rabbitmq_queues_created_total": 2, "rabbitmq_queues_deleted_total": 1,
            "rabbitmq_global_messages_received_total": 2, "rabbitmq_global_messages_received_confirm_total": 1,
            "rabbitmq_global_messages_unroutable_dropped_total": 2, "rabbitmq_global_publishers": 1,
            "rabbitmq_global_consumers": 1, "rabbitmq_process_open_tcp_sockets": 1,
        }  # fmt: skip
        assert {name: grown(name) for name in told} == told
        other.close()
        client.close()
        node.eventually(lambda: look()["rabbitmq_connections_closed_total"] == 1)
        after = look()
        assert grown("rabbitmq_channels_closed_total") == 2
        node.change("PUT", "/api/vhosts/short", {})
        node.change("PUT", "/api/queues/short/q", {})
        node.change("DELETE", "/api/vhosts/short")
        after = look()
        assert (grown("rabbitmq_queues_created_total"), grown("rabbitmq_queues_deleted_total")) == (3, 2)


def test_what_channels_carried_is_told_by_rabbitmqs_names_of_metrics_and_of_message_stats(node: Running) -> None:
    channel, reader = node.channel(), node.channel()
    channel.queue_declare("carried")
    for _ in range(6):
        channel.basic_publish("", "carried", b"x")
    before = samples(node.ask("GET", "/metrics").body.decode())
    assert reader.basic_get("carried", auto_ack=True)[0] is not None
    assert reader.basic_get("carried")[0] is not None
    reader.basic_nack(2)
    assert reader.basic_get("carried")[0] is not None  # again
    reader.basic_consume("carried", lambda *_: None, auto_ack=True, consumer_tag="takes")
    reader.connection.process_data_events(0)
    node.eventually(lambda: node.get(f"{ROOT}/carried")["messages_ready"] == 0)
    reader.basic_cancel("takes")
    channel.basic_publish("", "carried", b"x")
    reader.basic_consume("carried", lambda *_: None)
    node.eventually(lambda: node.get(f"{ROOT}/carried")["messages_unacknowledged"] == 2)
    after = samples(node.ask("GET", "/metrics").body.decode())
    carried = {
        "get_total": 1, "get_ack_total": 2, "messages_redelivered_total": 1, "messages_delivered_total": 4,
        "messages_delivered_ack_total": 1, "messages_published_total": 1, "consumers": 1, "messages_unacked": 2,
    }  # fmt: skip
    grown = {name: after[f"rabbitmq_channel_{name}"] - before[f"rabbitmq_channel_{name}"] for name in carried}
    assert grown == carried
    (shown,) = [each for each in node.get("/api/channels") if each["messages_unacknowledged"] == 2]
    told = {"get_no_ack": 1, "get": 2, "redeliver": 1, "deliver_no_ack": 4, "deliver": 1, "deliver_get": 8}
    assert {name: shown["message_stats"][name] for name in told} == told
    (line,) = [each for each in node.get("/api/connections") if each["name"] == shown["connection_details"]["name"]]
    assert {name: line["message_stats"][name] for name in told} == told


def test_metrics_of_each_object_survive_any_name(node: Running) -> None:
    name = 'a "quoted" \\ name\nwith a line'
    channel = node.channel()
    channel.queue_declare(name.replace("\n", ""))
    node.change("PUT", f"{ROOT}/{quote(name, safe='')}", {})
    found = samples(node.ask("GET", "/metrics/per-object").body.decode())
    shown = r"a \"quoted\" \\ name\nwith a line"
    assert found[f'rabbitmq_queue_messages_ready{{vhost="/",queue="{shown}"}}'] == 0
    assert any(series.startswith("rabbitmq_connection_incoming_bytes_total{connection=") for series in found)
    assert any(series.startswith("rabbitmq_channel_consumers{channel=") for series in found)


def test_the_store_is_measured_too(tmp_path: Path) -> None:
    with Running("--data", str(tmp_path)) as node:
        node.change("PUT", f"{ROOT}/kept", {})
        found = samples(node.ask("GET", "/metrics").body.decode())
        assert found["coterie_store_sync_seconds_count"] > 0
        assert found["coterie_store_bytes"] > 0
        assert found["rabbitmq_disk_space_available_bytes"] > 0


def test_an_alarm_is_told_and_stops_publishing(tmp_path: Path) -> None:
    limits = {"COTERIE_BROKER_MEMORY_HIGH": "1000", "COTERIE_BROKER_ALARM_INTERVAL": "0.02"}
    with Running(command="node", environment=limits) as node:
        node.change("PUT", f"{ROOT}/big", {})
        message = {"routing_key": "big", "payload": "x" * 2000}
        publish = "/api/exchanges/%2F/amq.default/publish"
        node.change("POST", publish, message)
        node.eventually(lambda: node.ask("GET", "/api/health/checks/alarms").status == 503)
        assert node.get("/api/nodes")[0]["mem_alarm"] is True
        assert "low on memory" in node.ask("POST", publish, message).reason
        assert samples(node.ask("GET", "/metrics").body.decode())["rabbitmq_alarms_memory_used_watermark"] == 1
        told = node.command("status", expect=1).stdout
        assert "low on memory" in told
        node.change("DELETE", f"{ROOT}/big/contents")
        node.eventually(lambda: node.ask("GET", "/api/health/checks/alarms").status == 200)


# The node.


def test_the_node_stops_in_good_order_while_somebody_is_connected_to_its_console() -> None:
    with Running() as node:
        host, _, port = node.console.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30):
            code, errors = node.stop(signal.SIGTERM)
        assert code == 0
        assert "Traceback" not in errors
        assert "in good order" not in errors


def test_a_node_may_have_no_console_and_a_port_that_is_taken_is_refused() -> None:
    with Running("--console-port", "") as node:
        assert node.told["console"] is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = Running.refused("up", "--port", "0", "--console-port", port)
        assert "listen.console" in done
        assert "in use" in done
    assert "is no port" in Running.refused("up", "--port", "0", "--console-port", "http")


def test_without_aiohttp_the_node_says_so_in_a_line_and_runs_on(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError(\"No module named 'aiohttp'\", name='aiohttp')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with Running(environment={"PYTHONPATH": path}) as node:
        assert node.told["console"] is None
        with urlopen(f"http://{node.probes}/health/ready") as probe, urlopen(f"http://{node.probes}/metrics") as found:
            assert (probe.status, found.status) == (200, 200)
        client = node.client()
        client.channel().queue_declare("there")
        client.close()
        code, errors = node.stop()
    assert code == 0
    (line,) = [line for line in errors.splitlines() if "no console" in line]
    assert "coterie[console]" in line


def test_what_was_set_over_http_is_there_after_a_kill(tmp_path: Path) -> None:
    with Running("--data", str(tmp_path)) as node:
        node.change("PUT", "/api/vhosts/kept")
        node.change("PUT", "/api/queues/kept/q", {"arguments": {"x-max-length": 5}})
        user = node.add_user("kept", "management", ".*", ".*", ".*", vhost="kept")
        node.change("PUT", "/api/policies/kept/p", {"pattern": ".*", "definition": {"message-ttl": 60000}})
        node.stop(signal.SIGKILL)
    with Running("--data", str(tmp_path)) as node:
        queue: Any = node.get("/api/queues/kept/q", user)
        assert (queue["arguments"], queue["policy"]) == ({"x-max-length": 5}, "p")
