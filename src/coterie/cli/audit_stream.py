"""`coterie audit --stream`: traces judged while they are written."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.audit import properties
from coterie.audit.files import SUFFIX
from coterie.audit.live import Patience
from coterie.cli.output import Progress, print_json, table, tell
from coterie.cli.remote import Remote, path_of
from coterie.cli.stopping import Ended, interrupts
from coterie.errors import UserError
from coterie.trace import UNTRACED, Json

if TYPE_CHECKING:
    from coterie.spark.stream import Outcome, Seen, Watch
    from coterie.spark.stream_queue import TraceQueue

QUEUE = f"{UNTRACED}.audit"
TIMEOUT = 30.0
"""Seconds that a broker has for an answer."""
SHOWN = 5
"""New violations of a batch that are spelled out as they come."""

EPILOG = """\
a stream:
  coterie demo group --trace-segment-seconds 1 --out out/live    in one terminal, and in the other:
  coterie audit --stream out/live --out out/stream               tells violations as they happen; stop it with Ctrl-C
  coterie audit --stream out/live --out out/stream               the same again: goes on where it was stopped, or killed
  coterie audit --stream out/live --out out/now --available-now  what is there by now, and no more

what brokers publish of themselves (start them with --trace-publish later):
  coterie tracing on
  coterie audit --from-broker http://guest:guest@127.0.0.1:15672 --out out/stream
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    default = Patience()
    group = parser.add_argument_group(
        "streaming", "follow a folder into which traces are written, or brokers (docs/audit-stream.md)"
    )
    group.add_argument("--stream", metavar="FOLDER", help="judge what is written here, as it is written")
    group.add_argument(
        "--from-broker", metavar="URL",
        help="judge what brokers publish of themselves to the exchange coterie.trace: the console of one of them",
    )  # fmt: skip
    group.add_argument(
        "--queue", metavar="NAME",
        help=f"of --from-broker: the queue for that, declared and bound if it is not (default: {QUEUE})",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="what the stream knows, to go on after a stop or a crash (default: OUT/checkpoint)",
    )
    group.add_argument(
        "--trigger", type=float, default=5.0, metavar="S",
        help="seconds from one look to the next (default: %(default)g)",
    )  # fmt: skip
    end = group.add_mutually_exclusive_group()
    end.add_argument("--until-idle", type=float, metavar="S", help="stop when nothing new has come for S seconds")
    end.add_argument("--available-now", action="store_true", help="stop when what is there by now is judged")
    group.add_argument(
        "--lateness", type=float, default=default.lateness, metavar="S",
        help="seconds until a gap in a node's trace is a hole, and a run that has ended is over (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--idle", type=float, default=default.idle, metavar="S",
        help="seconds without an event until a run that has not ended is over (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--adopt-after", type=float, default=5.0, metavar="S",
        help="seconds after which what a killed node was writing is read, too (default: %(default)g)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from coterie.spark.reach import need_spark

    need_spark()
    watch = _watch(options)
    from coterie.spark import stream, stream_report
    from coterie.spark.session import session

    ended = Ended()
    with stream.claimed(watch), session("coterie audit --stream", options.master, stream.SETTINGS) as spark:
        with interrupts(ended), Progress("lines" if options.from_broker is None else "messages") as progress:
            following = stream.Stream(spark, watch)
            following.follow(ended.event, _Teller(progress, watch.out).tell)
        outcome = following.outcome()
        report = stream_report.write(spark, watch.source, watch.out, outcome)
    if options.json:
        print_json(_answer(outcome, report, ended.number is not None))
    else:
        _print(outcome, report)
    if ended.number == signal.SIGINT:
        return 130
    return 1 if outcome.violations else 0


def _watch(options: argparse.Namespace) -> Watch:
    from coterie.spark.stream import Watch

    for name in ("trigger", "until_idle", "lateness", "idle", "adopt_after"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise UserError(f"--{name.replace('_', '-')} must be more than 0, not {value:g}")
    if not options.adopt_after < options.lateness:
        raise UserError("--adopt-after must be less than --lateness: else what a killed node left comes too late")
    if not options.lateness <= options.idle:
        raise UserError(
            "--lateness must not be more than --idle: a run that has ended is waited for no longer than others"
        )
    out = Path(options.out)
    source = _folder(options) if options.from_broker is None else _queue(options)
    return Watch(
        source, out, Path(options.checkpoint or out / "checkpoint"), options.trigger, options.until_idle,
        options.available_now, Patience(options.lateness, options.idle), options.adopt_after,
    )  # fmt: skip


def _folder(options: argparse.Namespace) -> Path:
    if options.queue is not None:
        raise UserError("--queue: it belongs to --from-broker")
    folder = Path(options.stream)
    if options.available_now and folder.is_dir() and next(folder.rglob(f"*{SUFFIX}"), None) is None:
        raise UserError(f"{folder}: no *{SUFFIX} file in that folder: name the folder that traces are written to")
    return folder


def _queue(options: argparse.Namespace) -> TraceQueue:
    """Bound to the exchange from now on, whether the stream is up or not."""
    from coterie.spark.stream_queue import TraceQueue

    name = options.queue or QUEUE
    if not name.startswith(UNTRACED):
        raise UserError(f"--queue {name}: its name must begin with {UNTRACED}: else its own messages are traced too")
    remote = Remote(options.from_broker, TIMEOUT)
    status, _ = remote.request("GET", path_of("exchanges", "/", UNTRACED))
    if status == 404:
        raise UserError(
            f"no broker at {remote.where} publishes its trace: start it with --trace-publish later, and say "
            "`coterie tracing on`"
        )
    remote.ask("PUT", path_of("queues", "/", name), {"durable": True})
    remote.ask("POST", path_of("bindings", "/", "e", UNTRACED, "q", name), {"routing_key": "#"})
    return TraceQueue(remote.where, remote.user, remote.password, name)


class _Teller:
    """Says on standard error how far it is, and each violation as it comes."""

    def __init__(self, progress: Progress, out: Path) -> None:
        self._progress, self._out = progress, out
        self._violations = 0
        self._told: int | None = None

    def tell(self, seen: Seen) -> None:
        from coterie.spark.stream_tables import fresh

        assert seen.latest is not None
        first = seen.latest - seen.batches + 1 if self._told is None else self._told + 1
        for batch in range(first, seen.latest + 1):
            count, rows = fresh(self._out, batch, SHOWN)
            if count:
                self._violations += count
                self._progress.close()
                for row in rows:
                    tell(f"{row['property']} in run {row['run']}: {row['text']}", sys.stderr)
                if count > len(rows):
                    print(f"... and {count - len(rows):,} more, in {self._out / 'violations'}", file=sys.stderr)
        self._told = seen.latest
        self._progress.update(seen.lines, f"batch {seen.latest}, {self._violations or 'no'} new violations")


def _answer(outcome: Outcome, report: Path, interrupted: bool) -> dict[str, Json]:
    by_property: dict[str, Json] = {p.name: outcome.by_property.get(p.name, 0) for p in properties()}
    return {
        "violations": outcome.violations,
        "runs": outcome.runs,
        "open_runs": outcome.open_runs,
        "events": outcome.events,
        "corrupt_lines": outcome.corrupt,
        "ignored_events": outcome.ignored,
        "late_events": outcome.late,
        "properties": by_property,
        "report": str(report),
        "interrupted": interrupted,
    }


def _print(outcome: Outcome, report: Path) -> None:
    rows = [(p.name, outcome.by_property.get(p.name, 0), p.sentence) for p in properties()]
    print(table(["property", "violations", "what holds"], rows))
    print(f"\n{outcome.events:,} events of {outcome.runs:,} runs: {outcome.violations or 'no'} violations")
    if outcome.open_runs:
        print(f"{outcome.open_runs:,} of the runs are not over: they were judged as if nothing more came of them")
    if outcome.late:
        print(f"{outcome.late:,} events came too late, when their place had been given up: see the table late")
    if outcome.corrupt:
        print(f"{outcome.corrupt:,} lines are no events: see the table corrupt")
    if outcome.ignored:
        print(f"{outcome.ignored:,} events were ignored: they stand behind a hole in their node's trace, or twice")
    print(f"report: {report}")
