"""The data folder of a node that does not run: opened as a start would, to look at it or to change it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from coterie.auditlog.files import AuditFiles
from coterie.auditlog.log import DONE, AuditLog
from coterie.auditlog.settings import AuditSettings
from coterie.broker.log_store import StoreSettings
from coterie.broker.log_store.offline import OfflineStore
from coterie.errors import UserError
from coterie.node.naming import FILE
from coterie.node.node import AUDIT_FOLDER, lock
from coterie.runtime.aio import AioRuntime

STORE: Final = "log"
"""In the data folder."""


@asynccontextmanager
async def stopped_node(
    folder: Path, settings: StoreSettings, change: bool = False, store: str = STORE
) -> AsyncIterator[tuple[AioRuntime, OfflineStore]]:
    """Its store; without `change` nothing of it is touched. No node can start meanwhile. Raises UserError if one runs,
    or if there is no store, and DiskError."""
    held = hold(folder)
    try:
        runtime = AioRuntime("offline", disk_dir=folder, read_only=not change)
        try:
            opened = await OfflineStore.open(runtime, settings, store)
            yield runtime, opened
            await opened.close()
        finally:
            await runtime.close()
    finally:
        os.close(held)


def hold(folder: Path) -> int:
    """Nobody else uses it until that descriptor is closed. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder: name the data folder of a node")
    if not any(each.name.startswith((STORE, "store")) for each in folder.iterdir()):
        raise UserError(f"{folder}: there is no store in it: name the data folder of a node")
    try:
        return lock(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be locked: {error.strerror}: run this as the user that runs the node"
        ) from None


def name_of(folder: Path) -> str:
    """Of the node whose folder it is. Raises UserError."""
    try:
        name = (folder / FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder / FILE} does not say whose folder this is: {error}") from None
    if not name:
        raise UserError(f"{folder / FILE} does not say whose folder this is: it is empty")
    return name


def audit(
    folder: Path, settings: AuditSettings, group: str, name: str, action: str, told: Mapping[str, object]
) -> None:
    """A line in the audit log of that node, by whoever runs this command. Raises UserError if it cannot be written."""
    inc = int(time.time() * 1000)
    where = Path(settings.folder) if settings.folder else folder / AUDIT_FOLDER
    files = AuditFiles(where, name, inc, settings.segment_bytes, settings.segments_kept)
    log = AuditLog(group, name, inc, time.monotonic, time.time, settings)
    log.sinks.append(files)
    log.record(action, _user(), "", "node", DONE, "", **told)
    lost = log.lost
    log.close()
    files.close()
    if lost:
        raise UserError(f"{where}: the audit log cannot be written to")


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return str(os.getuid())
