"""The runtime: everything that protocol, broker and cluster code may know of the outside world.

No such code opens a socket or a file, reads a clock, sleeps, starts a thread or draws an unseeded random number.
It is given a `Runtime`. There are two: `coterie.runtime.aio` (asyncio with uvloop, real sockets and files) and
`coterie.sim` (virtual time, seeded faults). The same objects run under both, and nothing runs concurrently:
every callback is called from one loop, one at a time.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from coterie.trace import Tracer

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Timer(Protocol):
    """A call that has not happened yet."""

    def cancel(self) -> None: ...


class Future(Awaitable[T], Protocol[T]):
    """A value that is not known yet; asyncio's own futures have this shape."""

    def done(self) -> bool: ...
    def set_result(self, result: T, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


def resolve(future: Future[T], result: T) -> None:
    """For callbacks: whoever waited may be gone by now, as a task that is cancelled cancels what it waits for."""
    if not future.done():
        future.set_result(result)


class Endpoint(NamedTuple):
    """Where a socket is bound or reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CloseReason(Enum):
    """Why a stream ended, as far as this side can know."""

    LOCAL = "closed by this side"
    EOF = "closed by the peer"
    RESET = "reset by the peer's host"
    REFUSED = "refused by the peer's host"
    TIMEOUT = "no answer"
    UNTRUSTED = "no certificate that this side trusts, or none of this side's that the peer trusts"
    ERROR = "broken"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Streams are TLS. Members of a group each show the other a certificate that the same authority has signed; of
    clients less may be asked."""

    cert: str
    """File with this side's certificate, and those between it and the authority if there are any."""
    key: str
    """File with its private key."""
    ca: str
    """File with the authority's certificate; may be empty if nobody is verified. Names are not looked at: members are
    addressed by numbers."""
    timeout: float
    """Seconds that the handshake of an accepted stream may take; a dialled one's is part of the dial."""
    handshakes_max: int
    """Accepted streams whose handshake may be under way at one time."""
    verify: Literal["required", "optional", "none"] = "required"
    """Whether an accepted stream's peer must show a certificate, may, or is not asked. One that is shown must be
    good."""
    version: Literal["1.2", "1.3"] = "1.3"
    """The oldest TLS that is spoken."""
    hostname: str = ""
    """Of a dialled peer: its certificate must be for that name, or address; empty: names are not looked at. Such a
    stream may have no certificate of its own, and without `ca` the machine's authorities are trusted."""


@dataclass(frozen=True, slots=True)
class KeyTls:
    """Streams are TLS 1.3 between processes that have the same key, which each proves to the other: by a certificate of
    an authority that is made of the key. Nobody else is let in."""

    key: bytes = field(repr=False)
    """32 bytes."""
    timeout: float
    """As of a TlsConfig."""
    handshakes_max: int


StreamTls = TlsConfig | KeyTls


class Stream(ABC):
    """A connected, ordered byte stream."""

    peer: Endpoint
    subject: tuple[tuple[str, str], ...] = ()
    """Of the peer's certificate, once the stream is connected: names and values, if it showed one that is trusted."""

    @property
    @abstractmethod
    def buffered(self) -> int:
        """Bytes written here that the operating system has not taken yet."""

    @abstractmethod
    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers one after the other. They must not be changed afterwards. Ignored once closed."""

    @abstractmethod
    def pause_reading(self) -> None: ...

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Send what is buffered, then close. The handler's `closed` follows."""

    @abstractmethod
    def abort(self) -> None:
        """Close now and drop what is buffered. The handler's `closed` follows."""


class StreamHandler(ABC):
    """The owner of one stream. Exactly one `closed` ends it, also when it never connected."""

    @abstractmethod
    def connected(self, stream: Stream) -> None: ...

    @abstractmethod
    def received(self, data: Buffer) -> None:
        """Some bytes arrived. The buffer is the handler's to keep: the runtime never writes to it again."""

    @abstractmethod
    def closed(self, reason: CloseReason) -> None: ...

    def drained(self) -> None:
        """The write buffer has fallen under its low mark again."""


class Listener(ABC):
    endpoint: Endpoint

    @abstractmethod
    def close(self) -> None: ...


class DatagramHandler(ABC):
    @abstractmethod
    def datagram(self, data: Buffer, source: Endpoint) -> None: ...


class Datagrams(ABC):
    """A bound datagram socket."""

    endpoint: Endpoint

    @abstractmethod
    def send(self, buffers: Sequence[Buffer], to: Endpoint) -> None:
        """Send one datagram. It may be lost, also here, if the socket's buffer is full."""

    @abstractmethod
    def close(self) -> None: ...


class Network(ABC):
    """The sockets of one node. What cannot be bound raises UserError at once."""

    @abstractmethod
    def listen(
        self,
        endpoint: Endpoint,
        accept: Callable[[], StreamHandler],
        tls: StreamTls | None = None,
        admits: Callable[[str], bool] | None = None,
    ) -> Listener:
        """Accept streams; port 0 picks a free one, which `Listener.endpoint` tells. TLS files that are no good raise
        UserError. `admits`: whether one may come from that numeric host; if not, it is closed before a byte is read."""

    @abstractmethod
    def connect(self, endpoint: Endpoint, handler: StreamHandler, timeout: float, tls: StreamTls | None = None) -> None:
        """Dial. The outcome is `handler.connected` or `handler.closed`; with TLS, after its handshake."""

    @abstractmethod
    def datagrams(
        self, endpoint: Endpoint, handler: DatagramHandler, multicast: Endpoint | None = None, ttl: int = 0
    ) -> Datagrams:
        """Bind a datagram socket. With `multicast` it also receives what is sent to that group."""

    @abstractmethod
    def resolve(self, host: str, done: Callable[[Sequence[str]], None]) -> None:
        """The addresses behind a DNS name, sorted; none if it cannot be resolved."""


class Disk(ABC):
    """The files of one node, by relative name. Nothing is durable before `sync` of that file has completed.

    Each call has a completion, which is given the result or the `DiskError`; completions of one file come in the order
    of the calls. `list`, `remove` and `replace` are durable when they complete.
    """

    @abstractmethod
    def append(self, name: str, buffers: Sequence[Buffer], done: Callable[[int | Exception], None]) -> None:
        """Write at the end, creating the file if need be; gives the offset at which the data begins."""

    @abstractmethod
    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    @abstractmethod
    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None: ...

    @abstractmethod
    def truncate(self, name: str, size: int, done: Callable[[Exception | None], None]) -> None: ...

    @abstractmethod
    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        """Rename over `new` in one step."""

    @abstractmethod
    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None: ...

    @abstractmethod
    def list(self, done: Callable[[dict[str, int] | Exception], None]) -> None:
        """Every file with its size, by name."""


class Runtime(ABC):
    """One node's outside world."""

    node: str
    rng: random.Random
    net: Network
    disk: Disk
    trace: Tracer
    hash_cost: int = 14
    """The logarithm of the steps that hashing a password takes: few where nobody guesses, as in a simulator."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on a clock that never goes back. Its zero means nothing."""

    @abstractmethod
    def wall(self) -> float:
        """Seconds since 1970 by this node's own, possibly wrong, clock: for people and logs, never for decisions."""

    @abstractmethod
    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Call once this turn of the loop is over."""

    @abstractmethod
    def call_later(self, delay: float, call: Callable[..., object], *args: object) -> Timer: ...

    @abstractmethod
    def entropy(self, size: int) -> bytes:
        """Bytes fit for secrets and identities."""

    def memory(self) -> int:
        """Bytes that the whole process has in memory; 0: nobody knows, as in a simulator, or as a guest in another
        program, whose memory says nothing about this node."""
        return 0

    def give_back(self) -> None:
        """Let the operating system have what is free."""

    @abstractmethod
    def offload(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run blocking or heavy work away from the loop, then `done` with its result or exception on the loop."""

    @abstractmethod
    def future(self) -> Future[Any]: ...

    @abstractmethod
    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine that awaits only futures of this runtime."""
