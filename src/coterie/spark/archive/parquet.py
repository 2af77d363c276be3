"""Parquet with the log that Spark's own file sink keeps: `_spark_metadata` says which files are the table's.

Where Spark reaches the folder its own sink writes files and log; elsewhere (an object store without the JVM's part for
it) tasks write the files and this writes the log, in the same form. Spark believes the log: it reads the batches that
are in it, each once. Whoever lists the folder instead sees, after a crash, what an unfinished batch has left, until
the archive goes on: orphans go first.

The log is a file for each batch, and every tenth has all that came before (`19.compact`). Small files are replaced by
writing the latest of those anew; batches behind it wait for the next. No query may run meanwhile: it would write the
next one from what it has read before.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from coterie.errors import UserError
from coterie.spark.archive.files import DATE, DataFile
from coterie.spark.archive.place import Place

if TYPE_CHECKING:
    import pyarrow as pa

LOG: Final = "_spark_metadata"
INTERVAL: Final = 10
"""Batches to one file of the log that has them all: Spark's default."""
VERSION: Final = "v1"
_BATCH: Final = re.compile(r"(\d+)(\.compact)?")
_DATE: Final = re.compile(rf"(?:.*/)?{DATE}=([^/]+)/[^/]+")


class Parquet:
    """The table in one folder. It is of one query: the log knows batches by their number alone."""

    def __init__(self, url: str) -> None:
        self.place = Place(url)

    def latest(self, query: str = "") -> int:
        return max((batch for batch, _ in self._log()), default=-1)

    def commit(self, query: str, batch: int, files: Sequence[DataFile], schema: pa.Schema) -> bool:
        if batch <= self.latest():
            return False
        now = round(time.time() * 1000)
        lines = [self._entry(each, now) for each in files]
        name = str(batch)
        if (batch + 1) % INTERVAL == 0:
            lines, name = [*self._lines(), *lines], f"{batch}.compact"
        self._write(name, lines)
        return True

    def files(self) -> list[DataFile]:
        """As far as the log's latest summary knows."""
        found = self._compact()
        return [] if found is None else [self._file(line) for line in self._read(found)]

    def readable(self) -> list[DataFile]:
        """All of them. A folder without a log is what is in it."""
        if self._log():
            return [self._file(line) for line in self._lines()]
        found = self.place.files()
        return [_data_file(path, found[path].bytes) for path in sorted(found) if _is_data(path)]

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        name = self._compact()
        assert name is not None, "these files are from there"
        now, gone = round(time.time() * 1000), {each.path for each in old}
        kept = [line for line in self._read(name) if self._file(line).path not in gone]
        self._write(name, [*kept, *(self._entry(each, now) for each in new)])
        for path in sorted(gone):
            self.place.delete(path)  # readers that do not know the log must not see the same rows twice
            self.place.delete(_sum_of(path))

    def clean(self, keep: float = 0.0) -> int:
        """Nothing is kept: a folder has no versions. Without a log it is nobody's, and nothing is deleted."""
        if not self._log():
            return 0
        ours = {self._file(line).path for line in self._lines()}
        ours |= {_sum_of(path) for path in ours}
        there = self.place.files()
        orphans = [path for path in sorted(there) if path not in ours and _DATE.fullmatch(path) and _is_data(path)]
        for path in orphans:
            self.place.delete(path)
        return len(orphans)

    # The log.

    def _log(self) -> list[tuple[int, str]]:
        """Batches and the names of their files, in order."""
        named = (_BATCH.fullmatch(path.rpartition("/")[2]) for path in self.place.files(LOG))
        return sorted((int(match[1]), match[0]) for match in named if match is not None)

    def _compact(self) -> str | None:
        return next((name for _, name in reversed(self._log()) if name.endswith(".compact")), None)

    def _lines(self) -> Iterator[str]:
        log, summary = self._log(), self._compact()
        first = -1 if summary is None else int(summary.partition(".")[0])
        for batch, name in log:
            if batch > first or name == summary:
                yield from self._read(name)

    def _read(self, name: str) -> list[str]:
        version, *lines = self.place.read(f"{LOG}/{name}").decode().splitlines()
        if version != VERSION:
            raise UserError(f"{self.place}/{LOG}/{name}: its form '{version}' is not known: is it another Spark's?")
        return [line for line in lines if line]

    def _write(self, name: str, lines: Sequence[str]) -> None:
        self.place.delete(f"{LOG}/.{name}.crc")  # the sum of what was there before, as Hadoop's local files have it
        self.place.write(f"{LOG}/{name}", "\n".join([VERSION, *lines]).encode())

    def _file(self, line: str) -> DataFile:
        entry = json.loads(line)
        return _data_file(self.place.name(entry["path"]), entry["size"])

    def _entry(self, file: DataFile, now: int) -> str:
        return json.dumps({
            "path": self.place.uri(file.path), "size": file.bytes, "isDir": False, "modificationTime": now,
            "blockReplication": 1, "blockSize": 32 << 20, "action": "add",
        }, separators=(",", ":"))  # fmt: skip


def _data_file(path: str, size: int) -> DataFile:
    match = _DATE.fullmatch(path)
    return DataFile(path, match[1] if match else "", size)


def _sum_of(path: str) -> str:
    """Of a file that Spark wrote on this machine: the file beside it, with its checksum."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def _is_data(path: str) -> bool:
    """Of the table, and not of what lies beside it."""
    return path.endswith((".parquet", ".parquet.crc")) and not any(part.startswith("_") for part in path.split("/"))
