"""`coterie bench spark`: rows out of queues into Spark and back, and what readers cost publishers."""

from __future__ import annotations

import argparse
import importlib.util
import signal
from pathlib import Path

from coterie.bench.spark_figures import SIZE
from coterie.cli.output import Progress, print_json, table
from coterie.cli.up_cluster import NODES_MAX
from coterie.errors import UserError
from coterie.trace import Json

DESCRIPTION = """\
A cluster of real brokers and a Spark session on this machine: rows of 1 KiB out of a queue into Spark's noop sink, and
out of Spark into a queue, beside the same rows from Parquet files and beside a loop with pika, in turns.
"""
EPILOG = """\
batch                     the queue as a table (spark.read), bodies alone; batch_all: with all columns
stream                    the queue as a stream (spark.readStream) in two batches, bodies alone: by what Spark says that
                          the batches took, with planning and commits; stream_whole: from start() until the query
                          has ended with everything retired (Trigger.AvailableNow)
sink                      rows of a file into a queue, with confirms; `publisher`: a client that sends ready-made bytes
publishers_beside_reader  messages/s that a publisher at full rate is confirmed, beside a consumer, while Spark reads
                          another queue as a table; _beside_parquet: while Spark reads Parquet instead, which has
                          nothing to do with the brokers but for the cores
reader_beside_publishers  what that reader gets meanwhile
start                     seconds until Spark has done its first job: in no other figure

parquet, parquet_all: the same rows, columns and sink from Parquet files. loop: a pika consumer with a prefetch of 1000
on the driver, createDataFrame for each 10,000 messages. Goals are told for at least 100,000 rows and 3 nodes. Exit code
1 if a message was lost or came twice; `wrong` says where.

examples:
  coterie bench spark --json                        some minutes on two quiet cores
  coterie bench spark --rows 50000 --rounds 1       a first look, in a minute
"""
GOAL_ROWS = 100_000
FIELDS = ("median", "min", "max", "baseline", "ratio", "mb_per_second", "goal", "met", "unit")


def add(cases: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = cases.add_parser(
        "spark", help="queues in Spark: table, stream and sink, beside Parquet and a loop with pika",
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=400_000, help="messages of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of everything (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="brokers; 1: one that stands alone (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of publishing, each time (default: %(default)s)")
    parser.add_argument("--master", default="local[*]", help="where Spark runs (default: %(default)s)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="on which disk (default: that of temporary files)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from coterie.bench import spark

    if not 1 <= args.rows <= spark.ROWS_MAX:
        raise UserError(f"bench spark: --rows {args.rows}: 1 to {spark.ROWS_MAX}, which brokers can hold in memory")
    if args.rounds < 1 or args.seconds <= 0:
        raise UserError("bench spark: --rounds must be 1 at least, and --seconds more than 0")
    if not 1 <= args.nodes <= NODES_MAX:
        raise UserError(f"bench spark: --nodes {args.nodes}: 1 to {NODES_MAX}; 3 is usual")
    if args.data is not None and not args.data.is_dir():
        raise UserError(f"bench spark: --data {args.data} is no folder")
    for module, extra in (("pyspark", "spark"), ("pika", "demo"), ("aiohttp", "console")):
        if importlib.util.find_spec(module) is None:
            raise UserError(f"bench spark: {module} is not installed: pip install 'coterie[{extra}]'")
    plan = spark.Plan(args.rows, args.rounds, args.nodes, args.master, min(1.0, args.seconds), args.seconds, args.data)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # brokers and folders must not outlive the benchmark
    with spark.staged(plan) as (stage, steps), Progress("steps", len(steps)) as progress:
        for number, step in enumerate(steps):
            progress.update(number, step.what)
            step.run()
    rows = stage.measured.rows(goals=args.rows >= GOAL_ROWS and args.nodes == 3)
    if args.json:
        print_json(
            {
                "rows": args.rows, "size": SIZE, "rounds": args.rounds, "nodes": args.nodes, "master": args.master,
                "wrong": {**stage.wrong}, "cases": {**rows},
            }
        )  # fmt: skip
    else:
        _print(rows, stage.wrong)
    return 1 if stage.wrong else 0


def _print(rows: dict[str, dict[str, Json]], wrong: dict[str, int]) -> None:
    fields = [key for key in FIELDS if any(key in row for row in rows.values())]
    print(table(["case", *fields], [(name, *(_cell(row.get(key)) for key in fields)) for name, row in rows.items()]))
    for name, count in wrong.items():
        print(f"\nLOST OR TWICE: {count} messages of {name}")


def _cell(value: Json) -> object:
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else value
