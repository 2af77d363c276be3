"""Mutations: one line of the real protocol removed or inverted, to show that the properties notice.

A mutation is applied while its module is being imported, so that product code has no hooks for it. It therefore needs a
process in which the module has not been imported yet. `old` occurs exactly once in the module's source.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

import coterie
from coterie.errors import UserError
from coterie.settings import suggest
from coterie.sim.mutants import MUTATIONS, Mutation

__all__ = ["MUTATIONS", "Mutation", "check", "find", "install", "mutate", "source_of"]


def find(name: str) -> Mutation:
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if name not in known:
        raise UserError(f"there is no mutation '{name}'{suggest(name, known)}")
    return known[name]


def source_of(mutation: Mutation) -> str:
    """The source of the module that it changes, as it is on disk. Imports nothing, not even the module's package."""
    root, *names = mutation.module.split(".")
    assert root == coterie.__name__
    path = Path(coterie.__file__).parent.joinpath(*names).with_suffix(".py")
    if not path.is_file():
        raise UserError(f"mutation '{mutation.name}': there is no source of {mutation.module}")
    return path.read_text(encoding="utf-8")


def mutate(mutation: Mutation, source: str) -> str:
    """The changed source. Raises UserError if the line is not there, or not only once."""
    times = source.count(mutation.old)
    if times != 1:
        raise UserError(f"mutation '{mutation.name}': its text occurs {times} times in {mutation.module}, not once")
    return source.replace(mutation.old, mutation.new)


def check(mutation: Mutation) -> None:
    """Raises UserError if the mutation does not fit its module."""
    mutate(mutation, source_of(mutation))


class _Loader(SourceFileLoader):
    """Compiles the changed source, past the cache of compiled modules."""

    def __init__(self, mutation: Mutation, path: str) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> types.CodeType:
        source = mutate(self._mutation, self.get_source(fullname) or "")
        return compile(source, self.get_filename(fullname), "exec", dont_inherit=True)


@dataclass(slots=True)
class _Finder(importlib.abc.MetaPathFinder):
    mutation: Mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(self.mutation, spec.origin), origin=spec.origin)


def install(mutation: Mutation) -> None:
    """From now on the module is imported with its change. Too late once it has been imported without it."""
    check(mutation)
    if mutation.module in sys.modules:
        raise UserError(f"mutation '{mutation.name}': {mutation.module} is imported already; use a fresh process")
    sys.meta_path.insert(0, _Finder(mutation))
