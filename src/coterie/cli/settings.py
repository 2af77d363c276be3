"""`coterie settings`: the settings reference, which the code itself is the source of."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from coterie.blocks.hub import HubSettings
from coterie.blocks.rpc import RpcSettings
from coterie.cli.output import print_json, table
from coterie.cli.stacks import as_json, summary
from coterie.config import SECTIONS, plain, spellings
from coterie.group.channel import ChannelSettings
from coterie.group.presets import REGISTRY
from coterie.settings import describe
from coterie.trace import Json

INTRODUCTION = """\
# Settings

This page is written by `make docs` from the code; a test fails when it is out of date.

A setting comes from its default, from a TOML file, from the environment or from a flag: later ones win. A list is
written `a,b` in the environment and in flags, and as an array in TOML. A wrong value is refused with the place where
it stands, and so is one that would have no effect. A secret has no flag, for every user of a machine can read command
lines; a file that holds one must be its owner's alone (`chmod 600`). The same tables: `coterie settings`,
`coterie stacks NAME`, `coterie protocols NAME`.

```toml
[node]
name = "alpha"
bind = "10.0.0.1:7800"
peers = ["10.0.0.2:7800", "10.0.0.3:7800"]
secret_file = "/etc/coterie/secret"     # `coterie cluster init` makes one

[cluster]
size = 3
```
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "settings",
        help="every setting with its flag, environment variable and place in TOML",
        description="Every setting of a node. Defaults, the TOML file, the environment and flags: later ones win.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="the settings reference, protocols included")
    form.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    items = list(spellings())
    if options.markdown:
        print("\n".join(reference()))
    elif options.json:
        entries: list[Json] = [
            {
                "section": item.section,
                "name": item.name,
                "flag": item.flag,
                "variable": item.variable,
                "default": as_json(item.default),
                "unit": item.unit,
                "help": item.help,
            }
            for item in items
        ]
        print_json({"settings": entries})
    else:
        rows = [(f"[{i.section}] {i.name}", i.flag or "-", i.variable, plain(i.default) or "-", i.help) for i in items]
        print(table(["in TOML", "flag", "environment", "default", "meaning"], rows))
    return 0


def reference() -> Iterator[str]:
    """docs/settings.md, line by line."""
    yield INTRODUCTION
    for section, kind in SECTIONS.items():
        yield f"## [{section}]\n"
        yield f"{(kind.__doc__ or '').strip()}\n"
        rows = [
            (f"`{item.name}`", shown(item.flag), f"`{item.variable}`", shown(item.default), item.unit, item.help)
            for item in spellings()
            if item.section == section
        ]
        yield from grid(("setting", "flag", "environment", "default", "unit", "meaning"), rows)
    yield "## Channel\n"
    yield "Given to `Channel(...)` by name.\n"
    yield from settings_of(ChannelSettings)
    yield "## Hub\n"
    yield "Given to `Hub(...)` by name, with those of the channel. See [blocks.md](blocks.md).\n"
    yield from settings_of(HubSettings)
    yield "## Rpc\n"
    yield "Given to `Rpc(...)` by name.\n"
    yield from settings_of(RpcSettings)
    yield "## Protocols\n"
    yield 'Given to `preset(...)` by the protocol; or to `parse_toml`, each a `[[stack]]` with `protocol = "NAME"`.\n'
    for name, protocol in sorted(REGISTRY.items()):
        yield f"### {name}\n"
        yield f"{summary(protocol)}\n"
        yield from settings_of(protocol.Settings)


def settings_of(kind: type) -> Iterator[str]:
    rows = [(f"`{item.name}`", shown(item.default), item.unit, item.help) for item in describe(kind)]
    yield from grid(("setting", "default", "unit", "meaning"), rows) if rows else ["No settings.\n"]


def shown(value: object) -> str:
    text = plain(value)
    return f"`{text}`" if text else "none"


def grid(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |"
    yield ""
