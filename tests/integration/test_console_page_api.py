"""What the page needs of a real node: logins with a cookie, its own files, what it asks for again and again."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from console_rig import Answer, Running

QUEUES = "/api/queues/%2F"


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running(command="node", environment={"COTERIE_CONSOLE_SAMPLE_INTERVAL": "0.1"}) as running:
        yield running


class Page:
    """A browser's tab, as far as requests go."""

    def __init__(self, node: Running, name: str = "guest", password: str = "guest") -> None:
        self.node = node
        self.answer = node.ask("POST", "/api/session", {"name": name, "password": password}, user=None)
        if self.answer.status == 201:
            self.set_cookie = self.answer.headers["Set-Cookie"]
            self.cookie = self.set_cookie.partition(";")[0]
            self.token = str(self.answer.json["token"])

    def ask(self, method: str, path: str, body: object = None, token: str | None = None, **headers: str) -> Answer:
        sent = {"Cookie": self.cookie, "Sec-Fetch-Dest": "empty", **headers}
        if token is not None:
            sent["X-CSRF-Token"] = token
        return self.node.ask(method, path, body, user=None, headers=sent)

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json


# Logging in.


def test_a_login_gives_a_cookie_that_no_script_reads_and_no_other_site_sends(node: Running) -> None:
    page = Page(node)
    attributes = {part.strip().lower() for part in page.set_cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert "secure" not in attributes  # this was no TLS
    assert re.fullmatch(r"coterie-[0-9a-f]{12}=[0-9a-f]{64}", page.cookie)
    assert page.answer.json["name"] == "guest"
    assert page.answer.json["tags"] == ["administrator"]
    assert page.get("/api/session")["token"] == page.token
    assert page.get("/api/whoami")["name"] == "guest"


def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_only(node: Running) -> None:
    body = {"name": "guest", "password": "guest"}
    headers = {"Origin": f"https://{node.console}"}
    assert "secure" in node.ask("POST", "/api/session", body, user=None, headers=headers).headers["Set-Cookie"].lower()


def test_a_wrong_password_is_refused_and_the_browser_is_not_made_to_ask_for_one(node: Running) -> None:
    answer = Page(node, password="wrong").answer
    assert (answer.status, answer.reason) == (401, "Login failed")
    assert "Set-Cookie" not in answer.headers
    quiet = node.ask("GET", "/api/overview", user=None, headers={"Sec-Fetch-Dest": "empty"})
    assert quiet.status == 401
    assert "WWW-Authenticate" not in quiet.headers
    assert "WWW-Authenticate" in node.ask("GET", "/api/overview", user=None).headers
    wrong: list[object] = [{}, {"name": "guest"}, {"name": 1, "password": "x"}, []]
    for body in wrong:
        assert node.ask("POST", "/api/session", body, user=None).status == 400


def test_a_user_without_a_tag_is_told_so(node: Running) -> None:
    name, password = node.add_user("sensor", "", ".*", ".*", ".*")
    answer = Page(node, name, password).answer
    assert answer.status == 401
    assert "has no tag" in answer.reason


def test_what_changes_something_needs_the_token_of_the_page(node: Running) -> None:
    page, other = Page(node), Page(node)
    for token in (None, "", "x", other.token):
        answer = page.ask("PUT", f"{QUEUES}/forged", {}, token)
        assert (answer.status, "X-CSRF-Token" in answer.reason) == (403, True)
    assert node.ask("GET", f"{QUEUES}/forged").status == 404
    assert page.ask("PUT", f"{QUEUES}/meant", {}, page.token).status == 201
    assert page.ask("DELETE", f"{QUEUES}/meant", token=page.token, Origin="http://evil.example").status == 403
    assert page.ask("DELETE", f"{QUEUES}/meant", token=page.token).status == 204


def test_a_login_ends_with_logging_out_with_another_password_and_with_its_tags(node: Running) -> None:
    name, password = node.add_user("leaver", "management")
    page = Page(node, name, password)
    assert page.ask("DELETE", "/api/session").status == 403
    assert page.ask("DELETE", "/api/session", token=page.token).status == 204
    assert page.ask("GET", "/api/whoami").status == 401
    page = Page(node, name, password)
    node.change("PUT", f"/api/users/{name}", {"tags": ""})
    assert page.ask("GET", "/api/whoami").status == 401
    node.change("PUT", f"/api/users/{name}", {"tags": "management"})
    assert page.get("/api/whoami")["name"] == name
    node.change("PUT", f"/api/users/{name}", {"password": "another", "tags": "management"})
    assert page.ask("GET", "/api/whoami").status == 401


# Its own files.


def test_the_page_comes_without_logging_in_and_runs_nothing_but_its_own_files(node: Running) -> None:
    answer = node.ask("GET", "/", user=None)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    for name, value in (
        ("X-Frame-Options", "DENY"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
    ):
        assert answer.headers[name] == value
    for target in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.body.decode()):
        assert node.ask("GET", target, user=None).status == 200
    for nowhere in ("/static/", "/static/nothing.js", "/static/../server.py", "/static/%2e%2e/server.py", "/static/js"):
        assert node.ask("GET", nowhere, user=None).status == 404


def test_a_file_that_the_browser_has_is_not_sent_again(node: Running) -> None:
    first = node.ask("GET", "/static/js/main.js", user=None)
    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert first.headers["Cache-Control"] == "no-cache"
    again = node.ask("GET", "/static/js/main.js", user=None, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    assert node.ask("GET", "/static/js/main.js", user=None, headers={"If-None-Match": '"old"'}).status == 200
    assert node.ask("GET", "/api/live").headers["Cache-Control"] == "no-store"


# What it asks for.


def test_one_answer_tells_how_the_node_is_and_what_one_looks_at(node: Running) -> None:
    node.change("PUT", f"{QUEUES}/looked.at", {})
    answer = node.get("/api/live/queues?page=1&page_size=5&name=looked.at")
    assert [row["name"] for row in answer["shown"]["items"]] == ["looked.at"]
    live = answer["live"]
    assert (live["node"], live["user"], live["interval"]) == (node.told["name"], "guest", 0.1)
    assert live["cluster"]["clustered"] is False
    shown = node.get("/api/live/queues/%2F/looked.at")["shown"]
    assert shown["may"] == {"configure": True, "write": True, "read": True, "publish": True, "open": True}
    assert (shown["replicas"], shown["replicas_wanted"]) == (1, 1)
    assert node.ask("GET", "/api/live/definitions").status == 404
    assert node.ask("GET", "/api/live", user=None).status == 401
    assert node.ask("GET", "/api/live?since=x").status == 400


def test_the_history_has_rates_and_how_long_confirms_take(node: Running) -> None:
    channel = node.channel()
    channel.queue_declare("measured")
    channel.confirm_delivery()

    def timed() -> bool:
        channel.basic_publish("", "measured", b"x")
        history = node.get("/api/live")["history"]
        rows = [dict(zip(history["columns"], row, strict=True)) for row in history["rows"]]
        return any(row["confirm_mean"] and row["publish"] > 0 and row["ready"] > 0 for row in rows)

    node.eventually(timed)
    last = node.get("/api/live")["history"]["rows"][-1][0]
    assert all(row[0] > last for row in node.get(f"/api/live?since={last}")["history"]["rows"])
    node.eventually(lambda: node.get("/api/live")["totals"]["ready"] > 0)


def test_those_who_may_not_see_everything_see_their_own(node: Running) -> None:
    node.change("PUT", "/api/vhosts/own")
    node.change("PUT", "/api/queues/own/theirs", {})
    node.change("PUT", "/api/queues/own/others", {})
    user = node.add_user("own", "management", "^theirs", "^theirs", "^theirs", vhost="own")
    live = node.get("/api/live", user)
    assert live["totals"]["queues"] == 2
    assert not {"cluster", "history", "process"} & set(live)
    may = node.get("/api/queues/own/others", user)["may"]
    assert may == {"configure": False, "write": False, "read": False, "publish": False, "open": True}
    assert node.ask("GET", "/api/log", user=user).status == 403
    assert node.ask("GET", "/api/live/users", user=user).status == 403


def test_the_log_can_be_read_by_level_and_by_word(node: Running) -> None:
    Page(node, password="wrong")
    lines = node.get("/api/log?level=warning")["items"]
    assert {line["level"] for line in lines} <= {"warning", "error"}
    failed = [line for line in lines if line["event"] == "a login failed"]
    assert failed[-1]["facts"]["user"] == "guest"
    found = node.get("/api/log?name=listening%20for%20http")["items"]  # by one protocol of the Internet, or both
    assert {line["event"] for line in found} == {"listening for HTTP"}
    last = node.get("/api/log")["last"]
    assert node.get(f"/api/log?after={last}")["items"] == []
    assert len(node.get("/api/log?limit=1")["items"]) == 1
    assert node.ask("GET", "/api/log?level=loud").status == 400


def test_queues_that_are_sorted_without_being_described_come_in_the_same_order(node: Running) -> None:
    channel = node.channel()
    channel.confirm_delivery()
    for number in range(8):
        channel.queue_declare(f"sorted-{number}")
        for _ in range(number * 7 % 5):
            channel.basic_publish("", f"sorted-{number}", b"x" * (number + 1))
    for _ in range(2):
        channel.basic_get("sorted-2")
    channel.basic_consume("sorted-4", lambda *_: None)
    for key in ("messages", "messages_ready", "messages_unacknowledged", "message_bytes", "consumers"):
        shown = node.get(f"/api/queues?name=sorted-&sort={key}&sort_reverse=true")
        assert [row["name"] for row in shown] == [
            row["name"] for row in sorted(node.get("/api/queues?name=sorted-"), key=lambda row: -row[key])
        ]
        assert len({row[key] for row in shown}) > 1, key
    for what in ("publish", "deliver_get", "ack"):
        shown = node.get(f"/api/queues?sort=message_stats.{what}_details.rate&page=1&page_size=3")
        assert shown["item_count"] == 3


def test_messages_are_moved_to_another_queue_in_their_order(node: Running) -> None:
    channel = node.channel()
    for name in ("from", "to"):
        channel.queue_declare(name)
    channel.confirm_delivery()
    for number in range(1200):  # more than one step
        channel.basic_publish("", "from", b"%d" % number)
    assert node.change("POST", f"{QUEUES}/from/move", {"destination": "to", "count": 1100}).json == {"moved": 1100}
    assert (node.get(f"{QUEUES}/from")["messages"], node.get(f"{QUEUES}/to")["messages"]) == (100, 1100)
    found = node.get(f"{QUEUES}/to/messages?limit=3")["items"]
    assert [item["payload"] for item in found] == ["0", "1", "2"]
    assert node.change("POST", f"{QUEUES}/from/move", {"destination": "to"}).json == {"moved": 100}
    assert node.ask("POST", f"{QUEUES}/from/move", {"destination": "nowhere"}).status == 404
    assert node.ask("POST", f"{QUEUES}/from/move", {"destination": "from", "count": 1}).status == 400
    assert node.ask("POST", f"{QUEUES}/from/move", {"destination": "to", "count": -1}).status == 400
    reader = node.add_user("reader", "management", "", "", ".*")
    assert "write access" in node.ask("POST", f"{QUEUES}/to/move", {"destination": "from"}, reader).reason


def test_a_body_that_is_cut_stays_text_and_bindings_come_without_those_of_the_default_exchange(node: Running) -> None:
    node.change("PUT", f"{QUEUES}/cut", {})
    publish = {"routing_key": "cut", "payload": "aü€" * 10}
    node.change("POST", "/api/exchanges/%2F/amq.default/publish", publish)
    for cut, text in ((1, "a"), (2, "a"), (3, "aü"), (5, "aü"), (6, "aü€")):
        (item,) = node.get(f"{QUEUES}/cut/messages?truncate={cut}")["items"]
        assert (item["payload"], item["payload_encoding"], item["payload_bytes"]) == (text, "string", 60)
    node.change("POST", "/api/bindings/%2F/e/amq.direct/q/cut", {"routing_key": "k"})
    assert {row["source"] for row in node.get("/api/bindings?default=false")} == {"amq.direct"}
    assert "" in {row["source"] for row in node.get("/api/bindings")}


def test_a_request_without_end_of_cookies_does_no_harm(node: Running) -> None:
    connection = http.client.HTTPConnection(node.console, timeout=60)
    connection.request("GET", "/api/whoami", headers={"Cookie": "; ".join(f"c{n}={'x' * 50}" for n in range(100))})
    assert json.loads(connection.getresponse().read())["error"] == "not_authorized"
    connection.close()
