"""`coterie bench`: how fast it is here, beside a raw-socket loop measured in the same run."""

from __future__ import annotations

import argparse
from dataclasses import replace

from coterie.bench.cases import ORDERS, Figure, Load, orders, own_delivery, round_trip, throughput
from coterie.bench.memory import outrun
from coterie.cli import bench_audit, bench_broker, bench_spark, bench_views
from coterie.cli.output import Progress, print_json, table
from coterie.errors import UserError
from coterie.group.bundle import OFFSET_SIZE
from coterie.trace import Json

BUNDLE_MIN = 64
EPILOG = """\
Every round starts real processes on this machine, first the raw loop, then the group, over loopback TCP; the ratio is
ours to the raw loop's of the same round. Only messages that reached the application count. Compare nothing that
was not measured in one run.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure real processes over loopback against raw sockets",
        description="Measure on this machine, beside a raw-socket loop of the same bundle size in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cases = parser.add_subparsers(dest="case", required=True, metavar="CASE")
    group = cases.add_parser("group", help="everyone multicasts to everyone")
    group.add_argument("--members", type=int, default=4, help="processes (default: 4)")
    group.add_argument(
        "--order",
        choices=(*ORDERS, "both"),
        default="fifo",
        help="each sender's own order, total order, or both and one beside the other (default: fifo)",
    )
    _common(group)
    group.set_defaults(run=_group)
    unicast = cases.add_parser("unicast", help="one sends to one; and round trips, one at a time")
    _common(unicast)
    unicast.set_defaults(run=_unicast)
    own = cases.add_parser("own", help="one multicasts, one message at a time, until it is delivered to itself")
    own.add_argument("--members", type=int, default=3, help="processes (default: 3)")
    own.add_argument("--order", choices=(*ORDERS,), default="total", help="of delivery (default: total)")
    _common(own)
    own.set_defaults(run=_own)
    memory = cases.add_parser("memory", help="a sender outruns a receiver ten times: what do both sides hold?")
    memory.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    memory.add_argument("--size", type=int, default=1024, help="bytes per message (default: 1024)")
    memory.add_argument("--json", action="store_true", help="one JSON object on standard output")
    memory.set_defaults(run=_memory)
    bench_views.add(cases)
    bench_audit.add(cases)
    bench_broker.add(cases)
    bench_spark.add(cases)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=1024, help="bytes per message (default: 1024)")
    parser.add_argument("--bundle", type=int, default=60_000, help="bytes per bundle (default: 60000)")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured time of each round (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, ours and the baseline in turn (default: 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _check(args: argparse.Namespace) -> None:
    if args.size < 1 or args.seconds <= 0:
        raise UserError("bench: --size must be at least 1 byte, and --seconds more than 0")


def _load(args: argparse.Namespace, members: int) -> Load:
    _check(args)
    if members < 2 or args.rounds < 1:
        raise UserError("bench: there must be 2 members and 1 round at least")
    if args.bundle < BUNDLE_MIN or args.bundle < args.size + 2 * OFFSET_SIZE:
        raise UserError(f"bench: --bundle must be at least {BUNDLE_MIN}, and hold a message of --size {args.size}")
    return Load(members=members, size=args.size, bundle=args.bundle, seconds=args.seconds, rounds=args.rounds)


def _group(args: argparse.Namespace) -> int:
    load = _load(args, args.members)
    with Progress(f"group of {load.members}", load.rounds) as progress:
        if args.order == "both":
            figures = orders(load, progress.update)
        else:
            load = replace(load, stack=ORDERS[args.order])
            figures = throughput("multicast", load, load.members, progress.update)
    return _tell(args, {"members": load.members, "size": load.size, "order": args.order}, figures)


def _unicast(args: argparse.Namespace) -> int:
    load = _load(args, 2)
    with Progress("unicast", load.rounds) as progress:
        figures = throughput("unicast", load, 2, progress.update)
    with Progress("round trips", load.rounds) as progress:
        figures |= round_trip(load, progress.update)
    return _tell(args, {"size": load.size}, figures)


def _own(args: argparse.Namespace) -> int:
    load = replace(_load(args, args.members), stack=ORDERS[args.order])
    with Progress(f"own delivery in a group of {load.members}", load.rounds) as progress:
        figures = own_delivery(load, progress.update)
    return _tell(args, {"members": load.members, "size": load.size, "order": args.order}, figures)


def _memory(args: argparse.Namespace) -> int:
    _check(args)
    with Progress("looks at the memory") as progress:
        answer = outrun(args.seconds, args.size, progress.update)
    if args.json:
        print_json(answer)
    else:
        print("\n".join(f"{key:>22}  {value}" for key, value in answer.items()))
    return 0 if answer["bounded"] else 1


def _tell(args: argparse.Namespace, what: dict[str, Json], figures: dict[str, Figure]) -> int:
    rows = {name: figure.to_json() for name, figure in figures.items()}
    if args.json:
        print_json({**what, "cases": dict(rows)})
    else:
        keys = ("median", "min", "max", "baseline", "ratio", "unit")
        print(table(("case", *keys), [(name, *(row[key] for key in keys)) for name, row in rows.items()]))
    return 0
