"""`coterie replay`: rows of an archive back into an exchange or a queue."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from coterie.cli.archive_config import Told
from coterie.cli.output import print_json, table, tell
from coterie.cli.remote import Remote, add_common, path_of
from coterie.errors import CoterieError, UserError
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.spark.archive.replay import Count, Wanted

KNOWN: Final = {
    "source": str, "to": str, "format": str, "since": str, "until": str, "key": str, "where": list, "set": list,
    "rate": str, "in_order": bool, "name": str, "new_ids": bool, "keep_deaths": bool, "dry_run": bool,
    "routing_key": str, "amqp": str, "master": str, "url": str, "vhost": str, "ca": str,
    # Of `coterie archive`: one file may be of both.
    "queue": str, "queues": list, "pattern": str, "target": str, "checkpoint": str, "schema": str, "once": bool,
    "trigger": str, "max_rows": int,
}  # fmt: skip
EPILOG = """\
examples:
  coterie replay /lake/orders orders --dry-run                how many there are, and from when; nothing is sent
  coterie replay /lake/orders orders --since '2026-11-18 09:00' --until '2026-11-18 10:00'
  coterie replay /lake/dead events --where "headers['x-death'] like '%expired%'" --rate 200
  coterie replay /lake/dead orders --where "body is null" --set "value = replace(cast(value as string), '\\'', '\\"')"

Properties and headers are as they were. A message without an id gets one that a second run repeats: declare the queue
with x-deduplicate-length, and a run that was stopped can be given again. Times are UTC, by the column arrived.

