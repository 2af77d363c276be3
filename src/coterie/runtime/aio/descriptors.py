"""How many files and sockets the process may have open.

Strangers get places before they log in, at each port so many. If the process has fewer descriptors than these, they
take the last one, and then nobody is let in, probes included. What a shell gives by default (often 1024) is less: a
node takes as many as the system lets it.
"""

from __future__ import annotations

try:
    import resource
except ImportError:  # not a Unix system
    resource = None  # type: ignore[assignment]

ENOUGH = 1 << 20
"""More are of no use, and a limit of "infinity" is refused by some systems."""


def raise_limit() -> None:
    """To what the system lets this process have."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # the limit stays what it is; `coterie doctor` says if that is too low
            pass


def limit() -> int | None:
    """None: there is none, or nobody can tell."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
