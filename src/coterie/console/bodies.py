"""Bodies of requests: how long one may be, how long it may take to come, and what it may unfold to.

Nothing is unpacked before somebody has logged in. What is packed is unpacked away from the loop, up to a size; what is
long is parsed away from it too. Python's parser keeps the interpreter meanwhile, so that what it would take long for,
a body of countless small values, is refused.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from math import isfinite
from typing import Final

from aiohttp import web

from coterie.console.listing import Shape
from coterie.console.refusals import Refused, bad

LOGIN_MAX: Final = 4096
"""Bytes of a body before a login: a name and a password."""
USUAL_MAX: Final = 1 << 20
"""Bytes of most bodies; a message and definitions may be longer (body_max)."""
VALUES_MAX: Final = 500_000
"""Commas and brackets of a body."""
_LONG: Final = 64 << 10
"""Bytes that are parsed away from the loop."""
_WINDOWS: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


def too_large(most: int) -> Refused:
    return Refused(413, "too_large", f"the body may have {most} bytes")


async def read(request: web.Request, most: int, seconds: float, packed: bool) -> bytes:
    """Raises Refused."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity" and not (packed and encoding in _WINDOWS):
        known = "gzip or deflate, or none" if packed else "none before a login"
        raise Refused(415, "unsupported_media_type", f"Content-Encoding: {known}, not {encoding[:40]!r}")
    if request.content_length is not None and request.content_length > most:
        raise too_large(most)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > most:
                    raise too_large(most)
    except TimeoutError:
        raise Refused(408, "timeout", f"the body has not come within {seconds:g} s") from None
    except (ConnectionError, web.RequestPayloadError) as error:
        raise bad(f"the body has not come as it was announced: {error}") from None
    if encoding == "identity":
        return bytes(data)
    return await asyncio.get_running_loop().run_in_executor(None, unpacked, bytes(data), _WINDOWS[encoding], most)


def unpacked(data: bytes, window: int, most: int) -> bytes:
    unpack = zlib.decompressobj(window)
    try:
        found = unpack.decompress(data, most + 1)
    except zlib.error as error:
        raise bad(f"the body is not packed as it says: {error}") from None
    if len(found) > most:
        raise too_large(most)
    if not unpack.eof or unpack.unused_data:
        raise bad("the body is not packed as it says: it ends in the middle, or does not end there")
    return found


async def parse(data: bytes) -> Shape:
    """A JSON object, or nothing at all, which is an empty one. Raises Refused."""
    if len(data) <= _LONG:
        return parsed(data)
    return await asyncio.get_running_loop().run_in_executor(None, parsed, data)


def parsed(data: bytes) -> Shape:
    values = sum(map(data.count, (b",", b"[", b"{")))
    if values > VALUES_MAX:
        raise bad(f"the body has {values} commas and brackets, at most {VALUES_MAX}: send less, or texts in base64")
    try:
        text = data.decode()
        found = json.loads(text, parse_float=_finite, parse_constant=_finite) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise bad("the body must be a JSON object")
    return found


def _finite(text: str) -> float:
    """A number that JSON can write again: Python reads NaN and Infinity too."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:40]} is no number of JSON")
    return value
