"""Where backups are: a folder, or what fsspec knows by a URL. A file is there as a whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from coterie.errors import CoterieError, UserError


class Target(Protocol):
    """By relative names with slashes. Everything raises CoterieError."""

    where: str

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""

    def write(self, name: str, data: bytes) -> None:
        """Durable when it returns."""

    def size(self, name: str) -> int | None:
        """None: there is no such file."""

    def list(self, folder: str) -> list[str]:
        """Names in that folder, without it, sorted."""


def target_of(text: str) -> Target:
    """Raises UserError."""
    if "://" not in text:
        return FolderTarget(Path(text).absolute())
    try:
        import fsspec
    except ModuleNotFoundError:
        raise UserError(
            f"{text}: a URL needs fsspec: pip install 'coterie[backup]', and what it says it needs for such a URL "
            "(s3fs for s3://, gcsfs for gs://, adlfs for abfs://); a folder needs nothing"
        ) from None
    try:
        files, path = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"{text}: {error}") from None
    return UrlTarget(text, files, path)


class FolderTarget:
    """On this machine, or mounted on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.where = str(path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed(self.where, name, "read", error) from None

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
            for folder in (path.parent, path.parent.parent):
                _sync(folder)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _failed(self.where, name, "written", error) from None

    def size(self, name: str) -> int | None:
        try:
            return (self._path / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed(self.where, name, "read", error) from None

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(each.name for each in (self._path / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _failed(self.where, folder, "listed", error) from None


class UrlTarget:
    """Object stores show a file when it is whole; where others do not, the checksums tell."""

    def __init__(self, where: str, files: Any, path: str) -> None:
        self.where = where
        self._files = files
        self._path = path.rstrip("/")

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None
        except Exception as error:  # each implementation raises what its library does
            raise _failed(self.where, name, "read", error) from None

    def write(self, name: str, data: bytes) -> None:
        try:
            self._files.makedirs(f"{self._path}/{name.rpartition('/')[0]}", exist_ok=True)
            self._files.pipe_file(f"{self._path}/{name}", data)
        except Exception as error:
            raise _failed(self.where, name, "written", error) from None

    def size(self, name: str) -> int | None:
        try:
            return int(self._files.size(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _failed(self.where, name, "read", error) from None

    def list(self, folder: str) -> list[str]:
        try:
            self._files.invalidate_cache()
            found = self._files.ls(f"{self._path}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise _failed(self.where, folder, "listed", error) from None
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)


def _failed(where: str, name: str, what: str, error: Exception) -> CoterieError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return CoterieError(f"{where}: {name} cannot be {what}: {why}")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
