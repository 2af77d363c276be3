"""The machine that a page was measured on, as far as figures depend on it; nothing that names it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from coterie.bench import broker_disk


def machine(data: Path | None) -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    written = broker_disk.written(1, 1024, 1.0, data)
    return {
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "disk": f"{written * 1024 / 1e6:,.0f} MB/s appended, with a sync for each MB",
        "system": f"{_system()}, Linux {platform.release().partition('-')[0]}",
        "Python": f"{platform.python_version()}",
        "load before it began": f"{os.getloadavg()[0]:.2f}",
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()
