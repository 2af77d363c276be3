"""Queues as streams: whom to ask, how far queues have come, and ranges of messages by columns (docs/streams.md)."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from coterie import patterns
from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.broker.leases import Gone
from coterie.broker.queue import Queue
from coterie.broker.reading import LeaseRead, NotHere, RangeRead, Read, Slice
from coterie.console.ask import Ask, Refused, Route, answer, bad, not_found
from coterie.console.context import Context, in_turns
from coterie.console.holding import check_serves, held, unavailable
from coterie.console.listing import Shape, check_pattern
from coterie.errors import CoterieError, ProtocolError
from coterie.streams.columns import CONTENT_TYPE, encode_end, encode_error, encode_rows

_AGAIN = 0.01
"""Seconds between two looks whether the log has come to a place."""
_CHUNK_MAX = 1 << 28
"""Bytes: offsets in a batch have 32 bits."""


# Where.


async def nodes(ask: Ask) -> web.Response:
    context = ask.context
    check_serves(context)
    us = context.member
    if us is None:
        found: list[Shape] = [{"name": context.name, "url": context.url or None, "this": True}]
    else:
        found = [
            {"name": each.name, "url": us.console_addresses.of(each) or None, "this": each == us.replica.us}
            for each in sorted(us.replica.in_step, key=lambda each: each.name)
        ]
    return answer({"at": context.broker.cluster.place(), "node": context.name, "nodes": found})


# Up to where.


def _tail(queue: Queue) -> Shape:
    return {
        "vhost": queue.vhost.name, "name": queue.name, "incarnation": queue.incarnation,
        "first": queue.first_position, "next": queue.next_position, "ready": queue.ready,
        "ready_bytes": queue.ready_bytes, "messages": queue.count, "bytes": queue.bytes,
        "leased": queue.leases.count,
    }  # fmt: skip


async def tails(ask: Ask) -> web.Response:
    context, query = ask.context, ask.request.query
    check_serves(context)
    name = query.get("vhost", "/")
    vhost = context.broker.vhosts.get(name)
    if vhost is None:
        raise not_found(f"no vhost '{name}'")
    if not ask.user.may_enter(name):
        raise Refused(403, "access_refused", f"user '{ask.user.name}' has no permissions in vhost '{name}'")
    names = query.getall("name", [])
    if names:
        queues = [vhost.queues[each] for each in dict.fromkeys(names) if each in vhost.queues]
        for queue in queues:
            ask.permit(vhost, "read", "queue", queue.name)
    else:
        pattern = query.get("pattern", ".*")
        check_pattern(pattern, "pattern")
        names = [each async for each in in_turns(sorted(vhost.queues)) if patterns.fits_whole(pattern, each)]
        queues = [vhost.queues[each] for each in names if each in vhost.queues]
        queues = [queue for queue in queues if _may_read(ask, queue)]
    wait, ready = ask.number("wait"), ask.number("ready")
    if wait:
        await context.arrivals.wait(queues, 1 if ready is None else ready, wait / 1000)
        check_serves(context)
        queues = [queue for queue in queues if not queue.deleted]
    said = {"at": context.broker.cluster.place(), "queues": [_tail(queue) for queue in queues if not queue.elsewhere]}
    await held(context)
    return answer(said)


def _may_read(ask: Ask, queue: Queue) -> bool:
    if queue.owner is not None:
        return False
    try:
        ask.permit(queue.vhost, "read", "queue", queue.name)
    except ProtocolError as error:
        if error.reply_code != ACCESS_REFUSED:
            raise
        return False
    return True


async def cut(ask: Ask) -> web.Response:
    check_serves(ask.context)
    said = _tail(_queue(ask)) | {"at": ask.context.broker.cluster.place()}
    await held(ask.context)
    return answer(said)


def _queue(ask: Ask) -> Queue:
    """The one in the path, if it may be read here."""
    vhost, name = ask.entered(), ask.part("name")
    ask.permit(vhost, "read", "queue", name)
    queue = vhost.queue(name, ask.context)
    queue.cluster.check_use(queue)
    return queue


# What is there.


async def read(ask: Ask) -> web.StreamResponse:
    context = ask.context
    pace = context.pace
    if not pace.enter():
        raise unavailable("too many read here already (console.stream_readers_max)")
    try:
        await _reached(ask)
        return await _send(ask, _asked(ask))
    finally:
        pace.leave()


async def _reached(ask: Ask) -> None:
    """This broker serves, and has applied the log up to the place that is asked for."""
    context, place = ask.context, ask.request.query.get("at", "0.0")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.stream_patience
    while True:
        check_serves(context)
        try:
            if context.broker.cluster.has_come_to(place):
                break
        except ValueError:
            raise bad("'at' must read epoch.index") from None
        if loop.time() >= deadline:
            raise unavailable(f"this broker has come to {context.broker.cluster.place()} of the log, not to {place}")
        await asyncio.sleep(_AGAIN)
    await held(context)


def _asked(ask: Ask) -> Read:
    """Raises Refused or ProtocolError."""
    query, size = ask.request.query, min(ask.context.settings.stream_chunk, _CHUNK_MAX)
    queue = _queue(ask)
    incarnation = ask.number("incarnation")
    if incarnation is not None and incarnation != queue.incarnation:
        raise Gone(f"{queue.what} was deleted and declared anew")
    name = query.get("lease")
    if name is None:
        first, last = ask.number("first"), ask.number("last")
        return RangeRead(queue, first or 1, queue.next_position - 1 if last is None else last, size)
    lease = queue.leases.get(name)
    if lease is None:
        raise not_found(f"no lease '{name}' of {queue.what}")
    id, first, stop = ask.number("id"), ask.number("from"), ask.number("to")
    if id is not None and id != lease.id:
        raise Gone(f"the lease '{name}' of {queue.what} has ended, and another one of that name begun")
    missing = query.get("missing", "error")
    if missing not in ("error", "skip"):
        raise bad("'missing' must be error or skip")
    first, stop = first or 0, lease.next if stop is None else stop
    if stop > lease.next:
        # Whoever asks has been told of more: this broker was restored from older data.
        if missing == "error":
            raise Gone(f"the lease '{name}' of {queue.what} has come to offset {lease.next}, not to {stop}")
        first, stop = min(first, lease.next), lease.next
    return LeaseRead(lease, first, stop, size, missing == "skip")


async def _send(ask: Ask, asked: Read) -> web.StreamResponse:
    context = ask.context
    first = await _next(asked)
    if isinstance(first, Gone):
        raise first
    if isinstance(first, Exception):
        raise unavailable(str(first))
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
    response.enable_chunked_encoding()
    await response.prepare(ask.request)
    try:
        await _write_all(context, response, asked, first)
    except (TimeoutError, ConnectionError):  # it reads no more, and will see that something is missing
        if ask.request.transport is not None:
            ask.request.transport.abort()
    return response


async def _write_all(context: Context, response: web.StreamResponse, asked: Read, first: Slice) -> None:
    rows = size = 0
    found: Slice | Exception = first
    while isinstance(found, Slice):
        if found.rows:
            part = found
            data = await context.pace.work(lambda: encode_rows(part.rows, part.offsets))  # noqa: B023
            await _write(context, response, data)
            rows += len(part.rows)
            size += sum(len(row.message.body) for row in part.rows)
        if found.last:
            await _write(context, response, encode_end(rows, size))
            break
        found = await _next(asked)
    else:
        word = "gone" if isinstance(found, Gone) else "unavailable"
        await _write(context, response, encode_error(word, str(found)))
    await response.write_eof()


async def _write(context: Context, response: web.StreamResponse, data: bytes) -> None:
    """A reader that takes nothing for too long is left."""
    async with asyncio.timeout(context.settings.answer_timeout):
        await response.write(data)


async def _next(asked: Read) -> Slice | Exception:
    future: asyncio.Future[Slice | Exception] = asyncio.get_running_loop().create_future()
    asked.next(lambda result: None if future.done() else future.set_result(result))
    found: Any = await future
    assert isinstance(found, (Slice, NotHere, CoterieError))
    return found


READ = "/api/streams/read/{vhost}/{name}"
LONG = frozenset({READ})
"""Answers that are written piece by piece: to make one only to tell of its head would be a waste."""
ROUTES: list[Route] = [
    ("GET", "/api/streams/nodes", nodes),
    ("GET", "/api/streams/tails", tails),
    ("GET", "/api/streams/cut/{vhost}/{name}", cut),
    ("GET", READ, read),
]
