"""The cluster as this node sees it: members, voters, who holds what; how to forget a voter, and to drain the node."""

from __future__ import annotations

import asyncio

from aiohttp import web

from coterie.broker.queue import Queue
from coterie.broker.users import MONITORING
from coterie.cluster import status
from coterie.cluster.drain import why_not
from coterie.cluster.local_queues import name_of_home
from coterie.cluster.member import Member
from coterie.cluster.status import ClusterStatus, Holding, MemberStatus
from coterie.console.ask import Ask, Refused, Route, answer, bad, not_found, text_of
from coterie.console.context import Context, Late
from coterie.console.listing import Shape

ALONE = "local"
"""How a broker that stands alone gives out messages."""
AT_HOME = "home"
"""And one that a queue is at home on."""


async def show(ask: Ask) -> web.Response:
    ask.require(MONITORING)
    return answer(cluster_shape(ask.context))


def cluster_shape(context: Context) -> Shape:
    if context.member is not None:
        return _of_cluster(context.member.status())
    return {
        "clustered": False, "cluster": None, "node": context.name, "incarnation": None, "state": "serving", "why": "",
        "waits_for": "", "epoch": None, "index": None, "disk_index": None, "void_events": None,
        "shared_index": None, "divergences": None, "kept_stores": [],
        "view": None, "coordinator": None, "dispatch": ALONE,
        "voters": [], "majority": None,
        "members": [
            {
                "name": context.name, "incarnation": None, "address": context.name, "state": status.IN_STEP,
                "voter": False, "oldest": True, "disk_index": None, "this": True, "silence": None,
                "alarms": list(context.broker.alarms_on),
            }
        ],
    }  # fmt: skip


def _of_cluster(found: ClusterStatus) -> Shape:
    return {
        "clustered": True, "cluster": found.cluster or None, "node": found.name, "incarnation": found.incarnation,
        "state": found.state, "why": found.why, "waits_for": found.waits_for, "epoch": found.epoch,
        "index": found.index, "disk_index": found.disk, "void_events": found.voids, "view": found.view,
        "shared_index": found.shared, "divergences": found.divergences, "kept_stores": list(found.kept_stores),
        "coordinator": found.coordinator or None, "dispatch": found.dispatch,
        "voters": list(found.voters), "majority": found.majority, "members": [_member(each) for each in found.members],
    }  # fmt: skip


def _member(member: MemberStatus) -> Shape:
    address = None if member.incarnation is None else f"{member.name}#{member.incarnation}"
    return {
        "name": member.name, "incarnation": member.incarnation, "address": address, "state": member.state,
        "voter": member.voter, "oldest": member.oldest, "disk_index": member.disk, "this": member.this,
        "silence": None if member.silence is None else round(member.silence, 3), "alarms": list(member.alarms),
    }  # fmt: skip


async def owners(ask: Ask) -> web.Response:
    """Of each queue: whose consumers there are, and how much they hold."""
    queues = [queue for vhost in ask.visible() for _, queue in sorted(vhost.queues.items())]
    return await ask.listed(queues, lambda queue: queue.name, lambda queue: _holders(ask.context, queue))


def _holders(context: Context, queue: Queue) -> Shape:
    member = context.member
    owners = None if member is None else member.applier.owners
    owner = None if owners is None else owners.of(queue).owner
    if member is None:
        found = [Holding(context.name, len(queue.consumers), queue.unacked)] if queue.consumers or queue.unacked else []
    else:
        found = status.holdings(member.replica, member.applier, queue)
    dispatch = ALONE if member is None else member.settings.dispatch if queue.home is None else AT_HOME
    return {
        "vhost": queue.vhost.name, "name": queue.name, "dispatch": dispatch,
        "owner": name_of_home(queue) or (None if owner is None else owner.address.name), "messages_ready": queue.ready,
        "members": [{"name": each.name, "consumers": each.consumers, "held": each.held} for each in found],
    }  # fmt: skip


# What an operator decides.


def _clustered(ask: Ask) -> Member:
    ask.require()
    if ask.context.member is None:
        raise bad(f"the broker '{ask.context.name}' stands alone: it is no cluster")
    return ask.context.member


def _serves(member: Member) -> None:
    if not member.replica.serves:
        raise Refused(503, "unavailable", f"this broker does not serve now: {member.replica.why}")


async def forget(ask: Ask) -> web.Response:
    """Answered when the decision is applied here, and held by a majority, on disk."""
    member = _clustered(ask)
    replica = member.replica
    name = text_of(await ask.body("name"), "name")
    _serves(member)
    if name not in replica.voters:
        raise not_found(replica.why_not_forget(replica.us, name))
    if name == replica.us.name:
        raise Refused(409, "conflict", f"'{name}' is this broker: drain it, and it gives up its vote")
    why = replica.why_not_forget(replica.us, name) or await _forgotten(ask, member, name)
    if why:
        raise Refused(409 if replica.serves else 503, "conflict" if replica.serves else "unavailable", why)
    return answer({"forgotten": name, "voters": list(replica.voters)})


async def _forgotten(ask: Ask, member: Member, name: str) -> str:
    try:
        return str(await ask.context.outcome(lambda done: member.forgetting.ask(name, done)))
    except Late:
        seconds = ask.context.settings.answer_timeout
        reason = f"not decided after {seconds:g} s, and it may be yet: see who the voters are, and ask again"
        raise Refused(503, "timeout", reason) from None


async def drain(ask: Ask) -> web.Response:
    """Answered when this node has left. Whoever asks again waits for the same."""
    member = _clustered(ask)
    if member.draining is None:
        _serves(member)
        why = why_not(member.replica)
        if why:
            raise Refused(409, "conflict", why)
    assert ask.context.drain is not None
    seconds = ask.context.settings.answer_timeout
    try:
        await asyncio.wait_for(ask.context.drain(), seconds)
    except TimeoutError:
        waits = member.status().waits_for
        raise Refused(503, "timeout", f"still draining after {seconds:g} s; it waits for this: {waits}") from None
    return answer(cluster_shape(ask.context))


ROUTES: list[Route] = [
    ("GET", "/api/cluster", show),
    ("GET", "/api/cluster/owners", owners),
    ("GET", "/api/cluster/owners/{vhost}", owners),
    ("POST", "/api/cluster/forget", forget),
    ("POST", "/api/cluster/drain", drain),
]
