"""`coterie bench broker`: a broker alone and a cluster, under load and when nodes come and go, beside other brokers."""

from __future__ import annotations

import argparse
import signal
import socket
from pathlib import Path

from coterie.bench import broker
from coterie.bench.broker_figures import ALONE, CLUSTERS, DISK, ENCRYPTED, RAW
from coterie.bench.broker_nats import PROTOCOL
from coterie.bench.broker_stage import PARTS, Peer, Plan
from coterie.cli.output import Progress, print_json, table
from coterie.cli.up_cluster import NODES_MAX
from coterie.errors import UserError
from coterie.trace import Json

DESCRIPTION = """\
Measures real processes: a broker that stands alone and, with --nodes 3, clusters with cluster.dispatch = "credit" and
"ownership", in turn, so that all meet the same machine. Each figure of a cluster has its ratio to the standalone
broker's of the same run.
"""
EPILOG = """\
parts (--only):
  disk        as many processes as nodes append and sync, and nothing else: what the disk allows for so many copies
  throughput  persistent: 1 publisher with confirms (1000 under way), 1 consumer (prefetch 500); persistent_4+4: four of
              each on one queue; transient: need not reach the disk; ..._apart: consumers on another node
  latency     500 messages a second: from publish to confirm and to consume; ..._apart: consumers on another node
  memory      of the largest process: idle, and with --queued messages
  join        an empty node joins a cluster that has --joined messages while 500 a second are published: until clients
              are let in there, until it has everything, and the longest time between two confirms, then and before;
              standalone: it is started
  kill        kill -9 of a node that serves a consumer: until another one delivers what was published later, until what
              it held has come again, until a publisher that connects elsewhere at once has its first confirm;
              standalone: it is started again at once

The standalone broker's own baseline is a raw relay: sockets, one sync for all that came meanwhile, and no broker. Other
brokers on this host must let guest in; one with several ports is a cluster, whose queues are of the type quorum. With
`nats:` it is a NATS JetStream, whose queues are streams of work on as many servers. Others are neither killed nor
joined. Exit code 1 if ours lost a message or gave one twice; `wrong` says who did.

examples:
  coterie bench broker --nodes 3 --json                          everything: some seven minutes on two quiet cores
  coterie bench broker --nodes 3 --only throughput,latency --encrypt   what encryption between brokers costs
  coterie bench broker --nodes 3 --only join,kill                what happens when nodes come and go
  coterie bench broker --nodes 3 --only throughput,latency,disk --peer quorum=5681,5682,5683
  coterie bench broker --nodes 3 --only throughput,latency --peer jetstream=nats:4222,4223,4224
"""
FIELDS = ("median", "min", "max", "baseline", "ratio", "against", "of_disk", "goal", "met", "unit")


