"""`coterie bench broker`: throughput, latency and memory of a broker, beside a raw relay and other brokers."""

from __future__ import annotations

import argparse

from coterie.bench import broker
from coterie.cli.output import Progress, print_json, table
from coterie.errors import UserError
from coterie.trace import Json

EPILOG = """\
persistent      1 publisher with confirms, 1 consumer that acknowledges; durable queue, persistent messages
transient       the same with messages that need not reach the disk
persistent_4+4  4 and 4 connections on one queue
latency         500 messages a second: from publish to confirm, and from publish to consume
..._apart       with --nodes: publishers on one node, consumers on another
memory          of the largest process: idle, and with --queued messages

The baseline is a raw relay: sockets, one sync for all that came meanwhile, and no broker. With --nodes 3, a broker that
stands alone is measured in the same run. Other brokers: --peer rabbitmq=5680 (they must let guest in). Exit code 1 if
ours lost a message or gave one twice; `wrong` says who did.
"""


def add(cases: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = cases.add_parser(
        "broker", help="a broker under load", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    plan = broker.Plan()
    parser.add_argument("--nodes", type=int, default=plan.nodes, help="a cluster of so many too (default: %(default)s)")
    parser.add_argument("--size", type=int, default=plan.size, help="bytes per message (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="of each case (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="of everything (default: %(default)s)")
    parser.add_argument(
        "--queued", type=int, default=plan.queued, help="messages of the memory case, 0: none (default: %(default)s)"
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PORT", help="another broker on this host")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.size < 32 or args.seconds <= 0 or args.rounds < 1 or args.nodes < 1 or args.queued < 0:
        raise UserError("bench broker: --size must be 32 at least, --rounds and --nodes 1, --seconds more than 0")
    peers = tuple(_peer(text) for text in args.peer)
    plan = broker.Plan(args.size, 1.0, args.seconds, args.rounds, args.nodes, args.queued, peers)
    with Progress("rounds", plan.rounds) as progress:
        measured, targets, wrong = broker.measure(plan, progress.update)
    rows = measured.rows(targets, broker.UNITS)
    if args.json:
        cases: dict[str, Json] = {**rows}
        print_json({"size": plan.size, "nodes": plan.nodes, "rounds": plan.rounds, "wrong": {**wrong}, "cases": cases})
    else:
        keys = ("median", "min", "max", "baseline", "ratio", "unit")
        print(table(["case", *keys], [(name, *(row.get(key, "") for key in keys)) for name, row in rows.items()]))
        for name, count in wrong.items():
            print(f"\nLOST OR TWICE: {count} messages by {name}")
    return 1 if any(name.startswith("coterie") for name in wrong) else 0


def _peer(text: str) -> tuple[str, int]:
    name, _, port = text.partition("=")
    if not name or not port.isdigit():
        raise UserError(f"--peer {text}: NAME=PORT is wanted, such as rabbitmq=5680")
    return name, int(port)
