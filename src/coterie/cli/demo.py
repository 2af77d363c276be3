"""`coterie demo`: what there is, shown in a few seconds: of the brokers (`demo broker`, or no word) or the group."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from coterie.cli import demo_broker
from coterie.cli.output import print_json
from coterie.demo.story import Story
from coterie.errors import UserError

OUT = Path("out/demo")
RATE = 500.0
SIZE_MIN = 8
"""A message of the demonstration carries a number of this size."""

NEXT = """\
What to try next:
  coterie sim run --profile vs --seeds 200             the same protocols under every fault, in simulated time
  coterie sim replay --profile vs 17 --html run.html   look at one of those runs
  coterie bench views --members 4                      how fast groups change here
  coterie stacks total-order                           what the group is made of
"""

DESCRIPTION = """\
Real processes become a group and stay one: another joins and is given the state, the network is cut and heals, one
leaves, one is killed with -9 and comes back, all under load. Then the books that they kept are compared, and their
traces checked for every property. It takes about 15 s.
"""

EPILOG = """\
The network between processes on one machine cannot be cut without help: here each process's stack has the fault layer
CUT, which loses every packet to and from the other part. All else is the real thing. Exit code 1: something was lost,
or a property does not hold.
"""


USAGE = """\
coterie demo [broker] [--out DIR] [--rate R] [--seconds S] [--no-spark] [--json]
       coterie demo group [--help] ...
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    demo = subparsers.add_parser(
        "demo",
        help="three brokers that are one, of which one is killed under load; or the group below them",
        usage=USAGE,
        description=demo_broker.DESCRIPTION,
        epilog=demo_broker.EPILOG,
        formatter_class=raw,
    )
    demo_broker.add_options(demo, default=None)
    demo.set_defaults(run=demo_broker.run)
    kinds = demo.add_subparsers(metavar="KIND", help="broker (what is done without a word), or group")
    # What stands before the word must not be undone by the defaults behind it: so those are none.
    broker = kinds.add_parser(
        "broker", description=demo_broker.DESCRIPTION, epilog=demo_broker.EPILOG, formatter_class=raw
    )
    demo_broker.add_options(broker, default=argparse.SUPPRESS)
    group = kinds.add_parser("group", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    _add_group_options(group)
    group.set_defaults(run=_run)


def _add_group_options(parser: argparse.ArgumentParser) -> None:
    none = argparse.SUPPRESS
    parser.add_argument("--out", type=Path, default=none, help=f"folder for traces and diagram (default: {OUT})")
    parser.add_argument(
        "--rate", type=float, default=none, help=f"messages a second that each member sends (default: {RATE:g})"
    )
    parser.add_argument("--size", type=int, default=200, help="bytes per message (default: 200)")
    parser.add_argument(
        "--trace-segment-seconds",
        type=float,
        default=0,
        metavar="S",
        help="write traces in segments of S seconds, as `coterie audit --stream` reads them (default: one file each)",
    )
    parser.add_argument("--json", action="store_true", default=none, help="one JSON object on standard output")


def _run(args: argparse.Namespace) -> int:
    rate: float = RATE if args.rate is None else args.rate
    out: Path = OUT if args.out is None else args.out
    if rate < 1 or args.size < SIZE_MIN:
        raise UserError(f"demo: --rate must be at least 1 and --size at least {SIZE_MIN}: else there is nothing to see")
    if args.seconds is not None:
        raise UserError("demo: --seconds is for the brokers' demonstration: the group's takes as long as it takes")
    if args.no_spark:
        raise UserError("demo: --no-spark is for the brokers' demonstration: the group's has no Spark")
    if args.trace_segment_seconds < 0:
        raise UserError("demo: --trace-segment-seconds must not be negative: 0 writes one file for each process")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error}") from None
    began = time.monotonic()

    def say(text: str) -> None:
        if not args.json:
            print(f"{time.monotonic() - began:6.2f} s  {text}", flush=True)

    outcome = Story(out, rate, args.size, say, args.trace_segment_seconds).tell()
    if args.json:
        print_json({**asdict(outcome), "good": outcome.good})
    else:
        for violation in outcome.violations:
            print(violation)
        print(f"\n{NEXT}" if outcome.good else "\nThis should not have happened: please report it with the traces.")
    return 0 if outcome.good else 1