def add(cases: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = cases.add_parser(
        "broker", help="a broker, alone and clustered, under load and when nodes come and go",
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    plan = Plan()
    parser.add_argument("--nodes", type=int, default=1, help="of a cluster, measured too (default: %(default)s, none)")
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(PARTS)} (default: all that --nodes allows)")
    parser.add_argument("--size", type=int, default=plan.size, help="bytes per message (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="of each case (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="of disk and load (default: %(default)s)")
    parser.add_argument("--queued", type=int, default=plan.queued, help="messages of `memory` (default: %(default)s)")
    parser.add_argument("--joined", type=int, default=plan.joined, help="messages of `join` (default: %(default)s)")
    parser.add_argument("--joins", type=int, default=plan.joins, help="how often one joins (default: %(default)s)")
    parser.add_argument(
        "--kills", type=int, default=plan.kills, help="of the oldest node, and of another one (default: %(default)s)"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=[nats:]PORT[,PORT...]", help="another broker on this host"
    )
    parser.add_argument(
        "--encrypt", action="store_true",
        help="measure a cluster that encrypts, too (node.encrypt = always), beside one that does not",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="DIR", help="on which disk (default: that of temporary files)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    plan = _plan(args)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # brokers and folders must not outlive the benchmark
    with broker.staged(plan) as (stage, steps), Progress("steps", len(steps)) as progress:
        for number, step in enumerate(steps):
            progress.update(number, step.what)
            step.run()
    goals = plan.nodes == 3 and plan.size == 1024
    rows = stage.measured.rows([peer.name for peer in plan.peers], plan.nodes, goals)
    if args.json:
        parts: list[Json] = [*plan.parts]
        print_json(
            {
                "parts": parts, "size": plan.size, "nodes": plan.nodes, "rounds": plan.rounds, "queued": plan.queued,
                "joined": plan.joined, "wrong": {**stage.wrong}, "cases": {**rows},
            }
        )  # fmt: skip
    else:
        _print(rows, stage.wrong)
    return 1 if any(name in stage.wrong for name in (ALONE, *CLUSTERS, ENCRYPTED)) else 0


def _print(rows: dict[str, dict[str, Json]], wrong: dict[str, int]) -> None:
    names = list(dict.fromkeys(name for row in rows.values() for name in _beside(row)))
    fields = [key for key in FIELDS if any(key in row for row in rows.values())]
    headers = ["case", *fields[:-1], *(f"to {name}" for name in names), fields[-1]]
    lines = [
        (name, *map(_cell, map(row.get, fields[:-1])), *(_beside(row).get(each, "") for each in names), row["unit"])
        for name, row in rows.items()
    ]
    print(table(headers, lines))
    for name, count in wrong.items():
        print(f"\nLOST OR TWICE: {count} messages by {name}")


def _beside(row: dict[str, Json]) -> dict[str, Json]:
    peers = row.get("peers")
    return peers if isinstance(peers, dict) else {}


def _cell(value: Json) -> object:
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else value


def _plan(args: argparse.Namespace) -> Plan:
    if args.size < 32 or args.seconds <= 0:
        raise UserError("bench broker: --size must be 32 at least, and --seconds more than 0")
    for name in ("rounds", "queued", "joined", "joins", "kills"):
        if getattr(args, name) < 1:
            raise UserError(f"bench broker: --{name} {getattr(args, name)}: at least 1; --only leaves parts out")
    if not 1 <= args.nodes <= NODES_MAX:
        raise UserError(f"bench broker: --nodes {args.nodes}: 1 to {NODES_MAX}; 3 is usual")
    if args.encrypt and args.nodes == 1:
        raise UserError("bench broker: --encrypt: one broker tells nobody anything: --nodes 3")
    if args.data is not None and not args.data.is_dir():
        raise UserError(f"bench broker: --data {args.data} is no folder")
    return Plan(
        _parts(args.only, args.nodes), args.nodes, args.size, min(Plan().warmup, args.seconds), args.seconds,
        args.rounds, args.queued, args.joined, args.joins, args.kills, 1.5 * args.seconds, _peers(args.peer), args.data,
        args.encrypt,
    )  # fmt: skip


def _parts(only: str | None, nodes: int) -> tuple[str, ...]:
    if only is None:
        return tuple(part for part in PARTS if nodes > 2 or part not in ("join", "kill"))
    wanted = [part.strip() for part in only.split(",")]
    for part in wanted:
        if part not in PARTS:
            raise UserError(f"bench broker: --only {part!r}: the parts are {', '.join(PARTS)}")
        if nodes == 2 and part in ("join", "kill"):
            raise UserError(f"bench broker: --only {part}: needs --nodes 3, as two brokers do not serve without one")
    return tuple(part for part in PARTS if part in wanted)


def _peers(texts: list[str]) -> tuple[Peer, ...]:
    peers: list[Peer] = []
    for text in texts:
        name, _, ports = text.partition("=")
        protocol = PROTOCOL if ports.startswith(f"{PROTOCOL}:") else "amqp"
        numbers = ports.removeprefix(f"{PROTOCOL}:").split(",")
        if not name or not all(number.isdecimal() and 0 < int(number) < 65536 for number in numbers):
            raise UserError(
                f"--peer {text}: NAME=PORT is wanted, such as rabbitmq=5680, quorum=5681,5682,5683, or "
                f"jetstream={PROTOCOL}:4222,4223,4224"
            )
        if name in (RAW, ALONE, DISK, *CLUSTERS, *(peer.name for peer in peers)):
            raise UserError(f"--peer {text}: there is a {name} already: give it another name")
        for number in numbers:
            _knock(text, int(number))
        peers.append(Peer(name, tuple(map(int, numbers)), protocol))
    return tuple(peers)


def _knock(text: str, port: int) -> None:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        raise UserError(f"--peer {text}: nobody answers at 127.0.0.1:{port} ({error.strerror or error})") from None
