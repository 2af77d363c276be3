"""Secrets as files, the cluster's above all: made once, for nobody but its owner to read, and refused if others can.

It promises that a file which is there is whole (it gets its name when everything is in it), that one that is there is
never written over, and that a secret which others on the machine can read, or have made, is not used.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path

from coterie.errors import UserError

SECRET_BYTES = 32
SIZE_MAX = 4096
"""Bytes of a secret's file: more is some other file."""
MAKE_ONE = "make one with `coterie cluster init`"


def make_secret_file(path: Path) -> str:
    """Draw a secret and write it to a new file; gives the secret. Raises OSError: FileExistsError if there is one."""
    secret = secrets.token_hex(SECRET_BYTES)
    descriptor, draft = tempfile.mkstemp(prefix=".secret-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # fails if the name is taken, and nobody ever sees half a file under it
    finally:
        os.unlink(draft)
    return secret


def read_secret_file(path: Path, where: str) -> str:
    """The cluster's secret. `where` is the setting that names the file."""
    return read_private(path, where, f": {MAKE_ONE}")


def read_private(path: Path, where: str, remedy: str = "") -> str:
    """A secret of any kind: the file's text, without the line's end."""
    try:
        with path.open("rb") as file:
            check_private(os.fstat(file.fileno()), path, where)
            data = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise UserError(f"{where}: {path}: cannot be read: {error.strerror}{remedy}") from None
    try:
        secret = data.decode().strip()
    except UnicodeDecodeError:
        raise UserError(f"{where}: {path}: not UTF-8 text{remedy}") from None
    if len(data) > SIZE_MAX:
        raise UserError(f"{where}: {path}: over {SIZE_MAX} bytes, which no secret has{remedy}")
    if not secret:
        raise UserError(f"{where}: {path}: is empty{remedy}")
    return secret


def forbidden_bits(path: Path) -> int:
    """Of its mode. A credential of systemd is root's, with an access list that names the service's user: the bits of
    the group are the mask of that list, and no group's."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return 0o037 if folder and path.parent == Path(folder) else 0o077


def check_private(found: os.stat_result, path: Path, where: str) -> None:
    """Refuse a file that others than the node and root can read or change."""
    if found.st_uid not in (0, os.geteuid()):  # its owner may give rights to anybody, and write another secret
        raise UserError(f"{where}: {path}: it is another user's: chown it to the one that the node runs as")
    if stat.S_IMODE(found.st_mode) & forbidden_bits(path):
        raise UserError(f"{where}: {path}: others can read it: chmod 600 {path}")
