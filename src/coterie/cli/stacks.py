"""`coterie stacks` and `coterie protocols`: what there is to build a group from, as the code itself tells it."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator

from coterie.cli.output import print_json, table
from coterie.config import plain
from coterie.errors import UserError
from coterie.group.presets import PRESETS, REGISTRY, preset
from coterie.group.protocol import Protocol
from coterie.group.stack import Layer, build
from coterie.settings import Described, describe, suggest
from coterie.trace import Json

STACKS_HELP = """\
A stack is a list of protocols with settings. Presets have names; your own stack is a TOML file with one
[[stack]] table for each protocol, the transport first. To change a preset, print it and edit it:

  coterie stacks reliable --toml > mine.toml
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    stacks = subparsers.add_parser(
        "stacks", help="the presets, and what is in them", description=STACKS_HELP, formatter_class=raw
    )
    stacks.add_argument("name", nargs="?", help="show this one; without it, list them all")
    form = stacks.add_mutually_exclusive_group()
    form.add_argument("--toml", action="store_true", help="as a stack file, every setting at its value")
    form.add_argument("--json", action="store_true", help="one JSON object")
    stacks.set_defaults(run=run_stacks)

    protocols = subparsers.add_parser(
        "protocols",
        help="every protocol with its settings and rules",
        description="Every protocol that a stack may name: what it does, its settings, and the rules of its design\n"
        "that the simulator counts when they are exercised.",
        formatter_class=raw,
    )
    protocols.add_argument("name", nargs="?", help="show this one; without it, list them all")
    protocols.add_argument("--json", action="store_true", help="one JSON object")
    protocols.set_defaults(run=run_protocols)


def run_stacks(options: argparse.Namespace) -> int:
    if options.name is None:
        if options.toml:
            raise UserError("stacks: --toml needs the name of a stack: coterie stacks reliable --toml")
        if options.json:
            print_json({"stacks": {name: list(protocols) for name, protocols in PRESETS.items()}})
        else:
            rows = [(name, " · ".join(protocols)) for name, protocols in PRESETS.items()]
            print(table(["stack", "protocols, bottom to top"], rows))
        return 0
    layers = preset(options.name)
    protocols = build(layers, REGISTRY)
    if options.toml:
        print("\n\n".join(map(toml_of, protocols)))
    elif options.json:
        entries: list[Json] = [{"protocol": p.name, "settings": values_of(p)} for p in protocols]
        print_json({"name": options.name, "stack": entries})
    else:
        print(f"{options.name}, bottom to top\n")
        print("\n\n".join(text_of(protocol, layer) for protocol, layer in zip(protocols, layers, strict=True)))
    return 0


def run_protocols(options: argparse.Namespace) -> int:
    if options.name is None:
        if options.json:
            print_json({"protocols": {name: facts_of(kind) for name, kind in REGISTRY.items()}})
        else:
            rows = [(name, kind.role or "-", summary(kind)) for name, kind in REGISTRY.items()]
            print(table(["protocol", "role", "what it does"], rows))
        return 0
    kind = REGISTRY.get(options.name) or REGISTRY.get(options.name.upper())
    if kind is None:
        raise UserError(f"protocols: there is no protocol '{options.name}'{suggest(options.name, REGISTRY)}")
    if options.json:
        print_json({"name": kind.name, **facts_of(kind)})
    else:
        print("\n".join(page_of(kind)))
    return 0


def summary(kind: type[Protocol]) -> str:
    """What a protocol says about itself in one sentence."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def promise(kind: type[Protocol]) -> str:
    """What its module promises."""
    return inspect.getdoc(inspect.getmodule(kind)) or ""


def page_of(kind: type[Protocol]) -> Iterator[str]:
    yield f"{kind.name}: {summary(kind)}"
    yield ""
    yield promise(kind)
    if kind.role:
        yield ""
        yield f"role: {kind.role}"
    if kind.needs_below:
        yield f"needs below it: {', '.join(kind.needs_below)}"
    settings = list(describe(kind.Settings))
    if settings:
        yield ""
        yield table(["setting", "default", "unit", "meaning"], [row_of(item, item.default) for item in settings])
    if kind.rules:
        yield ""
        yield table(["rule", "what it says"], list(kind.rules.items()))


def text_of(protocol: Protocol, layer: Layer) -> str:
    """A layer of a stack; settings that differ from the protocol's own defaults are marked."""
    title = f"{protocol.name}: {summary(type(protocol))}"
    rows = []
    for item in describe(protocol.Settings):
        name, *rest = row_of(item, getattr(protocol.settings, item.name))
        rows.append([f"{name} *" if item.name in layer.settings else name, *rest])
    if not rows:
        return title
    lines = table(["setting", "value", "unit", "meaning"], rows)
    return f"{title}\n{lines}" + ("\n* set by this stack" if layer.settings else "")


def row_of(item: Described, value: object) -> tuple[str, str, str, str]:
    return item.name, plain(value) or "-", item.unit or "-", item.help


def toml_of(protocol: Protocol) -> str:
    lines = [f"# {summary(type(protocol))}", "[[stack]]", f'protocol = "{protocol.name}"']
    for item in describe(protocol.Settings):
        value = getattr(protocol.settings, item.name)
        note = item.help + (f" ({item.unit})" if item.unit else "")
        lines.append(f"# {item.name} = ... # {note}" if value is None else f"{item.name} = {toml(value)}  # {note}")
    return "\n".join(lines)


def toml(value: object) -> str:
    """A setting's value in TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def values_of(protocol: Protocol) -> dict[str, Json]:
    return {item.name: as_json(getattr(protocol.settings, item.name)) for item in describe(protocol.Settings)}


def facts_of(kind: type[Protocol]) -> dict[str, Json]:
    settings: list[Json] = [
        {"name": item.name, "default": as_json(item.default), "unit": item.unit, "help": item.help}
        for item in describe(kind.Settings)
    ]
    return {
        "summary": summary(kind),
        "role": kind.role,
        "needs_below": list(kind.needs_below),
        "settings": settings,
        "rules": dict(kind.rules),
    }


def as_json(value: object) -> Json:
    if isinstance(value, tuple):
        return [as_json(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
