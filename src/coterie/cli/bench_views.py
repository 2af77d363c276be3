"""`coterie bench views`, `bench flush-messages`, `bench state`: how fast a group changes, and what it costs others."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from coterie.bench import flush_messages, state, views
from coterie.bench.state import SENDERS, parse_size
from coterie.bench.state_member import SENT_AT
from coterie.cli.output import Progress, print_json, table
from coterie.errors import UserError
from coterie.plot import lines
from coterie.trace import Json

KEYS = ("median", "min", "max", "baseline", "ratio", "unit")
PLOT = Path("out/flush-messages.svg")

VIEWS_EPILOG = """\
Every round starts real processes, once as raw sockets that do the least which could be called the same (the baseline),
once as a group with FLUSH2, once with FLUSH. Times are milliseconds.

  join, leave            from connect() or close() in a running process to its end there
  ..._at_last            to the next view at the last of the others
  kill, kill_coordinator from kill -9 to the next view at the last survivor
  flush_idle, _loaded    from start_flush() until it holds everywhere; loaded: everybody multicasts at full rate
  held_up_...            how long a flush kept a member from multicasting: half of them, 99 of 100, the longest
"""

STATE_EPILOG = f"""\
Two members multicast while a third gives its state to a joiner. The state is made as it is sent, and only its checksum
is kept. Growth is of resident memory; held_up is the time from a multicast's send() until its own sender delivers it.
The baseline of time and throughput is the same state over one plain stream. Exit code 1: memory grew by more than
{state.BOUND_MIB:g} MiB, or another state arrived.
"""


def add(cases: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = cases.add_parser(
        "views", help="joins, leaves, deaths, flushes: how fast?", epilog=VIEWS_EPILOG, formatter_class=raw
    )
    defaults = views.Script()
    parser.add_argument("--members", type=int, default=defaults.members, help="processes (default: %(default)s)")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes per message (default: %(default)s)")
    parser.add_argument("--joins", type=int, default=defaults.joins, help="per round (default: %(default)s)")
    parser.add_argument(
        "--flushes", type=int, default=defaults.flushes, help="of each member, per round (default: %(default)s)"
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=defaults.kills,
        help="of a member and of the coordinator, per round (default: %(default)s)",
    )
    _rounds_and_json(parser, defaults.rounds)
    parser.set_defaults(run=_views)

    parser = cases.add_parser("flush-messages", help="what a flush costs as a group grows, simulated, and a plot of it")
    parser.add_argument(
        "--members",
        default=",".join(map(str, flush_messages.SIZES)),
        help="sizes of groups (default: %(default)s)",
    )
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes, as SVG (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=_flush_messages)

    parser = cases.add_parser(
        "state", help="a large state to a joiner, while others multicast", epilog=STATE_EPILOG, formatter_class=raw
    )
    load = state.Load()
    parser.add_argument("--size", default="1GiB", help="of the state (default: %(default)s)")
    parser.add_argument(
        "--message-size", type=int, default=load.size, help="bytes per multicast (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=load.rate, help="multicasts per second of each sender (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=load.quiet, help="without a transfer, for comparison (default: %(default)s)"
    )
    _rounds_and_json(parser, load.rounds)
    parser.set_defaults(run=_state)


def _rounds_and_json(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=int, default=rounds, help="each with its baseline (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _views(args: argparse.Namespace) -> int:
    if args.members < 3:
        raise UserError("bench views: --members must be 3 at least: when one of them is killed, two have to agree")
    if min(args.size, args.joins, args.flushes, args.kills, args.rounds) < 1:
        raise UserError("bench views: --size, --joins, --flushes, --kills and --rounds must be 1 at least")
    script = views.Script(args.members, args.size, args.joins, args.flushes, args.kills, args.rounds)
    with Progress("rounds", script.rounds) as progress:
        figures = views.measure(script, progress.update)
    rows = {name: figure.to_json() for name, figure in figures.items()}
    views.with_goals(rows, script.members)
    _tell(args, {"members": script.members, "size": script.size, "rounds": script.rounds}, rows, ("goal",))
    return 0


def _flush_messages(args: argparse.Namespace) -> int:
    sizes, flushes = _sizes(args.members), views.FLUSHES
    try:
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        args.plot.touch()
    except OSError as error:  # now rather than when all is measured
        raise UserError(f"--plot {args.plot}: {error.strerror}") from None
    with Progress("groups", len(sizes) * len(flushes)) as progress:
        found = flush_messages.measure(sizes, flushes, progress.update)
    rows = {f"{flush.lower()}.{cost.members}": cost.to_json() for flush, costs in found.items() for cost in costs}
    series = {flush: [(float(c.members), median(c.messages)) for c in costs] for flush, costs in found.items()}
    acked = {
        f"{flush}, with acks": [(float(c.members), median(c.packets)) for c in costs] for flush, costs in found.items()
    }
    text = lines("Messages per flush", "members of the group", "messages", {**series, **acked}, dashed=[*acked])
    args.plot.write_text(text, encoding="utf-8")
    _tell(args, {"plot": str(args.plot)}, rows, ("packets",))
    if not args.json:
        print(f"\nplotted: {args.plot}")
    return 0


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"bench flush-messages: --members '{text}' is no list of numbers such as 2,4,8") from None
    if sizes[0] < 2:
        raise UserError("bench flush-messages: a group has 2 --members at least")
    return sizes


def _state(args: argparse.Namespace) -> int:
    size = parse_size(args.size)
    if size < 1 or args.message_size < SENT_AT.size:
        raise UserError(f"bench state: --size must be 1 at least, --message-size {SENT_AT.size} at least")
    if args.rate <= 0 or args.seconds <= 0 or args.rounds < 1:
        raise UserError("bench state: --rate and --seconds must be more than 0, --rounds 1 at least")
    load = state.Load(size, args.message_size, args.rate, args.seconds, args.rounds)
    with Progress("rounds", load.rounds) as progress:
        figures, bounded = state.measure(load, progress.update)
    rows = {name: figure.to_json() for name, figure in figures.items()}
    what: dict[str, Json] = {"size": size, "senders": SENDERS, "rate": load.rate, "bounded": bounded}
    _tell(args, what, rows)
    return 0 if bounded else 1


def _tell(
    args: argparse.Namespace, what: dict[str, Json], rows: dict[str, dict[str, Json]], more: tuple[str, ...] = ()
) -> None:
    if args.json:
        print_json({**what, "cases": dict(rows)})
        return
    keys = (*KEYS[:-1], *more, KEYS[-1])
    print(table(("case", *keys), [(name, *(row.get(key, "") for key in keys)) for name, row in rows.items()]))
