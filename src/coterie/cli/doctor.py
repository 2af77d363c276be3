"""`coterie doctor`: what is unsafe about a node, or about a configuration before a node runs with it."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from coterie.cli.output import print_json
from coterie.cli.remote import COMMON_EPILOG, DEFAULT_URL, URL, Remote, Shape, add_common, as_json, remote_of
from coterie.errors import CoterieError
from coterie.trace import Json

UNSAFE = "unsafe"
"""As `node.security_checks` has it, which is not loaded to ask a node."""
EXAMPLES = """\
examples:
  coterie doctor                                             the node on this host
  coterie doctor --url https://ops@broker:15672              another one; it takes an administrator
  coterie doctor --config /etc/coterie/node.toml             settings and files, before a node runs with them
  coterie doctor --json | jq -r '.findings[] | .text'        for scripts
  coterie doctor >/dev/null || page-somebody                 exit code 1: something is unsafe
"""
DESCRIPTION = """\
Says what is unsafe about a node: passwords that everybody knows, ports without TLS, files that others can read,
certificates that end, limits that are off. Each with the line that mends it. With --config or --data it looks at
settings and files of this host, and asks a node only if --url or COTERIE_URL says which. What each check means:
docs/security.md.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="what is unsafe about a node",
        description=DESCRIPTION,
        epilog=EXAMPLES + COMMON_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a node's TOML file; the environment counts too")
    parser.add_argument("--data", metavar="DIR", help="a node's data folder, if no file says so")
    add_common(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    found: list[Shape] = []
    looked: list[str] = []
    files = options.config is not None or options.data is not None
    if files:
        looked.append(str(options.config or options.data))
        found += _of_files(options)
    if not files or "url" in options or os.environ.get(URL):
        remote = remote_of(options, DEFAULT_URL)
        looked.append(remote.where)
        found += [each for each in _of_node(remote) if each not in found]
    safe = all(each.get("severity") != UNSAFE for each in found)
    if as_json(options):
        shown: list[Json] = [*found]
        print_json({"safe": safe, "looked_at": [*looked], "findings": shown})
    else:
        print("\n".join(_lines(found, looked)))
    return 0 if safe else 1


def _of_files(options: argparse.Namespace) -> list[Shape]:
    # Here, so that asking a node is quick.
    from coterie.cli.node import node_config
    from coterie.config import load_config
    from coterie.node.security_checks import findings
    from coterie.node.security_facts import facts_of

    flags = {"node": {"data": options.data}} if options.data else {}
    config = node_config(load_config(options.config, os.environ, flags))
    config.check()
    return [{**each.to_json()} for each in findings(facts_of(config, datetime.now(UTC)))]


def _of_node(remote: Remote) -> list[Shape]:
    answer = remote.get("security")
    rows = answer.get("findings") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    return [row for row in rows if isinstance(row, dict)]


def _lines(found: list[Shape], looked: list[str]) -> list[str]:
    lines = []
    for each in sorted(found, key=lambda each: each.get("severity") != UNSAFE):
        lines += [f"{each.get('severity'):<7} {each.get('text')}", f"        mend: {each.get('mend')}"]
    count = sum(each.get("severity") == UNSAFE for each in found)
    what = "nothing is unsafe" if not count else f"{count} thing{'' if count == 1 else 's'} unsafe"
    return [*lines, f"{' and '.join(looked)}: {what}"]
