"""The runtime of real nodes: asyncio (uvloop where it exists), real sockets, real files."""

from __future__ import annotations

from coterie.runtime.aio.loop import AioRuntime, run
from coterie.runtime.aio.tracefile import FileTracer, Segments, open_trace

__all__ = ["AioRuntime", "FileTracer", "Segments", "open_trace", "run"]
