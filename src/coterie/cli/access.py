"""`coterie users`, `permissions`, `vhosts`: who may log in to a node, and what they may do where."""

from __future__ import annotations

import argparse
import getpass
import sys

from coterie.cli.remote import Commands, Remote, path_of, said, scope, show, vhost_of
from coterie.errors import UserError

USERS = """\
  coterie users
  coterie users add ops --password-stdin --tags administrator <password.txt
  coterie users add shop --password-stdin <shop.txt && coterie permissions set shop '^shop' '.*' '.*'
  coterie users change shop --password-stdin <new.txt
  coterie users limit shop max-connections 100
  coterie users limit shop max-publish-rate 5000    messages a second; who publishes more is slowed down
  coterie users allow shop 10.1.0.0/16 ::1          it logs in from there only; without networks, from anywhere
  coterie users delete guest                        once another administrator is there
"""
PERMISSIONS = """\
  coterie permissions
  coterie permissions set shop '^shop\\.' '.*' '^shop\\.'      configure, write, read: patterns for names
  coterie permissions clear shop --vhost old
  coterie permissions set-topic shop events '^shop\\.' '.*'   write, read: patterns for routing keys
"""
VHOSTS = """\
  coterie vhosts
  coterie vhosts add shop
  coterie vhosts limit shop max-queues 1000              -1: no limit any more
  coterie vhosts delete shop                            with everything in it
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    users = Commands(subparsers, "users", "users", "Lists users, or changes one.", USERS, list_users)
    for name, help, run in (
        ("add", "add a user", add_user),
        ("change", "give a user another password, or other tags", change_user),
    ):
        parser = users.action(name, help, run)
        parser.add_argument("name", metavar="NAME")
        secret = parser.add_mutually_exclusive_group()
        secret.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
        secret.add_argument("--password", help="the password; others on this host may see it in the list of processes")
        if name == "add":
            secret.add_argument("--no-password", action="store_true", help="it logs in by certificate")
        parser.add_argument(
            "--tags",
            default="" if name == "add" else None,
            help="administrator, monitoring, policymaker, management; with commas between (default: none, AMQP only)",
        )
    users.action("delete", "delete a user; its connections end", delete_user).add_argument("name", metavar="NAME")
    limit = users.action("limit", "limit what a user may have at a time", limit_user)
    limit.add_argument("name", metavar="NAME")
    limit.add_argument(
        "limit",
        metavar="LIMIT",
        help="max-connections, max-channels, or a rate a second: max-publish-rate, "
        "max-publish-bytes-rate, max-connection-rate",
    )
    limit.add_argument("value", type=int, metavar="COUNT", help="-1: no limit")

    allow = users.action("allow", "say where a user may come from", allow_user)
    allow.add_argument("name", metavar="NAME")
    allow.add_argument("networks", nargs="*", metavar="NETWORK", help="as 10.0.0.0/8 or ::1; none: from anywhere")

    permissions = Commands(
        subparsers, "permissions", "what users may do", "Lists permissions, or changes them.", PERMISSIONS,
        list_permissions,
    )  # fmt: skip
    grant = permissions.action("set", "what a user may do in a vhost", set_permissions)
    grant.add_argument("user", metavar="USER")
    for name in ("configure", "write", "read"):
        grant.add_argument(name, metavar=name.upper(), help="a pattern for names of queues and exchanges; '': none")
    permissions.action("topics", "list which routing keys of topic exchanges users may use", list_topics)
    grant = permissions.action("set-topic", "which routing keys of a topic exchange a user may use", set_topic)
    grant.add_argument("user", metavar="USER")
    grant.add_argument("exchange", metavar="EXCHANGE")
    grant.add_argument("write", metavar="WRITE", help="a pattern for keys that it may publish with")
    grant.add_argument("read", metavar="READ", help="a pattern for keys that it may bind with")
    free = permissions.action("clear-topic", "let a user use any routing key again", clear_topic)
    free.add_argument("user", metavar="USER")
    free.add_argument("exchange", metavar="EXCHANGE")
    permissions.action("clear", "close a vhost to a user", clear_permissions).add_argument("user", metavar="USER")

    vhosts = Commands(subparsers, "vhosts", "virtual hosts", "Lists vhosts, or changes one.", VHOSTS, list_vhosts)
    vhosts.action("add", "add a vhost, open to whoever adds it", add_vhost).add_argument("name", metavar="NAME")
    delete = vhosts.action("delete", "delete a vhost, with everything in it", delete_vhost)
    delete.add_argument("name", metavar="NAME")
    limit = vhosts.action("limit", "limit what a vhost may have", limit_vhost)
    limit.add_argument("name", metavar="NAME")
    limit.add_argument("limit", metavar="LIMIT", help="max-queues or max-connections")
    limit.add_argument("value", type=int, metavar="COUNT", help="-1: no limit")


# Users.


def list_users(remote: Remote, options: argparse.Namespace) -> int:
    columns = {"name": "name", "tags": "tags", "password": "has_password", "limits": "limits", "from": "allow"}
    return show(options, "users", remote.rows("users"), columns)


def _password(options: argparse.Namespace) -> str | None:
    if options.password is not None:
        password = str(options.password)
    elif options.password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        return None
    if not password:
        raise UserError("the password is empty")
    return password


def add_user(remote: Remote, options: argparse.Namespace) -> int:
    if any(row.get("name") == options.name for row in remote.rows("users")):
        raise UserError(f"there is a user '{options.name}' already: coterie users change")
    body: dict[str, object] = {"tags": options.tags}
    password = _password(options)
    if password is None and not options.no_password:
        if not sys.stdin.isatty():
            raise UserError("give --password-stdin, --password or --no-password")
        password = getpass.getpass(f"password of {options.name}: ")
    body |= {"password_hash": ""} if password is None else {"password": password}
    remote.ask("PUT", path_of("users", options.name), body)
    return said(options, f"user '{options.name}' is added; it may enter no vhost yet: coterie permissions set")


def change_user(remote: Remote, options: argparse.Namespace) -> int:
    user = remote.get("users", options.name)
    password = _password(options)
    if password is None and options.tags is None:
        raise UserError("what is to change? --password-stdin, --password or --tags")
    tags = options.tags if options.tags is not None else user.get("tags") if isinstance(user, dict) else []
    body = {"tags": tags} | ({} if password is None else {"password": password})
    remote.ask("PUT", path_of("users", options.name), body)
    return said(options, f"user '{options.name}' is changed")


def delete_user(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("DELETE", path_of("users", options.name))
    return said(options, f"user '{options.name}' is deleted")


def limit_user(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("PUT", path_of("user-limits", options.name, options.limit), {"value": options.value})
    return said(options, f"{options.limit} of user '{options.name}': {_limit(options.value)}")


def allow_user(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("PUT", path_of("user-addresses", options.name), {"value": options.networks})
    return said(options, f"user '{options.name}' may come from {', '.join(options.networks) or 'anywhere'}")


def _limit(value: int) -> str:
    return "no limit" if value < 0 else str(value)


# Permissions.


def list_permissions(remote: Remote, options: argparse.Namespace) -> int:
    path = ["vhosts", *scope(options), "permissions"] if scope(options) else ["permissions"]
    columns = {name: name for name in ("vhost", "user", "configure", "write", "read")}
    return show(options, "permissions", remote.rows(*path), columns)


def set_permissions(remote: Remote, options: argparse.Namespace) -> int:
    body = {name: getattr(options, name) for name in ("configure", "write", "read")}
    remote.ask("PUT", path_of("permissions", vhost_of(options), options.user), body)
    return said(options, f"user '{options.user}' may enter vhost '{vhost_of(options)}'")


def clear_permissions(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("DELETE", path_of("permissions", vhost_of(options), options.user))
    return said(options, f"vhost '{vhost_of(options)}' is closed to user '{options.user}'")


def list_topics(remote: Remote, options: argparse.Namespace) -> int:
    path = ["vhosts", *scope(options), "topic-permissions"] if scope(options) else ["topic-permissions"]
    columns = {name: name for name in ("vhost", "user", "exchange", "write", "read")}
    return show(options, "topic_permissions", remote.rows(*path), columns)


def set_topic(remote: Remote, options: argparse.Namespace) -> int:
    body = {name: getattr(options, name) for name in ("exchange", "write", "read")}
    remote.ask("PUT", path_of("topic-permissions", vhost_of(options), options.user), body)
    return said(options, f"the keys of user '{options.user}' for exchange '{options.exchange}' are restricted")


def clear_topic(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("DELETE", path_of("topic-permissions", vhost_of(options), options.user, options.exchange))
    return said(options, f"user '{options.user}' may use any key of exchange '{options.exchange}'")


# Vhosts.


def list_vhosts(remote: Remote, options: argparse.Namespace) -> int:
    columns = {
        "name": "name", "queues": "queues", "ready": "messages_ready", "held": "messages_unacknowledged",
        "connections": "connections", "limits": "limits",
    }  # fmt: skip
    return show(options, "vhosts", remote.rows("vhosts"), columns)


def add_vhost(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("PUT", path_of("vhosts", options.name))
    return said(options, f"vhost '{options.name}' is there")


def delete_vhost(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("DELETE", path_of("vhosts", options.name))
    return said(options, f"vhost '{options.name}' is deleted")


def limit_vhost(remote: Remote, options: argparse.Namespace) -> int:
    remote.ask("PUT", path_of("vhost-limits", options.name, options.limit), {"value": options.value})
    return said(options, f"{options.limit} of vhost '{options.name}': {_limit(options.value)}")
