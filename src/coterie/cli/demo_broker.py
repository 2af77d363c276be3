"""`coterie demo broker`: a cluster of three brokers of which one is killed, and the account of every message."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
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
again, is brought into step while the others serve, and its clients go home. Then Spark reads a second queue, which has
a copy of every order, as a stream: it looks up prices, adds up what was made in each second, writes Parquet files, and
sends alerts back to the brokers. In the end every message is accounted for. It takes less than a minute.
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

exit codes: 0 the books balance; 1 something was lost, came twice without the flag, came back, is missing in what Spark
wrote, or a property of the traces does not hold; 2 pika is not installed, or a flag is wrong
"""

NEXT: Sequence[tuple[str, str]] = (
    ("coterie up --nodes 3 --data cluster", "such a cluster for your own clients, and its console in the browser"),
    ("python examples/orders_pipeline.py", "the pipeline as one file to copy, with a crash in its middle"),
    ("coterie demo group", "the group below the brokers: joins, a partition that heals, a merge, a kill"),
    ("coterie sim run --profile vs --seeds 200", "the same protocols under every fault, in simulated time"),
)
WIDTH = 100
"""Columns that lines of the story have at most."""
INDENT = " " * 10


class Screen:
    """Where the story is told, with the time since it began. Not `shown`: nowhere."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._began = time.monotonic()

    def chapter(self, title: str) -> None:
        if self._shown:
            print(f"\n{title}", flush=True)

    def say(self, text: str) -> None:
        if self._shown:
            when = f"{time.monotonic() - self._began:6.1f} s  "
            width = min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)
            print(textwrap.fill(text, width, initial_indent=when, subsequent_indent=INDENT), flush=True)

    def show(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if self._shown:
            print(textwrap.indent(table(headers, rows), INDENT), flush=True)


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
    from coterie.demo.broker_story import BrokerStory
    from coterie.demo.pipeline import Pipeline

    with tempfile.TemporaryDirectory(prefix="coterie-demo-", ignore_cleanup_errors=True) as data:
        pipeline = None if args.no_spark else Pipeline(out / "spark.log")
        outcome = asyncio.run(BrokerStory(out, Path(data), rate, seconds, Screen(not args.json), pipeline).tell())
    if args.json:
        accounts = asdict(outcome.accounts) if outcome.accounts else {}
        print_json({**accounts, **{k: v for k, v in asdict(outcome).items() if k != "accounts"}, "good": outcome.good})
    else:
        print(_account(outcome))
        for violation in outcome.violations[:SHOWN_MAX]:
            print(violation)
        print(what_next() if outcome.good else f"This should not have happened: please report it with {out}.")
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
    found = outcome.spark
    if found is not None:
        rows.append((found.orders, "in Parquet", "by Spark, from a second queue: each that arrived, once"))
    return f"\n{table(('orders', 'were', 'which means'), rows)}\n"


def what_next() -> str:
    """What to try, as it must be typed here."""
    lines = [(_typed(line), why) for line, why in NEXT]
    width = max(len(line) for line, _ in lines)
    return "\n".join(["What to try next:", *(f"  {line:{width}}  {why}" for line, why in lines), ""])


def _typed(line: str) -> str:
    """With the folder of the program, if it is not the one that is found without: that of a virtual environment."""
    program = line.partition(" ")[0]
    here = Path(sys.executable).with_name(program)
    if not here.exists() or shutil.which(program) == str(here):
        return line
    return f"{os.path.relpath(here) if here.is_relative_to(Path.cwd()) else here}{line.removeprefix(program)}"
