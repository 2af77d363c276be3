"""`coterie connections`, `channels`, `consumers`: who is connected to a node, and how to end a connection."""

from __future__ import annotations

import argparse

from coterie.cli.remote import Commands, Remote, path_of, said, scope, show

CONNECTION_COLUMNS = {
    "name": "name", "user": "user", "vhost": "vhost", "state": "state", "held by": "held_back_by",
    "channels": "channels", "in B/s": "recv_oct_details.rate", "out B/s": "send_oct_details.rate",
    "client": "user_provided_name",
}  # fmt: skip
CHANNEL_COLUMNS = {
    "name": "name", "user": "user", "vhost": "vhost", "consumers": "consumer_count",
    "unacked": "messages_unacknowledged", "prefetch": "prefetch_count", "confirm": "confirm",
    "in/s": "message_stats.publish_details.rate", "out/s": "message_stats.deliver_get_details.rate",
}  # fmt: skip
CONSUMER_COLUMNS = {
    "vhost": "queue.vhost", "queue": "queue.name", "tag": "consumer_tag", "acknowledges": "ack_required",
    "prefetch": "prefetch_count", "active": "active", "priority": "priority", "channel": "channel_details.name",
}  # fmt: skip
CONNECTIONS = """\
  coterie connections
  coterie connections close '127.0.0.1:50696 -> 127.0.0.1:5672' --reason 'it leaks channels'
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    connections = Commands(
        subparsers, "connections", "connections of clients", "Lists connections, or closes one.", CONNECTIONS,
        list_connections,
    )  # fmt: skip
    close = connections.action("close", "close a connection: its client is told why", close_connection)
    close.add_argument("name", metavar="NAME", help="as the list shows it")
    close.add_argument("--reason", default="closed by an operator", help="what the client is told")
    Commands(subparsers, "channels", "channels of clients", "Lists channels.", "  coterie channels\n", list_channels)
    Commands(
        subparsers, "consumers", "consumers of queues", "Lists consumers.", "  coterie consumers --vhost shop\n",
        list_consumers,
    )  # fmt: skip


def list_connections(remote: Remote, options: argparse.Namespace) -> int:
    path = ["vhosts", options.vhost, "connections"] if "vhost" in options else ["connections"]
    return show(options, "connections", remote.rows(*path), CONNECTION_COLUMNS)


def close_connection(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask(
        "DELETE",
        path_of("connections", options.name),
        headers={"X-Reason": options.reason.encode("ascii", "replace").decode()},
    )
    return said(options, f"connection '{options.name}' is closed")


def list_channels(remote: Remote, options: argparse.Namespace) -> int:
    path = ["vhosts", options.vhost, "channels"] if "vhost" in options else ["channels"]
    return show(options, "channels", remote.rows(*path), CHANNEL_COLUMNS)


def list_consumers(remote: Remote, options: argparse.Namespace) -> int:
    return show(options, "consumers", remote.rows("consumers", *scope(options)), CONSUMER_COLUMNS)
