"""This package as a zip file, for executors that do not have it installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import coterie


def packed(folder: Path) -> Path:
    """Write the package, as it runs here, to a zip file in `folder`. Executors prefer it to one they have installed."""
    home = Path(coterie.__file__).parent
    out = folder / "coterie.zip"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for file in sorted(home.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path(home.name) / file.relative_to(home))
    return out
