"""Small writes that the kernel does by itself: Linux's io_uring, by its system calls.

A thread that writes for the loop has to wait for the interpreter before and after it, and the loop for the thread: at a
few hundred writes a second that costs more than everything else a broker does. The kernel needs neither: a write is
described in memory that is shared with it, done on a thread of the kernel's own, and its end wakes the loop like data
on a socket. What is to be written is copied to a fixed place first, so that nobody has to keep it.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Self

from coterie.runtime.base import Buffer

SLOTS = 4
"""Writes at a time."""
SLOT_BYTES = 1 << 20
"""The most that one write takes."""

RETRY = 0.005
"""Seconds until what the kernel did not take is handed over again."""

_SETUP, _ENTER, _REGISTER = 425, 426, 427
"""Numbers of the system calls: the same on every machine that Python runs on under Linux, but for Alpha."""
_REGISTER_EVENTFD = 4
_SINGLE_MMAP = 1
_OFFSET_OF_RINGS, _OFFSET_OF_ENTRIES = 0, 0x10000000

_PARAMS = struct.Struct("=2I12xI16x40s40s")
"""What the kernel says of a new ring: entries of both queues, features, and where in the shared memory things are."""
_SQ_OFFSETS = struct.Struct("=7I")
"""head, tail, ring_mask, ring_entries, flags, dropped, array"""
_CQ_OFFSETS = struct.Struct("=6I")
"""head, tail, ring_mask, ring_entries, overflow, cqes"""
_ENTRY = struct.Struct("=BB2xiQQIIQ24x")
"""opcode, flags, (priority), file, offset, address, length, flags of the operation, what we call it"""
_RESULT = struct.Struct("=QiI")
_WORD = struct.Struct("=I")

_OP_WRITE, _OP_SYNC = 23, 3
_DRAIN, _LINKED, _ASYNC = 1 << 1, 1 << 2, 1 << 4
"""Flags of an entry: it waits for all earlier ones; the next one waits for this one, and fails with it; never try it on
the caller's thread."""
_ONLY_DATA = 1
"""A sync of what is needed to read the data again, and of no more."""
_SYNC_BIT = 1 << 8
"""In what we call an operation, beside its slot: it is the sync behind a write."""

Done = Callable[[int, int, int], None]
"""Told how many bytes there were, what the write came to (bytes, or the number of the error below 0), and the sync
(0, or the same)."""


