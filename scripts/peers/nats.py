"""NATS with JetStream: three servers that are one cluster, as its documentation sets one up.

Nothing is tuned. How often JetStream syncs its files cannot be told to 2.9 (`sync_interval` came with 2.10): every
minute or two. So what it has acknowledged is on a majority of three servers, and not yet on their disks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.workers import free_ports
from peers.processes import Processes, answers

PACKAGES = ("nats-server",)
SERVERS = 3
START_TIMEOUT = 30.0
SERVER = "/usr/sbin/nats-server"
CONFIG = """\
server_name: server{number}
listen: "127.0.0.1:{client}"
jetstream {{ store_dir: "{folder}" }}
cluster {{
  name: bench
  listen: "127.0.0.1:{route}"
  routes: [{routes}]
}}
"""


@contextmanager
def running(data: Path | None) -> Iterator[list[int]]:
    """The ports of its servers. Whether they agree on a leader is seen when a stream is made."""
    ports = free_ports(2 * SERVERS)
    clients, routes = ports[:SERVERS], ports[SERVERS:]
    with Processes("nats", data) as processes:
        for number, (client, route) in enumerate(zip(clients, routes, strict=True), 1):
            config = processes.folder / f"server{number}.conf"
            config.write_text(
                CONFIG.format(
                    number=number, client=client, route=route, folder=processes.folder / f"server{number}",
                    routes=", ".join(f'"nats://127.0.0.1:{other}"' for other in routes if other != route),
                )
            )  # fmt: skip
            processes.start(f"server{number}", [SERVER, "--config", str(config)])
        processes.wait("up", lambda: all(map(answers, clients)), START_TIMEOUT)
        yield clients
