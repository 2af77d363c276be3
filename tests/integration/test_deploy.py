"""The files of deploy/: they load, what they set exists, and nodes that are started with it serve."""

from __future__ import annotations

import configparser
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.cli import make_parser
from coterie.cli.node import node_config
from coterie.cli.remote import CA, URL
from coterie.config import load_config, spellings
from coterie.node.security_checks import UNSAFE, findings
from coterie.node.security_facts import facts_of
from coterie.node.settings import ListenSettings
from coterie.workers import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
MANIFEST = DEPLOY / "kubernetes" / "coterie.yaml"
VARIABLES = {item.variable for item in spellings()}
PATIENCE = 60.0
NOW = datetime(2030, 1, 1, tzinfo=UTC)


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


def test_the_image_installs_only_what_the_locks_pin() -> None:
    text = DOCKERFILE.replace("\\\n", " ")
    installs = re.findall(r"pip (?:install|wheel) (.*?)(?: &&|\n|$)", text)
    fetching = [each for each in installs if "--no-deps" not in each]
    assert len(fetching) == 2
    for each in fetching:
        words = each.split()
        assert {"--require-hashes", "--only-binary", "--requirement"} <= set(words)
        assert (DEPLOY.parent / words[words.index("--requirement") + 1]).is_file()
    for each in (each for each in installs if each not in fetching):
        assert "--no-build-isolation" in each or "--no-index" in each, each
    (base,) = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}"}


def test_the_image_opens_no_port_to_others_by_itself() -> None:
    assert not re.search(r"COTERIE_LISTEN_\w+=\S*0\.0\.0\.0", DOCKERFILE.partition("FROM")[2])


def test_the_image_sets_what_is_a_setting_and_runs_a_command_that_there_is() -> None:
    text = DOCKERFILE.replace("\\\n", " ")
    assert set(re.findall(r"\bCOTERIE_\w+(?==)", text)) <= VARIABLES
    entry, command = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    assert json.loads(entry) == ["coterie"]
    make_parser("node").parse_args(json.loads(command))


