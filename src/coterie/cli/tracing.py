"""`coterie tracing`: whether a node publishes its own trace, and the switch for that."""

from __future__ import annotations

import argparse

from coterie.cli.output import print_json
from coterie.cli.remote import Commands, Remote, as_json, path_of, show

EXAMPLES = """\
  coterie tracing            whether this node traces, and how much it has published
  coterie tracing on         from now on its events go to the exchange coterie.trace of the vhost /
  coterie tracing off
"""
DESCRIPTION = """\
A node that was started with `--trace-publish later` or `now` keeps a trace of what it does, and publishes it in batches
of lines to the topic exchange coterie.trace, with the routing key NODE.INCARNATION, for whoever is bound there. Name
the queues coterie.trace...: what happens to those is not traced.
"""
COLUMNS = {
    "node": "node", "tracing": "tracing", "publishing": "publishing", "published": "published", "dropped": "dropped",
    "held bytes": "held_bytes",
}  # fmt: skip


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands = Commands(subparsers, "tracing", "a node's trace as messages", DESCRIPTION, EXAMPLES, look, "how it is")
    commands.action("on", "publish trace events", lambda remote, options: switch(remote, options, True))
    commands.action("off", "publish none any more", lambda remote, options: switch(remote, options, False))


def look(remote: Remote, options: argparse.Namespace) -> int:
    return _show(remote.ask("GET", path_of("tracing")), options)


def switch(remote: Remote, options: argparse.Namespace, on: bool) -> int:
    return _show(remote.ask("PUT", path_of("tracing"), {"publishing": on}), options)


def _show(found: object, options: argparse.Namespace) -> int:
    assert isinstance(found, dict)
    if as_json(options):
        print_json(found)
        return 0
    return show(options, "tracing", [found], COLUMNS)
