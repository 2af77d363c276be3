"""`coterie openapi`: the HTTP API described for machines, as a node serves it at /api/openapi.json, without a node."""

from __future__ import annotations

import argparse

from coterie.cli.output import print_json
from coterie.errors import UserError

DESCRIPTION = """\
The OpenAPI 3.1 description of the HTTP API, as one JSON object: for generators of clients, editors and fuzzers. A node
serves the same to whoever logs in, at /api/openapi.json, with the name of its own session cookie.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("openapi", help="the HTTP API, described for machines", description=DESCRIPTION)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from coterie.console.openapi.document import document
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise UserError("aiohttp is not installed: pip install 'coterie[console]'") from None
    print_json(document())
    return 0
