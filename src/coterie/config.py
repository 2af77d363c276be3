"""Configuration: one schema, which is the source of the TOML file, the environment variables and the flags.

Later ones win: defaults, the TOML file, `COTERIE_SECTION_NAME` in the environment, flags. What is wrong is refused with
the place where it stands. The settings of the protocols belong to the protocols; a `[[stack]]` in the file names them.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from coterie import log
from coterie.amqp.settings import AmqpSettings
from coterie.broker.settings import BrokerSettings
from coterie.broker.store.settings import StoreSettings
from coterie.broker.users import UserSettings
from coterie.cluster.settings import ClusterSettings
from coterie.console.settings import ConsoleSettings
from coterie.errors import UserError
from coterie.group.presets import REGISTRY, preset
from coterie.group.stack import Layer, parse_toml
from coterie.node.settings import ListenSettings
from coterie.replication.settings import ReplicationSettings
from coterie.settings import describe, load, setting, suggest

PREFIX: Final = "COTERIE_"
Values = Mapping[str, Mapping[str, object]]
"""Section to name to value, as one source gives them."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node: who it is, where it listens, whom it looks for."""

    name: str = setting("", "the node's name, unique in the group; empty: as it was called before, else as the host is")
    group: str = setting("coterie", "the group that it joins; nodes of other groups are strangers")
    bind: str = setting("127.0.0.1:7800", "where it listens, as host:port; port 0 takes a free one")
    advertise: str = setting("", "host at which others reach that port, if they cannot by the host of bind")
    peers: tuple[str, ...] = setting((), "nodes to look for, each as host:port; one that runs is enough")
    data: str = setting("", "folder of everything that must survive a restart; empty: nothing does")
    secret: str = setting("", "what every node must know to be let in; better in a file: secret_file", hidden=True)
    secret_file: str = setting("", "file that holds the secret, for nobody but the node to read; empty: none")
    stack: str = setting("reliable", "the stack's preset, if the file has no [[stack]]: see `coterie stacks`")
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
    log_level: str = setting("info", "the least important kind of event that is logged", choices=log.LEVELS)
    log_format: str = setting("text", "lines for people, or one JSON object a line", choices=log.FORMATS)


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
}
PLAIN_FLAGS: Final = frozenset({"node", "listen"})
"""Sections whose flags have no prefix: --data, --amqp; the others' do: --store-segment-bytes."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was configured, checked."""

    node: NodeSettings
    stack: tuple[Layer, ...] | None
    """The file's own stack, bottom first; None: the preset that `node.stack` names."""
    listen: ListenSettings
    amqp: AmqpSettings
    broker: BrokerSettings
    store: StoreSettings
    users: UserSettings
    console: ConsoleSettings
    cluster: ClusterSettings
    replication: ReplicationSettings

    def layers(self) -> list[Layer]:
        """The stack to build. The node's secret is on every layer that takes one and has none of its own."""
        layers = preset(self.node.stack) if self.stack is None else list(self.stack)
        if not self.node.secret:
            return layers
        given: dict[str, object] = {"secret": self.node.secret}
        return [
            replace(layer, settings={**given, **layer.settings}) if _takes_secret(layer) else layer for layer in layers
        ]


@dataclass(frozen=True, slots=True)
class Spelling:
    """One setting in its three spellings, as documentation shows it."""

    section: str
    name: str
    flag: str
    variable: str
    default: object
    unit: str
    help: str


def spellings() -> Iterator[Spelling]:
    """Every setting of the schema."""
    for section, kind in SECTIONS.items():
        for item in describe(kind):
            name = item.name
            yield Spelling(
                section, name, flag(section, name), variable(section, name), item.default, item.unit, item.help
            )


def flag(section: str, name: str) -> str:
    prefix = "" if section in PLAIN_FLAGS else f"{section}-"
    return f"--{prefix}{name.replace('_', '-')}"


def variable(section: str, name: str) -> str:
    return f"{PREFIX}{section}_{name}".upper()


def load_config(path: Path | None, env: Mapping[str, str], flags: Values) -> Config:
    """Bring the four sources together. Raises UserError that names the file, variable or flag to correct."""
    file, stack = ({}, None) if path is None else _read(path)
    sources: list[tuple[Values, Callable[[str, str], str]]] = [
        (file, lambda section, _: f"{path}, [{section}]"),
        (_from_env(env), lambda section, name: f"environment, {variable(section, name)}"),
        (flags, lambda section, name: f"command line, {flag(section, name)}"),
    ]
    merged: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for values, where in sources:
        for section, given in values.items():
            for name, value in given.items():
                checked: object = load(SECTIONS[section], {name: value}, where(section, name))
                merged[section][name] = getattr(checked, name)
    # A preset that was asked for in a stronger place than the file is stronger than the file's own stack.
    if any("stack" in values.get("node", {}) for values, _ in sources[1:]):
        stack = None
    node = NodeSettings(**merged["node"])  # type: ignore[arg-type]
    if node.secret_file:
        if node.secret:
            raise UserError("both 'secret' and 'secret_file' say what the secret is: leave one out")
        node = replace(node, secret=read_secret(Path(node.secret_file)))
    others = {name: kind(**merged[name]) for name, kind in SECTIONS.items() if name != "node"}
    return Config(node, stack, **others)


def read_secret(path: Path) -> str:
    """The cluster's secret from its file: its text, without the line's end."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"secret_file: {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"secret_file: {path}: not UTF-8 text: make one with `openssl rand -hex 32`") from None
    if not secret:
        raise UserError(f"secret_file: {path}: is empty: make one with `openssl rand -hex 32`")
    return secret


def _takes_secret(layer: Layer) -> bool:
    kind = REGISTRY.get(layer.protocol)
    return kind is not None and any(item.name == "secret" for item in fields(kind.Settings))


def _read(path: Path) -> tuple[Values, tuple[Layer, ...] | None]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    stack = tuple(parse_toml(text, str(path))) if "stack" in document else None
    sections: dict[str, Mapping[str, object]] = {}
    for name, values in document.items():
        if name == "stack":
            continue
        if name not in SECTIONS:
            raise UserError(f"{path}: there is no section [{name}]{suggest(name, [*SECTIONS, 'stack'])}")
        if not isinstance(values, dict):
            raise UserError(f"{path}: '{name}' must be a section, [{name}], not {values!r}")
        sections[name] = values
    if stack is not None and "stack" in sections.get("node", {}):
        raise UserError(f"{path}: both [[stack]] and 'stack' in [node] say which stack to use: leave one out")
    return sections, stack


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
        if item.section == section:
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
