"""The log's last lines, kept in a ring, so that the page can show what happened."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from coterie.logs import facts_of

FACT_MAX = 500
"""Characters that are kept of a fact, or of what happened."""
FACTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """From 1; given once."""
    time: float
    """By the wall clock."""
    level: str
    logger: str
    event: str
    facts: dict[str, str]


class Logbook(logging.Handler):
    """Hears what Coterie's loggers say, once it is opened, until it is closed."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self._lines: deque[Line] = deque(maxlen=kept)
        self.last = 0
        """The number of the last line."""

    def open(self) -> None:
        logging.getLogger("coterie").addHandler(self)

    def close(self) -> None:
        logging.getLogger("coterie").removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        self.last += 1
        facts = {
            str(name)[:FACT_MAX]: _text(value)[:FACT_MAX] for name, value in list(facts_of(record).items())[:FACTS_MAX]
        }
        event, logger = record.getMessage()[:FACT_MAX], record.name.removeprefix("coterie.")
        self._lines.append(Line(self.last, record.created, record.levelname.lower(), logger, event, facts))

    def after(self, number: int) -> Iterator[Line]:
        """Those that are kept and came later, the oldest first."""
        return (line for line in list(self._lines) if line.number > number)


def _text(value: object) -> str:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)
