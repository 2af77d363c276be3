"""How a clustered broker is put together and started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.broker.broker import CLUSTER
from coterie.cluster.core import Core
from coterie.cluster.settings import ClusterSettings
from coterie.errors import UserError
from coterie.group.channel import Channel
from coterie.group.presets import preset
from coterie.log import Log
from coterie.runtime.base import Future, Runtime

if TYPE_CHECKING:
    from coterie.broker.queue import Queue

log = Log(__name__)


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


async def load_everything(core: Core) -> None:
    """After recovery: a clustered broker has its messages in memory, and knows how far it had come."""
    broker = core.broker
    core.recovered(broker.records.pop((CLUSTER, "state"), None))
    if broker.damaged:
        log.error("the store is damaged: this broker has no vote until it is updated")
        core.damaged = True
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            error = await _loaded(core.runtime, queue)
            if error is not None:
                log.error("messages cannot be read: this broker has no vote until it is updated", error=error)
                core.damaged = True


def _loaded(runtime: Runtime, queue: Queue) -> Future[Exception | None]:
    future: Future[Exception | None] = runtime.future()
    queue.pager.bring_all(future.set_result)
    return future
