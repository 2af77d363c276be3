"""`coterie cluster recover`: a cluster whose majority is gone for good goes on from the best store that is left; and
`coterie cluster set-aside`: a node gives up what it has, and joins a cluster empty."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from coterie.cli.output import Progress, facts, print_json, tell
from coterie.cli.remote import Commands, Remote, as_json
from coterie.errors import CoterieError, UserError
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.cluster.recovering.candidate import Candidate
    from coterie.cluster.recovering.choosing import Asked, Choice
    from coterie.config import Config

ANSWER_TIMEOUT: Final = 3.0
"""Seconds in which another node must answer."""
HELP: Final = """\
for a cluster that has lost a majority of its voters for good: makes the best store that is left the beginning of a new
cluster; says what that costs, and does nothing without --accept-loss
"""
RECOVER: Final = """\
When a majority of the voters is gone for good, nobody can tell any more what was confirmed, and the others do not
serve. This makes one store the beginning of a new cluster, with a new identity and its own node as the only voter.
Brokers of the old cluster are strangers to it: they are refused, and nothing of theirs is mixed in.

Without --accept-loss it is a dry run: it says from which store the new cluster would begin, up to which event of the
log, who voted, what may be missing, and what to do next. The node must be stopped, and nothing is touched.

It is refused while a majority of the old voters may be there: those whose stores are given and whole, and every other
node that answers at its group port (node.peers of the configuration, or --peers) or, with --ask, over HTTP, where it
says which cluster it is of. Whoever cannot be reached from here counts as gone: that is your word for it.
"""
RECOVER_EXAMPLES: Final = """\
examples:
  coterie cluster recover --config /etc/coterie/node.toml                  what it would do: a dry run
  coterie cluster recover --config /etc/coterie/node.toml --accept-loss    do it; then start the node
  coterie cluster recover --data ./node1 --peers host2:7800,host3:7800     a folder, and where the others were
  coterie cluster recover --data ./node1 ./node2 --ask http://ops@host3:15672 http://ops@host4:15672 http://ops@host5:15672
                                                  the better of two; asked over HTTP, password in COTERIE_PASSWORD
  coterie cluster recover --data ./node1 --peers host2:7800,host3:7800 --json | jq .missing

