"""What a node is called if nobody says so: the same after each restart, as others, and an operator, know it by that."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from coterie.errors import UserError

FILE: Final = "node.name"
"""In the data folder."""
USUAL_PORT: Final = "5672"


def default_name(data: Path | None, amqp: str) -> str:
    """As it was called when its data was written, also if the host is called otherwise by now, as containers are; else
    after the host, and the port if that is not the usual one. Raises UserError if the file cannot be read."""
    if data is not None:
        try:
            kept = (data / FILE).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            kept = ""
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{data / FILE} does not say what the node is called: {error}; or set node.name") from None
        if kept:
            return kept
    host, port = socket.gethostname(), amqp.rpartition(":")[2]
    if port == "0":  # another one each time
        return f"{host}-{os.getpid()}"
    return host if port in ("", USUAL_PORT) else f"{host}-{port}"


def keep_name(data: Path, name: str) -> None:
    """For the next start. The folder is ours by now. Raises UserError if it cannot be written."""
    file, new = data / FILE, data / f"{FILE}.new"
    try:
        if not file.exists() or file.read_bytes() != f"{name}\n".encode():
            new.write_text(f"{name}\n", encoding="utf-8")
            new.replace(file)
    except (OSError, UnicodeEncodeError) as error:
        raise UserError(f"{file} cannot be written: {error}") from None
