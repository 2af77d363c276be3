"""`coterie backup` and `coterie restore`: a copy of everything that a node or cluster has on disk, and back again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from coterie.cli.output import Progress, facts, print_json, tell
from coterie.cli.remote import CA, DEFAULT_URL, PASSWORD, URL, Remote
from coterie.errors import CoterieError, UserError
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.broker.log_store import StoreSettings
    from coterie.node.backup.copying import Copied, Told
    from coterie.node.backup.manifest import Manifest
    from coterie.node.backup.restoring import Restored
    from coterie.node.backup.source import Source

READ: Final = 8 << 20
"""Bytes that a node is asked for at a time."""
BACKUP: Final = """\
Copies everything that a node has on disk (definitions, users, durable queues and their persistent messages) to a
folder, or to any URL that fsspec knows. Of a cluster any node that is in step will do: it has what the cluster has.
Everything that was confirmed before the command began is in the copy, and no transaction is in it by half; the node
goes on serving. A second backup to the same target copies only what is new since the first.

A running node is asked over its HTTP API, as an administrator; a stopped one's folder is named by --data.
"""
BACKUP_EXAMPLES: Final = """\
examples:
  COTERIE_PASSWORD=... coterie backup /mnt/backups/shop --url http://ops@node1:15672
  coterie backup /mnt/backups/shop --url http://ops@node1:15672 --password-file /etc/coterie/ops.password
  coterie backup s3://bucket/shop --url https://ops@node1:15672   needs: pip install 'coterie[backup]' s3fs
  coterie backup /mnt/backups/shop --data /var/lib/coterie       a stopped node, or what is left of one
  coterie backup /mnt/backups/shop --list                        the backups that are there
  coterie restore /mnt/backups/shop --verify                     whether the newest can be restored

A password is never taken from the command line: it comes from --password-file, from COTERIE_PASSWORD, or with the whole
URL from COTERIE_URL.

exit codes: 0 fine; 1 it failed, and then there is no backup; 2 wrong usage
"""
RESTORE: Final = """\
Makes a data folder from a backup. Every byte is compared with its checksum, the log is followed by its chain and every
message is read, before anything counts. What was a cluster is a new cluster, with this node as its only voter: start
the node, and the others, empty, join it. Whatever is ready is flagged as redelivered.
"""
RESTORE_EXAMPLES: Final = """\
examples:
  coterie restore /mnt/backups/shop --verify                     a dry run: nothing is written
  coterie restore /mnt/backups/shop /var/lib/coterie             the newest; the folder must be empty
  coterie restore /mnt/backups/shop /var/lib/coterie --backup 20261119T214000.000000Z
  coterie restore s3://bucket/shop /var/lib/coterie --name node7    for a node of another name

exit codes: 0 fine; 1 the backup is damaged, or it failed: then there is no data folder; 2 wrong usage
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "backup", help="back up a node or cluster", description=BACKUP, epilog=BACKUP_EXAMPLES, formatter_class=raw
    )
    parser.add_argument("target", metavar="TARGET", help="a folder, or a URL that fsspec knows")
    parser.add_argument("--url", default="", help=f"the node's console (default: {URL}, else guest on this host)")
    parser.add_argument("--ca", metavar="FILE", default="", help=f"authority of an https URL (default: {CA})")
    parser.add_argument(
        "--password-file", type=Path, metavar="FILE", help=f"holds the password, for nobody else to read ({PASSWORD})"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for an answer (default: 60)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the data folder of a stopped node, in place of --url")
    parser.add_argument("--list", action="store_true", help="the backups that the target has")
    _add_common(parser)
    parser.set_defaults(run=backup)
    parser = subparsers.add_parser(
        "restore", help="a data folder from a backup", description=RESTORE, epilog=RESTORE_EXAMPLES, formatter_class=raw
    )
    parser.add_argument("source", metavar="SOURCE", help="what was the TARGET of coterie backup")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, help="the data folder that is to be made")
    parser.add_argument("--verify", action="store_true", help="look whether it can be restored, and write nothing")
    parser.add_argument(
        "--backup", metavar="ID", default="", help="which one, as --list shows it (default: the newest)"
    )
    parser.add_argument("--name", default="", help="of the node that is to run on it (default: as it was)")
    parser.add_argument("--accept-loss", action="store_true", help="without what its source could not read any more")
    _add_common(parser)
    parser.set_defaults(run=restore)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="a node's TOML file, for its store settings")
    parser.add_argument("--json", action="store_true", help="the answer as one JSON object")


