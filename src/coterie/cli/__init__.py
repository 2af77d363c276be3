"""The command `coterie`: finds the sub-command, runs it, and turns errors into one line and an exit code.

A sub-command is a module of this package with `add(subparsers)`, whose parsers set the default `run`: a function that
takes the parsed arguments and returns the exit code. Only the module of the command that was asked for is imported,
so that help is there at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from coterie import __version__
from coterie.errors import CoterieError, UserError

OK: Final = 0
BAD: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
RELOADING: Final = frozenset({"node", "up"})
"""To them SIGHUP means "load the certificates again", also while they start, and while there are none."""

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("coterie.cli.node", "a broker for AMQP 0-9-1 clients, in one word"),
    "node": ("coterie.cli.node", "one broker, with every setting that it has"),
    "status": ("coterie.cli.status", "how a broker is: alarms, clients, queues, rates"),
    "doctor": ("coterie.cli.doctor", "what is unsafe about a broker, and the line that mends it"),
    "top": ("coterie.cli.top", "the same at a glance, again and again: cluster, rates, latencies, queues"),
    "cluster": (
        "coterie.cli.cluster",
        "the cluster it belongs to: status, members, voters, owners; init, drain, forget",
    ),
    "replication": ("coterie.cli.replication", "its queues at other brokers: links, followers; promote"),
    "queues": ("coterie.cli.wiring", "its queues: list, show, declare, delete, purge"),
    "leases": ("coterie.cli.leases", "who holds messages of its queues by name: list, release"),
    "exchanges": ("coterie.cli.wiring", "its exchanges: list, declare, delete"),
    "bindings": ("coterie.cli.wiring", "its bindings: list, add, delete"),
    "tracing": ("coterie.cli.tracing", "its own trace as messages: whether it is published; on, off"),
    "connections": ("coterie.cli.clients", "who is connected to it; close a connection"),
    "channels": ("coterie.cli.clients", "the channels of those"),
    "consumers": ("coterie.cli.clients", "who consumes from which queue"),
    "users": ("coterie.cli.access", "its users: list, add, change, limit, delete"),
    "vhosts": ("coterie.cli.access", "its virtual hosts: list, add, limit, delete"),
    "permissions": ("coterie.cli.access", "what users may do where: list, set, clear"),
    "policies": ("coterie.cli.policies", "its policies: list, set, delete"),
    "definitions": ("coterie.cli.definitions", "all of that as one file, as RabbitMQ writes it: export, import"),
    "publish": ("coterie.cli.messages", "publish a message"),
    "get": ("coterie.cli.messages", "look at messages of a queue, or take them"),
    "purge": ("coterie.cli.wiring", "empty a queue"),
    "read": ("coterie.cli.read", "what is in a queue, as Arrow, Parquet, CSV or JSON Lines"),
    "demo": (
        "coterie.cli.demo",
        "three brokers that are one, of which one is killed under load; or the group below them",
    ),
    "sim": ("coterie.cli.sim", "simulated runs with injected faults: run, replay, shrink, list the mutations"),
    "campaign": (
        "coterie.cli.campaign",
        "many thousand simulated runs, as Spark tasks, that can be stopped and gone on with",
    ),
    "check": ("coterie.cli.check", "check the traces of a run against the properties"),
    "audit": ("coterie.cli.audit", "the same for traces of any size, as a Spark job: tables and a report"),
    "archive": ("coterie.cli.archive", "queues into Parquet, Delta or Iceberg, each message once"),
    "replay": ("coterie.cli.replay", "rows of an archive back into an exchange or a queue"),
    "bench": (
        "coterie.cli.bench",
        "measure real processes over loopback against raw sockets: throughput, views, state",
    ),
    "stacks": ("coterie.cli.stacks", "the stacks that come with Coterie, and what is in them"),
    "protocols": ("coterie.cli.stacks", "every protocol with its settings and its rules"),
    "openapi": ("coterie.cli.openapi", "the HTTP API, described for machines: OpenAPI 3.1"),
    "settings": ("coterie.cli.settings", "every setting with its flag, environment variable and place in TOML"),
}
"""Sub-command to its module and what `coterie --help` says of it."""

DESCRIPTION: Final = """\
Coterie makes processes a group: they know who is in it, and what one sends, all receive, in order and
without loss, whatever the network does. How it does so is a stack of protocols that you can look into,
change, and run in a simulator that injects every fault there is.
"""

EPILOG: Final = """\
examples:
  coterie up --data ./broker                        a broker on 127.0.0.1:5672, its console on 15672
  coterie status                                    how it is
  coterie top                                       the same, live, with its queues
  coterie queues --sort messages_ready --reverse    its queues, the longest first
  coterie demo                                      one of three brokers is killed, and no message is lost
  coterie demo group                                a group grows, parts, merges, loses members, but no message
  coterie sim run --profile channel --seeds 200     two hundred simulated runs, each with other faults
  coterie sim replay --profile channel 17 --html run.html   look at one of them
  coterie audit traces/ --out out/audit             traces of any size against every property, with a report
  coterie stacks reliable                           what is in a stack, with every setting
  coterie protocols UNICAST3                        what one protocol promises
  coterie bench group --members 4 --json            how fast it is on this machine
  coterie bench views                               how fast groups change on this machine
  coterie COMMAND --help                            more about each command

exit codes:
  0    fine
  1    the answer is bad: violations, lost messages, a check that failed
  2    wrong usage or input; the last line on standard error says what to change
  130  interrupted
  141  whoever read the output stopped reading

With --json a command writes one object to standard output; progress and logs go to standard error.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(error, USAGE)
    except CoterieError as error:
        return _fail(error, BAD)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _fail(error: CoterieError, code: int) -> int:
    from coterie.visible import LINES, visible

    print(f"coterie: {visible(str(error), LINES)}", file=sys.stderr)
    return code


def _run(arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command in RELOADING:  # before anything is imported, which takes most of the time that a start takes
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parser = make_parser(command)
    options = parser.parse_args(arguments)
    run = getattr(options, "run", None)
    if run is None:
        parser.print_help()
        return USAGE
    code: int = run(options)
    return code


def make_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser with `command` complete, and the others as far as the list of commands needs them."""
    parser = argparse.ArgumentParser(
        prog="coterie",
        usage="coterie [--help] [--version] COMMAND ...",
        description=DESCRIPTION,
        epilog="\n".join(["commands:", *(f"  {name:12} {what}" for name, (_, what) in COMMANDS.items()), "", EPILOG]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"coterie {__version__}")
    subparsers = parser.add_subparsers(prog="coterie", metavar="COMMAND", help=argparse.SUPPRESS)
    if command in COMMANDS:
        importlib.import_module(COMMANDS[command][0]).add(subparsers)
    else:
        for name in COMMANDS:
            subparsers.add_parser(name)
    return parser
