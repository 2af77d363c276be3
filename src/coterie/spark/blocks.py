"""Numbers lines within the blocks of files that a Spark task is given, across the batches that they come in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from coterie.spark.rows import segments


class Blocks:
    """What is known of the block that the lines are in just now, and of those before it."""

    def __init__(self) -> None:
        self._block: tuple[str, int] | None = None
        """Its file, and where in it the block begins, in bytes."""
        self._lines = 0
        self._over: list[tuple[str, int, int]] = []

    def places(self, file: pa.Array, block: pa.Array) -> pa.Array:
        """For the next lines, whose files and blocks these are: where the block begins plus the number of the line."""
        begins = block.to_numpy()
        found = begins.copy()
        for start, stop in segments(file, block):
            self._enter(file[start].as_py(), int(begins[start]))
            found[start:stop] += np.arange(self._lines, self._lines + stop - start)
            self._lines += stop - start
        return pa.array(found, pa.int64())

    def _enter(self, file: str, begin: int) -> None:
        if self._block != (file, begin):
            self._leave()
            self._block = file, begin

    def _leave(self) -> None:
        if self._block is not None:
            self._over.append((*self._block, self._lines))
        self._block, self._lines = None, 0

    def finished(self, all: bool = False) -> list[tuple[str, int, int]]:
        """File, begin and number of lines of the blocks that are over since this was asked; `all`: no lines follow."""
        if all:
            self._leave()
        over, self._over = self._over, []
        return over
