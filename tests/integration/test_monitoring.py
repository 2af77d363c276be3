"""Dashboard and alert rules: every metric that they ask for is one that a node tells, and each label is there."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

import coterie.testing

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "coterie.json"
RULES = ROOT / "deploy" / "prometheus" / "coterie-rules.yml"
PROMETHEUS_OWN = {"up"}
METRIC = re.compile(r"\b(?:rabbitmq|coterie)_\w+|\bup\b")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the metrics of a node that has all there is: a cluster, a disk, a link to another broker."""
    with coterie.testing.broker() as other:
        settings = {"replication": {"to": other.url, "queues": ".*"}}
        data = tmp_path_factory.mktemp("data")
        with coterie.testing.cluster(1, settings=settings, data=data, console=True) as cluster:
            text = urlopen(f"{cluster[0].probes}/metrics").read().decode()
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def dashboard_queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return queries + [
        variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"
    ]


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, object]] = group["rules"]
    return found


def test_every_metric_of_the_dashboard_is_one_that_a_node_tells(told: set[str]) -> None:
    asked = {metric for query in dashboard_queries() for metric in METRIC.findall(query)}
    assert len(asked) > 30
    assert sorted(asked - told) == []


def test_every_metric_of_the_alerts_is_one_that_a_node_tells(told: set[str]) -> None:
    asked = {metric for rule in rules() for metric in METRIC.findall(str(rule["expr"]))}
    assert len(asked) > 10
    assert sorted(asked - told - PROMETHEUS_OWN) == []


def test_the_dashboard_is_what_its_script_writes() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "dashboard.py"))["dashboard"]()
    assert json.loads(DASHBOARD.read_text()) == written, "run `python scripts/dashboard.py`"


def test_panels_do_not_cover_each_other_and_have_names_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_says_what_to_do_and_the_documentation_too() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in rules():
        annotations = rule["annotations"]
        assert isinstance(annotations, dict)
        assert {"summary", "description"} <= annotations.keys()
        assert f"| {rule['alert']} |" in page
