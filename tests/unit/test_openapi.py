"""The OpenAPI description: of every route, and of nothing else."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coterie.broker.users import TAGS
from coterie.cli import main
from coterie.console.context import Context
from coterie.console.openapi.document import ERRORS, document, routes_of
from coterie.console.server import Console
from coterie.console.settings import ConsoleSettings

DOCUMENT = document()
OPERATIONS = {
    (method.upper(), path): operation
    for path, found in DOCUMENT["paths"].items()
    for method, operation in found.items()
}


def served() -> set[tuple[str, str]]:
    """What the server answers, as a client writes it: without the slash that may follow, and HEAD."""
    console = Console(cast(Context, SimpleNamespace(settings=ConsoleSettings(), users=SimpleNamespace(token_max=0))))
    found: set[tuple[str, str]] = set()
    for route in console._runner.app.router.routes():
        assert route.resource is not None
        path = _path_of(route.resource.get_info())
        if route.method != "HEAD" and not (path.startswith("/api/") and path.endswith("/")):
            found |= {(route.method, each) for each in routes_of(path)}
    return found


def _path_of(info: Any) -> str:
    """Of a route; aiohttp keeps the pattern that a part has beside the path."""
    path = str(info.get("path") or info["formatter"])
    patterns = dict(re.findall(r"\(\?P<(\w+)>((?:\[[^\]]*\]|[^()])+)\)", _pattern(info)))
    return re.sub(r"\{(\w+)\}", lambda part: _with(part[1], patterns.get(part[1], "")), path)


def _pattern(info: Any) -> str:
    return info["pattern"].pattern if "pattern" in info else ""


def _with(name: str, pattern: str) -> str:
    return f"{{{name}:{pattern}}}" if "|" in pattern else f"{{{name}}}"


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    routes = served()
    assert len(routes) > 100
    assert routes - set(OPERATIONS) == set(), "no description"
    assert set(OPERATIONS) - routes == set(), "no route"


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    text = json.dumps(DOCUMENT)
    used = set(re.findall(r'"#/components/(\w+)/(\w+)"', text))
    there = {(kind, name) for kind in ("schemas", "responses") for name in DOCUMENT["components"][kind]}
    assert used == there


@pytest.mark.parametrize("key", OPERATIONS, ids=" ".join)
def test_an_operation_is_described_whole(key: tuple[str, str]) -> None:
    method, path = key
    operation = OPERATIONS[key]
    parameters = operation.get("parameters", ())
    in_path = [each["name"] for each in parameters if each["in"] == "path"]
    assert in_path == re.findall(r"\{(\w+)\}", path)
    assert operation["summary"]
    assert any(int(status) < 400 for status in operation["responses"])
    for security in operation["security"]:
        roles = {role for found in security.values() for role in found}
        assert roles <= set(TAGS)
        assert ("token" in security) == ("session" in security and method != "GET")
    if operation["security"]:
        assert {"400", "401", "403", "503"} <= set(operation["responses"])
    if "requestBody" in operation:
        assert "413" in operation["responses"]


def test_identities_are_unique_and_errors_are_all_one_shape() -> None:
    identities = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(identities)) == len(identities)
    assert set(DOCUMENT["components"]["responses"]) == {name for name, _ in ERRORS.values()}


def test_the_command_prints_the_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(DOCUMENT))
