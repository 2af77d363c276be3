"""`coterie definitions`: users, permissions, policies and wiring of a node as a JSON file, out of it and into it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from coterie.cli.output import print_json
from coterie.cli.remote import Commands, Remote, Shape, as_json, path_of
from coterie.errors import CoterieError, UserError
from coterie.visible import json_text, visible

EXAMPLES = """\
  coterie definitions export broker.json           everything but messages; readable for nobody else
  coterie definitions import broker.json           also what RabbitMQ exports, with its users' passwords
  coterie definitions export --vhost shop          one vhost's, to standard output
  coterie definitions import - --vhost test <shop.json
"""
DESCRIPTION = """\
Definitions are users (with hashes of their passwords), vhosts, permissions, policies, limits, queues, exchanges and
bindings, in RabbitMQ's JSON format. An import is checked whole before anything is done.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands = Commands(subparsers, "definitions", "export and import", DESCRIPTION, EXAMPLES, export)
    commands.parser.set_defaults(file=None)
    out = commands.action("export", "write them to a file, or to standard output", export)
    out.add_argument("file", nargs="?", metavar="FILE")
    into = commands.action("import", "bring a file's definitions into the node", load)
    into.add_argument("file", metavar="FILE", help="-: standard input")


def _path(options: argparse.Namespace) -> str:
    return path_of("definitions", options.vhost) if "vhost" in options else path_of("definitions")


def export(remote: Remote, options: argparse.Namespace) -> int:
    found = remote.ask("GET", _path(options))
    if not isinstance(found, dict):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    if options.file is None:
        print_json(found)
        return 0
    text = json_text(found, indent=2) + "\n"
    try:
        # It holds hashes of passwords.
        descriptor = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)  # it may have been there
            file.write(text)
    except OSError as error:
        raise UserError(f"{options.file}: {error.strerror}") from None
    counts = {name: len(value) for name, value in found.items() if isinstance(value, list)}
    if as_json(options):
        print_json({"file": options.file, **counts})
    else:
        print(f"{options.file}: {_counted(counts)}")
    return 0


def load(remote: Remote, options: argparse.Namespace) -> int:
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
        document = json.loads(text)
    except OSError as error:
        raise UserError(f"{options.file}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{options.file}: not JSON: {error}") from None
    answer = remote.ask("POST", _path(options), document)
    if not isinstance(answer, dict):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    if as_json(options):
        print_json(answer)
        return 0
    done, notes = answer.get("done"), answer.get("notes")
    print(f"imported: {_counted(done) if isinstance(done, dict) else 'nothing'}")
    for note in notes if isinstance(notes, list) else []:
        print(f"note: {visible(str(note))}")
    return 0


def _counted(counts: Shape | dict[str, int]) -> str:
    named = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(named) or "nothing new"
