"""Files wherever they are: on this machine by a path, elsewhere by a URL (s3://, gs://, hdfs://, abfs://, ...).

Arrow knows the usual file systems by itself; for any other scheme fsspec is asked, where it is installed. Executors
open what they read by themselves, so they need the same rights as the driver: mostly environment variables, or a role.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

import pyarrow as pa
import pyarrow.fs as fs

from coterie.errors import UserError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://.*")
BUFFER: Final = 1 << 20
"""Bytes that are fetched together."""


def is_remote(text: str) -> bool:
    found = _URL.fullmatch(text)
    return found is not None and found[1] != "file"


def shown(url: str) -> str:
    """Without what may be a secret."""
    if not is_remote(url):
        return url
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


def system_of(url: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URL, and the path there. Raises UserError."""
    try:
        system, path = fs.FileSystem.from_uri(url)
        return system, path
    except (pa.ArrowException, OSError, ValueError) as error:
        why = error
    try:
        import fsspec
    except ModuleNotFoundError:
        raise UserError(f"{shown(url)}: {why}; for other file systems: pip install fsspec, and what it needs") from None
    try:
        found, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"{shown(url)}: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


def find(url: str, suffixes: tuple[str, ...]) -> dict[str, int]:
    """Files behind the URL of a file, or of a folder (all below whose names end so), with their sizes; by name."""
    system, path = system_of(url)
    try:
        about = system.get_file_info(path)
        if about.type == fs.FileType.File:
            return {url: about.size}
        inside = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{shown(url)}: cannot be read: {error}") from None
    base, query = url.partition("?")[::2]
    root = PurePosixPath(path)
    found = {
        f"{base.rstrip('/')}/{PurePosixPath(each.path).relative_to(root)}{'?' if query else ''}{query}": each.size
        for each in inside
        if each.type == fs.FileType.File and each.path.endswith(suffixes)
    }
    if not found:
        raise UserError(f"{shown(url)}: no {' or '.join(f'*{suffix}' for suffix in suffixes)} file there")
    return dict(sorted(found.items()))


@contextmanager
def opened(file: str) -> Iterator[IO[bytes]]:
    """To be read, from any place of it. Raises OSError."""
    if not is_remote(file):
        with open(file, "rb") as local:
            yield local
        return
    system, path = system_of(file)
    with system.open_input_file(path) as remote, io.BufferedReader(remote, BUFFER) as buffered:
        yield buffered


def size_of(file: str) -> int:
    """Raises OSError, also if it cannot be read."""
    if is_remote(file):
        system, path = system_of(file)
        return int(system.get_file_info(path).size)
    with open(file, "rb"):
        return Path(file).stat().st_size


def names(url: str) -> set[str]:
    """What is in a folder; nothing, if there is no such folder. Raises UserError."""
    system, path = system_of(url)
    try:
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{shown(url)}: cannot be read: {error}") from None
    return {each.base_name for each in found}


def send(folder: Path, url: str) -> None:
    """What is in a folder of this machine, instead of whatever is in that one. Raises UserError."""
    system, path = system_of(url)
    try:
        system.create_dir(path)
        system.delete_dir_contents(path)
        fs.copy_files(str(folder), path, source_filesystem=fs.LocalFileSystem(), destination_filesystem=system)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{shown(url)}: cannot be written: {error}") from None
