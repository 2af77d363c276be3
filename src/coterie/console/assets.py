"""The page's own files: read once, from the package, and served with a tag, so that a browser fetches each once."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

from coterie.console.ask import not_found

TYPES: Final = {
    "html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml",
}  # fmt: skip
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Scripts and styles come from files of ours alone; and no text ever becomes markup, whoever wrote it."""
PAGE: Final = "index.html"


class Assets:
    """By their paths under /static/; the page itself is at /."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[bytes, str, str]] = {}
        self._read(files("coterie.console").joinpath("static"), "")

    def _read(self, folder: Traversable, prefix: str) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                self._read(each, f"{prefix}{each.name}/")
            elif (kind := TYPES.get(each.name.rpartition(".")[2])) is not None:
                content = each.read_bytes()
                self._found[f"{prefix}{each.name}"] = content, f'"{hashlib.sha256(content).hexdigest()[:20]}"', kind

    @property
    def names(self) -> list[str]:
        return sorted(self._found)

    async def page(self, request: web.Request) -> web.StreamResponse:
        return self._answer(request, PAGE)

    async def file(self, request: web.Request) -> web.StreamResponse:
        return self._answer(request, request.match_info["path"])

    def _answer(self, request: web.Request, path: str) -> web.Response:
        found = self._found.get(path)
        if found is None:
            raise not_found()
        content, tag, kind = found
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        if names_tag(request, tag):
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, headers=headers, content_type=kind, charset="utf-8")


def names_tag(request: web.Request, tag: str) -> bool:
    """Whether who asks has it already."""
    return tag in (each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(","))
