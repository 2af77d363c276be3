"""A folder of data files, by a path or by the URL of any file system that `spark.places` opens.

Names are relative to the folder, with slashes. What is written whole is seen whole or not at all: by a rename on this
machine; object stores do so by themselves.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from coterie.errors import UserError
from coterie.spark import places


@dataclass(frozen=True, slots=True)
class Seen:
    """A file that is there."""

    bytes: int
    modified: float
    """Seconds since 1970; 0 where the file system does not say."""


class Place:
    """One folder, which need not be there yet."""

    def __init__(self, url: str) -> None:
        self.remote = places.is_remote(url)
        if self.remote and "?" in url:
            raise UserError(f"{places.shown(url)}: options of a file system go by its environment variables here")
        self.url = url.rstrip("/") if self.remote else str(Path(url.removeprefix("file://")).absolute())
        # What Hadoop calls S3 since its third attempt.
        self.system, root = places.system_of(re.sub("^s3[an]:", "s3:", self.url))
        self.root = root.rstrip("/")

    def __str__(self) -> str:
        return places.shown(self.url)

    def path(self, name: str) -> str:
        """For `system`."""
        return f"{self.root}/{name}" if name else self.root

    def uri(self, name: str) -> str:
        """As Spark, Delta and Iceberg write it."""
        return f"{self.url}/{name}" if self.remote else f"file://{quote(self.path(name))}"

    def name(self, uri: str) -> str:
        """The opposite of `uri`."""
        if self.remote:
            return uri.removeprefix(f"{self.url}/")
        path = PurePosixPath(unquote(urlsplit(uri).path) if uri.startswith("file:") else uri)
        if not path.is_relative_to(self.root):
            raise UserError(f"{self}: its files are said to be elsewhere, as {path}: was the folder moved?")
        return str(path.relative_to(self.root))

    def files(self, under: str = "") -> dict[str, Seen]:
        """All files below, by name."""
        try:
            inside = self.system.get_file_info(fs.FileSelector(self.path(under), recursive=True, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{self}: cannot be read: {error}") from None
        return {
            each.path[len(self.root) + 1 :]: Seen(each.size, (each.mtime_ns or 0) / 1e9)
            for each in inside
            if each.type == fs.FileType.File
        }

    def names(self) -> set[str]:
        """What is in the folder itself."""
        return places.names(self.url)

    def read(self, name: str) -> bytes:
        with self.system.open_input_stream(self.path(name)) as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        path = PurePosixPath(self.path(name))
        self.system.create_dir(str(path.parent))
        fresh = path if self.remote else path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.new")
        with self.system.open_output_stream(str(fresh)) as file:
            file.write(data)
        if fresh != path:
            self.system.move(str(fresh), str(path))

    def delete(self, name: str) -> None:
        """If it is there."""
        try:
            self.system.delete_file(self.path(name))
        except FileNotFoundError:
            return
