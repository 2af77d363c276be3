"""Named leases: what there are, and every step of them (docs/streams.md)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from coterie.broker.leases import ACQUIRE, END, NAME_MAX, RELEASE, RETIRE, TAKE, Gone, Lease, LeaseStep
from coterie.broker.queue import Queue
from coterie.console.api_wiring import queue_of
from coterie.console.ask import Ask, Route, answer, bad, not_found, nothing
from coterie.console.holding import check_serves, held
from coterie.console.listing import Shape

KEYS = {
    ACQUIRE: ("session", "rows", "bytes", "after", "from", "upto", "incarnation", "id"),
    RETIRE: ("session", "upto", "id"),
    RELEASE: ("session", "from", "id"),
    TAKE: ("session", "id"),
}
"""What each step takes."""


async def show_all(ask: Ask) -> web.Response:
    queues = [queue for vhost in ask.visible() for _, queue in sorted(vhost.queues.items())]
    return await ask.listed(
        [lease for queue in queues for lease in queue.leases], lambda lease: lease.name, _shape
    )  # fmt: skip


async def show_of_queue(ask: Ask) -> web.Response:
    ask.vhost()
    return await ask.listed([*queue_of(ask).leases], lambda lease: lease.name, _shape)


def _shape(lease: Lease) -> Shape:
    return lease.shape(pieces=False)


async def show(ask: Ask) -> web.Response:
    """With what it holds, as of the place that the answer names."""
    check_serves(ask.context)
    vhost, queue = ask.entered(), queue_of(ask)
    ask.permit(vhost, "read", "queue", queue.name)
    lease = queue.leases.get(ask.part("lease"))
    if lease is None:
        raise not_found(f"no lease '{ask.part('lease')}' of {queue.what}")
    said = lease.shape() | {"at": vhost.cluster.place()}
    size = ask.number("bytes")
    if size is not None:
        said["fits"] = lease.fits(ask.number("from") or 0, size, vhost.settings.lease_rows_max)
    await held(ask.context)
    return answer(said)


async def step(ask: Ask) -> web.Response:
    do = ask.part("do")
    queue = _readable(ask)
    body = await ask.body()
    unknown = [key for key in body if key not in KEYS[do]]
    if unknown:
        raise bad(f"{do} knows no {', '.join(map(repr, unknown))} (there are: {', '.join(KEYS[do])})")
    incarnation = _whole(body, "incarnation")
    if incarnation is not None and incarnation != queue.incarnation:
        raise Gone(f"{queue.what} was deleted and declared anew")
    session = body.get("session", None if do == RELEASE else "")
    if session is not None and not (isinstance(session, str) and len(session) <= NAME_MAX):
        raise bad(f"'session' must be a text of at most {NAME_MAX} characters")
    upto = _whole(body, "upto")
    if do == RETIRE and upto is None:
        raise bad("the body lacks 'upto'")
    asked = LeaseStep(
        do, _name(ask), ask.user.name, ask.user.administrator, session, _whole(body, "id"), _whole(body, "rows"),
        _whole(body, "bytes"), _whole(body, "after"), _whole(body, "from") or 0, upto if do == ACQUIRE else None,
        upto if do == RETIRE and upto is not None else 0,
    )  # fmt: skip
    return answer(await _outcome(ask, queue, asked))


async def end(ask: Ask) -> web.Response:
    queue = _readable(ask)
    query = ask.request.query
    id = query.get("id")
    if id is not None and not (id.isascii() and id.isdigit()):
        raise bad("'id' must be a whole number")
    asked = LeaseStep(
        END, _name(ask), ask.user.name, ask.user.administrator, query.get("session"), None if id is None else int(id)
    )
    while (await _outcome(ask, queue, asked))["more"]:
        pass
    return nothing()


async def _outcome(ask: Ask, queue: Queue, asked: LeaseStep) -> Shape:
    result = await ask.context.outcome(lambda done: queue.cluster.lease(queue, asked, done))
    assert isinstance(result, dict)
    return result


def _readable(ask: Ask) -> Queue:
    vhost, queue = ask.entered(), queue_of(ask)
    ask.permit(vhost, "read", "queue", queue.name)
    return queue


def _name(ask: Ask) -> str:
    name = ask.part("lease")
    if not 0 < len(name) <= NAME_MAX:
        raise bad(f"the name of a lease must have 1 to {NAME_MAX} characters")
    return name


def _whole(body: Mapping[str, object], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise bad(f"'{key}' must be a whole number, from 0 on")
    return value


ROUTES: list[Route] = [
    ("GET", "/api/leases", show_all),
    ("GET", "/api/leases/{vhost}", show_all),
    ("GET", "/api/leases/{vhost}/{name}", show_of_queue),
    ("GET", "/api/leases/{vhost}/{name}/{lease}", show),
    ("DELETE", "/api/leases/{vhost}/{name}/{lease}", end),
    ("POST", "/api/leases/{vhost}/{name}/{lease}/{do:acquire|retire|release|take}", step),
]
