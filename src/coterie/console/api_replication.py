"""Replication: this node's links to others, its queues that follow others' queues, and how one of those is promoted."""

from __future__ import annotations

from aiohttp import web

from coterie.broker.following.followed_queue import Promote
from coterie.broker.queue import Queue
from coterie.broker.users import MONITORING
from coterie.console.ask import Ask, Refused, Route, answer, not_found
from coterie.console.listing import Shape
from coterie.site_replication.link import LinkStatus


async def links(ask: Ask) -> web.Response:
    ask.require(MONITORING)
    found = [] if ask.context.links is None else [link.status() for link in ask.context.links.links]
    return answer([_link(each) for each in found])


def _link(link: LinkStatus) -> Shape:
    return {
        "to": link.to, "vhost": link.vhost, "state": link.state, "why": link.why, "since": link.since,
        "behind": link.behind, "messages": link.messages, "removals": link.removals,
        "queues": [
            {
                "queue": each.queue, "state": each.state, "sent": each.sent, "confirmed": each.confirmed,
                "behind": each.behind,
            }
            for each in link.queues
        ],
    }  # fmt: skip


async def followers(ask: Ask) -> web.Response:
    queues = [
        queue for vhost in ask.visible() for _, queue in sorted(vhost.queues.items()) if queue.replica is not None
    ]
    return await ask.listed(queues, lambda queue: queue.name, _follower)


def _follower(queue: Queue) -> Shape:
    replica = queue.replica
    assert replica is not None
    source, _, vhost = replica.source.partition("/")
    return {
        "vhost": queue.vhost.name, "queue": queue.name, "state": "promoted" if replica.promoted else "following",
        "source": source, "source_vhost": vhost, "source_incarnation": replica.incarnation, "mark": replica.mark,
        "messages": queue.count,
    }  # fmt: skip


async def promote(ask: Ask) -> web.Response:
    vhost, name = ask.entered(), ask.part("name")
    ask.permit(vhost, "configure", "queue", name)
    queue = vhost.queues.get(name)
    if queue is None:
        raise not_found(f"no {vhost.queue_name(name)}")
    if queue.replica is None:
        raise Refused(409, "conflict", f"{queue.what} follows no other queue")
    await ask.context.outcome(lambda done: vhost.change(Promote(name), done))
    return answer({"promoted": name})


ROUTES: list[Route] = [
    ("GET", "/api/replication", links),
    ("GET", "/api/replication/queues", followers),
    ("GET", "/api/replication/queues/{vhost}", followers),
    ("POST", "/api/replication/queues/{vhost}/{name}/promote", promote),
]
