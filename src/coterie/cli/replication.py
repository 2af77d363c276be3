"""`coterie replication`: the links of a node to other brokers, the queues that follow, and how they are promoted."""

from __future__ import annotations

import argparse

from coterie.cli.output import print_json
from coterie.cli.remote import Commands, Remote, Shape, as_json, path_of, said, scope, show, vhost_of
from coterie.errors import UserError
from coterie.trace import Json

EXAMPLES = """\
  coterie replication                                         where to, how it is, how much is behind
  coterie replication queues                                  the same, queue by queue
  coterie replication followers --url https://ops@site2:15672   what follows there; asks for the password of ops
  coterie replication promote orders --url https://ops@site2:15672   the first site is lost: go on with this one
  coterie replication promote --all --url https://ops@site2:15672
"""
DESCRIPTION = """\
Shows how the queues of a broker, or cluster, are replicated to others, and how those follow. Without an action: the
links, with exit code 1 while one that this node runs is down. In a cluster the node that keeps the time runs them; on
the others they are idle.
"""
LINKS = {
    "to": "to", "vhost": "vhost", "state": "state", "queues": "count", "behind": "behind", "sent": "messages",
    "why": "why",
}  # fmt: skip
QUEUES = {
    "to": "to", "queue": "queue", "state": "state", "sent up to": "sent", "confirmed up to": "confirmed",
    "behind": "behind",
}  # fmt: skip
FOLLOWERS = {
    "vhost": "vhost", "queue": "queue", "state": "state", "source": "source", "its vhost": "source_vhost",
    "mark": "mark", "messages": "messages",
}  # fmt: skip


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands = Commands(
        subparsers, "replication", "replication to other brokers", DESCRIPTION, EXAMPLES, links, "the links"
    )
    commands.action("queues", "the queues of each link, and how far each has come", queues)
    commands.action("followers", "queues of the node that is asked that follow those of another broker", followers)
    promoting = commands.action(
        "promote",
        "a queue that follows is its own from now on: it takes publishes, its limits apply, and its source is refused",
        promote,
    )
    promoting.add_argument("queue", metavar="QUEUE", nargs="?")
    promoting.add_argument("--all", action="store_true", help="every queue of the vhost that follows")


def links(remote: Remote, options: argparse.Namespace) -> int:
    rows = remote.rows("replication")
    down = any(row.get("state") not in ("running", "idle") for row in rows)
    if as_json(options):
        print_json({"links": [*rows]})
    else:
        show(options, "links", [{**row, "count": len(_queues(row))} for row in rows], LINKS)
    return 1 if down else 0


def _queues(link: Shape) -> list[Shape]:
    found = link.get("queues")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def queues(remote: Remote, options: argparse.Namespace) -> int:
    rows: list[Shape] = [
        {"to": link.get("to"), **each} for link in remote.rows("replication") for each in _queues(link)
    ]
    return show(options, "queues", rows, QUEUES)


def followers(remote: Remote, options: argparse.Namespace) -> int:
    return show(options, "queues", remote.rows("replication", "queues", *scope(options)), FOLLOWERS)


def promote(remote: Remote, options: argparse.Namespace) -> int:
    vhost = vhost_of(options)
    if options.all == (options.queue is not None):
        raise UserError("name a queue, or give --all")
    names = [options.queue]
    if options.all:
        rows = remote.rows("replication", "queues", vhost)
        names = [str(row["queue"]) for row in rows if row.get("state") == "following"]
    for name in names:
        remote.ask("POST", path_of("replication", "queues", vhost, name, "promote"))
    promoted: list[Json] = [*names]
    return said(options, f"promoted: {', '.join(names) or 'none, as none follows'}", queues=promoted)
