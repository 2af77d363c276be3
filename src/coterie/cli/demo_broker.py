"""`coterie demo broker`: a cluster of three brokers of which one is killed, and the account of every message."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.output import print_json, table
from coterie.errors import UserError

if TYPE_CHECKING:
    from coterie.demo.broker_story import Outcome

OUT = Path("out/demo-broker")
RATE, RATE_MAX = 200.0, 2000
SECONDS, SECONDS_MAX = 3.0, 60
SHOWN_MAX = 20
"""Violations that are printed; the JSON object has all."""

DESCRIPTION = """\
Three brokers on this machine are one cluster. Clients (pika) publish numbered orders with confirms and consume them
with acks, on all three, all the time. One broker is killed with -9: its clients go on at the others. It is started
again, is brought into step while the others serve, and its clients go home. Then every message is accounted for, and
Spark reads a queue that has them all. It takes about 20 s, and half as long again with Spark.
"""

EPILOG = """\
A confirmed order must be consumed. It may be consumed again if a broker dies before its ack is committed, and then it
has the redelivered flag; it must not come again after that. An order whose confirm was lost with the connection may or
may not be in the queue: nobody was promised anything.

examples:
  coterie demo                     what `make demo` does
  coterie demo --rate 500          more orders a second
  coterie demo --no-spark          the brokers alone
  coterie demo --json              for a machine
  coterie check out/demo-broker    the brokers' traces once more
  coterie demo group               the group below the brokers: joins, a partition, a merge, a kill

Where Spark is not installed or does not start, that is said, and the rest is shown.

exit codes: 0 the books balance; 1 something was lost, came twice without the flag, came back, is missing in Spark, or a
property of the traces does not hold; 2 pika is not installed, or a flag is wrong
"""

NEXT = """\
What to try next:
  coterie up --nodes 3 --data ./cluster       such a cluster for your own clients: AMQP on 5672, 5673, 5674
  python examples/orders_pipeline.py          a pipeline: a queue through Spark to Parquet, alerts back into a queue
  coterie demo group                          the group below it: joins, a partition that heals, a merge, a kill
  coterie sim run --profile vs --seeds 200    the same protocols under every fault, in simulated time
"""


def add_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """The same before and behind the word `broker`."""
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=default,
        help=f"folder for the brokers' traces and logs (default: {OUT})",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=float, metavar="R", default=default, help=f"orders a second on each broker (default: {RATE:g})"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", default=default,
        help=f"of load before the kill, and again when the broker is back (default: {SECONDS:g})",
    )  # fmt: skip
    parser.add_argument("--no-spark", action="store_true", default=default or False, help="the brokers alone")
    parser.add_argument(
        "--json", action="store_true", default=default or False, help="one JSON object on standard output"
    )


def run(args: argparse.Namespace) -> int:
    rate: float = RATE if args.rate is None else args.rate
    seconds: float = SECONDS if args.seconds is None else args.seconds
    out: Path = OUT if args.out is None else args.out
    if not 1 <= rate <= RATE_MAX or not 0.5 <= seconds <= SECONDS_MAX:
        raise UserError(f"demo: --rate must be 1 to {RATE_MAX}, and --seconds 0.5 to {SECONDS_MAX}")
    if importlib.util.find_spec("pika") is None:
        raise UserError("demo: its clients are pika, which is not installed: pip install 'coterie[demo]' or make setup")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error}") from None
    from coterie.demo.archive import Archive
    from coterie.demo.broker_story import BrokerStory

    began = time.monotonic()

    def say(text: str) -> None:
        if not args.json:
            print(f"{time.monotonic() - began:6.2f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="coterie-demo-", ignore_cleanup_errors=True) as data:
        archive = None if args.no_spark else Archive(out / "spark.log")
        outcome = asyncio.run(BrokerStory(out, Path(data), rate, seconds, say, archive).tell())
    if args.json:
        accounts = asdict(outcome.accounts) if outcome.accounts else {}
        print_json({**accounts, **{k: v for k, v in asdict(outcome).items() if k != "accounts"}, "good": outcome.good})
    else:
        print(_account(outcome))
        for violation in outcome.violations[:SHOWN_MAX]:
            print(violation)
        print(NEXT if outcome.good else f"This should not have happened: please report it with {out}.")
    return 0 if outcome.good else 1


def _account(outcome: Outcome) -> str:
    accounts = outcome.accounts
    assert accounts is not None
    arrived = f"the broker died before it confirmed: {accounts.unconfirmed_consumed} of them arrived nevertheless"
    rows: list[tuple[int, str, str]] = [
        (accounts.published, "published", "each of them once"),
        (accounts.confirmed, "confirmed", "a majority of the brokers has it on disk"),
        (accounts.unconfirmed, "unconfirmed", arrived),
        (accounts.consumed_once, "consumed once", ""),
        (accounts.consumed_again, "consumed again", "flagged as redelivered: its ack was not committed"),
        (accounts.lost, "lost", "confirmed, and never consumed"),
    ]
    if outcome.spark is not None:
        rows.append((outcome.spark.orders, "in Spark", "of a second queue, which has all that arrived"))
    return f"\n{table(('orders', 'were', 'which means'), rows)}\n"