def _store_settings(options: argparse.Namespace) -> StoreSettings:
    from coterie.config import load_config

    return load_config(options.config, os.environ, {}).store


# Backup.


def backup(options: argparse.Namespace) -> int:
    from coterie.node.backup.copying import copy
    from coterie.node.backup.target import target_of

    target = target_of(options.target)
    if options.list:
        return _list(options)
    with _source(options) as source:
        node = source.facts.node
        with _progress("bytes copied") as told:
            copied = copy(source, target, told)
    if options.json:
        print_json(_copied(copied, target.where))
        return 0
    manifest = copied.manifest
    lines = [
        ("backup", manifest.id),
        ("of", f"{node}{f', cluster {manifest.cluster}' if manifest.cluster else ', which stands alone'}"),
        ("to", target.where),
        ("size", f"{manifest.size:,} bytes in {len(manifest.files)} files"),
        ("copied", f"{copied.bytes:,} bytes; {copied.reused:,} were there from an earlier backup"),
    ]
    print(facts(lines))
    return 0


def _copied(copied: Copied, where: str) -> dict[str, Json]:
    manifest = copied.manifest
    return {
        "backup": manifest.id, "target": where, "node": manifest.node, "cluster": manifest.cluster or None,
        "at": manifest.at or None, "files": len(manifest.files), "bytes": manifest.size, "copied": copied.bytes,
        "reused": copied.reused,
    }  # fmt: skip


def _list(options: argparse.Namespace) -> int:
    from coterie.node.backup.copying import manifest_of, manifests
    from coterie.node.backup.target import target_of

    target = target_of(options.target)
    rows: list[Json] = []
    lines: list[str] = []
    good = True
    for id in manifests(target):
        try:
            found = manifest_of(target, id)
        except CoterieError as error:
            good = False
            rows.append({"backup": id, "problem": str(error)})
            lines.append(f"{id}  {error}")
        else:
            rows.append({"backup": id, "node": found.node, "cluster": found.cluster or None, "bytes": found.size})
            lines.append(f"{id}  {found.size:>15,} bytes  {found.node}  {found.cluster}")
    if options.json:
        print_json({"target": target.where, "backups": rows})
    else:
        tell("\n".join(lines) or f"{target.where}: there is no backup")
    return 0 if good else 1


@contextmanager
def _source(options: argparse.Namespace) -> Iterator[Source]:
    if options.data is not None:
        if options.url:
            raise UserError("--data and --url both say what to back up: leave one out")
        from coterie.node.backup.stopped import stopped_source

        with stopped_source(options.data.absolute(), _store_settings(options)) as stopped:
            yield stopped
        return
    remote = _remote(options)
    running = RunningSource(remote)
    try:
        yield running
    finally:
        running.end()


def _remote(options: argparse.Namespace) -> Remote:
    given = options.url
    if given and urlsplit(given if "://" in given else f"http://{given}").password is not None:
        raise UserError(
            f"a password on a command line can be read by everybody: leave it out of --url, and put it into {PASSWORD} "
            "or into a file that --password-file names"
        )
    environment = {**os.environ}
    if options.password_file is not None:
        from coterie.secret_file import read_private

        environment[PASSWORD] = read_private(options.password_file, "--password-file")
    return Remote(given or environment.get(URL) or DEFAULT_URL, options.timeout, environment, options.ca)