def test_the_image_is_probed_where_a_node_answers_without_a_login() -> None:
    port = ListenSettings().probes.rpartition(":")[2]
    (probe,) = re.findall(r"^ +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert f"http://127.0.0.1:{port}/health/ready" in json.loads(probe)[-1]
    assert re.search(rf"^EXPOSE .*\b{port}\b", DOCKERFILE, re.MULTILINE)


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


UNIT = DEPLOY / "systemd" / "coterie.service"


def unit_service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_the_unit_runs_a_command_that_there_is_and_gives_up_on_wrong_settings() -> None:
    service = unit_service()
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/coterie")
    options = make_parser("node").parse_args(arguments)
    assert str(options.config) == "/etc/coterie/node.toml"
    assert service["RestartPreventExitStatus"] == "2"


def test_the_unit_leaves_little_to_whoever_breaks_in() -> None:
    service = unit_service()
    assert service["User"] != "root"
    for hardened in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "RestrictNamespaces"):
        assert service[hardened] == "yes"
    assert (service["ProtectSystem"], service["StateDirectoryMode"], service["UMask"]) == ("strict", "0700", "0077")
    assert service["CapabilityBoundingSet"] == ""
    assert re.fullmatch(r"\d+G", service["MemoryMax"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit_and_calls_it_well_protected(tmp_path: Path) -> None:
    file = tmp_path / "coterie.service"
    file.write_text(re.sub(r"^ExecStart=.*", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    for command in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20", "--no-pager"]):
        done = subprocess.run(["systemd-analyze", *command, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        assert command[0] != "verify" or not done.stderr


def test_the_units_configuration_is_safe_and_keeps_its_data_where_the_unit_may_write(tmp_path: Path) -> None:
    service = unit_service()
    credential, _, source = service["LoadCredential"].partition(":")
    variable, _, place = service["Environment"].partition("=")
    assert (place, source) == (f"%d/{credential}", "/etc/coterie/secret")
    secret = tmp_path / credential
    secret.write_text("f00d" * 16)
    secret.chmod(0o400)
    config = load_config(DEPLOY / "systemd" / "node.toml", {variable: str(secret)}, {})
    assert [each for each in findings(facts_of(node_config(config), NOW)) if each.check != "certificate-ends"] == []
    assert config.node.secret == "f00d" * 16
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
    assert found["NetworkPolicy/coterie"]["spec"]["podSelector"]["matchLabels"] == labels
    headless = found["Service/coterie"]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    budget = found["PodDisruptionBudget/coterie"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    replicas = found["StatefulSet/coterie"]["spec"]["replicas"]
    assert replicas - budget["maxUnavailable"] > replicas / 2


def test_the_pod_sets_what_is_a_setting_and_nothing_else_that_reads_like_one(pod: Any) -> None:
    assert set(environment(pod)) <= VARIABLES | {URL, CA}
    assert pod["enableServiceLinks"] is False
    (container,) = pod["containers"]
    make_parser("node").parse_args(container["args"])


def test_ports_of_probes_and_services_are_ports_of_the_container(pod: Any) -> None:
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listened = environment(pod)
    said = {
        "amqps": "COTERIE_LISTEN_AMQPS", "console": "COTERIE_LISTEN_CONSOLE", "probes": "COTERIE_LISTEN_PROBES",
        "cluster": "COTERIE_NODE_BIND",
    }  # fmt: skip
    assert ports == {name: int(listened[variable].rpartition(":")[2]) for name, variable in said.items()}
    used = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    for name in ("Service/coterie", "Service/coterie-amqp"):
        used |= {port["targetPort"] for port in manifests()[name]["spec"]["ports"]}
    assert used <= ports.keys()
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(listened["COTERIE_NODE_DATA"]).parent) in mounted
    for file in ("COTERIE_LISTEN_TLS_CERT", "COTERIE_LISTEN_TLS_KEY", CA):
        assert str(Path(listened[file]).parent) in mounted


def test_the_pod_has_no_rights_and_a_root_that_cannot_be_written(pod: Any) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pod["automountServiceAccountToken"] is False
    assert container["resources"]["limits"]["memory"]
    (tls,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "tls"]
    assert tls["defaultMode"] & 0o037 == 0
    assert "secretKeyRef" in environment(pod)["COTERIE_NODE_SECRET"]


def test_only_brokers_reach_the_groups_port_and_others_only_what_their_label_says() -> None:
    found = manifests()
    policy = found["NetworkPolicy/coterie"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    let_in = {}
    for rule in policy["ingress"]:
        ((peer,), (port,)) = rule["from"], rule["ports"]
        ((label, value),) = peer["podSelector"]["matchLabels"].items()
        let_in[port["port"]] = (label, value, "namespaceSelector" in peer)
    assert let_in == {
        "cluster": ("app", "coterie", False),
        "amqps": ("coterie-client", "true", True),
        "console": ("coterie-operator", "true", True),
        "probes": ("coterie-metrics", "true", True),
    }


def test_what_the_pod_is_told_is_safe(pod: Any, tmp_path: Path) -> None:
    told = {**environment(pod), "COTERIE_NODE_SECRET": "f00d" * 16, "COTERIE_NODE_NAME": "coterie-0"}
    config = node_config(load_config(None, told, {}))
    unsafe = [each.check for each in findings(facts_of(config, NOW)) if each.severity == UNSAFE]
    assert unsafe == ["certificate-ends"] * len(unsafe)  # there are no files here


class Pods:
    """What the manifest would run, as processes of this host: with its names and ports, and all else as it says."""

    def __init__(self, pod: Any, folder: Path) -> None:
        (self.container,) = pod["containers"]
        names = [f"coterie-{number}" for number in range(3)]
        ports = free_ports(6)
        self.between = dict(zip(names, ports[:3], strict=True))
        self.probes = dict(zip(names, ports[3:], strict=True))
        self.folder, self.pod = folder, pod
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.consoles: dict[str, str] = {}
        (self.tls,) = [volume["mountPath"] for volume in self.container["volumeMounts"] if volume["name"] == "tls"]
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]
        made += ["/CN=coterie", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
        subprocess.run([*made, "-keyout", "tls.key", "-out", "tls.crt"], cwd=folder, check=True, capture_output=True)
        shutil.copy(folder / "tls.crt", folder / "ca.crt")

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
        here = {key: value.replace(self.tls, str(self.folder)) for key, value in said.items() if isinstance(value, str)}
        ours = {
            **here, "COTERIE_NODE_NAME": name, "COTERIE_NODE_SECRET": "f00d" * 16, "COTERIE_NODE_PEERS": peers,
            "COTERIE_NODE_BIND": said["COTERIE_NODE_BIND"].replace("7800", str(self.between[name])),
            "COTERIE_NODE_ADVERTISE": "localhost",
            "COTERIE_NODE_DATA": str(self.folder / name), "COTERIE_LISTEN_AMQPS": "127.0.0.1:0",
            "COTERIE_LISTEN_CONSOLE": "127.0.0.1:0", "COTERIE_LISTEN_PROBES": f"127.0.0.1:{self.probes[name]}",
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
        connection = http.client.HTTPConnection("127.0.0.1", self.probes[name], timeout=10)
        try:
            connection.request("GET", self.container[probe]["httpGet"]["path"])
            return connection.getresponse().status
        finally:
            connection.close()

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As `kubectl exec` runs it."""
        said, port = environment(self.pod), self.consoles[name].rpartition(":")[2]
        ours = {URL: said[URL].replace("15672", port), CA: said[CA].replace(self.tls, str(self.folder))}
        command = [sys.executable, "-m", "coterie", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **ours})

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
    doctor = pods.command("coterie-0", "doctor", "--json")
    found = json.loads(doctor.stdout)
    assert [
        each for each in found["findings"] if each["severity"] == UNSAFE and each["check"] != "certificate-ends"
    ] == []
    assert "password-known-here" in {each["check"] for each in found["findings"]}
    (pods.folder / "ca.crt").unlink()
    assert "--ca" in pods.command("coterie-0", "status").stderr
