"""How a clustered broker is put together and started."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.cluster.core import Core
from coterie.cluster.own_store import load_everything
from coterie.cluster.settings import ClusterSettings
from coterie.errors import UserError
from coterie.group.channel import Channel
from coterie.group.presets import preset
from coterie.runtime.base import Runtime

__all__ = ["load_everything", "make_channel"]


def make_channel(
    runtime: Runtime,
    core: Core,
    name: str,
    bind: str,
    peers: Sequence[str],
    settings: ClusterSettings,
    group: str = "coterie",
    secret: str = "",
    incarnation: int | None = None,
    advertise: str = "",
) -> Channel:
    """The brokers' group: total order over TCP, with static peers."""
    if settings.lease >= settings.heartbeat_timeout:
        raise UserError("cluster.lease must be less than cluster.heartbeat_timeout: see docs/cluster.md")
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"node.bind '{bind}' is no host:port")
    tcp: dict[str, object] = {"bind_host": host, "bind_port": int(port), "advertised_host": advertise}
    if secret:
        tcp["secret"] = secret
    layers = preset(
        "total-order",
        TCP=tcp,
        STATIC={"peers": list(peers), "interval": 0.2},
        TOTAL={"held": "majority"},
        FAILURE={
            "heartbeat_interval": settings.heartbeat_timeout / 4,
            "heartbeat_timeout": settings.heartbeat_timeout,
        },
        FRAG={"message_max": settings.message_max},
    )
    return Channel(
        runtime, layers, group=group, name=name, receiver=core, incarnation=incarnation,
        buffer_max=4 << 20,
    )  # fmt: skip
