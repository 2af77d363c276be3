"""`coterie cluster`: how a cluster is, who votes, who holds what; to make its secret, forget a voter, drain a node."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.cli.output import facts, print_json
from coterie.cli.remote import Commands, Remote, Shape, as_json, cell, path_of, said, scope, show
from coterie.errors import CoterieError, UserError
from coterie.secret_file import make_secret_file

EXAMPLES = """\
  coterie cluster init                                        make the secret of a new cluster, before any node starts
  coterie cluster status                                      as the node on this host sees it
  coterie cluster members --url http://ops@node2:15672            as another one sees it
  coterie cluster owners --vhost shop                         whose consumers hold how much of which queue
  coterie cluster forget node3                                its machine is gone for ever: it votes no more
  coterie cluster drain && systemctl stop coterie             the clients of this node go to others first
  coterie cluster status --json | jq -r '.members[] | select(.state == "lost") | .name'
"""
DESCRIPTION = """\
Shows a cluster of brokers as one of them sees it, and changes it; `init` makes the secret of a new one. Without an
action: status, with exit code 1 while this node does not serve.
"""
MEMBER_COLUMNS = {
    "name": "name", "incarnation": "incarnation", "state": "state", "voter": "voter", "oldest": "oldest",
    "on disk": "disk_index", "this node": "this",
}  # fmt: skip
VOTER_COLUMNS = {"name": "name", "state": "state", "incarnation": "incarnation", "on disk": "disk_index"}
OWNER_COLUMNS = {
    "vhost": "vhost", "queue": "name", "dispatch": "dispatch", "owner": "owner", "ready": "messages_ready",
    "member": "member", "consumers": "consumers", "held": "held",
}  # fmt: skip


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands = Commands(subparsers, "cluster", "the cluster of a node", DESCRIPTION, EXAMPLES, status, "status")
    commands.action("status", "how the cluster is; exit code 1 while this node does not serve", status)
    init_parser = commands.local_action(
        "init", "make the secret of a new cluster, in a file that only its owner can read; no node has to run", init
    )
    init_parser.add_argument(
        "file", nargs="?", type=Path, default=Path("coterie.secret"), metavar="FILE",
        help="where to write it; one that is there is never overwritten (default: %(default)s)",
    )  # fmt: skip
    init_parser.add_argument("--show", action="store_true", help="print the secret, too, to paste it elsewhere")
    commands.action("members", "those that are in the view, and voters that are not", members)
    commands.action("voters", "those whose majority decides", voters)
    commands.action(
        "owners",
        "queue by queue, whose consumers there are and how many messages they hold; with the dispatch 'credit' no "
        "member owns a queue, but one that is not replicated is its home's",
        owners,
    )
    commands.action(
        "drain",
        "send the clients of the node that is asked to other nodes, hand over what they held, give up its vote and "
        "leave the cluster; the process stays until it is stopped, and a restart joins again",
        drain,
    )
    forget_parser = commands.action(
        "forget", "a voter that is lost, and will not come back, votes no more; it may join again later", forget
    )
    forget_parser.add_argument("name", metavar="NAME", help="as `coterie cluster voters` shows it")


INSTALLED = "/etc/coterie/secret"
"""Where the documentation has the secret of a node."""


def init(options: argparse.Namespace) -> int:
    path: Path = options.file
    try:
        secret = make_secret_file(path)
    except FileExistsError:
        raise UserError(
            f"{path} is there already, and whoever has it is in the cluster: use it, or choose another name"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: choose another place") from None
    file = str(path.absolute())
    if as_json(options):
        print_json({"file": file, **({"secret": secret} if options.show else {})})
        return 0
    print(
        f"{path} holds the secret of a new cluster. Whoever has it can join: keep it as you keep a private key.\n\n"
        f"On every machine of the cluster, for the user that runs the node to read and nobody else:\n"
        f"  1. copy it there            scp -p {path} NODE:{INSTALLED}\n"
        f"                              ssh NODE chown coterie {INSTALLED}\n"
        f'  2. name it in node.toml     [node] secret_file = "{INSTALLED}"\n'
        f"     or by a flag             coterie node --secret-file {INSTALLED} ...\n"
        f"     or in the environment    COTERIE_NODE_SECRET_FILE={INSTALLED}; COTERIE_NODE_SECRET is the secret itself"
    )
    if options.show:
        print(f"\nsecret: {secret}")
    return 0


def _cluster(remote: Remote) -> Shape:
    found = remote.get("cluster")
    if not isinstance(found, dict):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    return found


def _members(found: Shape) -> list[Shape]:
    rows = found.get("members")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _alarms(row: Shape) -> list[str]:
    alarms = row.get("alarms")
    return [str(each) for each in alarms] if isinstance(alarms, list) else []


def status(remote: Remote, options: argparse.Namespace) -> int:
    found = _cluster(remote)
    if as_json(options):
        print_json(found)
    else:
        print(facts(_lines(found)))
    return 0 if found.get("state") == "serving" else 1


def _lines(found: Shape) -> list[tuple[str, str]]:
    def at(key: str) -> object:
        return cell(found, key)

    if not found.get("clustered"):
        return [("node", f"{at('node')}, which stands alone: it is no cluster")]
    rows = _members(found)
    lines = [
        ("cluster", str(at("cluster") or "none yet")),
        ("node", f"{at('node')}, {at('state')}"),
    ]
    if found.get("why"):
        lines.append(("closed", str(at("why"))))
    if found.get("waits_for"):
        lines.append(("waits for", str(at("waits_for"))))
    lines.append(("members", ", ".join(f"{row.get('name')} ({row.get('state')})" for row in rows)))
    low = [f"{row.get('name')} is low on {' and '.join(on)}" for row in rows if (on := _alarms(row))]
    if low:
        lines.append(("alarms", f"{', '.join(low)}: publishers are blocked everywhere"))
    names = found.get("voters")
    if isinstance(names, list) and names:
        lines.append(("voters", f"{', '.join(map(str, names))}; {at('majority')} of them are a majority"))
    oldest = [str(row.get("name")) for row in rows if row.get("oldest")]
    if oldest:
        lines.append(("oldest", f"{', '.join(oldest)}: it keeps the time, and updates those who join"))
    disk = f", on disk up to {at('disk_index')}" if found.get("disk_index") is not None else ", no disk"
    void = f", {found['void_events']} of them void: the log says why" if found.get("void_events") else ""
    lines.append(("log", f"epoch {at('epoch')}, {at('index')} events applied{disk}{void}"))
    if found.get("clustered"):
        wrong = f"; {found['divergences']} times a broker had made another state" if found.get("divergences") else ""
        lines.append(("chain", f"a majority has made the same of the log up to event {at('shared_index')}{wrong}"))
    kept = found.get("kept_stores")
    if isinstance(kept, list) and kept:
        lines.append(
            ("kept", f"{', '.join(map(str, kept))}: a store that was not right, for a look; remove it when done")
        )
    lines.append(("view", str(at("view"))))
    lines.append(("dispatch", str(at("dispatch"))))
    return lines


def members(remote: Remote, options: argparse.Namespace) -> int:
    return show(options, "members", _members(_cluster(remote)), MEMBER_COLUMNS)


def voters(remote: Remote, options: argparse.Namespace) -> int:
    return show(options, "voters", [row for row in _members(_cluster(remote)) if row.get("voter")], VOTER_COLUMNS)


def owners(remote: Remote, options: argparse.Namespace) -> int:
    queues = remote.rows("cluster", "owners", *scope(options))
    if as_json(options):
        return show(options, "queues", queues, OWNER_COLUMNS)
    rows: list[Shape] = []
    for queue in queues:
        found = _members(queue)
        rows += [{**queue, **each, "name": queue["name"], "member": each["name"]} for each in found] or [queue]
    return show(options, "queues", rows, OWNER_COLUMNS)


def drain(remote: Remote, options: argparse.Namespace) -> int:
    found = remote.ask("POST", path_of("cluster", "drain"))
    name = str(found.get("node")) if isinstance(found, dict) else "the node"
    return said(options, f"{name} is drained: stop it, or restart it to have it join again", node=name)


def forget(remote: Remote, options: argparse.Namespace) -> int:
    found = remote.ask("POST", path_of("cluster", "forget"), {"name": options.name})
    left = found.get("voters") if isinstance(found, dict) else None
    names = [str(name) for name in left] if isinstance(left, list) else []
    return said(options, f"'{options.name}' is forgotten; the voters are {', '.join(names)}", voters=[*names])
