"""`coterie bench audit`: traces on Spark, beside the plain checkers in one process."""

from __future__ import annotations

import argparse

from coterie.bench import audit
from coterie.cli.output import Progress, print_json, table
from coterie.errors import UserError
from coterie.spark.reach import need_spark
from coterie.trace import Json

EPILOG = """\
check             what the plain checkers do too: read, put together, check every property; without Spark's start
check_with_start  the same with it
audit             the whole job: tables, statistics and the report as well; without Spark's start
start             seconds until Spark is there, and its Python processes have loaded what they need
python_mib        most memory of the driver's Python; java_mib: of its Java, which on local[N] also does the work;
                  java_kept_mib: what that holds at the end, without garbage. `apart`: with executors that are
                  processes of their own. Their baseline is the same at the next smaller number of events

The baseline of events/s is `coterie check` in one process on the same traces.
"""


def add(cases: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = cases.add_parser(
        "audit", help="traces on Spark, beside the plain checkers", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    sizes = ",".join(map(str, audit.SIZES))
    parser.add_argument("--events", default=sizes, help="how many, in turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of each (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        sizes = sorted({int(part) for part in args.events.split(",")})
    except ValueError:
        raise UserError(f"bench audit: --events '{args.events}' is no list of numbers such as 100000,1000000") from None
    if sizes[0] < 1 or args.rounds < 1:
        raise UserError("bench audit: --events and --rounds must be 1 at least")
    need_spark()
    with Progress("measurements", len(sizes) * args.rounds * len(audit.PLACES)) as progress:
        found = audit.measure(sizes, args.rounds, progress.update)
    rows = {name: figure.to_json() for name, figure in audit.figures(found).items()}
    if args.json:
        cases: dict[str, Json] = {name: {key: row[key] for key in row} for name, row in rows.items()}
        print_json({"events": [*sizes], "rounds": args.rounds, "cases": cases})
        return 0
    keys = ("median", "min", "max", "baseline", "ratio", "unit")
    print(table(["case", *keys], [(name, *(row[key] for key in keys)) for name, row in rows.items()]))
    return 0
