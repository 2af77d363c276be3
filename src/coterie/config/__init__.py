"""Configuration: one schema, which is the source of the TOML file, the environment variables and the flags.

Later ones win: defaults, the TOML file, `COTERIE_SECTION_NAME` in the environment, flags. What is wrong is refused with
the place where it stands, and so is what would have no effect. A secret is taken from a file that only its owner can
read, or from the environment, and never from the command line.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from coterie import logs
from coterie.amqp.settings import AmqpSettings
from coterie.auditlog.settings import AuditSettings
from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.settings import BrokerSettings
from coterie.broker.users import UserSettings
from coterie.cluster.settings import ClusterSettings
from coterie.config.effect import check_effect
from coterie.console.settings import ConsoleSettings
from coterie.errors import UserError
from coterie.node.group_port import ENCRYPT, GroupPort
from coterie.node.settings import ListenSettings
from coterie.oauth.settings import OauthSettings
from coterie.secret_file import check_private, read_private, read_secret_file
from coterie.settings import describe, load, setting, suggest
from coterie.site_replication.address import has_password, with_password
from coterie.site_replication.settings import ReplicationSettings

PREFIX: Final = "COTERIE_"
ON_COMMAND_LINE: Final = (
    "a password on a command line can be read by everybody on this machine: leave it out there, and name a file that "
    "holds it (--replication-password-file), or put the address into the environment (COTERIE_REPLICATION_TO)"
)
Values = Mapping[str, Mapping[str, object]]
"""Section to name to value, as one source gives them."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node: who it is, where it listens, whom it looks for."""

    name: str = setting("", "the node's name, unique in the group; empty: as it was called before, else as the host is")
    group: str = setting("coterie", "the group that it joins; nodes of other groups are strangers")
    bind: str = setting(
        "127.0.0.1:7800", "where it listens for the others of its cluster, as host:port; port 0 takes a free one"
    )
    advertise: str = setting("", "host at which others reach that port, if they cannot by the host of bind")
    peers: tuple[str, ...] = setting((), "nodes to look for, each as host:port; one that runs is enough")
    data: str = setting("", "folder of everything that must survive a restart; empty: nothing does")
    secret: str = setting(
        "",
        "what every node of the cluster must know to be let in; not by a flag; better in a file: secret_file",
        private=True,
    )
    secret_file: str = setting(
        "",
        "file that holds the secret, for nobody but the node to read: `coterie cluster init` makes one; a cluster "
        "needs it unless everything (bind, advertise, peers) is on loopback",
    )
    encrypt: str = setting(
        "auto",
        "whether brokers encrypt what they tell each other, by TLS with keys made of the secret; auto: unless "
        "everything (bind, advertise, peers) is on loopback; the same on every node",
        choices=ENCRYPT,
    )
    group_tls_cert: str = setting(
        "", "file with the node's own certificate for the other brokers, in place of one made of the secret"
    )
    group_tls_key: str = setting("", "file with its private key, for nobody but the node to read")
    group_tls_ca: str = setting("", "file with the certificate of the authority that signs those of all brokers")
    trace: str = setting("", "folder that traces are written to; empty: none are")
    trace_segment_seconds: float = setting(
        0.0,
        "a trace's file is closed and the next begun after so long, as streams need it; 0: one file",
        unit="s",
        minimum=0,
    )
    trace_segment_bytes: int = setting(
        8 * 1024 * 1024, "or when it is so large, if there are segments at all", unit="bytes", minimum=65536
    )
    trace_publish: str = setting(
        "never",
        "whether trace events are published to the exchange coterie.trace; later: when `coterie tracing on` says so",
        choices=("never", "later", "now"),
    )
    trace_hold: int = setting(
        8 * 1024 * 1024, "trace events that are held in memory until a queue is bound there", unit="bytes", minimum=0
    )
    log_level: str = setting("info", "the least important kind of event that is logged", choices=logs.LEVELS)
    log_format: str = setting("text", "lines for people, or one JSON object a line", choices=logs.FORMATS)


SECTIONS: Final[dict[str, type]] = {
    "node": NodeSettings,
    "listen": ListenSettings,
    "amqp": AmqpSettings,
    "broker": BrokerSettings,
    "store": StoreSettings,
    "users": UserSettings,
    "console": ConsoleSettings,
    "cluster": ClusterSettings,
    "replication": ReplicationSettings,
    "audit": AuditSettings,
    "oauth": OauthSettings,
}
PLAIN_FLAGS: Final = frozenset({"node", "listen"})
"""Sections whose flags have no prefix: --data, --amqp; the others' do: --store-segment-bytes."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was configured, checked."""

    node: NodeSettings
    listen: ListenSettings
    amqp: AmqpSettings
    broker: BrokerSettings
    store: StoreSettings
    users: UserSettings
    console: ConsoleSettings
    cluster: ClusterSettings
    replication: ReplicationSettings
    audit: AuditSettings
    oauth: OauthSettings

    @property
    def group_port(self) -> GroupPort:
        """How the port for the other brokers is protected."""
        node = self.node
        certificates = (node.group_tls_cert, node.group_tls_key, node.group_tls_ca)
        return GroupPort(node.bind, node.advertise, node.peers, node.secret, node.encrypt, certificates)


