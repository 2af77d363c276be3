"""corosync: three daemons on this machine that are one cluster, and the processes that use its groups (CPG).

A daemon finds itself in its configuration by the name of its host, keeps one file that says that it runs, and its
clients find it under one name. So each has a name, /run and /tmp of its own, and is told to have its sockets there
(/etc/libqb/force-filesystem-sockets) rather than where all processes of a machine see them. The network is the
machine's: they have addresses 127.0.x.1 to 3.

One thing is not as it comes: no real-time priority (`sched_rr: no`). Tried on a busy machine, daemons that share two
cores with each other and with their clients delivered more without it. On a quiet one that was not compared.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from peers.processes import PeerError, Processes

PACKAGES = ("corosync", "libcpg-dev", "gcc", "libc6-dev")
NODES = 3
START_TIMEOUT = 60.0
CLIENT_TIMEOUT = 30.0
FORMED = f"Members[{NODES}]"
SOURCE = Path(__file__).with_name("cpg_load.c")
CONFIG = """\
totem {{
  version: 2
  cluster_name: bench
  transport: knet
  crypto_cipher: none
  crypto_hash: none
}}
nodelist {{
{nodes}
}}
quorum {{
  provider: corosync_votequorum
}}
system {{
  state_dir: /tmp
  sched_rr: no
}}
logging {{
  to_stderr: yes
  to_syslog: no
}}
"""
NODE = "  node {{\n    name: node{number}\n    nodeid: {number}\n    ring0_addr: 127.0.{net}.{number}\n  }}"
START = """\
set -e
hostname node{number}
mount --make-rprivate /
mount -t overlay overlay -o lowerdir={home}/etc:/etc /etc
mount --bind {home}/run /run
mount --bind {home} /tmp
exec corosync -f -c /tmp/corosync.conf
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three daemons that run, and the program of their clients."""

    pids: Sequence[int]
    program: Path

    def measure(self, roles: Sequence[str], size: int, warmup: float, seconds: float) -> list[dict[str, Any]]:
        """One client at each daemon: what each of them measured."""
        clients = [
            subprocess.Popen(
                [self.program, str(pid), str(len(self.pids)), str(size), role],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for pid, role in zip(self.pids, roles, strict=True)
        ]  # fmt: skip
        # Whoever waits for a message that never comes waits for ever.
        timer = Timer(CLIENT_TIMEOUT + warmup + seconds, _kill, [clients])
        timer.start()
        try:
            for client in clients:
                _hear(client)
            for client in clients:
                assert client.stdin is not None
                client.stdin.write(f"{warmup} {seconds}\n")
                client.stdin.flush()
            return [_hear(client) for client in clients]
        finally:
            timer.cancel()
            for client in clients:
                try:
                    client.communicate(timeout=10)
                except subprocess.TimeoutExpired:
                    client.kill()
                    client.communicate()


def _kill(clients: Sequence[subprocess.Popen[str]]) -> None:
    for client in clients:
        client.kill()


def _hear(client: subprocess.Popen[str]) -> dict[str, Any]:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise PeerError("a client of its groups ended, or did not answer in time")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextmanager
def running(data: Path | None) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        raise PeerError("corosync: only root can give each of three daemons a host name and mounts of its own")
    with Processes("corosync", data) as processes:
        program = processes.folder / "cpg_load"
        command = ["cc", "-O2", "-Wall", "-o", str(program), str(SOURCE), "-lcpg"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise PeerError(f"corosync: {SOURCE.name} does not compile: {made.stderr.strip().splitlines()[-1]}")
        net = 1 + os.getpid() % 250
        for number in range(1, NODES + 1):
            home = processes.folder / f"node{number}"
            for folder in ("run", "etc/libqb"):
                (home / folder).mkdir(parents=True)
            (home / "etc/libqb/force-filesystem-sockets").touch()
            nodes = "\n".join(NODE.format(number=each, net=net) for each in range(1, NODES + 1))
            (home / "corosync.conf").write_text(CONFIG.format(nodes=nodes))
            script = START.format(number=number, home=home)
            processes.start(f"node{number}", ["unshare", "--mount", "--uts", "sh", "-c", script])
        logs = [processes.log(f"node{number}") for number in range(1, NODES + 1)]
        processes.wait("one cluster", lambda: all(FORMED in log.read_text() for log in logs), START_TIMEOUT)
        cluster = Cluster([process.pid for process in processes.each], program)
        # In their first second they still find out how large a packet may be, and deliver little or nothing.
        processes.wait("delivering", lambda: _delivers(cluster), START_TIMEOUT)
        yield cluster


def _delivers(cluster: Cluster) -> bool:
    return all(answer["delivered"] for answer in cluster.measure(["sends"] * NODES, 1024, 0.1, 0.3))
