"""What is not installed with the package alone: asked for before it is used, and named with the extra that has it."""

from __future__ import annotations

import importlib.util

from coterie.errors import UserError


def need(*modules: str, extra: str) -> None:
    """Raise UserError if one of these modules is not installed."""
    if missing := [module for module in modules if not _installed(module)]:
        raise UserError(f"this needs {', '.join(missing)}: pip install 'coterie[{extra}]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
