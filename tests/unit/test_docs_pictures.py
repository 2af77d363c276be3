"""The pictures of the documentation: each is shown somewhere, and small."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SIZE_MAX = 150 << 10


def test_every_picture_of_the_console_is_shown_and_small() -> None:
    shown = re.findall(r"\]\(img/(console-\S+\.png)\)", (DOCS / "console.md").read_text())
    pictures = {path.name: path.stat().st_size for path in (DOCS / "img").glob("console-*.png")}
    assert {*shown} == {*pictures}
    assert {name: size for name, size in pictures.items() if size > SIZE_MAX} == {}
