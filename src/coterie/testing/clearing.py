"""What tests do to a broker between two of them. Everything here runs in the broker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from coterie.broker.broker import DEFAULT_VHOST
from coterie.broker.switchboard import PREDECLARED
from coterie.broker.vhost import Vhost
from coterie.node.node import Node
from coterie.runtime.base import resolve

T = TypeVar("T")
BUILT_IN: Final = frozenset(spec.name for spec in PREDECLARED)


def asked(call: Callable[[Callable[[T], None]], object]) -> asyncio.Future[T]:
    """A call with a completion, to be awaited."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    call(partial(resolve, future))
    return future


async def purge(node: Node) -> None:
    """All queues, of what is ready in them."""
    for vhost in list(node.broker.vhosts.values()):
        for name, queue in list(vhost.queues.items()):
            await asked(partial(vhost.purge, name, owner=queue.owner))


async def hang_up(node: Node) -> int:
    """On every client; how many there were."""
    connections = list(node.amqp.connections.values())
    for connection in connections:
        connection.cut()
    while any(each.number in node.amqp.connections for each in connections):
        await asyncio.sleep(0)  # their streams end in the next turns of the loop
    return len(connections)


async def clear(node: Node) -> None:
    """All that was declared. What is gone already, with its connection or by itself, is as good as deleted."""
    await hang_up(node)
    for vhost in list(node.broker.vhosts.values()):
        if vhost.name == DEFAULT_VHOST:
            await _clear(vhost)
        else:
            await asked(partial(node.broker.delete_vhost, vhost.name))


async def _clear(vhost: Vhost) -> None:
    for operator, policies in ((False, vhost.policies), (True, vhost.operator_policies)):
        for name in list(policies):
            await asked(partial(vhost.clear_policy, name, operator=operator))
    for limit in list(vhost.limits):
        await asked(partial(vhost.set_limit, limit, None))
    for name, queue in list(vhost.queues.items()):
        await asked(partial(vhost.delete_queue, name, False, False, owner=queue.owner))
    for name in [each for each in vhost.exchanges if each not in BUILT_IN]:
        await asked(partial(vhost.delete_exchange, name, False))
