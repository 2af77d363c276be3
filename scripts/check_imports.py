"""Imports between packages go one way: `make lint` fails where one goes up.

ORDER lists the packages from the bottom to the top. A module may import from its own package and from those before it;
imports for type checkers count as well. What serves never loads what proves it (simulator, audit, benchmarks, demo).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SOURCES: Final = Path(__file__).parent.parent / "src" / "coterie"
ORDER: Final = (
    # Small modules that anything may need.
    "errors", "visible", "logs", "settings", "durations", "patterns", "addresses", "secret_file", "extras", "crowd",
    "trace", "workers", "plot", "plot_bars",
    # What serves.
    "runtime", "group", "blocks", "amqp.wire", "log", "auditlog", "broker", "site_replication", "oauth", "cluster",
    "amqp", "streams", "reader", "console", "node", "config", "testing", "pytest_plugin",
    # What proves it, and the pipeline.
    "audit", "sim", "spark", "demo", "bench", "cli", "__main__",
)  # fmt: skip
VERSION: Final = "__version__"
"""What the package itself has."""
PARTS: Final = ("amqp.wire",)
"""Packages within packages that have a place of their own."""


class Import(NamedTuple):
    file: Path
    line: int
    importer: str
    imported: str


def package_of(module: str) -> str:
    """Of a module below `coterie`; nothing: the package itself, which has the version only."""
    for part in PARTS:
        if module == part or module.startswith(part + "."):
            return part
    return module.partition(".")[0]


def imports_of(file: Path) -> Iterator[Import]:
    """Of other packages."""
    importer = package_of(".".join(file.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"))
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            head, _, module = name.partition(".")
            imported = package_of(module) if head == "coterie" else ""
            if imported not in ("", VERSION, importer):
                yield Import(file, node.lineno, importer, imported)


def main() -> int:
    rank = {package: at for at, package in enumerate(ORDER)}
    problems: list[str] = []
    for file in sorted(SOURCES.rglob("*.py")):
        for found in imports_of(file):
            where = f"{file.relative_to(SOURCES.parent.parent)}:{found.line}"
            unknown = next((each for each in (found.importer, found.imported) if each not in rank), None)
            if unknown is not None:
                problems.append(f"{where}: {unknown} has no place in ORDER (scripts/check_imports.py)")
            elif rank[found.imported] > rank[found.importer]:
                problems.append(f"{where}: {found.importer} imports {found.imported}, which stands above it")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
