"""What went wrong in Spark, in one line: the line that a person would look for in the traceback of a task, in the
report of an aborted job or in the log of a JVM that did not start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UserError

LINE_MAX = 400
NOTE_MAX = 20_000
READ_MAX = 1024 * 1024

_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit|Warning)(?:: .*)?)$", re.MULTILINE)
_TELLING = re.compile(r"Exception|Error|ERROR|[Ii]nvalid|Conflicting|[Cc]ould not|[Cc]annot")
_EMPTY = re.compile(r"^Setting |initialization of VM|Could not create the Java|A fatal exception has occurred")
_LOGGED = re.compile(r"^\S+ \S+ ERROR \w+: ")
_NOISE = re.compile(r" SQLSTATE: \w+$|^An error occurred while calling .*$|^: (?=\S)|^org\.apache\.spark\.(?:\w+\.)*")


@contextmanager
def reported(master: str) -> Iterator[None]:
    """Whatever Spark complains of in the block is a UserError of one line, and all of it is that error's note."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        told = UserError(f"Spark at {shown(master)}: {explain(error)}")
        told.add_note(_text(error)[:NOTE_MAX])  # as text: what Py4J raises cannot be read once the JVM is gone
        raise told from error


def explain(error: BaseException) -> str:
    """One line about it."""
    text = _text(error)
    if "Traceback (most recent call last)" in text:  # a task failed in Python: the last line of its traceback
        python = text.split("\n\tat ")[0]
        if raised := _RAISED.findall(python):
            return _cut(re.sub(r"^UserError: ", "", raised[-1]))
    lines = (_NOISE.sub("", line).strip() for line in text.splitlines())
    return _cut(next((line for line in lines if line), type(error).__name__))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # Py4J asks the JVM, which may be gone
        return ""


def shown(master: str) -> str:
    """A master's address as it may be printed: what follows a Spark Connect server's may be a password."""
    return master.partition("/;")[0]


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a JVM."""

    path: Path
    since: int
    """Size that the file had before: what was written earlier is not about us."""

    def complaint(self) -> str:
        """The first line that tells why it went wrong; empty if none does."""
        with self.path.open("rb") as file:
            file.seek(self.since)
            lines = [line.strip() for line in file.read(READ_MAX).decode(errors="replace").splitlines()]
        telling = (line for line in lines if _TELLING.search(line) and not _EMPTY.search(line))
        return _cut(_LOGGED.sub("", next(telling, "")))


def _cut(line: str) -> str:
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 4] + " ..."
