"""`coterie archive`: queues into Parquet, Delta or Iceberg, each message once."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coterie.cli.archive_config import Told, size
from coterie.cli.output import Progress, print_json
from coterie.cli.remote import DEFAULT_URL, Remote, add_common, remote_of
from coterie.cli.stopping import Ended, interrupts
from coterie.errors import UserError
from coterie.extras import need
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.spark.archive.job import Compaction, Job
    from coterie.spark.archive.run import Archive, Seen

INTERRUPTED: Final = 130
PATIENCE: Final = "60s"
ROWS: Final = 200_000
"""Messages of one batch at most: the brokers hold them until it is written."""
ROWS_PER_TASK: Final = 25_000
FORMATS: Final = ("parquet", "delta", "iceberg")
KNOWN: Final = {
    "queue": str, "queues": list, "pattern": str, "target": str, "format": str, "checkpoint": str, "schema": str,
    "once": bool, "trigger": str, "max_rows": int, "master": str, "url": str, "vhost": str, "ca": str,
}  # fmt: skip
COMPACT: Final = ("files", "size", "every", "keep")
EPILOG = """\
examples:
  coterie archive orders /lake/orders                       to Parquet, until it is stopped with Ctrl-C
  coterie archive orders /lake/orders                       the same again: goes on where it was stopped, or killed
  coterie archive orders /lake/orders --once                what is there now, and no more: for a job by the hour
  coterie archive 'orders.*' /lake/all --format delta       every queue whose name begins so, also those to come
  coterie archive orders /lake/orders --schema 'id bigint, total double'    with what JSON bodies say in columns
  coterie archive orders s3://lake/orders --format iceberg --checkpoint /var/lib/archive/orders
  coterie archive --config orders.toml                      all of it from a file: see docs/lake.md

Each message is in the table once, whatever is killed. Look at the table in SQL, and send messages back by
`coterie replay`.

