"""A disk whose syncs hang for as long as one likes: a shim that is preloaded into a broker's process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("hanging_sync.c")


class HangingSync:
    """Of one process. `folder` has the shim, and the file that holds syncs up."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hang"
        self._shim = folder / "hanging_sync.so"
        folder.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler is not None, "a C compiler is needed to hold syncs up"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self._shim, SOURCE, "-ldl"], check=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process is to be started with."""
        return {**os.environ, "LD_PRELOAD": str(self._shim), "COTERIE_HANG": str(self._file)}

    def hang(self) -> None:
        self._file.touch()

    def go_on(self) -> None:
        self._file.unlink(missing_ok=True)
