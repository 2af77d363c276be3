"""What went wrong in Spark, in one line: the line that a person would look for in the traceback of a task, in the
report of an aborted job or in the log of a JVM that did not start."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from coterie.errors import UserError

MISSING = "No module named 'coterie'"
NOT_INSTALLED = (
    "a stream needs Coterie installed in the Python of Spark's driver (through Spark Connect: in that of the server, "
    "PYSPARK_PYTHON there): Spark sends packages to tasks, but not to what its driver runs"
)
LINE_MAX = 400
NOTE_MAX = 20_000
LINES_MAX = 1_000
READ_MAX = 4_096

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
    if MISSING in text:
        return NOT_INSTALLED
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


class Log:
    """What a JVM prints: the last of it is kept, and all of it goes to a file if there is one."""

    def __init__(self, file: Path | None) -> None:
        try:
            self._file = file.open("ab") if file is not None else None
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}") from None
        self._kept: deque[str] = deque(maxlen=LINES_MAX)
        self._reader: threading.Thread | None = None

    def follow(self, pipe: IO[bytes]) -> None:
        """Read that until it ends."""
        self._reader = threading.Thread(target=self._read, args=(pipe,), name="coterie-spark-log", daemon=True)
        self._reader.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe, self._file or nullcontext():
            for line in iter(lambda: pipe.readline(READ_MAX), b""):
                self._kept.append(line.decode(errors="replace").strip())
                if self._file is not None:
                    with suppress(OSError):  # a full disk is no reason to let the JVM wait
                        self._file.write(line)
                        self._file.flush()

    def close(self) -> None:
        """Wait a moment for the last lines."""
        if self._reader is not None:
            self._reader.join(1)

    def complaint(self) -> str:
        """The first line that tells why it went wrong; empty if none does."""
        self.close()
        telling = (line for line in tuple(self._kept) if _TELLING.search(line) and not _EMPTY.search(line))
        return _cut(_LOGGED.sub("", next(telling, "")))


def _cut(line: str) -> str:
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 4] + " ..."
