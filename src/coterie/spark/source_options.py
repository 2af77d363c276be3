"""What a source was told: which queues, from where on, how much at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coterie import patterns
from coterie.errors import UserError
from coterie.spark.options import LOGIN, Login, Options, Server, login, servers
from coterie.streams.arrow import chosen
from coterie.streams.client import Client

PORTS: Final = {"http": 15672, "https": 15671}
KNOWN: Final = (
    *LOGIN, "queue", "queues", "queuePattern", "startingPositions", "endingPositions", "leaseName", "queryName",
    "maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "idleWait",
    "minPartitions", "maxRowsPerPartition", "failOnDataLoss", "columns",
    "connectTimeout",
)  # fmt: skip
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NAME_MAX: Final = 200
Positions = str | dict[str, int]
"""`earliest`, `latest`, or a position for each queue."""


@dataclass(frozen=True)
class SourceOptions:
    """Raises UserError when it is made of something else."""

    servers: tuple[Server, ...]
    login: Login
    vhost: str
    queues: tuple[str, ...]
    """By name; none: by the pattern."""
    pattern: str | None
    starting: Positions
    ending: Positions
    lease: str
    query: str
    """What a lease is named after that has no name of its own."""
    max_rows: int | None
    max_bytes: int | None
    min_rows: int
    """A batch waits for so many, but not longer than `delay`."""
    delay: float
    idle_wait: float
    """Seconds that a broker waits with its answer while it has nothing for us."""
    min_partitions: int
    max_rows_per_partition: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    patience: float

    @staticmethod
    def of(given: Mapping[str, str]) -> SourceOptions:
        options = Options(given, KNOWN)
        queues, pattern = _queues(options)
        if "maxRowsPerTrigger" in options and options.whole("minRowsPerTrigger", 0, 0) > options.whole(
            "maxRowsPerTrigger", 0
        ):
            raise UserError("option minRowsPerTrigger: it is more than maxRowsPerTrigger")
        return SourceOptions(
            servers(options, PORTS), login(options), options.text("vhost", "/"), queues, pattern,
            _positions(options, "startingPositions", EARLIEST, (EARLIEST, LATEST)),
            _positions(options, "endingPositions", LATEST, (LATEST,)), _lease(options),
            options.text("queryName"),
            options.whole("maxRowsPerTrigger", 0) if "maxRowsPerTrigger" in options else None,
            options.whole("maxBytesPerTrigger", 0) if "maxBytesPerTrigger" in options else None,
            options.whole("minRowsPerTrigger", 0, 0), options.seconds("maxTriggerDelay", "15m"),
            options.seconds("idleWait", "1s"), options.whole("minPartitions", 1),
            options.whole("maxRowsPerPartition", 100_000),
            options.flag("failOnDataLoss", True), _columns(options),
            options.seconds("connectTimeout", "60s"),
        )  # fmt: skip

    def client(self) -> Client:
        """To be closed by whoever asks for it."""
        secure = self.servers[0].scheme == "https"
        return Client(
            [str(server) for server in self.servers], self.login.user, self.login.secret(), self.vhost,
            context=self.login.context() if secure else None, patience=self.patience,
        )  # fmt: skip


def _queues(options: Options) -> tuple[tuple[str, ...], str | None]:
    ways = [name for name in ("queue", "queues", "queuePattern") if name in options]
    if len(ways) != 1:
        told = f"not {' and '.join(ways)}" if ways else "none is there"
        raise UserError(f"one of the options queue, queues and queuePattern is due, {told}")
    if ways == ["queuePattern"]:
        pattern = options.text("queuePattern")
        try:
            patterns.check(pattern, patterns.ASKED_MAX)
        except UserError as error:
            raise UserError(f"option queuePattern: {error}") from None
        return (), pattern
    text = options.text(ways[0])
    found = (text,) if ways == ["queue"] else tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise UserError(f"option {ways[0]}: a queue has a name")
    return found, None


def _columns(options: Options) -> tuple[str, ...]:
    try:
        return chosen([*filter(None, (name.strip() for name in options.text("columns").split(",")))])
    except UserError as error:
        raise UserError(f"option {error}") from None


def _positions(options: Options, name: str, default: str, words: tuple[str, ...]) -> Positions:
    text = options.text(name, default)
    if text in words:
        return text
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(value) is int and value >= 0 for value in found.values()):
        raise UserError(f"option {name}: {' or '.join(words)} is due, or positions as {{\"QUEUE\": 17}}, not '{text}'")
    return found


def _lease(options: Options) -> str:
    name = options.text("leaseName")
    if len(name.encode()) > NAME_MAX or ("leaseName" in options and not name):
        raise UserError(f"option leaseName: a name with 1 to {NAME_MAX} bytes is due")
    return name