class RunningSource:
    """A cut that a node holds open for us."""

    def __init__(self, remote: Remote) -> None:
        from coterie.node.backup.source import Facts

        self._remote = remote
        said = remote.ask("POST", "/api/backups")
        try:
            assert isinstance(said, dict)
            self._id = str(said["id"])
            files = said["files"]
            assert isinstance(files, list)
            named = tuple((str(each["name"]), int(str(each["size"]))) for each in files if isinstance(each, dict))
            at = "" if said["cluster"] is None else str(said["at"])
            self.facts = Facts(str(said["node"]), str(said["cluster"] or ""), at, int(str(said["last"])), named)
        except (KeyError, ValueError, AssertionError):
            raise CoterieError(
                f"{remote.where} answers, but not as a Coterie node would: is it of this version?"
            ) from None

    def read(self, name: str, start: int, size: int) -> bytes:
        return self._remote.fetch(f"/api/backups/{self._id}/{name}?from={start}&size={min(size, READ)}")

    def end(self) -> None:
        try:
            self._remote.ask("DELETE", f"/api/backups/{self._id}")
        except CoterieError as error:  # it ends by itself
            tell(f"warning: {error}", sys.stderr)


@contextmanager
def _progress(what: str) -> Iterator[Told]:
    with Progress(what) as progress:
        yield lambda done, of: progress.update(done, f"of {of:,}")


# Restore.


def restore(options: argparse.Namespace) -> int:
    from coterie.node.backup import restoring
    from coterie.node.backup.copying import manifest_of
    from coterie.node.backup.target import target_of
    from coterie.runtime.aio import run

    if (options.folder is None) != options.verify:
        raise UserError("name the data folder that is to be made, or --verify to write nothing")
    settings = _store_settings(options)
    target = target_of(options.source)
    manifest = manifest_of(target, options.backup)
    name = options.name or manifest.node
    with _progress("checked") as told:
        if options.verify:
            found = run(restoring.verify(target, manifest, settings, told))
        else:
            folder = options.folder.absolute()
            found = run(restoring.restore(target, manifest, folder, name, settings, told, options.accept_loss))
    good = not (options.verify and found.lost)
    if options.json:
        print_json(_restored(options, manifest, found, name, good))
    else:
        tell(facts(_lines(options, manifest, found, name)))
    return 0 if good else 1


def _restored(
    options: argparse.Namespace, manifest: Manifest, found: Restored, name: str, good: bool
) -> dict[str, Json]:
    queues: list[Json] = [
        {"vhost": vhost, "name": queue, "messages": count} for (vhost, queue, _), count in found.queues.items()
    ]
    return {
        "backup": manifest.id, "verified": good, "dry_run": options.verify, "node": name,
        "was": manifest.cluster or None,
        "cluster": found.cluster or None, "data": None if options.verify else str(options.folder.absolute()),
        "bytes": manifest.size, "users": found.users, "queues": queues, "lost": [*found.lost],
    }  # fmt: skip


def _lines(options: argparse.Namespace, manifest: Manifest, found: Restored, name: str) -> list[tuple[str, str]]:
    messages = sum(found.queues.values())
    was = f"cluster {manifest.cluster}" if manifest.cluster else "a node that stood alone"
    lines = [
        ("backup", f"{manifest.id}, of {manifest.node}, {was}"),
        ("has", f"{messages:,} messages in {len(found.queues)} durable queues, {found.users} users"),
    ]
    lines += [("lost", each) for each in found.lost]
    if options.verify:
        lines.append(("verified", "all of it can be restored" if not found.lost else "but for what is lost"))
        return lines
    lines.append(("restored", f"{options.folder.absolute()}"))
    if found.cluster:
        lines += [
            ("cluster", f"{found.cluster}: a new one, whose only voter is {name}"),
            ("next", f"start the node {name} with that folder; others join it empty, and vote"),
        ]
    else:
        lines.append(("next", f"start a node with that folder; it is called {name} unless you say otherwise"))
    return lines
