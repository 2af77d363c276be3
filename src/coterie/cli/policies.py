"""`coterie policies`: limits for all queues and exchanges whose names match, changed while they live."""

from __future__ import annotations

import argparse
import json

from coterie.cli.remote import Commands, Remote, path_of, said, scope, show, vhost_of
from coterie.errors import UserError

EXAMPLES = """\
  coterie policies
  coterie policies set short '^tmp\\.' '{"message-ttl": 60000, "max-length": 1000}' --apply-to queues
  coterie policies set letters '^orders' '{"dead-letter-exchange": "dead"}' --priority 10
  coterie policies set ceiling '.*' '{"max-length-bytes": 1000000000}' --operator
  coterie policies delete short
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    policies = Commands(subparsers, "policies", "policies", "Lists policies, or changes one.", EXAMPLES, list_policies)
    put = policies.action("set", "set a policy; it applies at once", set_policy)
    put.add_argument("name", metavar="NAME")
    put.add_argument("pattern", metavar="PATTERN", help="searched for in names")
    put.add_argument("definition", metavar="DEFINITION", help="a JSON object")
    put.add_argument("--apply-to", default="all", help="all, queues, exchanges (default: %(default)s)")
    put.add_argument("--priority", type=int, default=0, help="of those that match the highest applies (default: 0)")
    delete = policies.action("delete", "delete a policy", delete_policy)
    delete.add_argument("name", metavar="NAME")
    for parser in (policies.parser, put, delete):
        parser.add_argument(
            "--operator", action="store_true", default=argparse.SUPPRESS,
            help="operator policies, which can only tighten",
        )  # fmt: skip


def _base(options: argparse.Namespace) -> str:
    return "operator-policies" if getattr(options, "operator", False) else "policies"


def list_policies(remote: Remote, options: argparse.Namespace) -> int:
    names = ("vhost", "name", "pattern", "apply-to", "priority", "definition")
    return show(options, "policies", remote.rows(_base(options), *scope(options)), {name: name for name in names})


def set_policy(remote: Remote, options: argparse.Namespace) -> int:
    try:
        definition = json.loads(options.definition)
    except ValueError as error:
        raise UserError(f"the definition is not JSON: {error}") from None
    body = {
        "pattern": options.pattern, "definition": definition, "apply-to": options.apply_to,
        "priority": options.priority,
    }  # fmt: skip
    remote.ask("PUT", path_of(_base(options), vhost_of(options), options.name), body)
    return said(options, f"policy '{options.name}' applies")


def delete_policy(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("DELETE", path_of(_base(options), vhost_of(options), options.name))
    return said(options, f"policy '{options.name}' is deleted")
