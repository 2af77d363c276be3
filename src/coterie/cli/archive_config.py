"""What `coterie archive` and `coterie replay` are told: by flags, or by one TOML file, where flags win.

They run for as long as there are messages, and a command line is for everybody on the machine to read: a password in it
is refused, and so is one in a file that others can read.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from coterie.cli.remote import PASSWORD, has_password
from coterie.errors import UserError
from coterie.secret_file import check_private
from coterie.spark.options import Login, Options

T = TypeVar("T")
TABLES: Final = ("compact", "source", "sink", "catalog", "spark")
"""Names with values, which are handed on as they are; `compact` is the command's own."""
SECRET: Final = re.compile(r"(?i)secret|password(?!File$)|token|access[._-]?key|credential")
"""Names of values that are secrets: as Spark's own, and of object stores and catalogs."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(|k|m|g)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Told:
    """A config file with the flags of the command line over it. Raises UserError."""

    def __init__(self, options: argparse.Namespace, known: Mapping[str, type]) -> None:
        """`known`: keys of the file, with what each is; a flag of the same name wins."""
        if has_password(getattr(options, "url", "")):
            raise UserError(
                "--url: a password on a command line can be read by everybody on this machine: leave it out there, and "
                f"put it into {PASSWORD}, or into a file: passwordFile in the file of --config"
            )
        self._options, self._file = options, options.config
        self._read: dict[str, Any] = {} if options.config is None else _load(Path(options.config))
        for key, value in self._read.items():
            if key in TABLES:
                self._check(isinstance(value, dict), key, "a table")
            elif key not in known:
                raise UserError(f"{self._file}: there is no '{key}'; there are: {', '.join((*sorted(known), *TABLES))}")
            else:
                kind = known[key]
                self._check(type(value) is kind or (kind is str and type(value) in (int, float)), key, _KINDS[kind])
        if held := self._secret():
            check_private(os.stat(self._file), Path(self._file), f"--config holds a secret, {held}")

    def _secret(self) -> str:
        """The name of one that the file holds; nothing: it holds none."""
        if has_password(str(self._read.get("url", ""))):
            return "in url"
        named = [f"[{table}] {name}" for table in TABLES for name in self._read.get(table, {}) if SECRET.search(name)]
        return named[0] if named else ""

    def _check(self, fine: bool, key: str, what: str) -> None:
        if not fine:
            raise UserError(f"{self._file}: {key} is to be {what}")

    def get(self, key: str) -> Any:
        """None: nobody has said."""
        given = getattr(self._options, key, None)
        return self._read.get(key) if given is None or given is False else given

    def text(self, key: str, default: str = "") -> str:
        found = self.get(key)
        return default if found is None else str(found)

    def need(self, key: str, what: str) -> str:
        found = self.text(key)
        if not found:
            raise UserError(f"{what} is missing: name it on the command line, or as {key} in the file of --config")
        return found

    def seconds(self, key: str, default: str) -> float:
        return self._asked(key, lambda options: options.seconds(key, default))

    def whole(self, key: str, default: int, least: int = 1) -> int:
        return self._asked(key, lambda options: options.whole(key, default, least))

    def _asked(self, key: str, ask: Callable[[Options], T]) -> T:
        found = self.get(key)
        try:
            return ask(Options({} if found is None else {key: str(found)}, (key,)))
        except UserError as error:
            raise UserError(str(error).replace("option ", "--", 1).replace("_", "-")) from None

    def environment(self, key: str) -> Mapping[str, str]:
        """That of this process, with the password that the table has, or names the file of."""
        given = Options(self.table(key), self.table(key))
        found = Login("", given.text("password"), given.text("passwordFile"))
        return {**os.environ, PASSWORD: found.secret()} if found.password or found.password_file else os.environ

    def table(self, key: str) -> dict[str, str]:
        """Values as Spark writes them."""
        return {name: _text(value) for name, value in self._read.get(key, {}).items()}


_KINDS: Final[Mapping[type, str]] = {str: "a text", bool: "true or false", int: "a whole number", list: "a list"}


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise UserError(f"--config {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--config {file}: {error}") from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def size(name: str, text: str) -> int:
    """As 64MB or 134217728."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UserError(f"{name}: a size is due, as 64MB, not '{text}'")
    return int(float(found[1]) * _UNITS[found[2].lower()])