exit codes: 0 it is done, or can be; 1 it is refused, or failed; 2 wrong usage
"""
ASIDE_HELP: Final = """\
keep the data of a stopped node aside, in its own folder, so that it joins a cluster empty; nothing is deleted
"""


def add(commands: Commands) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.local_action("recover", HELP, recover)
    parser.description, parser.epilog, parser.formatter_class = RECOVER, RECOVER_EXAMPLES, raw
    _add_folder(parser)
    parser.add_argument(
        "--peers", metavar="HOST:PORT,...", default="", help="group ports of the other nodes (default: node.peers)"
    )
    parser.add_argument(
        "--ask", nargs="+", metavar="URL", default=[],
        help="consoles of the other nodes, asked in place of their group ports; the password is in COTERIE_PASSWORD",
    )  # fmt: skip
    parser.add_argument("--accept-loss", action="store_true", help="do it")
    parser = commands.local_action("set-aside", ASIDE_HELP, set_aside)
    _add_folder(parser, one=True)


def _add_folder(parser: argparse.ArgumentParser, one: bool = False) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="the node's TOML file; the environment counts too")
    parser.add_argument(
        "--data", nargs=1 if one else "+", type=Path, metavar="DIR", default=[],
        help=f"data folder of a stopped node{'' if one else '; of several the best is chosen'} (default: node.data)",
    )  # fmt: skip


def _configured(options: argparse.Namespace) -> tuple[Config, list[Path]]:
    """Raises UserError."""
    from coterie.config import load_config

    config = load_config(options.config, os.environ, {})
    folders = [*options.data] or ([Path(config.node.data)] if config.node.data else [])
    if not folders:
        raise UserError("name the data folder of a stopped node by --data, or its configuration by --config")
    return config, [folder.absolute() for folder in folders]


def set_aside(options: argparse.Namespace) -> int:
    from coterie.node.aside import set_aside
    from coterie.node.offline import audit

    config, (folder, *_) = _configured(options)
    kept = set_aside(folder)
    _audited(
        lambda: audit(folder, config.audit, config.node.group, _known(folder), "cluster.set_aside", {"kept": kept})
    )
    if as_json(options):
        print_json({"done": "the data is kept aside", "data": str(folder), "kept": str(kept)})
    else:
        tell(f"{folder} is empty now; what was in it is in {kept}: remove that when you do not need it any more")
    return 0


def _known(folder: Path) -> str:
    from coterie.node.offline import name_of

    try:
        return name_of(folder)
    except UserError:
        return "unknown"


def _audited(record: object) -> None:
    assert callable(record)
    try:
        record()
    except UserError as error:
        import sys

        tell(f"warning: {error}", sys.stderr)


def recover(options: argparse.Namespace) -> int:
    from coterie.cluster.recovering.choosing import choose, who_was_not_asked, why_not
    from coterie.cluster.recovering.losses import what_may_be_missing
    from coterie.runtime.aio import run

    config, folders = _configured(options)
    if len({*map(os.path.realpath, folders)}) < len(folders):
        raise UserError("the same folder is named twice")
    choice = choose([run(_look(folder, config)) for folder in folders])
    asked = _ask(options, config, choice)
    refused = why_not(choice, asked) or who_was_not_asked(choice, asked)
    missing = what_may_be_missing(choice)
    cluster = ""
    if options.accept_loss and not refused:
        cluster = run(_recover(choice.best, config))
    shown = _shown(choice, asked, refused, missing, cluster, options)
    if as_json(options):
        print_json(shown)
    else:
        tell("\n".join(_lines(choice, asked, refused, missing, cluster, _next(choice, refused, cluster))))
    return 1 if refused else 0


async def _look(folder: Path, config: Config) -> Candidate:
    from coterie.cluster.recovering.candidate import candidate_of
    from coterie.node.offline import name_of, stopped_node

    async with stopped_node(folder, config.store) as (_, store):
        with Progress(f"records of {folder} read") as progress:
            bad = await store.check(lambda done, of: progress.update(done, f"of {of:,}"))
        return candidate_of(str(folder), name_of(folder), store.found, bad.queues)


async def _recover(best: Candidate, config: Config) -> str:
    """Gives the identity of the new cluster."""
    from coterie.cluster.recovering.beginning import ID_SIZE, new_cluster
    from coterie.cluster.recovering.candidate import candidate_of
    from coterie.cluster.recovering.mark import RECOVERED
    from coterie.node.offline import audit, stopped_node

    folder = Path(best.folder)
    async with stopped_node(folder, config.store, change=True) as (runtime, store):
        bad = await store.check()
        if candidate_of(best.folder, best.name, store.found, bad.queues).progress != best.progress:
            raise CoterieError(f"{folder} has changed meanwhile: look at it again")
        cluster, records = new_cluster(best, best.name, runtime.entropy(ID_SIZE), runtime.wall(), RECOVERED)
        await store.change(records, bad.ranges)
    told = {"cluster": cluster, "was": best.cluster, "at": best.place, "voters": ", ".join(best.voters)}
    _audited(lambda: audit(folder, config.audit, config.node.group, best.name, "cluster.recovered", told))
    return cluster


# Who is there.


def _ask(options: argparse.Namespace, config: Config, choice: Choice) -> list[Asked]:
    if options.ask:
        return [_ask_over_http(url, choice) for url in dict.fromkeys(options.ask)]
    given = [each.strip() for each in options.peers.split(",") if each.strip()]
    ours = {config.node.bind} if config.node.peers else set()
    return [_ask_at_port(where) for where in dict.fromkeys(given or config.node.peers) if given or where not in ours]


def _ask_at_port(where: str) -> Asked:
    from coterie.cluster.recovering.choosing import Asked
    from coterie.node.settings import endpoint

    at = endpoint(where, "--peers")
    try:
        socket.create_connection(at, ANSWER_TIMEOUT).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        return Asked(where, "group port", why, counts=False)
    return Asked(where, "group port", "a process listens there", counts=True)


def _ask_over_http(url: str, choice: Choice) -> Asked:
    from coterie.cluster.recovering.choosing import Asked

    if urlsplit(url if "://" in url else f"http://{url}").password is not None:
        raise UserError("a password on a command line can be read by everybody: leave it out of --ask, and put it into "
                        "COTERIE_PASSWORD")  # fmt: skip
    remote = Remote(url, ANSWER_TIMEOUT)
    try:
        status, said = remote.request("GET", "/api/cluster")
    except CoterieError as error:
        if isinstance(error, UserError):
            raise
        return Asked(remote.where, "http", str(error), counts=False)
    if status != 200 or not isinstance(said, dict):
        return Asked(remote.where, "http", f"it answers {status}, and not who it is", counts=True)
    name, cluster = str(said.get("node")), said.get("cluster")
    counts = cluster == choice.best.cluster and name in choice.voters
    of = f"of cluster {cluster}" if cluster else "of no cluster yet"
    return Asked(remote.where, "http", f"{name}, {of}, {said.get('state')}", counts, name)


# What is said.


def _next(choice: Choice, refused: str, cluster: str) -> list[str]:
    best = choice.best
    if refused:
        return []
    if not cluster:
        again = "the same command with --accept-loss makes that store the beginning of a new cluster"
        return [f"keep a copy of {best.folder} if you can", again]
    return [
        f"start the node {best.name} with this folder: it serves alone, as the only voter",
        "on every other node: `coterie cluster set-aside` (its data is kept in its folder), then start it: it joins "
        "empty, is brought up to date, and votes",
        "a node that comes back with data of the old cluster is refused: set that aside, too",
    ]


def _shown(
    choice: Choice, asked: Sequence[Asked], refused: str, missing: list[str], cluster: str, options: argparse.Namespace
) -> dict[str, Json]:
    best = choice.best
    queues: list[Json] = [
        {"vhost": vhost, "name": name, "messages": count} for (vhost, name, _), count in best.queues.items()
    ]
    return {
        "dry_run": not options.accept_loss, "refused": refused or None, "cluster": cluster or None,
        "was": best.cluster, "store": best.folder, "node": best.name, "epoch": best.progress.epoch,
        "index": best.progress.index, "time": best.time or None, "voters": [*choice.voters], "here": [*choice.here],
        "lost": [*choice.lost], "certain": choice.certain, "missing": [*missing], "queues": queues,
        "stores": [_store(each) for each in choice.candidates],
        "asked": [
            {"where": each.where, "how": each.how, "said": each.said, "counts": each.counts, "node": each.name or None}
            for each in asked
        ],
        "next": [*_next(choice, refused, cluster)],
    }  # fmt: skip


def _store(each: Candidate) -> dict[str, Json]:
    return {
        "data": each.folder, "node": each.name, "epoch": each.progress.epoch, "index": each.progress.index,
        "usable": each.usable, "damage": [*each.damage],
    }  # fmt: skip


def _lines(
    choice: Choice, asked: Sequence[Asked], refused: str, missing: list[str], cluster: str, steps: list[str]
) -> list[str]:
    best = choice.best
    lines = [
        ("cluster", best.cluster),
        ("store", f"{best.folder}, of node {best.name}, up to event {best.place} of the log"),
    ]
    for each in choice.candidates:
        if each is not best:
            why = (
                f"up to event {each.place}" if each.usable else "an update of it was cut off: it has a part of it only"
            )
            lines.append(("other", f"{each.folder}, of node {each.name}, {why}"))
    here = ", ".join(choice.here) or "none of them"
    lines.append(("voters", f"{', '.join(choice.voters)}; the stores of these are here: {here}"))
    lines += [("asked", f"{each.where} ({each.how}): {each.said}") for each in asked]
    lines += [("missing" if not choice.certain else "loss", each) for each in missing]
    if refused:
        lines.append(("refused", refused))
    elif cluster:
        lines.append(("done", f"this store is the beginning of cluster {cluster}"))
    else:
        lines.append(("dry run", "nothing was done"))
    lines += [(f"next {number}", each) for number, each in enumerate(steps, 1)]
    return facts(lines).split("\n")