class Ring:
    """Of one loop. Everything is called on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where there is no such thing, or it may not be used."""
        self._call = _system_calls()
        params = ctypes.create_string_buffer(120)
        self._fd = self._call(_SETUP, 2 * SLOTS, ctypes.addressof(params))
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._map(params.raw)
            event = ctypes.c_int(self._event)
            self._call(_REGISTER, self._fd, _REGISTER_EVENTFD, ctypes.addressof(event), 1)
        except OSError:
            os.close(self._event)
            os.close(self._fd)
            raise
        self._memory = mmap.mmap(-1, SLOTS * SLOT_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._free = list(range(SLOTS))
        self._doing: dict[int, tuple[Done, int, bool]] = {}
        """By slot: whom to tell, how many bytes are written, and whether a sync follows."""
        self._written: dict[int, int] = {}
        """By slot: what a write came to whose sync has not ended."""
        self._owed = 0
        """Operations that the kernel has not taken yet."""
        self._loop = loop
        loop.add_reader(self._event, self._look)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Self | None:
        """One, or None where there can be none: not Linux, an old kernel, a container that forbids it."""
        try:
            return cls(loop)
        except (OSError, NotImplementedError):
            return None

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int, sync: bool, done: Done) -> bool:
        """Write them there, with these flags of pwritev2, and then sync the file's data if asked to. False: that cannot
        be taken now, or never, being too large."""
        if not self._free:
            return False
        data = b"".join(buffers)
        size = len(data)
        if not 0 < size <= SLOT_BYTES:
            return False
        slot = self._free.pop()
        start = slot * SLOT_BYTES
        self._memory[start : start + size] = data
        self._doing[slot] = done, size, sync
        link = _LINKED if sync else 0
        self._put(_OP_WRITE, _ASYNC | link, fd, offset, self._address + start, size, flags, slot)
        if sync:
            self._put(_OP_SYNC, _ASYNC, fd, 0, 0, 0, _ONLY_DATA, slot | _SYNC_BIT)
        self._owed += 1 + sync
        self._submit()
        return True

    def close(self) -> None:
        """Nothing is being written any more."""
        self._loop.remove_reader(self._event)
        for shared in (self._rings, self._entries):
            shared.close()
        os.close(self._fd)
        os.close(self._event)

    def _map(self, params: bytes) -> None:
        entries, results, features, sq, cq = _PARAMS.unpack_from(params)
        if not features & _SINGLE_MMAP:
            raise NotImplementedError("a kernel that maps the two queues apart")
        _, self._sq_tail, sq_mask, _, _, _, sq_array = _SQ_OFFSETS.unpack_from(sq)
        self._cq_head, self._cq_tail, cq_mask, _, _, self._cq_results = _CQ_OFFSETS.unpack_from(cq)
        size = max(sq_array + entries * _WORD.size, self._cq_results + results * _RESULT.size)
        self._rings = mmap.mmap(self._fd, size, offset=_OFFSET_OF_RINGS)
        self._entries = mmap.mmap(self._fd, entries * _ENTRY.size, offset=_OFFSET_OF_ENTRIES)
        (self._sq_mask,) = _WORD.unpack_from(self._rings, sq_mask)
        (self._cq_mask,) = _WORD.unpack_from(self._rings, cq_mask)
        for place in range(entries):  # entries are always used in the order in which they lie
            _WORD.pack_into(self._rings, sq_array + place * _WORD.size, place)

    def _submit(self) -> None:
        """Hand over what was put. A kernel that is short of memory takes only a part, or nothing: again in a moment."""
        try:
            self._owed -= self._call(_ENTER, self._fd, self._owed, 0, 0, 0, 0)
        except OSError:
            pass
        if self._owed:
            (tail,) = _WORD.unpack_from(self._rings, self._sq_tail)
            first = ((tail - self._owed) & self._sq_mask) * _ENTRY.size
            if self._entries[first] == _OP_SYNC:  # its write went without it: no link holds it back any more
                self._entries[first + 1] |= _DRAIN
            self._loop.call_later(RETRY, self._retry)

    def _retry(self) -> None:
        if self._owed and not self._rings.closed:
            self._submit()

    def _put(self, *entry: int) -> None:
        """One more operation. The kernel looks at it in the system call that follows, on this very thread."""
        (tail,) = _WORD.unpack_from(self._rings, self._sq_tail)
        _ENTRY.pack_into(self._entries, (tail & self._sq_mask) * _ENTRY.size, *entry)
        _WORD.pack_into(self._rings, self._sq_tail, (tail + 1) & 0xFFFFFFFF)

    def _look(self) -> None:
        """Something has ended."""
        os.eventfd_read(self._event)
        ended = []
        (head,) = _WORD.unpack_from(self._rings, self._cq_head)
        (tail,) = _WORD.unpack_from(self._rings, self._cq_tail)
        while head != tail:
            name, result, _ = _RESULT.unpack_from(self._rings, self._cq_results + (head & self._cq_mask) * _RESULT.size)
            head = (head + 1) & 0xFFFFFFFF
            slot = name & ~_SYNC_BIT
            done, size, sync = self._doing[slot]
            if sync and not name & _SYNC_BIT:
                self._written[slot] = result
                continue
            ended.append((done, size, *((self._written.pop(slot), result) if sync else (result, 0))))
            del self._doing[slot]
            self._free.append(slot)
        _WORD.pack_into(self._rings, self._cq_head, head)
        for done, size, written, synced in ended:
            done(size, written, synced)


def _system_calls() -> Callable[..., int]:
    """System calls by number; the interpreter is not given up for them, for none of ours waits for anything."""
    if sys.platform != "linux":
        raise NotImplementedError("io_uring is Linux's")
    raw = ctypes.PyDLL(None, use_errno=True).syscall
    raw.restype = ctypes.c_long

    def call(number: int, *args: int) -> int:
        result: int = raw(ctypes.c_long(number), *map(ctypes.c_long, args))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    return call
