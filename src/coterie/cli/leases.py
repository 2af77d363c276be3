"""`coterie leases`: who holds messages of which queues by a named lease, and how an operator ends one."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from urllib.parse import urlencode

from coterie.cli.remote import Commands, Remote, Shape, as_json, path_of, said, scope, show, vhost_of
from coterie.errors import UserError

EXAMPLES = """\
  coterie leases                                   every lease: queue, whose, since when, unused for how long, lag
  coterie leases --queue orders
  coterie leases release query-7f3c --queue orders     it ends, and what it held is ready again
  coterie leases --json | jq -r '.leases[] | select(.count > 0) | .name'
"""
DESCRIPTION = """\
Shows the named leases of queues. A lease holds messages for one reader, a Spark stream for one, whatever becomes of its
processes. One that nobody comes back to ends after broker.lease_expires, or when an operator ends it. Only
administrators end those of others. Lag: what its reader has not retired, held or still ready.
"""
COLUMNS = {
    "vhost": "vhost", "queue": "queue", "lease": "name", "user": "user", "since": "shown_since", "unused": "shown_idle",
    "messages": "count", "lag": "lag", "bytes": "bytes", "first": "first_position", "last": "last_position",
}  # fmt: skip


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands = Commands(subparsers, "leases", "named leases of queues", DESCRIPTION, EXAMPLES, show_all)
    commands.parser.add_argument("--queue", help="of this queue only")
    releasing = commands.action(
        "release",
        "end a lease: what it holds is ready again, flagged as redelivered; its reader can go on no more",
        release,
    )
    releasing.add_argument("name", metavar="NAME", help="as `coterie leases` shows it")
    releasing.add_argument("--queue", required=True, help="whose lease it is")
    releasing.add_argument("--id", type=int, help="only if it is still the lease with this id (--json shows it)")


def show_all(remote: Remote, options: argparse.Namespace) -> int:
    if options.queue is not None:
        rows = remote.rows("leases", vhost_of(options), options.queue)
    else:
        rows = remote.rows("leases", *scope(options))
    if not as_json(options):
        rows = [{**row, "shown_since": _moment(row), "shown_idle": _duration(row)} for row in rows]
    return show(options, "leases", rows, COLUMNS)


def _moment(row: Shape) -> str:
    since = row.get("since")
    if not isinstance(since, int):
        return ""
    return datetime.fromtimestamp(since / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _duration(row: Shape) -> str:
    idle = row.get("idle")
    if not isinstance(idle, int):
        return ""
    days, rest = divmod(idle, 86400)
    return (f"{days}d " if days else "") + f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def release(remote: Remote, options: argparse.Namespace) -> int:
    if not options.name:
        raise UserError("a lease has a name")
    path = path_of("leases", vhost_of(options), options.queue, options.name)
    remote.ask("DELETE", path + (f"?{urlencode({'id': options.id})}" if options.id is not None else ""))
    return said(options, f"the lease '{options.name}' of '{options.queue}' has ended", lease=options.name)
