"""What Debian has: packages are installed if they are missing and that can be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")


def missing(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if not version(name)]


def version(package: str) -> str:
    """Of what is installed; empty: it is not, or this is no Debian."""
    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    status, _, found = done.stdout.partition(" ")
    return found if status == "installed" else ""


def install(packages: Sequence[str]) -> str:
    """Empty, or why they are not there."""
    if not missing(packages):
        return ""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"{', '.join(missing(packages))}: not installed, and there is no apt-get or no root to do it"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for command in (
            ["apt-get", "-qq", "update"],
            ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *packages],
        ):
            subprocess.run(command, env=environment, capture_output=True, check=False)
    left = missing(packages)
    return f"{', '.join(left)}: apt-get could not install it" if left else ""


@contextmanager
def _no_services() -> Iterator[None]:
    """Services that would be started along with their packages are not wanted."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