exit codes: 0 fine; 1 no broker answers; 2 wrong usage or input; 130 stopped with Ctrl-C
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "archive",
        help="queues into Parquet, Delta or Iceberg",
        description=(__doc__ or "").split("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("queue", nargs="?", metavar="QUEUE", help="its name; with * in it, all that fit")
    parser.add_argument("target", nargs="?", metavar="TARGET", help="the table's folder: a path, or a URL as s3://...")
    parser.add_argument("--config", metavar="FILE", help="all of this, and more, from a TOML file; flags win")
    parser.add_argument("--format", choices=FORMATS, help="of the table (default: that of TARGET, else parquet)")
    parser.add_argument("--checkpoint", metavar="DIR", help="how far it is (default: TARGET/_checkpoint)")
    parser.add_argument(
        "--schema", metavar="DDL",
        help="of JSON bodies, as 'id bigint, tags array<string>', or a file with that: adds the column body",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="stop when what is there now is written")
    parser.add_argument("--trigger", metavar="TIME", help="from one batch to the next (default: 10s)")
    parser.add_argument("--max-rows", type=int, metavar="N", help=f"messages of a batch at most (default: {ROWS})")
    parser.add_argument("--master", metavar="URL", help="where: local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn")
    add_common(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    told = Told(options, KNOWN)
    from coterie.spark.reach import need_spark

    need_spark()
    job = _job(options, told)
    _check_queues(job)
    from coterie.spark.archive import run as archive
    from coterie.spark.archive.claim import claimed
    from coterie.spark.session import session

    ended = Ended()
    with (
        claimed(job),
        session("coterie archive", told.text("master") or None, {**archive.SETTINGS, **told.table("spark")}) as spark,
    ):
        found = archive.Archive(spark, job)
        with interrupts(ended), Progress("messages") as progress:
            found.run(ended.event, lambda seen: progress.update(seen.messages, _note(seen)))
        files = found.table.readable() if found.seen.messages else []
    if getattr(options, "json", False):
        print_json(_answer(job, found, len(files), ended.number is not None))
    else:
        _print(job, found.seen, ended.number is not None)
    return INTERRUPTED if ended.number == signal.SIGINT else 0


def _job(options: argparse.Namespace, told: Told) -> Job:
    from coterie.spark.archive.job import CHECKPOINT, Compaction

    source, what = _queues(told)
    table = table_job(told.need("target", "TARGET"), told)
    checkpoint = told.text("checkpoint") or f"{table.target.rstrip('/')}/{CHECKPOINT}"
    broker = _broker(remote_by(options, told, "source"), told)
    return replace(
        table, source={**broker, **source, **told.table("source")}, what=what,
        checkpoint=checkpoint, schema=_schema(told.text("schema")), trigger=told.seconds("trigger", "10s"),
        once=bool(told.get("once")), compaction=_compaction(told.table("compact"), Compaction()),
    )  # fmt: skip


def table_job(url: str, told: Told) -> Job:
    """As much of it as the table needs."""
    from coterie.spark import places
    from coterie.spark.archive.job import Job

    target = url if places.is_remote(url) else str(Path(url.removeprefix("file://")).absolute())
    catalog = told.table("catalog")
    form = told.text("format") or _format_of(target, bool(catalog))
    if form not in FORMATS:
        raise UserError(f"--format: one of {', '.join(FORMATS)} is due, not '{form}'")
    _need(form)
    return Job({}, "", target, form, "", catalog=catalog)


def remote_by(options: argparse.Namespace, told: Told, table: str) -> Remote:
    """The node that the options, the config file or the environment names. `table`: of the file, where the password or
    the name of its file may be."""
    for key in ("url", "ca"):
        if not hasattr(options, key) and told.text(key):
            setattr(options, key, told.text(key))
    return remote_of(options, DEFAULT_URL, told.environment(table))


def _queues(told: Told) -> tuple[dict[str, str], str]:
    """Options of the source, and how the queues are called."""
    given = [key for key in ("queue", "queues", "pattern") if told.get(key)]
    if len(given) != 1:
        raise UserError(
            f"QUEUE: name it, or one of queue, queues and pattern in the file of --config, not {' and '.join(given)}"
            if given
            else "QUEUE is missing: name it on the command line, or as queue, queues or pattern in the file of --config"
        )
    if given == ["queues"]:
        names = [str(name) for name in told.get("queues")]
        return {"queues": ",".join(names)}, ", ".join(names)
    text = told.text(given[0])
    if given == ["pattern"]:
        return {"queuePattern": text}, f"queues like {text}"
    if "*" in text:
        return {"queuePattern": ".*".join(map(re.escape, text.split("*")))}, f"queues {text}"
    return {"queue": text}, f"queue {text}"


def _broker(remote: Remote, told: Told) -> dict[str, str]:
    """Options of the source: where, and as whom."""
    found = {
        "servers": remote.where, "user": remote.user, "password": remote.password, "vhost": told.text("vhost", "/"),
        "maxRowsPerTrigger": str(told.whole("max_rows", ROWS)), "maxRowsPerPartition": str(ROWS_PER_TASK),
        "connectTimeout": PATIENCE,
    }  # fmt: skip
    if "passwordFile" in told.table("source"):
        del found["password"]
    return {**found, "tlsCa": told.text("ca")} if told.text("ca") else found


def _format_of(target: str, catalog: bool) -> str:
    """What is there already goes on as it is."""
    from coterie.spark.archive.place import Place

    there = Place(target).names()
    return "delta" if "_delta_log" in there else "iceberg" if catalog or "catalog.db" in there else "parquet"


def _need(form: str) -> None:
    if form == "delta":
        need("deltalake", extra="lake")
    if form == "iceberg":
        need("pyiceberg", "sqlalchemy", extra="lake")


def _schema(text: str) -> str:
    if not text:
        return ""
    if " " not in text.strip():
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise UserError(f"--schema {text}: {error.strerror}") from None
    return " ".join(text.split())


def _compaction(given: dict[str, str], default: Compaction) -> Compaction:
    from coterie.spark.archive.job import Compaction
    from coterie.spark.options import Options

    try:
        options = Options(given, COMPACT)
        return Compaction(
            options.whole("files", default.least, 0), size("size", options.text("size", str(default.bytes))),
            options.seconds("every", f"{default.every}s"), options.seconds("keep", f"{default.keep}s"),
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"table compact of --config: {error}") from None


def _check_queues(job: Job) -> None:
    """Before Spark is started: whether a broker answers, and has them."""
    from coterie.spark.source_options import SourceOptions
    from coterie.streams.client import StreamError

    source = SourceOptions.of(job.source)
    try:
        with source.client() as client:
            there = {tail.name for tail in client.tails(source.queues, source.pattern)}
    except StreamError as error:
        raise UserError(f"{error} (asked: {job.source['servers']}, as user '{source.login.user}')") from None
    if missing := [name for name in source.queues if name not in there]:
        raise UserError(f"no queue '{missing[0]}' in vhost '{source.vhost}' at {job.source['servers']}")


def _note(seen: Seen) -> str:
    notes = [] if seen.latest is None else [f"batch {seen.latest}"]
    if seen.lag is not None:
        notes.append(f"lag {seen.lag:,}")
    if seen.bad:
        notes.append(f"{seen.bad:,} bodies that the schema does not fit")
    return ", ".join(notes)


def _answer(job: Job, archive: Archive, files: int, interrupted: bool) -> dict[str, Json]:
    from coterie.spark import places

    seen = archive.seen
    compacted: Json = {
        "files_before": seen.compacted.before, "files_after": seen.compacted.after, "orphans": seen.compacted.orphans,
    }  # fmt: skip
    return {
        "messages": seen.messages, "batches": seen.batches, "lag": seen.lag, "bad_bodies": seen.bad,
        "queues": job.what, "target": places.shown(job.target), "format": job.format,
        "checkpoint": places.shown(job.checkpoint), "files": files, "compacted": compacted, "interrupted": interrupted,
    }  # fmt: skip


def _print(job: Job, seen: Seen, interrupted: bool) -> None:
    lag = "" if seen.lag is None else f", lag {seen.lag:,}"
    print(f"{job}: {seen.messages:,} messages in {seen.batches:,} batches{lag}")
    if seen.bad:
        print(f"bodies that are not as the schema says, and null in the column body: {seen.bad:,}")
    if seen.compacted.before:
        print(f"{seen.compacted.before:,} small files became {seen.compacted.after:,}")
    if seen.compacted.orphans:
        print(f"files that belonged to no batch, and were deleted: {seen.compacted.orphans:,}")
    if interrupted:
        print(f"stopped; the same command goes on: {shlex.join(['coterie', *sys.argv[1:]])}", file=sys.stderr)
