"""`coterie queues`, `exchanges`, `bindings`: what a node has of them, declared and deleted."""

from __future__ import annotations

import argparse

from coterie.cli.output import print_json
from coterie.cli.remote import Commands, Remote, as_json, cell, pairs, path_of, said, scope, show, vhost_of
from coterie.errors import CoterieError, UserError
from coterie.visible import visible

QUEUE_COLUMNS = {
    "vhost": "vhost", "name": "name", "kind": "kind", "durable": "durable", "ready": "messages_ready",
    "held": "messages_unacknowledged", "consumers": "consumers", "in/s": "message_stats.publish_details.rate",
    "out/s": "message_stats.deliver_get_details.rate", "policy": "policy", "home": "home",
}  # fmt: skip
EXCHANGE_COLUMNS = {
    "vhost": "vhost", "name": "name", "type": "type", "durable": "durable", "internal": "internal", "policy": "policy"
}  # fmt: skip
BINDING_COLUMNS = {
    "vhost": "vhost", "source": "source", "to": "destination_type", "destination": "destination",
    "key": "routing_key", "arguments": "arguments",
}  # fmt: skip

QUEUES = """\
  coterie queues                                               all of them, with messages and rates
  coterie queues --vhost shop --sort messages_ready --reverse  the longest first
  coterie queues show orders                                   everything about one
  coterie queues declare orders --argument x-max-length=10000
  coterie queues delete orders --if-empty
"""
EXCHANGES = """\
  coterie exchanges
  coterie exchanges declare events --type topic
  coterie exchanges delete events --if-unused
"""
BINDINGS = """\
  coterie bindings
  coterie bindings add events orders --key 'order.#'
  coterie bindings add events audit --to-exchange
  coterie bindings delete events orders --key 'order.#'
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    queues = Commands(subparsers, "queues", "queues", "Lists queues, or changes one of them.", QUEUES, list_queues)
    queues.parser.add_argument("--sort", metavar="KEY", default="", help="by a key of the JSON, with dots into it")
    queues.parser.add_argument("--reverse", action="store_true", help="the largest first")
    queues.parser.add_argument("--name", default="", help="only those with this in their names")
    queues.action("show", "everything about one queue", show_queue).add_argument("name", metavar="NAME")
    declare = queues.action("declare", "declare a queue; it may be there already, the same", declare_queue)
    declare.add_argument("name", metavar="NAME")
    declare.add_argument("--transient", action="store_true", help="not durable: gone after a restart")
    declare.add_argument("--auto-delete", action="store_true", help="gone with its last consumer")
    _add_arguments(declare)
    delete = queues.action("delete", "delete a queue, with everything in it", delete_queue)
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--if-empty", action="store_true", help="only if it holds nothing")
    delete.add_argument("--if-unused", action="store_true", help="only if it has no consumers")
    queues.action("purge", "drop every message that is ready", purge).add_argument("name", metavar="NAME")

    exchanges = Commands(
        subparsers, "exchanges", "exchanges", "Lists exchanges, or changes one.", EXCHANGES, list_exchanges
    )
    declare = exchanges.action("declare", "declare an exchange; it may be there already, the same", declare_exchange)
    declare.add_argument("name", metavar="NAME")
    declare.add_argument("--type", default="direct", help="direct, fanout, topic or headers (default: %(default)s)")
    declare.add_argument("--transient", action="store_true", help="not durable: gone after a restart")
    declare.add_argument("--auto-delete", action="store_true", help="gone with its last binding")
    declare.add_argument("--internal", action="store_true", help="only other exchanges may send to it")
    _add_arguments(declare)
    delete = exchanges.action("delete", "delete an exchange, with its bindings", delete_exchange)
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--if-unused", action="store_true", help="only if nothing is bound to it")

    bindings = Commands(subparsers, "bindings", "bindings", "Lists bindings, or changes one.", BINDINGS, list_bindings)
    for name, help, run in (("add", "bind", bind), ("delete", "unbind", unbind)):
        parser = bindings.action(name, f"{help} a queue, or an exchange, to an exchange", run)
        parser.add_argument("source", metavar="EXCHANGE")
        parser.add_argument("destination", metavar="QUEUE")
        parser.add_argument("--key", default="", help="the routing key, or the pattern")
        parser.add_argument("--to-exchange", action="store_true", help="the second name is an exchange's, too")
        _add_arguments(parser)
    purge_alone = Commands(
        subparsers, "purge", "empty a queue", "Drops every message of a queue that is ready; held ones stay.",
        "  coterie purge orders\n  coterie purge orders --vhost shop\n", purge,
    )  # fmt: skip
    purge_alone.parser.add_argument("name", metavar="QUEUE")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE", help="an argument; a value may be JSON"
    )


# Queues.


def list_queues(remote: Remote, options: argparse.Namespace) -> int:
    query = {"name": options.name, "sort": options.sort, "sort_reverse": str(options.reverse).lower()}
    return show(options, "queues", remote.rows("queues", *scope(options), **query), QUEUE_COLUMNS)


def show_queue(remote: Remote, options: argparse.Namespace) -> int:
    queue = remote.get("queues", vhost_of(options), options.name)
    if not isinstance(queue, dict):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    if as_json(options):
        print_json(queue)
    else:
        width = max(map(len, queue))
        print("\n".join(f"{visible(key):<{width}}  {cell(queue, key)}".rstrip() for key in queue))
    return 0


def declare_queue(remote: Remote, options: argparse.Namespace) -> int:
    body = {
        "durable": not options.transient, "auto_delete": options.auto_delete,
        "arguments": pairs(options.argument, "--argument"),
    }  # fmt: skip
    remote.ask("PUT", path_of("queues", vhost_of(options), options.name), body)
    return said(options, f"queue '{options.name}' is there")


def delete_queue(remote: Remote, options: argparse.Namespace) -> int:
    query = f"?if-empty={str(options.if_empty).lower()}&if-unused={str(options.if_unused).lower()}"
    remote.ask("DELETE", path_of("queues", vhost_of(options), options.name) + query)
    return said(options, f"queue '{options.name}' is deleted")


def purge(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("DELETE", path_of("queues", vhost_of(options), options.name, "contents"))
    return said(options, f"queue '{options.name}' is purged")


# Exchanges.


def list_exchanges(remote: Remote, options: argparse.Namespace) -> int:
    rows = remote.rows("exchanges", *scope(options))
    if not as_json(options):
        rows = [row | {"name": row.get("name") or "(default)"} for row in rows]
    return show(options, "exchanges", rows, EXCHANGE_COLUMNS)


def declare_exchange(remote: Remote, options: argparse.Namespace) -> int:
    body = {
        "type": options.type, "durable": not options.transient, "auto_delete": options.auto_delete,
        "internal": options.internal, "arguments": pairs(options.argument, "--argument"),
    }  # fmt: skip
    remote.ask("PUT", path_of("exchanges", vhost_of(options), options.name), body)
    return said(options, f"exchange '{options.name}' is there")


def delete_exchange(remote: Remote, options: argparse.Namespace) -> int:
    query = f"?if-unused={str(options.if_unused).lower()}"
    remote.ask("DELETE", path_of("exchanges", vhost_of(options), options.name) + query)
    return said(options, f"exchange '{options.name}' is deleted")


# Bindings.


def list_bindings(remote: Remote, options: argparse.Namespace) -> int:
    rows = remote.rows("bindings", *scope(options))
    if not as_json(options):
        rows = [row | {"source": row.get("source") or "(default)"} for row in rows]
    return show(options, "bindings", rows, BINDING_COLUMNS)


def _between(options: argparse.Namespace) -> str:
    kind = "e" if options.to_exchange else "q"
    return path_of("bindings", vhost_of(options), "e", options.source, kind, options.destination)


def bind(remote: Remote, options: argparse.Namespace) -> int:
    body = {"routing_key": options.key, "arguments": pairs(options.argument, "--argument")}
    remote.ask("POST", _between(options), body)
    return said(options, f"'{options.destination}' is bound to '{options.source}'")


def unbind(remote: Remote, options: argparse.Namespace) -> int:
    rows = remote.ask("GET", _between(options))
    wanted = pairs(options.argument, "--argument")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("routing_key") == options.key and row.get("arguments") == wanted:
            name = str(row.get("properties_key"))
            remote.ask("DELETE", _between(options) + path_of(name).removeprefix("/api"))
            return said(options, f"'{options.destination}' is no longer bound to '{options.source}'")
    raise UserError(f"'{options.destination}' is not bound to '{options.source}' with that key and those arguments")
