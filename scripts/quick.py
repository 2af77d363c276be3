"""A first answer in a minute and a half: lint, types, the unit tests of what changed, and a sample of seeds.

python scripts/quick.py [--base REV] [--seconds S]

What changed is what differs from REV (default: the last commit; if nothing does, the last commit itself), untracked
files too. Its tests are those of tests/unit that have changed or import a module that has, those that import the fewest
other modules first, until the time is over; a line says what was left out. `make test` runs everything.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PROFILES = {
    "channel": ("runtime", "group"),
    "vs": ("runtime", "group"),
    "total": ("runtime", "group"),
    "broker": ("runtime", "log", "broker", "amqp"),
    "cluster": ("runtime", "group", "log", "broker", "cluster", "amqp"),
}
"""Which profiles of the simulator run which packages."""
SEEDS = {"channel": 10, "vs": 10, "total": 10, "broker": 10, "cluster": 4}
BATCH = 6
"""Test files that are run at a time: between batches the clock is looked at."""


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def changed(base: str) -> list[Path]:
    """Python files that differ from `base`, and exist."""
    names = {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(Path(name) for name in names if name.endswith(".py") and (ROOT / name).exists())


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Modules that a file names in its imports, and what it takes from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def tests_of(files: Iterable[Path]) -> list[Path]:
    """Unit tests that have changed, then those that import what has, the narrowest first."""
    files = [*files]
    modules = {module_of(path) for path in files if path.parts[:2] == ("src", "coterie")}
    rigs = {path.stem for path in files if path.parts[:2] == ("tests", "unit") and not path.stem.startswith("test_")}
    own = [path for path in files if path.parts[:2] == ("tests", "unit") and path.stem.startswith("test_")]
    others: list[tuple[int, Path]] = []
    for path in sorted((ROOT / "tests" / "unit").glob("test_*.py")):
        imports = imports_of(path)
        if imports & (modules | rigs) and path.relative_to(ROOT) not in own:
            others.append((len(imports), path.relative_to(ROOT)))
    return own + [path for _, path in sorted(others)]


def run(what: str, *command: str) -> bool:
    began = time.monotonic()
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"quick: {what}: {'good' if not done.returncode else 'failed'}, {time.monotonic() - began:.1f} s", flush=True)
    if done.returncode:
        print(done.stdout + done.stderr)
    return not done.returncode


def lint() -> bool:
    return (
        run("ruff check", "ruff", "check", ".")
        and run("ruff format", "ruff", "format", "--check", "--quiet", ".")
        and run("imports", "python", "scripts/check_imports.py")
        and run("mypy", "mypy")
    )


def test(files: list[Path], until: float) -> bool:
    tests = tests_of(files)
    for at in range(0, len(tests), BATCH):
        if time.monotonic() > until:
            print(f"quick: no time for {len(tests) - at} of {len(tests)} test files: make test runs them")
            return True
        batch = [str(path) for path in tests[at : at + BATCH]]
        if not run(" ".join(batch), "pytest", "-q", "-x", "-n", "2", "-m", "not slow and not browser", *batch):
            return False
    return True


def simulate(files: list[Path]) -> bool:
    packages = {path.parts[2] for path in files if path.parts[:2] == ("src", "coterie") and len(path.parts) > 3}
    return all(
        run(
            f"{SEEDS[profile]} seeds of {profile}",
            "coterie",
            "sim",
            "run",
            "--profile",
            profile,
            "--seeds",
            str(SEEDS[profile]),
        )
        for profile, runs in PROFILES.items()
        if packages & {*runs, "sim"}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", metavar="REV", help="what changed since (default: the last commit)")
    parser.add_argument(
        "--seconds", type=float, default=60, metavar="S", help="for lint, types and tests (default: 60)"
    )
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    files = changed(options.base) or changed("HEAD~1")
    print(f"quick: {len(files)} Python files have changed", flush=True)
    return 0 if lint() and test(files, until) and simulate(files) else 1


if __name__ == "__main__":
    sys.exit(main())
