"""RabbitMQ: three nodes that are one cluster, as its documentation sets one up: peers named in the configuration.

Nothing is tuned. The same cluster has classic queues, each on one node, and quorum queues, on all three.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.workers import free_ports
from peers.processes import Processes, answers

PACKAGES = ("rabbitmq-server",)
NODES = 3
START_TIMEOUT = 180.0
CONTROL_TIMEOUT = 60.0


def scripts() -> Path:
    """Its own, not Debian's around them, which want its user and its folders."""
    return max(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))


@contextmanager
def running(data: Path | None) -> Iterator[list[int]]:
    """The ports of its nodes."""
    ports = free_ports(2 * NODES + 2)
    amqp, between, (epmd, control) = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
    with Processes("rabbitmq", data) as processes:
        folder = processes.folder
        (folder / ".erlang.cookie").write_text(secrets.token_hex(20))
        (folder / ".erlang.cookie").chmod(0o400)
        names = [f"node{number}@localhost" for number in range(1, NODES + 1)]
        lines = ["log.console = false", "cluster_formation.peer_discovery_backend = classic_config"]
        lines += [f"cluster_formation.classic_config.nodes.{number} = {name}" for number, name in enumerate(names, 1)]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "env.conf").write_text("")
        (folder / "plugins").write_text("[].\n")
        environments = [
            _environment(folder, name, port, distribution, epmd, control)
            for name, port, distribution in zip(names, amqp, between, strict=True)
        ]
        # Started by us, so that it ends with us: the first node would leave one behind.
        processes.start("epmd", ["epmd", "-address", "127.0.0.1", "-port", str(epmd)])
        processes.wait("up", lambda: answers(epmd), START_TIMEOUT)
        for name, environment in zip(names, environments, strict=True):
            processes.start(name, [str(scripts() / "rabbitmq-server")], environment)
            if name == names[0]:  # it begins the cluster, and the others join it
                processes.wait("up", lambda: answers(amqp[0]), START_TIMEOUT)
        processes.wait("one cluster", lambda: _members(environments[0]) == NODES, START_TIMEOUT)
        processes.wait("up", lambda: all(map(answers, amqp)), START_TIMEOUT)
        yield amqp


def _environment(folder: Path, name: str, port: int, distribution: int, epmd: int, control: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(epmd),
        "RABBITMQ_NODENAME": name, "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CTL_DIST_PORT_MIN": str(control), "RABBITMQ_CTL_DIST_PORT_MAX": str(control),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"), "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / f"{name}.pid"), "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }  # fmt: skip


def _members(environment: dict[str, str]) -> int:
    command = [str(scripts() / "rabbitmqctl"), "-q", "cluster_status", "--formatter", "json"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=CONTROL_TIMEOUT, check=False
    )
    return len(json.loads(done.stdout)["running_nodes"]) if done.returncode == 0 else 0
