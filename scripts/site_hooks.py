"""What mkdocs does not do by itself to make a site of docs/.

Pages link to files outside of docs/ (the README, examples, sources), as they must where they are read in the
repository. Here each such file becomes a page of the site, and links to it lead there: the site is complete without a
network. Links to a folder lead to its README. And one page is written from the code: every protocol's messages and
rules.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "src"))

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
NAMED = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
"""Files of the repository's root and the pages that they are."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".service": "ini"}
REFERENCE = "protocols/reference.md"


def page_of(file: Path) -> str:
    """The page that a file is: its place among the site's sources."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    place = file.relative_to(ROOT).as_posix()
    if place in NAMED:
        return NAMED[place]
    return place if place.endswith(".md") else f"source/{place}.md"


def target_of(source: Path, link: str) -> tuple[Path, str] | None:
    """The file that a link of a source means, and the anchor in it; None: it is none of ours."""
    path, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link) or not path:
        return None
    target = Path(os.path.normpath(source.parent / path))
    if target.is_dir():
        target /= "README.md"
    return target, anchor


def relinked(text: str, source: Path) -> str:
    """The same page, with links that lead to pages of the site."""

    def new(match: re.Match[str]) -> str:
        found = target_of(source, match[2])
        if found is None:
            return match[0]
        target, anchor = found
        page = posixpath.relpath(page_of(target), posixpath.dirname(page_of(source)) or ".")
        return f"{match[1]}{page}{'#' + anchor if anchor else ''}{match[3]}"

    parts = CODE.split(text)
    return "".join(part if number % 2 else LINK.sub(new, part) for number, part in enumerate(parts))


def outside() -> list[Path]:
    """Every file outside of docs/ that pages lead to, and that those lead to."""
    found: dict[Path, None] = {}
    to_read = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in NAMED)]
    for page in to_read:
        if not page.is_relative_to(DOCS):
            found[page] = None
        if page.suffix != ".md":
            continue
        for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
            target = target_of(page, match[2])
            if target is None or target[0].is_relative_to(DOCS) or target[0] in found or not target[0].is_file():
                continue
            found[target[0]] = None
            to_read.append(target[0])
    return list(found)


def text_of(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    place = file.relative_to(ROOT).as_posix()
    return f"# {place}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n````\n"


def reference() -> str:
    """Every protocol as the code has it."""
    from coterie.group.presets import REGISTRY

    lines = [
        "# Messages and rules",
        "",
        "Written from the code when the site is made: what each protocol says on the wire, and the rules of its "
        "design document, each of which is counted when it is exercised (`coterie sim run` tells which were). "
        "Settings: [settings.md](../settings.md).",
    ]
    for name, kind in sorted(REGISTRY.items()):
        lines += ["", f"## {name}", "", (inspect.getdoc(kind) or "").splitlines()[0], ""]
        facts = [("role", kind.role), ("needs below it", ", ".join(kind.needs_below)), ("number on the wire", kind.id)]
        lines += [f"- {what}: {value}" for what, value in facts if value != ""]
        messages = [message for message in kind.codec.messages if dataclasses.is_dataclass(message)]
        if messages:
            lines += ["", "| message | fields | says |", "|---|---|---|"]
            for message in messages:
                fields = ", ".join(f"`{each.name}`" for each in dataclasses.fields(message))
                lines.append(f"| {spelled(message)} | {fields} | {_row(inspect.getdoc(message) or '')} |")
        if kind.rules:
            lines += [
                "",
                "| rule | |",
                "|---|---|",
                *(f"| `{rule}` | {_row(text)} |" for rule, text in kind.rules.items()),
            ]
    return "\n".join(lines) + "\n"


def spelled(message: type) -> str:
    """As the design documents spell it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", message.__name__).upper()


def _row(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# What mkdocs calls.

_SOURCES: dict[str, Path] = {}
"""By page: the file that it is made of, if that is not in docs/."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Decisions come by their numbers, without being listed."""
    decisions = [
        "decisions/README.md",
        *(f"decisions/{each.name}" for each in sorted((DOCS / "decisions").glob("0*.md"))),
    ]
    for tab in config.nav or []:
        for pages in tab.values():
            for entry in pages:
                if entry == {"Decisions": "decisions/"}:
                    entry["Decisions"] = decisions
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for file in outside():
        page = page_of(file)
        _SOURCES[page] = file
        files.append(File.generated(config, page, content=text_of(file)))
    files.append(File.generated(config, REFERENCE, content=reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    if place.startswith("source/"):
        page.meta["search"] = {"exclude": True}  # they are reached by links
        return markdown
    return relinked(markdown, _SOURCES.get(place, DOCS / place))