exit codes: 0 fine; 1 no broker answers, or messages were not taken; 2 wrong usage or input; 130 interrupted
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="rows of an archive back into an exchange or a queue",
        description=(__doc__ or "").split("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="the archive: its folder, by a path or a URL")
    parser.add_argument(
        "to", nargs="?", metavar="EXCHANGE|QUEUE", help="where to; if both have that name: exchange:NAME, queue:NAME"
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with all of this; flags win")
    parser.add_argument("--format", choices=("parquet", "delta", "iceberg"), help="of SOURCE (default: as it looks)")
    which = parser.add_argument_group("which rows")
    which.add_argument("--since", metavar="TIME", help="that arrived then or later")
    which.add_argument("--until", metavar="TIME", help="that arrived before")
    which.add_argument("--key", help="with this routing key")
    which.add_argument("--where", action="append", metavar="SQL", help="for which this holds; may be repeated")
    how = parser.add_argument_group("how")
    how.add_argument("--set", action="append", metavar="COLUMN=SQL", help="send that instead; may be repeated")
    how.add_argument("--routing-key", metavar="KEY", help="to an exchange: with this key (default: as they had)")
    how.add_argument("--rate", metavar="N", help="so many messages a second, in order (default: as fast as it goes)")
    how.add_argument("--in-order", action="store_true", help="as they arrived: one task sends them all")
    how.add_argument("--name", help="of this run: under another one, messages without ids of their own get other ids")
    how.add_argument("--new-ids", action="store_true", help="new ids also for messages that have one")
    how.add_argument("--keep-deaths", action="store_true", help="the header x-death, too: such are never duplicates")
    how.add_argument("--dry-run", action="store_true", help="only count")
    how.add_argument("--amqp", metavar="URL", help="amqp://HOST:PORT,... of the brokers (default: as --url says)")
    parser.add_argument("--master", metavar="URL", help="where: local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn")
    add_common(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    told = Told(options, KNOWN)
    from coterie.spark.reach import need_spark

    need_spark()
    from coterie.cli.archive import remote_by, table_job
    from coterie.spark.archive import replay
    from coterie.spark.archive.table import table_of
    from coterie.spark.session import session

    source = told.text("source") or told.need("target", "SOURCE")
    job = table_job(source, told)
    wanted = _wanted(told)
    sink: dict[str, str] = {}
    if not told.get("dry_run"):
        sink = _sink(remote_by(options, told, "sink"), told)
    with session("coterie replay", told.text("master") or None, told.table("spark")) as spark:
        rows = replay.chosen(replay.rows_of(spark, table_of(job), job.target), wanted)
        counts = replay.counted(rows)
        total = sum(each.messages for each in counts)
        as_json = getattr(options, "json", False)
        if not as_json:
            _print(counts, total, wanted, bool(sink))
        sent = replay.replayed(rows, wanted, sink) if sink and total else 0
    if as_json:
        print_json(_answer(counts, total, sent, not sink))
    elif sink:
        tell(f"published and confirmed: {sent:,}")
    return 0


def _wanted(told: Told) -> Wanted:
    from coterie.spark.archive.replay import Wanted

    change: dict[str, str] = {}
    for text in told.get("set") or ():
        name, equals, expression = str(text).partition("=")
        if not equals or not name.strip() or not expression.strip():
            raise UserError(f"--set {text}: it should read COLUMN=SQL")
        change[name.strip()] = expression.strip()
    where = told.get("where") or ()
    rate = told.text("rate")
    if rate and not (rate.replace(".", "", 1).isdigit() and float(rate) > 0):
        raise UserError(f"--rate: messages in a second are due, not '{rate}'")
    for name in ("since", "until"):
        if "'" in told.text(name):
            raise UserError(f"--{name}: a time is due, as '2026-11-18 09:00'")
    return Wanted(
        told.text("since"), told.text("until"), told.text("key"), tuple(map(str, where)), change,
        float(rate) if rate else None, bool(told.get("in_order")), told.text("name"), bool(told.get("new_ids")),
        bool(told.get("keep_deaths")),
    )  # fmt: skip


def _sink(remote: Remote, told: Told) -> dict[str, str]:
    """Options of the sink: where to, and as whom."""
    vhost = told.text("vhost", "/")
    given = told.need("to", "EXCHANGE|QUEUE")
    kind, colon, name = given.partition(":")
    if not colon or kind not in ("exchange", "queue"):
        kind, name = _kind(remote, vhost, given), given
    elif not _is_there(remote, kind, vhost, name):
        raise UserError(f"no {kind} '{name}' in vhost '{vhost}' at {remote.where}")
    found = {
        "servers": told.text("amqp") or _amqp(remote),
        "user": remote.user,
        "password": remote.password,
        "vhost": vhost,
    }
    if told.text("ca"):
        found["tlsCa"] = told.text("ca")
    key = told.text("routing_key")
    if kind == "queue":
        if key:
            raise UserError("--routing-key: it belongs to an exchange")
        found["queue"] = name
    else:
        found["exchange"] = name
        if key:
            found["routingKey"] = key
    more = told.table("sink")
    if "passwordFile" in more:
        del found["password"]
    return {**found, **more}


def _kind(remote: Remote, vhost: str, name: str) -> str:
    there = [kind for kind in ("exchange", "queue") if _is_there(remote, kind, vhost, name)]
    if len(there) == 2:
        raise UserError(f"'{name}' is an exchange and a queue: say exchange:{name} or queue:{name}")
    if not there:
        raise UserError(f"no exchange and no queue '{name}' in vhost '{vhost}' at {remote.where}")
    return there[0]


def _is_there(remote: Remote, kind: str, vhost: str, name: str) -> bool:
    path = path_of(f"{kind}s", vhost, name)
    status, _ = remote.request("GET", path)
    if status == 404:
        return False
    if status >= 400:
        remote.ask("GET", path)  # says why
    return True


def _amqp(remote: Remote) -> str:
    """Where the node that was asked takes messages."""
    answer = remote.get("overview")
    listeners = answer.get("listeners") if isinstance(answer, dict) else None
    for each in listeners if isinstance(listeners, list) else ():
        if isinstance(each, dict) and each.get("protocol") == "amqp":
            host = str(each.get("ip_address"))
            if host in ("0.0.0.0", "::", ""):
                host = remote.where.split("://", 1)[1].rpartition(":")[0]
            return f"amqp://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{each.get('port')}"
    raise CoterieError(f"{remote.where} does not say where it takes messages: say so by --amqp amqp://HOST:PORT")


def _print(counts: list[Count], total: int, wanted: Wanted, sends: bool) -> None:
    if counts:
        rows = [(each.queue, each.messages, each.first, each.last) for each in counts]
        print(table(["queue", "messages", "first arrived", "last arrived"], rows))
    takes = f", at {wanted.rate:g} a second: {total / wanted.rate:,.0f} s" if wanted.rate and total else ""
    print(f"messages: {total:,}{takes}" + ("" if sends else "; nothing is sent"), flush=True)


def _answer(counts: list[Count], total: int, sent: int, dry: bool) -> dict[str, Json]:
    found: list[Json] = [
        {"queue": each.queue, "messages": each.messages, "first": each.first, "last": each.last} for each in counts
    ]
    return {"found": total, "queues": found, "sent": sent, "dry_run": dry}
