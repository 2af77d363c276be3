"""Backups: a cut of everything that this broker has on disk, and reading its files (docs/backup.md)."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from coterie import __version__
from coterie.broker.log_store import LogStore
from coterie.broker.storage import Record
from coterie.console.ask import Ask, Route, answer, bad, nothing
from coterie.console.holding import check_serves, unavailable

_NEVER: Record = {"is": "never"}


async def begin(ask: Ask) -> web.Response:
    """All that was confirmed, by any broker of the cluster, before this was asked is in the cut."""
    ask.require()
    context = ask.context
    store, member = context.store, context.member
    if not isinstance(store, LogStore) or context.data is None:
        raise bad("this node has no data folder: there is nothing to back up (coterie definitions export)")
    check_serves(context)
    if member is not None and member.replica.updating:
        raise unavailable("this broker is being brought up to date")
    # A change that changes nothing has its place in the log: when it is made here, so is all that came before it.
    await context.outcome(partial(context.broker.keep_record, "backup", "barrier", None, _NEVER))
    await context.outcome(lambda done: store.when_synced(store.written(), lambda: done(None)))
    cut = await context.backups.begin(context.data, store)
    return answer({
        "id": cut.id, "node": context.name, "cluster": None if member is None else member.replica.cluster or None,
        "at": context.broker.cluster.place(), "version": __version__, "last": cut.last,
        "files": [{"name": name, "size": size} for name, (_, size) in cut.files.items()],
    })  # fmt: skip


async def read(ask: Ask) -> web.Response:
    ask.require()
    start, size = ask.number("from"), ask.number("size")
    if size is None:
        raise bad("'size' is missing: how many bytes")
    data = await ask.context.backups.read(ask.part("id"), ask.part("name"), start or 0, size)
    return web.Response(body=data, content_type="application/octet-stream")


async def end(ask: Ask) -> web.Response:
    ask.require()
    ask.context.backups.end(ask.part("id"))
    return nothing()


ROUTES: list[Route] = [
    ("POST", "/api/backups", begin),
    ("GET", "/api/backups/{id}/{name}", read),
    ("DELETE", "/api/backups/{id}", end),
]
