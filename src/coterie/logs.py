"""The one way to log: an event in a few words and its facts, as one line of text or of JSON.

    from coterie.logs import Log

    log = Log(__name__)
    log.info("peer connected", peer=address, attempts=3)

Text: `2026-01-31T12:00:00.123Z INFO group.tcp: peer connected peer=b#1 attempts=3`; JSON: an object with time, level,
logger, event and the facts. Lines of a node carry its name: `... INFO node1 group.tcp: ...`, or the key `node`.
Loggers are children of the standard library's logger "coterie", so an application that embeds Coterie sets levels and
handlers as it is used to; the command line calls `setup`.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final, TextIO

from coterie.visible import LINES, json_text, visible

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
_FACTS: Final = "coterie_facts"


class Log:
    """One module's log. Facts are turned into text only if somebody listens."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **facts: object) -> None:
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, /, **facts: object) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, /, **facts: object) -> None:
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, /, **facts: object) -> None:
        self._write(logging.ERROR, event, facts)

    def _write(self, level: int, event: str, facts: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={_FACTS: facts}, stacklevel=3)


def setup(level: str = "info", format: str = "text", stream: TextIO | None = None, node: str = "") -> None:
    """Write Coterie's logs to `stream` (standard error). A second call replaces the first. `node`: whose they are, as
    those of several nodes may come together."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(node) if format == "json" else TextFormatter(node))
    root = logging.getLogger("coterie")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


class TextFormatter(logging.Formatter):
    """For people: time, level, whose, where, what, and the facts as key=value."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = f"{_word(node)} " if node else ""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {name}={_word(value)}" for name, value in facts_of(record).items())
        event = _one_line(record.getMessage())
        where = record.name.removeprefix("coterie.")
        return f"{_time(record)} {record.levelname} {self._node}{where}: {event}{facts}{self._trouble(record)}"

    def _trouble(self, record: logging.LogRecord) -> str:
        return "\n" + visible(self.formatException(record.exc_info), LINES) if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """For machines: one object a line."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = {"node": node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._node,
        }
        for name, value in facts_of(record).items():
            # A fact never hides one of the keys that every line has.
            simple = value is None or isinstance(value, str | int | float | list | dict)
            line[f"{name}_" if name in line else name] = value if simple else str(value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_text(line)


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    facts = getattr(record, _FACTS, None)
    return facts if isinstance(facts, dict) else {}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _word(value: object) -> str:
    """A value that stays one word of one line, whatever a peer put into it."""
    text = str(value)
    return json_text(text) if not text.isprintable() or " " in text or '"' in text else text


def _one_line(text: str) -> str:
    return text if text.isprintable() else json_text(text)[1:-1]