@dataclass(frozen=True, slots=True)
class Spelling:
    """One setting in its three spellings, as documentation shows it."""

    section: str
    name: str
    flag: str
    """Empty: it has none."""
    variable: str
    default: object
    unit: str
    help: str


def spellings() -> Iterator[Spelling]:
    """Every setting of the schema."""
    for section, kind in SECTIONS.items():
        for item in describe(kind):
            name = item.name
            word = "" if item.private else flag(section, name)
            yield Spelling(section, name, word, variable(section, name), item.default, item.unit, item.help)


def flag(section: str, name: str) -> str:
    prefix = "" if section in PLAIN_FLAGS else f"{section}-"
    return f"--{prefix}{name.replace('_', '-')}"


def variable(section: str, name: str) -> str:
    return f"{PREFIX}{section}_{name}".upper()


def load_config(path: Path | None, env: Mapping[str, str], flags: Values) -> Config:
    """Bring the four sources together. Raises UserError that names the file, variable or flag to correct."""
    file = {} if path is None else _read(path)
    sources: list[tuple[Values, Callable[[str, str], str]]] = [
        (file, lambda section, _: f"{path}, [{section}]"),
        (_from_env(env), lambda section, name: f"environment, {variable(section, name)}"),
        (flags, lambda section, name: f"command line, {flag(section, name)}"),
    ]
    merged: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    given_at: dict[tuple[str, str], str] = {}
    for values, where in sources:
        for section, given in values.items():
            for name, value in given.items():
                checked: object = load(SECTIONS[section], {name: value}, where(section, name))
                merged[section][name] = found = getattr(checked, name)
                given_at[section, name] = where(section, name)
                if (section, name) == ("replication", "to") and has_password(found):
                    if values is flags:
                        raise UserError(f"{where(section, name)}: {ON_COMMAND_LINE}")
                    if values is file and path is not None:
                        check_private(path.stat(), path, "replication.to has a password in it")
    node = NodeSettings(**merged["node"])  # type: ignore[arg-type]
    node = replace(node, secret=node.secret.strip())  # as of a file: some ways to set a variable keep the line's end
    if node.secret_file:
        if node.secret:
            raise UserError("both 'secret' and 'secret_file' say what the secret is: leave one out")
        node = replace(node, secret=read_secret_file(Path(node.secret_file), "secret_file"))
    replication = merged["replication"]
    if replication.get("password_file"):
        password = read_private(Path(str(replication["password_file"])), "replication.password_file")
        replication["to"] = with_password(str(replication.get("to", "")), password)
    others = {name: kind(**merged[name]) for name, kind in SECTIONS.items() if name != "node"}
    config = Config(node, **others)
    config.group_port.tcp()  # refuses what is not safe
    check_effect(config, given_at)
    return config


def _read(path: Path) -> Values:
    try:
        with path.open("rb") as file:
            document = tomllib.loads(file.read().decode())
            found = os.fstat(file.fileno())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    sections: dict[str, Mapping[str, object]] = {}
    for name, values in document.items():
        if name not in SECTIONS:
            raise UserError(f"{path}: there is no section [{name}]{suggest(name, SECTIONS)}")
        if not isinstance(values, dict):
            raise UserError(f"{path}: '{name}' must be a section, [{name}], not {values!r}")
        sections[name] = values
        if any(item.private and item.name in values for item in describe(SECTIONS[name])):
            check_private(found, path, f"it holds a secret, [{name}]")
    return sections


def _from_env(env: Mapping[str, str]) -> Values:
    """The variables of our sections; others that begin with COTERIE_ are somebody else's."""
    values: dict[str, dict[str, object]] = {}
    for word, value in sorted(env.items()):
        for section in SECTIONS:
            start = variable(section, "")
            if word.startswith(start):
                values.setdefault(section, {})[word.removeprefix(start).lower()] = value
    return values


def add_flags(parser: argparse.ArgumentParser, section: str) -> None:
    """Give a command the flags of one section; `flags_of` reads them back."""
    group = parser.add_argument_group(f"{section} settings", "also in the file, and in the environment as shown")
    for item in spellings():
        if item.section == section and item.flag:
            default = "" if item.default in ("", ()) else f"; default {plain(item.default)}"
            unit = f", in {item.unit}" if item.unit else ""
            text = f"{item.help}{unit} [{item.variable}{default}]".replace("%", "%%")
            group.add_argument(item.flag, dest=f"{section}.{item.name}", metavar="VALUE", help=text)


def flags_of(options: argparse.Namespace) -> Values:
    """What was given by flags, and only that."""
    values: dict[str, dict[str, object]] = {}
    for section, kind in SECTIONS.items():
        for item in fields(kind):
            value = getattr(options, f"{section}.{item.name}", None)
            if value is not None:
                values.setdefault(section, {})[item.name] = value
    return values


def plain(value: object) -> str:
    """A setting's value as a user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return ",".join(map(plain, value))
    return "" if value is None else str(value)
