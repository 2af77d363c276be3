"""The files of deploy/: they load, what they set exists, and nodes that are started with it serve."""

from __future__ import annotations

import configparser
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.cli import make_parser
from coterie.config import load_config, spellings
from coterie.workers import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
MANIFEST = DEPLOY / "kubernetes" / "coterie.yaml"
VARIABLES = {item.variable for item in spellings()}
PATIENCE = 60.0


def manifests() -> dict[str, Any]:
    """By kind and name."""
    found = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


@pytest.fixture
def pod() -> Any:
    return manifests()["StatefulSet/coterie"]["spec"]["template"]["spec"]


def environment(pod: Any) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


# Container.


def test_the_image_sets_what_is_a_setting_and_runs_a_command_that_there_is() -> None:
    text = DOCKERFILE.replace("\\\n", " ")
    assert set(re.findall(r"\bCOTERIE_\w+(?==)", text)) <= VARIABLES
    entry, command = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    assert json.loads(entry) == ["coterie"]
    make_parser("node").parse_args(json.loads(command))


def test_the_image_is_not_root_and_keeps_its_volume() -> None:
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^VOLUME /var/lib/coterie$", DOCKERFILE, re.MULTILINE)
    assert "COTERIE_NODE_DATA=/var/lib/coterie" in DOCKERFILE


def test_the_image_copies_what_there_is_and_its_context_has_it() -> None:
    root = DEPLOY.parent
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    kept = {line.removeprefix("!") for line in (root / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert all((root / each).exists() for each in copied)
    assert set(copied) == kept


# systemd.


def test_the_unit_runs_a_command_that_there_is_and_gives_up_on_wrong_settings() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "coterie.service")
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/coterie")
    options = make_parser("node").parse_args(arguments)
    assert str(options.config) == "/etc/coterie/node.toml"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["User"] != "root"
    for hardened in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "RestrictNamespaces"):
        assert service[hardened] == "yes"


def test_the_units_configuration_is_one_and_keeps_its_data_where_the_unit_may_write(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("f00d" * 16)
    text = (DEPLOY / "systemd" / "node.toml").read_text()
    file = tmp_path / "node.toml"
    file.write_text(text.replace("/etc/coterie/secret", str(secret)))
    config = load_config(file, {}, {})
    assert config.node.data == "/var/lib/coterie"  # StateDirectory=coterie
    assert config.cluster.size == len(config.node.peers) == 3
    assert f"{config.node.advertise}:7800" in config.node.peers


# Kubernetes.


def test_the_services_and_the_budget_select_the_pods() -> None:
    found = manifests()
    labels = found["StatefulSet/coterie"]["spec"]["template"]["metadata"]["labels"]
    assert found["StatefulSet/coterie"]["spec"]["selector"]["matchLabels"] == labels
    assert found["StatefulSet/coterie"]["spec"]["serviceName"] == "coterie"
    for name in ("Service/coterie", "Service/coterie-amqp"):
        assert found[name]["spec"]["selector"] == labels
    headless = found["Service/coterie"]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    budget = found["PodDisruptionBudget/coterie"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    replicas = found["StatefulSet/coterie"]["spec"]["replicas"]
    assert replicas - budget["maxUnavailable"] > replicas / 2


def test_the_pod_sets_what_is_a_setting_and_nothing_else_that_reads_like_one(pod: Any) -> None:
    assert set(environment(pod)) <= VARIABLES
    assert pod["enableServiceLinks"] is False
    (container,) = pod["containers"]
    make_parser("node").parse_args(container["args"])


def test_ports_of_probes_and_services_are_ports_of_the_container(pod: Any) -> None:
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listened = environment(pod)
    assert ports == {
        "amqp": int(listened["COTERIE_LISTEN_AMQP"].rpartition(":")[2]),
        "console": int(listened["COTERIE_LISTEN_CONSOLE"].rpartition(":")[2]),
        "cluster": int(listened["COTERIE_NODE_BIND"].rpartition(":")[2]),
    }
    used = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    for name in ("Service/coterie", "Service/coterie-amqp"):
        used |= {port["targetPort"] for port in manifests()[name]["spec"]["ports"]}
    assert used <= ports.keys()
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert listened["COTERIE_NODE_DATA"] in mounted


class Pods:
    """What the manifest would run, as processes of this host: with its names and ports, and all else as it says."""

    def __init__(self, pod: Any, folder: Path) -> None:
        (self.container,) = pod["containers"]
        names = [f"coterie-{number}" for number in range(3)]
        self.between = dict(zip(names, free_ports(3), strict=True))
        self.folder, self.pod = folder, pod
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.consoles: dict[str, str] = {}

    def start(self, *names: str) -> None:
        """Side by side; returns when all listen."""
        for name in names:
            self._launch(name)
        for name in names:
            self._await(name)

    def _launch(self, name: str) -> None:
        said = environment(self.pod)
        peers = ",".join(f"localhost:{port}" for port in self.between.values())
        assert said["COTERIE_NODE_PEERS"].split(",") == [f"{each}.coterie:7800" for each in self.between]
        assert said["COTERIE_NODE_ADVERTISE"] == "$(COTERIE_NODE_NAME).coterie"
        ours = {
            **said, "COTERIE_NODE_NAME": name, "COTERIE_NODE_SECRET": "f00d" * 16, "COTERIE_NODE_PEERS": peers,
            "COTERIE_NODE_BIND": said["COTERIE_NODE_BIND"].replace("7800", str(self.between[name])),
            "COTERIE_NODE_ADVERTISE": "localhost",
            "COTERIE_NODE_DATA": str(self.folder / name), "COTERIE_LISTEN_AMQP": "127.0.0.1:0",
            "COTERIE_LISTEN_CONSOLE": "127.0.0.1:0",
        }  # fmt: skip
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "coterie", *self.container["args"], "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **ours},
        )  # fmt: skip

    def _await(self, name: str) -> None:
        process = self.processes[name]
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the node did not start"
            text += line
        self.consoles[name] = json.loads(text)["console"]

    def probe(self, name: str, probe: str) -> int:
        connection = http.client.HTTPConnection(self.consoles[name], timeout=10)
        try:
            connection.request("GET", self.container[probe]["httpGet"]["path"])
            return connection.getresponse().status
        finally:
            connection.close()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.communicate(timeout=PATIENCE)


@pytest.fixture
def pods(pod: Any, tmp_path: Path) -> Iterator[Pods]:
    pods = Pods(pod, tmp_path)
    yield pods
    pods.stop()


def test_pods_are_alive_at_once_and_ready_when_they_have_found_each_other(pods: Pods) -> None:
    pods.start("coterie-0")
    assert pods.probe("coterie-0", "startupProbe") == 200
    assert pods.probe("coterie-0", "livenessProbe") == 200
    assert pods.probe("coterie-0", "readinessProbe") == 503
    pods.start("coterie-1", "coterie-2")
    deadline = time.monotonic() + PATIENCE
    while any(pods.probe(name, "readinessProbe") != 200 for name in pods.between):
        assert time.monotonic() < deadline, "they are not ready"
        time.sleep(0.05)  # as a kubelet would: nobody tells it
