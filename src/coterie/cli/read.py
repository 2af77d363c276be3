"""`coterie read`: what is in a queue as a file, without taking anything."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coterie.cli.output import Progress, print_json, tell
from coterie.cli.remote import COMMON_EPILOG, DEFAULT_URL, URL, add_common, as_json, remote_of, vhost_of
from coterie.errors import UserError
from coterie.extras import need

if TYPE_CHECKING:
    from coterie.reader import Look
    from coterie.reader.brokers import Login

FORMS: Final = ("arrow", "parquet", "csv", "jsonl")
SHOWN: Final = "jsonl"
"""What a terminal may get: it spells out whatever would command it."""
DESCRIPTION: Final = """\
Writes what is in a queue now, ready or held, to a file or to standard output. Nothing is taken and nothing changes; the
file has the columns that Spark gives. Of a cluster any node will do: --url may name several with commas between, and if
one dies in the middle, another one goes on.
"""
EXAMPLES: Final = """\
  coterie read orders --out orders.parquet             all of it, for polars, pandas, DuckDB, Spark
  coterie read orders --columns position,value | head  a line of JSON for each message
  coterie read orders --first 1200 --last 1299 --out part.csv
  coterie read orders --out new.arrow --json           and what there is: "next" is where to go on with --first
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "read",
        help="what is in a queue, as Arrow, Parquet, CSV or JSON Lines",
        description=DESCRIPTION,
        epilog=f"examples:\n{EXAMPLES}{COMMON_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to (default: standard output)")
    parser.add_argument("--format", choices=FORMS, help="default: by the end of FILE's name; without --out jsonl")
    parser.add_argument("--overwrite", action="store_true", help="FILE may be there, and is replaced when all is read")
    parser.add_argument("--columns", metavar="A,B,...", default="", help="these only, in this order")
    parser.add_argument("--first", type=int, metavar="POSITION", help="from there (default: the queue's first)")
    parser.add_argument("--last", type=int, metavar="POSITION", help="up to there (default: the queue's last)")
    parser.add_argument("--count", type=int, metavar="N", help="so many messages at most")
    add_common(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    need("pyarrow", extra="reader")
    from coterie.reader import files

    form = options.format or (SHOWN if options.out is None else files.form_of(options.out))
    _check(options, form)
    look = _look(options)
    with Progress("messages") as progress:
        if options.out is None:
            rows = files.write(look, sys.stdout.buffer, form, progress.update)
        else:
            with files.made(options.out) as file:
                rows = files.write(look, file, form, progress.update)
    if as_json(options):
        print_json({
            "rows": rows, "next": look.next, "incarnation": look.cut.incarnation, "at": look.cut.at,
            "queue": look.queue, "vhost": look.cut.vhost, "format": form, "out": str(options.out),
        })  # fmt: skip
    elif options.out is not None:
        tell(f"{rows:,} messages of '{look.queue}' in {options.out}")
    return 0


def _check(options: argparse.Namespace, form: str) -> None:
    """Before anybody is asked. Raises UserError."""
    out: Path | None = options.out
    if out is None:
        if as_json(options):
            raise UserError("--json: messages and the answer would both go to standard output: give --out FILE too")
        if form != SHOWN and sys.stdout.isatty():
            raise UserError(f"--format {form}: not for a terminal: give --out FILE, or pipe it into something")
        return
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out {out}: {'a folder' if out.is_dir() else 'there is no folder for it'}: name a file")
    if out.is_file() and not options.overwrite:
        raise UserError(f"--out {out}: is there already: choose another name, or say --overwrite")


def _look(options: argparse.Namespace) -> Look:
    from coterie import reader

    text = getattr(options, "url", None) or os.environ.get(URL) or DEFAULT_URL
    nodes = [*filter(None, map(str.strip, text.split(",")))] or [DEFAULT_URL]
    who = remote_of(argparse.Namespace(**{**vars(options), "url": nodes[0]}), DEFAULT_URL)
    login: Login = {
        "user": who.user, "password": who.password, "vhost": vhost_of(options),
        "patience": getattr(options, "timeout", 60.0), "ca_file": getattr(options, "ca", ""),
    }  # fmt: skip
    try:
        return reader.read(
            options.queue, nodes, first=options.first, last=options.last, limit=options.count,
            columns=[*filter(None, map(str.strip, options.columns.split(",")))], **login,
        )  # fmt: skip
    except (reader.NotFound, reader.Refused) as error:
        asked = ", ".join(node.rpartition("@")[2] for node in nodes)
        raise UserError(f"{error} (asked: {asked}, as user '{who.user}')") from None
