"""Settings: a dataclass whose fields carry a default, a unit and a sentence, read from TOML, flags or the environment.

The same declaration gives the check of a value, the error when it is wrong, `--help` and the settings reference.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from coterie.errors import UserError

S = TypeVar("S")


def setting(
    default: Any,
    help: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    choices: tuple[str, ...] = (),
    hidden: bool = False,
    private: bool = False,
    shared: bool = False,
) -> Any:
    """A field of a settings dataclass. Lists are given as tuples. A hidden one's value is never shown. A private one is
    hidden and has no flag, as every user of a machine sees command lines, and a file that holds it must be private. A
    shared one must be the same on all brokers of a cluster (cluster/shared_settings.py)."""
    if shared:
        help = f"{help.rstrip('.')}; the same on every broker of a cluster"
    meta = {
        "help": help, "unit": unit, "minimum": minimum, "choices": choices, "private": private, "shared": shared,
    }  # fmt: skip
    return field(default=default, metadata=meta, repr=not (hidden or private))


@dataclass(frozen=True, slots=True)
class Described:
    """One setting, as documentation shows it."""

    name: str
    default: object
    unit: str
    help: str
    private: bool
    shared: bool


def describe(kind: type) -> Iterator[Described]:
    for item in fields(kind):
        meta = item.metadata
        default = None if item.default is MISSING else item.default
        yield Described(item.name, default, meta["unit"], meta["help"], meta["private"], meta["shared"])


def shared_values(**sections: object) -> dict[str, str | int | float]:
    """Those of a broker that all brokers of its cluster must share, as `section.name`."""
    return {
        f"{section}.{item.name}": getattr(settings, item.name)
        for section, settings in sections.items()
        for item in describe(type(settings))
        if item.shared
    }


def load(kind: type[S], values: Mapping[str, object], where: str) -> S:
    """Make a settings object. `where` names the place that a user would have to correct."""
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    checked: dict[str, object] = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{where}: there is no setting '{name}'{suggest(name, known)}")
        checked[name] = _check(hints[name], value, known[name], f"{where}: {name}")
    return kind(**checked)


def suggest(word: str, known: typing.Iterable[str]) -> str:
    """The tail of an error about an unknown word: what was probably meant, or what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1)
    return f" (did you mean '{close[0]}'?)" if close else f" (there are: {', '.join(names) or 'none'})"


def _check(kind: Any, value: object, item: Field[Any], where: str) -> object:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union) and type(None) in args:
        if value is None:
            return None
        (kind,) = [arg for arg in args if arg is not type(None)]
        origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, not {value!r}")
        return tuple(_scalar(args[0], entry, item, where) for entry in value)
    return _scalar(kind, value, item, where)


def _scalar(kind: Any, value: object, item: Field[Any], where: str) -> object:
    if isinstance(value, str) and kind is not str:  # flags and the environment give text
        value = _parse(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise UserError(f"{where} must be {_WORDS[kind]}" + (f", not {value!r}" if item.repr else ""))
    minimum, choices = item.metadata["minimum"], item.metadata["choices"]
    if minimum is not None and not typing.cast(float, value) >= minimum:  # so that NaN is refused too
        raise UserError(f"{where} must be at least {minimum:g}, not {value!r}")
    if choices and value not in choices:
        raise UserError(f"{where} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _parse(kind: Any, text: str, where: str) -> object:
    try:
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        raise UserError(f"{where} must be {_WORDS[kind]}, not '{text}'") from None


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
